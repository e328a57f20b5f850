"""Uncaught exceptions, panics, crashes by signal and bad invocations that no other rule knows."""

from __future__ import annotations

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.rules.model import Role, Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="crash-signal",
        failure=FailureClass.PROCESS_CRASHED,
        pattern=r"Fatal Python error: (?:Segmentation fault|Bus error|Illegal instruction"
        r"|Floating|Aborted)|Segmentation fault|segmentation violation|SIGSEGV"
        r"|\bBus error\b|SIGBUS|Illegal instruction|\bsegfault at [0-9a-f]"
        r"|double free or corruption|corrupted size vs\. prev_size"
        r"|malloc\(\): (?:corrupted|invalid|unaligned|memory corruption)"
        r"|free\(\): invalid|stack smashing detected|corrupted double-linked list"
        r"|munmap_chunk\(\): invalid|A fatal error has been detected by the Java"
        r"|stack overflow detected|pure virtual method called|\*\*\* glibc detected",
        unless=r"could be caused by a segmentation fault|DataLoader worker|SIGSEGV\b.{0,40}handler",
        sample="./run.sh: line 18: 16729 Segmentation fault      (core dumped) python main.py",
        near_miss="This could be caused by a segmentation fault while calling the function or by "
        "an excessive memory usage",
        framework="native code",
        sentence="The process crashed in native code.",
        role=Role.FOLLOW_UP,
        confidence=0.85,
    ),
    Rule(
        id="abort-signal",
        failure=FailureClass.PROCESS_CRASHED,
        pattern=r"\bAborted\b(?: \(core dumped\))?$|SIGABRT|\babort \(core dumped\)"
        r"|Aborted \(core dumped\)|terminate called (?:after throwing|without an active)"
        r"|libc\+\+abi: terminating|Check failed: |GGML_ASSERT"
        r"|Assertion .{1,300} failed\.?$",
        unless=r"^[\w.]{1,120}(?:Error|Exception): ",
        sample="Aborted (core dumped)",
        near_miss="Assertion checks enabled",
        framework="native code",
        sentence="The process aborted itself in native code.",
        role=Role.SUMMARY,
        confidence=0.6,
    ),
    Rule(
        id="parent-reports-crash",
        failure=FailureClass.PROCESS_CRASHED,
        pattern=r"(?:code|status|value|Error)(?: |: |=)(?:132|134|135|136|139)\b"
        r"|killed by signal:? (?:4|6|7|8|11)\b|code=dumped|status=(?:11/SEGV|6/ABRT|7/BUS)"
        r"|terminated by (?:signal )?SIG(?:SEGV|ABRT|BUS|ILL|FPE)|was sent SIG(?:SEGV|ABRT|BUS)",
        sample="[ERROR] Worker (pid:7) was sent code 139!",
        near_miss="[ERROR] Worker (pid:7) was sent code 1!",
        framework="gunicorn, uwsgi, systemd, supervisord, make",
        sentence="A parent process reports that its child crashed.",
        role=Role.SUMMARY,
        confidence=0.75,
    ),
    Rule(
        id="stop-in-output",
        failure=FailureClass.TASK_CANCELLED,
        pattern=r"(?:docker|podman|docker-compose|supervisorctl|systemctl|kubectl"
        r")[\w./@ -]{0,200} (?:stop|restart|kill|down|delete)\b"
        r"|[Ss]ent interrupt\b|before force[- ]killing|Task successfully killed"
        r"|[Ss]topping container|[Cc]ontainer was stopped|kill signal=(?:15|9)"
        r"|[Ss]ignal received to (?:stop|terminate)|user requested (?:stop|termination"
        r"|cancel)|[Rr]eceived (?:an? )?(?:cancel(?:lation)?|stop|shutdown) (?:request|command)"
        r"|(?:did not|didn't|failed to) (?:exit|stop|terminate) (?:with)?in .{0,40}(?:grace|time)"
        r"|[Gg]race period (?:expired|exceeded|is over)",
        anywhere=r"\b137\b|\b143\b|[Kk]illed|[Kk]illing|SIGTERM|SIGKILL|[Tt]erminat",
        sample="Exit code: 137\n10:32:44Z  Killing  Sent interrupt. Waiting 5s before force "
        "killing",
        near_miss="INFO early stopping after 5 epochs",
        framework="docker, nomad, supervisord, systemd",
        sentence="Somebody stopped the container or the service.",
        role=Role.FOLLOW_UP,
        confidence=0.55,
    ),
    Rule(
        id="unsupported-machine",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"Unsupported system page size|CPU (?:does not|doesn't) support"
        r"|requires? (?:the )?(?:AVX|SSE|AVX2|AVX512)|wrong ELF class"
        r"|Illegal instruction.{0,40}AVX",
        sample="<jemalloc>: Unsupported system page size",
        near_miss="INFO system page size is 4096",
        framework="native code",
        sentence="The program was built for another kind of machine.",
        confidence=0.75,
    ),
    Rule(
        id="command-not-found",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r": (?:command )?not found$|: No such file or directory$|can't open file '"
        r"|: cannot execute|bad interpreter",
        context=r"^(?:/bin/)?(?:ba|da|z)?sh: |line \d{1,6}: |python[\d.]{0,5}: can't open"
        r"|: not found$|bad interpreter|entrypoint",
        unless=r"Error\b|Errno",
        sample="/bin/sh: 1: nvcc: not found",
        near_miss="FileNotFoundError: [Errno 2] No such file or directory: 'a.csv'",
        framework="shell",
        sentence="The command or script does not exist in the image.",
        role=Role.GENERIC,
        confidence=0.7,
    ),
    Rule(
        id="python-exception",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"(?:^(?:E {1,8})?|\\n|\": ?\"|[\]:|] )[\w.]{0,300}(?:Error|Exception|Timeout"
        r"|Expired)\w{0,20}"
        r"(?:: |:?$)|^[a-z_]\w{0,60}\.[\w.]{0,200}(?:Failure|Fault|NotFound|OutOfResources): "
        r"|\[ONNXRuntimeError\] : \d",
        unless=r"Warning: |SystemExit: 0",
        sample="ValueError: bad input",
        near_miss="UserWarning: bad input",
        framework="python",
        sentence="The program raised an exception that nothing caught.",
        role=Role.GENERIC,
        confidence=0.6,
    ),
    Rule(
        id="cloud-client-error",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"An error occurred \(\w{1,60}\) when calling the ",
        sample="botocore.errorfactory.NoSuchKey: An error occurred (NoSuchKey) when calling the "
        "GetObject operation: The specified key does not exist.",
        near_miss="An error occurred (again) in the queue",
        framework="botocore",
        sentence="A cloud service refused a request of the program.",
        role=Role.GENERIC,
        confidence=0.7,
    ),
    Rule(
        id="python-traceback",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"^Traceback \(most recent call last\)",
        sample="Traceback (most recent call last):",
        near_miss="INFO the traceback is in the log",
        framework="python",
        sentence="The program raised an exception.",
        role=Role.SUMMARY,
        confidence=0.4,
    ),
    Rule(
        id="other-language-exception",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"No matching distribution found|Could not find a version that satisfies|"
        r"^Exception in thread \"|panicked at |^panic: |goroutine \d{1,6} \[running\]"
        r"|^Error in .{1,200}:|^Execution halted|^ERROR: LoadError"
        r"|Unhandled(?:PromiseRejection|Rejection| exception)|^Uncaught "
        r"|^error: unrecognized arguments|: error: (?:unrecognized|argument"
        r"|the following arguments|invalid)|^FAILED |undefined symbol: "
        r"|cannot open shared object file|version `GLIBC\w{0,3}_[\d.]{1,10}' not found",
        sample="thread 'main' panicked at src/main.rs:4:5:",
        near_miss="INFO exception handling enabled in thread pool",
        framework="java, rust, go, R, julia, node",
        sentence="The program ended with an error of its own.",
        role=Role.GENERIC,
        confidence=0.5,
    ),
)
