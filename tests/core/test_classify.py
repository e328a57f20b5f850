"""The order of evidence: what decides over what, and what is never concluded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import (
    Diagnosis,
    Evidence,
    ExceptionInfo,
    FailureClass,
    Phase,
)
from prefect_heteroflow.core.root_cause import choose

TORCH_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total "
    "capacity of 23.64 GiB of which 1.00 GiB is free. Process 77 has 10.00 GiB memory in use. "
    "Including non-PyTorch memory, this process has 12.00 GiB memory in use."
)
GIB = 1024**3


def _diagnose(evidence: Evidence) -> Diagnosis:
    found = diagnose(evidence)
    assert found is not None
    return found


def _exception(*names: str, message: str = "", causes: tuple[ExceptionInfo, ...] = ()) -> Evidence:
    info = ExceptionInfo(type_names=names, message=message, causes=causes)
    return Evidence(exit_code=1, exception=info)


@pytest.mark.parametrize(
    ("evidence", "failure", "rule"),
    [
        pytest.param(
            Evidence(cancel_requested=True, oom_killed=True, exit_code=137),
            FailureClass.TASK_CANCELLED,
            "cancel-requested",
            id="cancel-before-everything",
        ),
        pytest.param(
            Evidence(deadline_exceeded=True, exit_code=137),
            FailureClass.RESOURCE_LIMIT_EXCEEDED,
            "deadline-exceeded",
            id="deadline",
        ),
        pytest.param(
            Evidence(oom_killed=True, exit_code=0),
            FailureClass.CPU_OUT_OF_MEMORY,
            "docker-oom-killed",
            id="oom-killed-with-exit-0",
        ),
        pytest.param(
            Evidence(oom_killed=True, exit_code=3),
            FailureClass.CPU_OUT_OF_MEMORY,
            "docker-oom-killed",
            id="oom-killed-with-exit-3",
        ),
        pytest.param(
            Evidence(oom_killed=False, oom_kill_count=1, exit_code=137),
            FailureClass.CPU_OUT_OF_MEMORY,
            "cgroup-oom-kill",
            id="cgroup-counter",
        ),
        pytest.param(
            Evidence(stop_requested=True, exit_code=143),
            FailureClass.NODE_LOST,
            "stopped-by-worker",
            id="worker-shutting-down",
        ),
        pytest.param(
            Evidence(xid_codes=(13, 79), exit_code=1),
            FailureClass.GPU_HARDWARE_ERROR,
            "gpu-xid-observed",
            id="xid",
        ),
        pytest.param(
            Evidence(exit_code=137, oom_killed=False),
            FailureClass.NODE_LOST,
            "signal-kill-without-witness",
            id="137-without-witness",
        ),
        pytest.param(
            Evidence(exit_code=137, memory_limit_mb=1000, peak_memory_mb=990),
            FailureClass.CPU_OUT_OF_MEMORY,
            "signal-kill-at-memory-limit",
            id="137-at-the-limit",
        ),
        pytest.param(
            Evidence(signal=11),
            FailureClass.PROCESS_CRASHED,
            "signal-segmentation-fault",
            id="signal-11",
        ),
        pytest.param(
            Evidence(exit_code=134), FailureClass.PROCESS_CRASHED, "signal-abort", id="exit-134"
        ),
        pytest.param(
            Evidence(exit_code=-9),
            FailureClass.NODE_LOST,
            "signal-kill-without-witness",
            id="negative-code-is-a-signal",
        ),
        pytest.param(
            Evidence(exit_code=143, cancel_requested=False),
            FailureClass.NODE_LOST,
            "signal-terminate-unasked",
            id="143-and-we-know-that-nobody-cancelled",
        ),
        pytest.param(
            Evidence(exit_code=143),
            FailureClass.TASK_CANCELLED,
            "signal-terminate",
            id="143-and-nothing-known-of-a-cancel",
        ),
        pytest.param(
            Evidence(exit_code=130), FailureClass.TASK_CANCELLED, "signal-interrupt", id="ctrl-c"
        ),
        pytest.param(
            Evidence(exit_code=5), FailureClass.UNKNOWN_ERROR, "nothing-recognised", id="unknown"
        ),
        pytest.param(
            Evidence(phase="lost"), FailureClass.NODE_LOST, "contact-lost", id="contact-lost"
        ),
        pytest.param(
            Evidence(phase="start", exit_code=127),
            FailureClass.INVALID_CONFIG,
            "command-not-runnable",
            id="exit-127",
        ),
        pytest.param(
            Evidence(kubernetes_reason="OOMKilled", exit_code=137),
            FailureClass.CPU_OUT_OF_MEMORY,
            "kubernetes-reason-oomkilled",
            id="kubernetes-oom",
        ),
        pytest.param(
            Evidence(kubernetes_reason="Preempted"),
            FailureClass.PREEMPTED,
            "kubernetes-reason-preempted",
            id="kubernetes-preempted",
        ),
        pytest.param(
            Evidence(
                kubernetes_reason="Evicted",
                kubernetes_message="The node was low on resource: ephemeral-storage.",
            ),
            FailureClass.DISK_PRESSURE,
            "kubernetes-evicted-disk",
            id="kubernetes-evicted-for-disk",
        ),
        pytest.param(
            Evidence(kubernetes_reason="DeadlineExceeded"),
            FailureClass.RESOURCE_LIMIT_EXCEEDED,
            "kubernetes-reason-deadlineexceeded",
            id="kubernetes-deadline",
        ),
        pytest.param(
            Evidence(exit_code=1, log=TORCH_OOM),
            FailureClass.GPU_OUT_OF_MEMORY,
            "torch-gpu-out-of-memory",
            id="log",
        ),
        pytest.param(
            Evidence(exit_code=0, state_message="Process exited with status code: -9"),
            FailureClass.CPU_OUT_OF_MEMORY,
            "child-killed-sigkill",
            id="state-message-of-a-supervisor-that-exited-0",
        ),
        pytest.param(
            Evidence(phase="start", engine_error="No such image: org/app:1"),
            FailureClass.IMAGE_NOT_FOUND,
            "image-not-found",
            id="engine-error",
        ),
    ],
)
def test_witness_decides(evidence: Evidence, failure: FailureClass, rule: str) -> None:
    """Each kind of evidence, by itself or against a weaker one, gives its class."""
    found = _diagnose(evidence)
    assert (found.failure, found.rule) == (failure, rule)


@pytest.mark.parametrize("log", [TORCH_OOM, "Killed process 1 (python)", "Segmentation fault", ""])
def test_exit_code_0_is_a_success_whatever_the_output_says(log: str) -> None:
    """Frightening output of a process that ended well is nothing to classify."""
    assert diagnose(Evidence(phase="run", exit_code=0, oom_killed=False, log=log)) is None


def test_figures_of_a_gpu_oom_are_exact_bytes() -> None:
    """Sizes are powers of 1024, own and foreign use are told apart."""
    figures = _diagnose(Evidence(exit_code=1, log=TORCH_OOM)).figures
    assert figures is not None
    assert figures.requested_bytes == 2 * GIB
    assert figures.total_bytes == round(23.64 * GIB)
    assert (figures.own_bytes, figures.foreign_bytes) == (12 * GIB, 10 * GIB)
    assert figures.gpu_index == 1


def test_reason_names_the_figures() -> None:
    """The sentence for a person has the sizes in it."""
    reason = _diagnose(Evidence(exit_code=1, log=TORCH_OOM)).reason
    assert "2 GiB" in reason
    assert "23.64 GiB" in reason


@pytest.mark.parametrize(
    ("names", "message", "failure"),
    [
        (("builtins.ValueError", "builtins.Exception"), "bad", FailureClass.APPLICATION_ERROR),
        (("builtins.MemoryError",), "", FailureClass.CPU_OUT_OF_MEMORY),
        (("torch.OutOfMemoryError", "builtins.RuntimeError"), "", FailureClass.GPU_OUT_OF_MEMORY),
        (("httpx.ReadTimeout", "httpx.TransportError"), "", FailureClass.NETWORK_TIMEOUT),
        (("my.Own", "builtins.ConnectionError"), "gone", FailureClass.NETWORK_TIMEOUT),
        (("builtins.OSError",), "[Errno 28] No space left on device", FailureClass.DISK_PRESSURE),
        (("builtins.PermissionError",), "x", FailureClass.PERMISSION_DENIED),
    ],
)
def test_exception_decides_by_type_and_message(
    names: tuple[str, ...], message: str, failure: FailureClass
) -> None:
    """An exception as data gives its class without any output."""
    assert _diagnose(_exception(*names, message=message)).failure is failure


def test_exception_decides_over_an_unrelated_log() -> None:
    """An out-of-memory text in the output does not turn a `ValueError` into one."""
    evidence = replace(_exception("builtins.ValueError", message="bad"), log=TORCH_OOM)
    assert _diagnose(evidence).failure is FailureClass.APPLICATION_ERROR


def test_cause_of_an_exception_wins_over_what_it_led_to() -> None:
    """The deepest named cause is the root."""
    cause = ExceptionInfo(type_names=("builtins.TimeoutError",), message="timed out")
    evidence = _exception("my.LoadError", message="no data", causes=(cause,))
    assert _diagnose(evidence).failure is FailureClass.NETWORK_TIMEOUT


def test_lost_peer_gives_way_to_the_root_in_the_output() -> None:
    """Another rank's out-of-memory in the log beats the NCCL error that this rank raised."""
    evidence = replace(
        _exception("torch.distributed.DistBackendError", message="NCCL error in: x.cpp:1"),
        log=f"[rank1]: {TORCH_OOM}",
    )
    assert _diagnose(evidence).failure is FailureClass.GPU_OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("setting", "verdict"),
    [
        (False, None),
        (True, "retry"),
        (["ValueError"], "retry"),
        (["builtins.Exception"], "retry"),
        (["app.Deep"], "retry"),
        (["KeyError"], None),
    ],
)
def test_retry_exceptions_sets_the_verdict(setting: object, verdict: str | None) -> None:
    """Never, always, or for named types; base types and causes count."""
    cause = ExceptionInfo(type_names=("app.Deep",), message="")
    evidence = _exception("builtins.ValueError", "builtins.Exception", causes=(cause,))
    found = diagnose(evidence, retry_exceptions=setting)  # type: ignore[arg-type]
    assert found is not None
    assert found.verdict == verdict


