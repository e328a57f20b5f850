"""Disks, shared memory, quotas, open files, permissions."""

from __future__ import annotations

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.rules.figures import SIZE
from prefect_heteroflow.core.rules.model import Role, Rule

_ENOSPC = (
    r"[Nn]o space left on device|\[Errno 28\]|ENOSPC|errno(?:=|: ?| )28\b|No usable temporary directory"
    r"|disk (?:is )?full|[Nn]ot enough (?:free )?(?:disk )?space|error code: 28\b"
    r"|There is not enough space on the disk|database or disk is full|StorageFull"
)
_ENOSPC_GATES = (
    "o space left on device", "[Errno 28]", "ENOSPC", "errno=28", "errno: 28", "errno:28", "errno 28", "usable temporary", "isk full",
    "isk is full", "ot enough space", "ot enough free", "ot enough disk", "code: 28", "StorageFull",
)  # fmt: skip

RULES: tuple[Rule, ...] = (
    Rule(
        id="shared-memory-full",
        failure=FailureClass.SHARED_MEMORY_EXHAUSTED,
        pattern=rf"{_ENOSPC}|/dev/shm.{{0,120}}(?:full|too small|exhausted|insufficient|Cannot allocate)",
        gates=(*_ENOSPC_GATES, "/dev/shm"),
        context=r"/dev/shm|shm_open|sem_open|SemLock|_rlock|_wlock|shared memory|multiprocessing/(?:queues|"
        r"synchronize|shared_memory|heap|context)|torch_shm|psm_|nccl-|shmutils|_multiprocessing\.",
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
        pattern=r"could not resize shared memory segment|failed to (?:extend|create|map) /dev/shm|Error while "
        r"creating shared memory segment|plasma store.{0,80}(?:out of memory|full)|shmget.{0,40}(?:failed|No "
        r"space|Invalid)",
        gates=(
            "resize shared memory",
            "/dev/shm",
            "shared memory segment",
            "plasma store",
            "shmget",
        ),
        sample="misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, "
        "error: No space left on device (28)",
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
        gates=_ENOSPC_GATES,
        unless=r"shm|UserWarning|torch_",
        sample="OSError: [Errno 28] No space left on device: '/scratch/checkpoint.pt'",
        near_miss="NCCL WARN Error while creating shared memory segment /dev/shm/nccl-1 (size 9637888), error: "
        "No space left on device (28)",
        framework="posix",
        sentence="A disk of the node is full.",
        confidence=0.9,
    ),
    Rule(
        id="disk-write-failed",
        failure=FailureClass.DISK_PRESSURE,
        pattern=r"PytorchStreamWriter failed writing|inline_container\.cc.{0,80}unexpected pos|[Dd]isk I/O error"
        r"|(?:file )?write failed: |[Uu]nable to (?:flush|extend) file|Can't (?:write|extend) (?:data|file)"
        r"|HDF5.{0,60}write failed|errno = 28",
        gates=(
            "PytorchStreamWriter failed",
            "inline_container.cc",
            "isk I/O error",
            "write failed",
            "nable to flush",
            "nable to extend",
            "Can't write",
            "Can't extend",
            "errno = 28",
        ),
        sample="RuntimeError: [enforce fail at inline_container.cc:445] . PytorchStreamWriter failed writing "
        "file data/176: file write failed",
        near_miss="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central "
        "directory",
        framework="pytorch, hdf5, sqlite",
        sentence="A file could not be written, most often because the disk is full.",
        confidence=0.65,
    ),
    Rule(
        id="file-system-lost",
        failure=FailureClass.NODE_LOST,
        pattern=r"[Ss]tale (?:NFS )?file handle|[Tt]ransport endpoint is not connected|\[Errno 5\]"
        r"|Input/output error|\bEIO\b|remounting filesystem read-only|\[Errno 1(?:07|16)\]|ESTALE",
        gates=(
            "tale file handle",
            "tale NFS file handle",
            "ransport endpoint",
            "[Errno 5]",
            "nput/output error",
            "EIO",
            "remounting filesystem",
            "[Errno 107]",
            "[Errno 116]",
            "ESTALE",
        ),
        sample="OSError: [Errno 116] Stale file handle: '/mnt/data/shard-3'",
        near_miss="FileNotFoundError: [Errno 2] No such file or directory: '/mnt/data/shard-3'",
        framework="posix",
        sentence="A disk or a network file system of the node stopped answering.",
        confidence=0.6,
    ),
    Rule(
        id="disk-quota",
        failure=FailureClass.RESOURCE_LIMIT_EXCEEDED,
        pattern=r"[Dd]isk quota exceeded|\[Errno 122\]|EDQUOT|errno(?:=|: ?| )122\b|[Qq]uota exceeded for"
        r"|Quota exceeded|storageQuotaExceeded|QuotaExceededException",
        gates=(
            "quota exceeded",
            "[Errno 122]",
            "EDQUOT",
            "errno=122",
            "errno: 122",
            "errno:122",
            "errno 122",
            "uota exceeded",
            "uotaExceeded",
        ),
        sample="OSError: [Errno 122] Disk quota exceeded",
        near_miss="OSError: [Errno 28] No space left on device",
        framework="posix, cloud",
        sentence="A quota is used up; it is the same on every node.",
        confidence=0.9,
    ),
    Rule(
        id="process-limits",
        failure=FailureClass.RESOURCE_LIMIT_EXCEEDED,
        pattern=r"[Tt]oo many open files|\[Errno 24\]|EMFILE|received 0 items of ancdata|can't start new thread"
        r"|Resource temporarily unavailable|pthread_create (?:failed|has failed|: )|\[Errno 11\]|[Tt]oo many "
        r"processes|[Ff]ile size limit exceeded|SIGXCPU|SIGXFSZ|failed to create new OS thread"
        r"|Cannot fork|pids limit|[Ff]ile too large",
        gates=(
            "oo many open files",
            "[Errno 24]",
            "EMFILE",
            "items of ancdata",
            "start new thread",
            "esource temporarily unavailable",
            "pthread_create ",
            "[Errno 11]",
            "oo many processes",
            "ile size limit",
            "SIGXCPU",
            "SIGXFSZ",
            "new OS thread",
            "annot fork",
            "pids limit",
            "ile too large",
        ),
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
        gates=("ead-only file", "[Errno 30]", "EROFS", "ReadOnlyFilesystem"),
        sample="OSError: [Errno 30] Read-only file system: '/root/.cache'",
        near_miss="INFO opened the database in read-only mode",
        framework="posix",
        sentence="The job writes to a place that is read-only.",
        confidence=0.85,
    ),
    Rule(
        id="permission-denied",
        failure=FailureClass.PERMISSION_DENIED,
        pattern=r"PermissionError\b|[Pp]ermission denied|EACCES|EPERM\b|\[Errno 13\]|Operation not permitted"
        r"|AccessDenied|Access Denied|access denied|\(AccessDenied(?:Exception)?\)|AccessDeniedException"
        r"|\(UnauthorizedOperation\)|\b403 (?:Forbidden|Client Error)|Forbidden: 403|GatedRepoError"
        r"|Permission .{1,60} denied on resource|InsufficientPermissions|PermissionDenied\b|AuthorizationFailure"
        r"|NoCredentialsError|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|Unable to locate credentials"
        r"|DefaultCredentialsError|AuthenticationError",
        gates=(
            "PermissionError",
            "ermission denied",
            "EACCES",
            "EPERM",
            "[Errno 13]",
            "not permitted",
            "AccessDenied",
            "ccess Denied",
            "access denied",
            "UnauthorizedOperation",
            "403 Forbidden",
            "403 Client",
            "Forbidden: 403",
            "GatedRepoError",
            "denied on resource",
            "InsufficientPermissions",
            "PermissionDenied",
            "AuthorizationFailure",
            "NoCredentialsError",
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "ExpiredToken",
            "locate credentials",
            "DefaultCredentialsError",
            "AuthenticationError",
        ),
        sample="PermissionError: [Errno 13] Permission denied: '/data/out'",
        near_miss="def test_permission_error(): pass",
        framework="posix, cloud",
        sentence="The job may not do this with the rights it has.",
        confidence=0.8,
    ),
)
