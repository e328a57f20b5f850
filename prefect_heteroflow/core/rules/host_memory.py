"""Host memory: what libraries, language runtimes and worker pools print when there is no more."""

from __future__ import annotations

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.rules.figures import SIZE
from prefect_heteroflow.core.rules.model import Role, Rule

_CPU = FailureClass.CPU_OUT_OF_MEMORY

RULES: tuple[Rule, ...] = (
    Rule(
        id="numpy-unable-to-allocate",
        failure=_CPU,
        pattern=r"Unable to allocate .{0,40}(?:for an array with|array with) shape|ArrayMemoryError"
        r"|array is too big; `arr\.size",
        unless=r"array is too big",
        sample="numpy.core._exceptions._ArrayMemoryError: Unable to allocate 94.9 MiB for an "
        "array with shape (2160, 3840, 3) and data type float32",
        near_miss="ValueError: Unable to allocate a worker for this queue",
        framework="numpy, pandas",
        sentence="NumPy could not get memory of the host[ for an array of {requested}].",
        confidence=0.95,
        numbers=(rf"Unable to allocate (?P<requested>{SIZE}) for",),
    ),
    Rule(
        id="native-allocation-failed",
        failure=_CPU,
        pattern=r"\b(?:m|re|c)alloc of size \d{1,20} failed"
        r"|memory allocation of \d{1,20} bytes failed|ArrowMemoryError"
        r"|ggml_aligned_malloc: insufficient memory|(?:failed"
        r"|unable) to allocate CPU(?:_Mapped)? buffer"
        r"|Failed to allocate memory for requested buffer of size"
        r"|\bmalloc(?:\(\))?:? failed|cannot allocate \d{1,20} bytes"
        r"|out of memory allocating \d{1,20} bytes|virtual memory exhausted"
        r"|runtime: out of memory: cannot allocate"
        r"|fatal error: (?:runtime: )?out of memory|LLVM ERROR: out of memory|OutOfMemoryError\(\)$"
        r"|failed to allocate memory \(NoMemoryError\)"
        r"|Fortran runtime error: Allocation would exceed memory limit"
        r"|OpenBLAS.{0,30}Memory allocation|[Ii]nsufficient virtual memory"
        r"|not enough memory to (?:allocate|map)|tcmalloc: large alloc .{0,40}failed",
        unless=r"CUDA|cuda|GPU|VRAM",
        sample="memory allocation of 2181038096 bytes failed",
        near_miss="memory allocation of 12 slots finished",
        framework="rust, arrow, c, go, llama.cpp",
        sentence="A native library could not get memory of the host[: {requested} were asked for].",
        confidence=0.85,
        numbers=(
            rf"(?:alloc of size|allocation of|buffer of size|allocating) (?P<requested>{SIZE})",
            rf"cannot allocate (?P<requested>{SIZE})",
            rf"attempted to allocate (?P<requested>{SIZE})",
        ),
    ),
    Rule(
        id="cpp-bad-alloc",
        failure=_CPU,
        pattern=r"std::bad_alloc|St9bad_alloc|\bbad allocation\b|bad_array_new_length",
        unless=r"CUDA|cuda|rmm|RMM|out_of_memory|bad_array_new_length",
        sample="terminate called after throwing an instance of 'std::bad_alloc'",
        near_miss="MemoryError: std::bad_alloc: CUDA error at: cuda_memory_resource.hpp:69",
        framework="c++",
        sentence="A C++ library ran out of host memory.",
        confidence=0.85,
    ),
    Rule(
        id="python-memory-error",
        failure=_CPU,
        pattern=r"(?:^|[\s:\]|)])MemoryError\b(?!'|\")",
        unless=r"CUDA|cuda|rmm|RMM|out_of_memory|\bexcept\b|pytest|raises",
        sample="MemoryError",
        near_miss="except MemoryError:",
        framework="python",
        sentence="Python ran out of host memory.",
        confidence=0.85,
    ),
    Rule(
        id="enomem",
        failure=_CPU,
        pattern=r"\[Errno 12\]|Cannot allocate memory|errno(?:=|: ?| )12\b|ENOMEM"
        r"|error=12, (?:Cannot|Not enough)|\bNot enough memory resources are available"
        r"|\[WinError 1455\]|\bOs \{ code: 12,",
        unless=r"/torch_|/dev/shm",
        sample="OSError: [Errno 12] Cannot allocate memory",
        near_miss="OSError: [Errno 13] Permission denied",
        framework="posix",
        sentence="The operating system refused memory to the process (ENOMEM).",
        confidence=0.85,
        numbers=(
            rf"tried to allocate (?P<requested>{SIZE})",
            rf"mmap (?P<requested>{SIZE})",
        ),
    ),
    Rule(
        id="r-cannot-allocate",
        failure=_CPU,
        pattern=r"cannot allocate (?:vector|memory block|buffer) of (?:size|length)|vector memory "
        r"(?:exhausted|limit of)|memory exhausted \(limit reached",
        sample="Error: cannot allocate vector of size 4.5 Gb",
        near_miss="Error: cannot allocate a seat of size 4",
        framework="R",
        sentence="R ran out of host memory[: {requested} were asked for].",
        confidence=0.95,
        numbers=(rf"of size (?P<requested>{SIZE})", rf"limit of (?P<total>{SIZE})"),
    ),
    Rule(
        id="jvm-threads",
        failure=FailureClass.RESOURCE_LIMIT_EXCEEDED,
        pattern=r"OutOfMemoryError: unable to create (?:new )?native thread",
        sample="java.lang.OutOfMemoryError: unable to create native thread: possibly out of "
        "memory or process/resource limits reached",
        near_miss="java.lang.OutOfMemoryError: Java heap space",
        framework="jvm",
        sentence="The limit of processes and threads was reached.",
        confidence=0.8,
    ),
    Rule(
        id="jvm-heap",
        failure=_CPU,
        pattern=r"java\.lang\.OutOfMemoryError|OutOfMemoryError: (?:Java heap|GC overhead"
        r"|Metaspace|Direct buffer|Direct memory|Map failed|Compressed class"
        r"|Cannot reserve|Unable to acquire|Native)|SparkOutOfMemoryError"
        r"|insufficient memory for the Java Runtime"
        r"|Native memory allocation \(\w{1,12}\) failed"
        r"|Could not reserve enough space for"
        r"|Terminating due to java\.lang\.OutOfMemoryError|UNABLE_TO_ACQUIRE_MEMORY"
        r"|GC overhead limit exceeded",
        unless=r"unable to create (?:new )?native thread|Requested array size exceeds|-XX:",
        sample="java.lang.OutOfMemoryError: Java heap space",
        near_miss="java.lang.OutOfMemoryError: unable to create native thread",
        framework="jvm, spark",
        sentence="The Java heap, which has a size of its own, was full[: {requested} were asked "
        "for].",
        confidence=0.88,
        numbers=(rf"(?:failed to (?:map|allocate)|to acquire|allocate) (?P<requested>{SIZE})",),
    ),
    Rule(
        id="node-heap",
        failure=_CPU,
        pattern=r"JavaScript heap out of memory|ERR_WORKER_OUT_OF_MEMORY"
        r"|Array buffer allocation failed|Reached heap limit Allocation failed"
        r"|invalid table size Allocation failed"
        r"|WebAssembly\.Memory\(\): could not allocate"
        r"|CALL_AND_RETRY_LAST Allocation failed",
        sample="FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
        near_miss="FATAL ERROR: v8::ToLocalChecked Empty MaybeLocal",
        framework="node",
        sentence="The JavaScript heap, which has a size of its own, was full.",
        confidence=0.92,
    ),
    Rule(
        id="duckdb-out-of-memory",
        failure=_CPU,
        pattern=r"OutOfMemoryException|Out of Memory Error: |could not allocate block of size",
        sample="duckdb.duckdb.OutOfMemoryException: Out of Memory Error: failed to allocate data "
        "of size 128.0 MiB (2.8 GiB/2.9 GiB used)",
        near_miss="duckdb.duckdb.BinderException: Binder Error: column not found",
        framework="duckdb, .NET",
        sentence="The database engine ran out of memory[: {requested} were asked for][, its "
        "limit is {total}].",
        confidence=0.9,
        parser="duckdb",
    ),
    Rule(
        id="ray-memory-monitor",
        failure=_CPU,
        pattern=r"exceeds the memory usage threshold|RayOutOfMemoryError"
        r"|ray\.exceptions\.OutOfMemoryError|OutOfMemoryError: Task was killed"
        r"|killed due to (?:the node running low on )?memory (?:pressure)?"
        r"|due to the node running low on memory|More than \d{1,3}% of the memory on node"
        r"|ObjectStoreFullError",
        unless=r"systemd-oomd",
        sample="Memory on the node (IP: 10.0.0.1, ID: abc) where the task was running was "
        "59.49GB / 62.58GB (0.950744), which exceeds the memory usage threshold of 0.95.",
        near_miss="INFO memory usage threshold set to 0.95",
        framework="ray",
        sentence="Ray killed a worker because the node's memory was nearly full[: {own} of "
        "{total}].",
        confidence=0.92,
        numbers=(
            rf"was (?P<own>{SIZE}) / (?P<total>{SIZE})",
            rf"\((?P<own>{SIZE}) / (?P<total>{SIZE})\)",
        ),
    ),
    Rule(
        id="dask-own-memory-limit",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"exceeded 0% memory budget|memory_limit.{0,40}0%",
        sample="distributed.nanny - WARNING - Worker exceeded 0% memory budget. Restarting",
        near_miss="distributed.nanny - WARNING - Worker exceeded 95% memory budget. Restarting",
        framework="dask",
        sentence="The Dask worker's memory limit is set to nothing.",
        confidence=0.8,
    ),
    Rule(
        id="dask-memory-budget",
        failure=_CPU,
        pattern=r"exceeded [1-9]\d{0,2}% memory budget|exceeded [1-9]\d?% memory budget",
        sample="distributed.nanny - WARNING - Worker exceeded 95% memory budget. Restarting",
        near_miss="distributed.worker - WARNING - Memory use is high but worker has no data to "
        "store",
        framework="dask",
        sentence="A Dask worker used up its share of memory and was restarted.",
        confidence=0.88,
    ),
    Rule(
        id="ollama-system-memory",
        failure=_CPU,
        pattern=r"model requires more system memory"
        r"|llama runner process has terminated: signal: killed",
        sample="Error: model requires more system memory (9.7 GiB) than is available (7.1 GiB)",
        near_miss="Error: llama runner process has terminated: exit status 2",
        framework="ollama",
        sentence="The model needs more host memory[: {requested} wanted][, {free} available].",
        confidence=0.92,
        numbers=(
            rf"more system memory \((?P<requested>{SIZE})\)",
            rf"is available \((?P<free>{SIZE})\)",
        ),
    ),
    Rule(
        id="words-out-of-memory",
        failure=_CPU,
        pattern=r"^(?:[\w.]{0,80}(?:Error|Exception|ERROR|FATAL|Fatal|fatal|panic"
        r"|PANIC)[\w.]{0,40}:? .{0,120})?(?:[Oo]ut of memory|[Oo]ut of Memory"
        r"|OUT OF MEMORY|[Nn]ot enough memory|[Ii]nsufficient memory)",
        unless=r"CUDA|cuda|GPU|gpu|VRAM|[Dd]evice|HIP|shared memory",
        sample="Out of memory!",
        near_miss="see the section on what to do when out of memory",
        framework="perl, postgres, matlab and others",
        sentence="The program ran out of memory.",
        confidence=0.65,
    ),
    Rule(
        id="child-killed-sigkill",
        failure=_CPU,
        pattern=r"\b[Ss]ignal:? 9\b|[Ss]ignal:? ?\(?SIGKILL|"
        r"exit codes of the workers are \{[^}]{0,200}SIGKILL\(-9\)|exitcode {0,4}: -9\b"
        r"|\(exitcode: -9\)|Signal 9 \(SIGKILL\) received by"
        r"|died with <Signals\.SIGKILL: 9>|signal 9 \(SIGKILL\)|was sent SIGKILL"
        r"|return code (?:= )?-9\b|returned non-zero exit status -9\b|status code:? -9\b"
        r"|[Kk]illed by signal 9\b|terminated by signal SIGKILL"
        r"|terminated with signal (?:9|SIGKILL)|Killed signal terminated program"
        r"|ld terminated with signal 9|exited with (?:code|status) -9\b"
        r"|exit(?:ed)?[ _]?code:? -9\b|signal: 9, SIGKILL|exited on signal 9\b",
        sample="ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) "
        "local_rank: 0 (pid: 2410412) of binary: /usr/bin/python",
        near_miss="ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -15) "
        "local_rank: 0 (pid: 2410412) of binary: /usr/bin/python",
        framework="torchrun, joblib, deepspeed, celery, prefect",
        sentence="A child process was killed with SIGKILL, most often because host memory was "
        "full.",
        role=Role.FOLLOW_UP,
        confidence=0.6,
    ),
    Rule(
        id="child-crashed",
        failure=FailureClass.PROCESS_CRASHED,
        pattern=r"\b[Ss]ignal:? (?:4|6|7|8|11)\b|signal: (?:aborted|segmentation fault|bus error)|"
        r"exitcode {0,4}: -(?:4|6|7|8|11)\b|\(exitcode: -(?:4|6|7|8|11)\)|Signal (?:4|6|7"
        r"|8|11) \(SIG\w{3,5}\) received by|died with <Signals\.SIG(?:SEGV|ABRT|BUS|ILL"
        r"|FPE)|signal 11 \(SIGSEGV\)|signal 6 \(SIGABRT\)"
        r"|exit codes of the workers are \{[^}]{0,200}SIG(?:SEGV|ABRT|BUS)"
        r"|return code (?:= )?-(?:6|7|11)\b|status code:? -(?:6|7|11)\b"
        r"|terminated: signal: (?:aborted|segmentation fault)|exited on signal (?:4|6|7|8"
        r"|11)\b",
        sample="failed (exitcode: -11) local_rank: 1 (pid: 44) of binary: /usr/bin/python",
        near_miss="  traceback : Signal 15 (SIGTERM) received by PID 4103",
        framework="torchrun, joblib, deepspeed, celery, prefect",
        sentence="A child process crashed in native code.",
        role=Role.SUMMARY,
        confidence=0.7,
    ),
    Rule(
        id="worker-pool-broken",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"BrokenProcessPool|TerminatedWorkerError"
        r"|was unexpectedly terminated\. This could be|WorkerLostError|ProcessExpired"
        r"|KilledWorker|WorkerCrashedError"
        r"|The actor died because its worker process has died|worker process has died"
        r"|ActorDiedError|ExecutorLostFailure",
        sample="concurrent.futures.process.BrokenProcessPool: A process in the process pool was "
        "terminated abruptly while the future was running or pending.",
        near_miss="INFO the worker was terminated as planned",
        framework="concurrent.futures, joblib, dask, ray, celery, spark",
        sentence="A worker process ended abruptly; what ended it is not in the text.",
        role=Role.SUMMARY,
        confidence=0.3,
    ),
)