def test_retry_exceptions_leaves_other_classes_alone() -> None:
    """Only an application exception becomes retryable by it."""
    found = diagnose(Evidence(exit_code=5), retry_exceptions=True)
    assert found is not None
    assert found.verdict is None


def test_line_is_masked_and_short() -> None:
    """The line that is shown holds no secret and at most 500 characters."""
    log = f"PermissionError: token=abcdef123456 {'x' * 3000}"
    line = _diagnose(Evidence(exit_code=1, log=log)).line
    assert line is not None
    assert "abcdef123456" not in line
    assert len(line) <= 500


def test_runner_up_is_named_where_there_is_one() -> None:
    """The second best class stands beside the diagnosis."""
    log = f"{TORCH_OOM}\nNCCL error in: x.cpp:1, unhandled system error"
    found = _diagnose(Evidence(exit_code=1, log=log))
    assert found.runner_up is FailureClass.DISTRIBUTED_PEER_LOST


PHASES: st.SearchStrategy[Phase | None] = st.sampled_from((None, "start", "run", "lost"))
WORDS = st.sampled_from(
    [
        TORCH_OOM,
        "Error",
        "\r",
        "\n",
        "\x1b[31m",
        "\x00",
        "exit",
        "137",
        "Traceback",
        "[rank0]:",
        "😀",
    ]
)


