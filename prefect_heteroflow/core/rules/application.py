"""Uncaught exceptions, panics, crashes by signal and bad invocations that no other rule knows."""

from __future__ import annotations

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.rules.model import Role, Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="crash-signal",
        failure=FailureClass.PROCESS_CRASHED,
        pattern=r"Fatal Python error: (?:Segmentation fault|Bus error|Illegal instruction|Floating|Aborted)"
        r"|Segmentation fault|segmentation violation|SIGSEGV|\bBus error\b|SIGBUS|Illegal instruction"
        r"|\bsegfault at [0-9a-f]|double free or corruption|corrupted size vs\. prev_size|malloc\(\): "
        r"(?:corrupted|invalid|unaligned|memory corruption)|free\(\): invalid|stack smashing detected"
        r"|corrupted double-linked list|munmap_chunk\(\): invalid|A fatal error has been detected by the Java"
        r"|stack overflow detected|pure virtual method called|\*\*\* glibc detected",
        gates=(
            "Fatal Python error: ", "egmentation fault", "segmentation violation", "SIGSEGV",
            "Bus error", "SIGBUS", "llegal instruction", "segfault at", "double free", "prev_size",
            "malloc(): ", "free(): invalid", "stack smashing", "double-linked list", "munmap_chunk",
            "by the Java", "stack overflow detected", "pure virtual method", "*** glibc",
        ),
        unless=r"could be caused by a segmentation fault|DataLoader worker|SIGSEGV\b.{0,40}handler",
        sample="./run.sh: line 18: 16729 Segmentation fault      (core dumped) python main.py",
        near_miss="This could be caused by a segmentation fault while calling the function or by an "
        "excessive memory usage",
        framework="native code",
        sentence="The process crashed in native code.",
        role=Role.FOLLOW_UP,
        confidence=0.85,
    ),
    Rule(
        id="abort-signal",
        failure=FailureClass.PROCESS_CRASHED,
        pattern=r"\bAborted\b(?: \(core dumped\))?$|SIGABRT|\babort \(core dumped\)|Aborted \(core dumped\)"
        r"|terminate called (?:after throwing|without an active)|libc\+\+abi: terminating|Check failed: "
        r"|GGML_ASSERT|Assertion .{1,300} failed\.?$",
        gates=(
            "Aborted", "SIGABRT", "abort (core", "terminate called", "libc++abi", "Check failed: ",
            "GGML_ASSERT", "Assertion ",
        ),
        sample="Aborted (core dumped)",
        near_miss="Assertion checks enabled",
        framework="native code",
        sentence="The process aborted itself in native code.",
        role=Role.SUMMARY,
        confidence=0.6,
    ),
    Rule(
        id="command-not-found",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r": (?:command )?not found$|: No such file or directory$|can't open file '|: cannot execute"
        r"|bad interpreter",
        gates=("not found", "No such file or directory", "can't open file", "cannot execute", "bad interp"),
        context=r"^(?:/bin/)?(?:ba|da|z)?sh: |line \d{1,6}: |python[\d.]{0,5}: can't open|: not found$"
        r"|bad interpreter|entrypoint",
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
        pattern=r"^(?:E {1,8})?(?:\w{1,80}\.){0,12}[A-Z]\w{0,80}(?:Error|Exception|Exit|Fault|Failure|"
        r"Timeout|Warning|Interrupt|Rejected|Refused|NotFound|Expired|Invalid\w{0,40}|OutOfResources)\w{0,20}"
        r"(?::(?: |$)|$)",
        gates=(
            "Error:", "Error", "Exception", "Exit", "Fault:", "Failure:", "Timeout:", "Rejected", "Refused",
            "NotFound", "Expired", "Invalid", "OutOfResources:",
        ),
        unless=r"Warning: |SystemExit: 0",
        sample="ValueError: bad input",
        near_miss="UserWarning: bad input",
        framework="python",
        sentence="The program raised an exception that nothing caught.",
        role=Role.GENERIC,
        confidence=0.6,
    ),
    Rule(
        id="other-language-exception",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"^Exception in thread \"|panicked at |^panic: |goroutine \d{1,6} \[running\]|^Error in .{1,200}:"
        r"|^Execution halted|^ERROR: LoadError|Unhandled(?:PromiseRejection|Rejection| exception)|^Uncaught "
        r"|^error: unrecognized arguments|: error: (?:unrecognized|argument|the following arguments|invalid)"
        r"|^FAILED |undefined symbol: |cannot open shared object file"
        r"|version `GLIBC\w{0,3}_[\d.]{1,10}' not found",
        gates=(
            "Exception in thread", "panicked at ", "panic: ", "goroutine ", "Error in ",
            "Execution halted", "ERROR: LoadError", "Unhandled", "Uncaught ", ": error: ",
            "error: unrecognized", "FAILED ", "undefined symbol: ",
            "cannot open shared object", "version `GLIBC",
        ),
        sample="thread 'main' panicked at src/main.rs:4:5:",
        near_miss="INFO exception handling enabled in thread pool",
        framework="java, rust, go, R, julia, node",
        sentence="The program ended with an error of its own.",
        role=Role.GENERIC,
        confidence=0.5,
    ),
)
