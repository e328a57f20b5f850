"""Disks, shared memory, quotas, open files, permissions."""

from __future__ import annotations

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.rules.figures import SIZE
from prefect_heteroflow.core.rules.model import Role, Rule

_ENOSPC = (
    r"[Nn]o space left on device|\[Errno 28\]|ENOSPC|errno(?:=|: ?| )28\b"
    r"|No usable temporary directory|disk (?:is )?full|[Nn]ot enough (?:free )?(?:disk )?space"
    r"|error code: 28\b|There is not enough space on the disk|database or disk is full"
    r"|StorageFull"
)
RULES: tuple[Rule, ...] = (
    Rule(
        id="shared-memory-full",
        failure=FailureClass.SHARED_MEMORY_EXHAUSTED,
        pattern=rf"{_ENOSPC}|/dev/shm.{{0,120}}(?:full|too small|exhausted|insufficient"
        rf"|Cannot allocate)",
        context=r"/dev/shm|shm_open|sem_open|SemLock|_rlock|_wlock|shared memory"
        r"|multiprocessing/(?:queues|synchronize|shared_memory|heap|context)|torch_shm"
        r"|psm_|nccl-|shmutils|_multiprocessing\.",
        unless=r"UserWarning",
        sample="    self._rlock = ctx.Lock()\nOSError: [Errno 28] No space left on device",
        near_miss='  File "train.py", line 3, in save\nOSError: [Errno 28] No space left on device',
        framework="multiprocessing, nccl, pytorch",
        sentence="Shared memory (`/dev/shm`) is full[: {requested} were asked for].",
        confidence=0.9,
        numbers=(rf"/dev/shm/\S{{1,80}} (?:to|\(size) (?P<requested>{SIZE})",),
    ),
    Rule(
        id="shared-memory-refused",
        failure=FailureClass.SHARED_MEMORY_EXHAUSTED,
        role=Role.FOLLOW_UP,
        pattern=r"could not resize shared memory segment|failed to (?:extend|create|map) /dev/shm"
        r"|Error while creating shared memory segment|plasma store.{0,80}(?:out of memory"
        r"|full)|shmget.{0,40}(?:failed|No space|Invalid)",
        sample="include/shm.h:48 NCCL WARN Error while creating shared memory segment "
        "/dev/shm/nccl-WU88OE (size 4460544)",
        near_miss="INFO mounted /dev/shm with 64 MiB",
        framework="nccl, postgres, ray",
        sentence="Shared memory (`/dev/shm`) is full[: {requested} were asked for].",
        confidence=0.92,
        numbers=(
            rf"/dev/shm/\S{{1,80}} (?:to|\(size) (?P<requested>{SIZE})",
            rf"to (?P<requested>{SIZE})",
        ),
    ),
    Rule(
        id="disk-full",
        failure=FailureClass.DISK_PRESSURE,
        pattern=_ENOSPC,
        unless=r"shm|UserWarning|torch_|inotify|file watchers",
        sample="OSError: [Errno 28] No space left on device: '/scratch/checkpoint.pt'",
        near_miss="NCCL WARN Error while creating shared memory segment /dev/shm/nccl-1 (size "
        "9637888), error: No space left on device (28)",
        framework="posix",
        sentence="A disk of the node is full.",
        confidence=0.9,
    ),
    Rule(
        id="disk-write-failed",
        failure=FailureClass.DISK_PRESSURE,
        pattern=r"PytorchStreamWriter failed writing|inline_container\.cc.{0,80}unexpected pos"
        r"|[Dd]isk I/O error|(?:file )?write failed: |[Uu]nable to (?:flush|extend) file"
        r"|Can't (?:write|extend) (?:data|file)|HDF5.{0,60}write failed|errno = 28",
        sample="RuntimeError: [enforce fail at inline_container.cc:445] . PytorchStreamWriter "
        "failed writing file data/176: file write failed",
        near_miss="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding "
        "central directory",
        framework="pytorch, hdf5, sqlite",
        sentence="A file could not be written, most often because the disk is full.",
        confidence=0.65,
    ),
    Rule(
        id="file-system-lost",
        failure=FailureClass.NODE_LOST,
        pattern=r"[Ss]tale (?:NFS )?file handle|[Tt]ransport endpoint is not connected|\[Errno 5\]"
        r"|Input/output error|remounting filesystem read-only|\[Errno 1(?:07|16)\]|ESTALE",
        sample="OSError: [Errno 116] Stale file handle: '/mnt/data/shard-3'",
        near_miss="FileNotFoundError: [Errno 2] No such file or directory: '/mnt/data/shard-3'",
        framework="posix",
        sentence="A disk or a network file system of the node stopped answering.",
        confidence=0.6,
    ),
    Rule(
        id="disk-quota",
        failure=FailureClass.RESOURCE_LIMIT_EXCEEDED,
        pattern=r"[Dd]isk quota exceeded|\[Errno 122\]|EDQUOT|errno(?:=|: ?| )122\b"
        r"|[Qq]uota exceeded for|Quota exceeded|storageQuotaExceeded"
        r"|QuotaExceededException",
        sample="OSError: [Errno 122] Disk quota exceeded",
        near_miss="OSError: [Errno 28] No space left on device",
        framework="posix, cloud",
        sentence="A quota is used up; it is the same on every node.",
        confidence=0.9,
    ),
    Rule(
        id="process-limits",
        failure=FailureClass.RESOURCE_LIMIT_EXCEEDED,
        pattern=r"inotify (?:watch|instance)|number of file watchers|"
        r"[Tt]oo many open files|\[Errno 24\]|EMFILE|received 0 items of ancdata"
        r"|can't start new thread|Resource temporarily unavailable"
        r"|pthread_create (?:failed|has failed|: )|\[Errno 11\]|[Tt]oo many processes"
        r"|[Ff]ile size limit exceeded|SIGXCPU|SIGXFSZ|failed to create new OS thread"
        r"|Cannot fork|pids limit|[Ff]ile too large",
        sample="OSError: [Errno 24] Too many open files: '/data/shard-0001.tar'",
        near_miss="INFO opened many files",
        framework="posix",
        sentence="A limit of open files, threads, processes or file size was reached.",
        confidence=0.85,
    ),
    Rule(
        id="read-only-file-system",
        failure=FailureClass.PERMISSION_DENIED,
        pattern=r"[Rr]ead-only file ?system|\[Errno 30\]|EROFS|ReadOnlyFilesystem",
        sample="OSError: [Errno 30] Read-only file system: '/root/.cache'",
        near_miss="INFO opened the database in read-only mode",
        framework="posix",
        sentence="The job writes to a place that is read-only.",
        confidence=0.85,
    ),
    Rule(
        id="permission-denied",
        failure=FailureClass.PERMISSION_DENIED,
        pattern=r"PermissionError\b|[Pp]ermission denied|EACCES|EPERM\b|\[Errno 13\]"
        r"|Operation not permitted|AccessDenied|Access Denied|access denied"
        r"|\(AccessDenied(?:Exception)?\)|AccessDeniedException|\(UnauthorizedOperation\)"
        r"|\b403 (?:Forbidden|Client Error)|Forbidden: 403|GatedRepoError"
        r"|Permission .{1,60} denied on resource|InsufficientPermissions"
        r"|PermissionDenied\b|AuthorizationFailure|NoCredentialsError|InvalidAccessKeyId"
        r"|SignatureDoesNotMatch|ExpiredToken|Unable to locate credentials"
        r"|DefaultCredentialsError|AuthenticationError|fatal: Authentication failed",
        sample="PermissionError: [Errno 13] Permission denied: '/data/out'",
        near_miss="def test_permission_error(): pass",
        framework="posix, cloud",
        sentence="The job may not do this with the rights it has.",
        confidence=0.8,
    ),
)