@settings(max_examples=200, deadline=None)
@given(
    log=st.one_of(st.text(), st.lists(st.one_of(WORDS, st.text(max_size=8))).map("".join)),
    exit_code=st.one_of(st.none(), st.integers()),
    oom_killed=st.sampled_from((None, True, False)),
    phase=PHASES,
)
def test_any_evidence_gets_an_answer(
    log: str, exit_code: int | None, oom_killed: bool | None, phase: Phase | None
) -> None:
    """No text, code or flag makes the diagnosis raise; a class comes with a sentence."""
    found = diagnose(Evidence(log=log, exit_code=exit_code, oom_killed=oom_killed, phase=phase))
    if found is None:
        assert exit_code == 0
    else:
        assert found.reason
        assert 0 <= found.confidence <= 1


@settings(max_examples=100, deadline=None)
@given(message=st.text(), name=st.text(), trace=st.one_of(st.none(), st.text()))
def test_any_exception_gets_an_answer(message: str, name: str, trace: str | None) -> None:
    """Names and messages of any content are classified."""
    info = ExceptionInfo(type_names=(name,), message=message, traceback=trace)
    assert diagnose(Evidence(exception=info)) is not None


class _CountingLines(list[str]):
    """Lines that count how often they are read one by one."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        self.reads += 1
        return super().__getitem__(key)


def test_root_cause_reads_each_line_a_bounded_number_of_times() -> None:
    """Thousands of matches without progress between them take linear time."""
    lines = _CountingLines(["MemoryError", "ValueError: x"] * 2000)
    choose(lines, Evidence(exit_code=1))
    assert lines.reads <= 12 * len(lines)


def test_long_line_is_shown_where_the_cause_stands_and_without_secrets() -> None:
    """Of a line of thousands of characters the decisive part is shown, secrets masked."""
    noise = "x=1 " * 700
    log = f"{noise}DB_PASSWORD=hunter2 RuntimeError: CUDA error: out of memory {noise}"
    line = _diagnose(Evidence(exit_code=1, log=log)).line
    assert line is not None
    assert "CUDA error: out of memory" in line
    assert "hunter2" not in line
    assert len(line) <= 500


@given(st.integers(min_value=2900, max_value=4100))
@settings(max_examples=60, deadline=None)
def test_secret_at_the_cut_of_a_long_line_is_masked(before: int) -> None:
    """Where a long line is cut in pieces, no half of a secret is shown."""
    secret = "hunter2" * 6
    log = f"{'x' * before} DB_PASSWORD={secret} MemoryError: no memory {'y ' * 3000}"
    line = _diagnose(Evidence(exit_code=1, log=log)).line
    assert line is not None
    assert "hunter2" not in line


def killed_in_a_task(peak_mb: int | None, *, reached: bool | None, outer_mb: int | None) -> str:
    found = diagnose(
        Evidence(
            signal=9,
            oom_kill_count=1,
            memory_limit_mb=512,
            peak_memory_mb=peak_mb,
            own_limit_reached=reached,
            outer_limit_mb=outer_mb,
        )
    )
    assert found is not None
    assert found.failure is FailureClass.CPU_OUT_OF_MEMORY
    return f"{found.rule}: {found.reason}"


@pytest.mark.parametrize(
    ("peak_mb", "reached", "outer_mb", "expected"),
    [
        (
            326,
            False,
            600,
            "outer-memory-limit: A process of the attempt was killed while it used 326 MB of its"
            " own limit of 512 MB: the 600 MB that the flow run's own process and all of its tasks"
            " share were used up.",
        ),
        (
            None,
            False,
            None,
            "outer-memory-limit: A process of the attempt was killed while it used less than its"
            " own limit of 512 MB: the memory of the machine was used up.",
        ),
        (
            512,
            True,
            600,
            "cgroup-oom-kill: A process of the attempt was killed for reaching its memory limit"
            " of 512 MB.",
        ),
        (
            511,
            False,
            600,
            "cgroup-oom-kill: A process of the attempt was killed for reaching its memory limit"
            " of 512 MB.",
        ),
        (
            326,
            None,
            600,
            "cgroup-oom-kill: A process of the attempt was killed for reaching its memory limit"
            " of 512 MB.",
        ),
    ],
    ids=[
        "the flow run's",
        "the machine's",
        "its own",
        "near miss: its own but for a page",
        "near miss: nobody knows",
    ],
)
def test_reason_of_a_kill_for_memory_tells_which_limit_was_reached(
    peak_mb: int | None, reached: bool | None, outer_mb: int | None, expected: str
) -> None:
    assert killed_in_a_task(peak_mb, reached=reached, outer_mb=outer_mb) == expected
