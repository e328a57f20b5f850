"""Flows that the tests run for real, in containers and in child processes."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from prefect import flow, get_run_logger, suspend_flow_run, task
from prefect.flow_runs import pause_flow_run
from prefect.runtime import flow_run as runtime

from prefect_heteroflow import current_attempt

GIB = 1024**3


class OutOfMemoryError(RuntimeError):
    """Stands for `torch.OutOfMemoryError`."""


OutOfMemoryError.__module__ = "torch"


def touch(need_mb: int) -> bytearray:
    """Memory that the kernel really has to give."""
    block = bytearray(need_mb * 1024 * 1024)
    for index in range(0, len(block), 4096):
        block[index] = 1
    return block


def need_gpu(need_gpu_mb: int) -> int:
    """Fail as PyTorch does on a GPU that is too small; the attempt's number otherwise."""
    attempt = current_attempt()
    assert attempt is not None
    have_mb = attempt.gpu_memory_mb or 0
    if have_mb < need_gpu_mb:
        have = have_mb / 1024
        raise OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {(need_gpu_mb / 1024 - have * 0.9):.2f} GiB."
            f" GPU 0 has a total capacity of {have:.2f} GiB of which {have * 0.1:.2f} GiB is free."
            f" Including non-PyTorch memory, this process has {have * 0.9:.2f} GiB memory in use."
        )
    return attempt.attempt


@flow(persist_result=True)
def host_oom(need_mb: int) -> dict:
    """Needs memory; says which attempt got it."""
    touch(need_mb)
    attempt = current_attempt()
    return {"attempt": attempt.attempt, "memory_mb": attempt.memory_mb}


@flow(persist_result=True)
def gpu_oom(need_gpu_mb: int) -> int:
    """Needs a GPU."""
    return need_gpu(need_gpu_mb)


@flow(persist_result=True)
async def async_gpu_oom(need_gpu_mb: int) -> int:
    """Needs a GPU, asynchronously."""
    await asyncio.sleep(0)
    return need_gpu(need_gpu_mb)


@task
def training(need_gpu_mb: int) -> int:
    """A task that needs a GPU."""
    return need_gpu(need_gpu_mb)


@flow(persist_result=True)
def gpu_oom_in_future(need_gpu_mb: int):
    """Returns a future that failed, instead of raising."""
    return training.submit(need_gpu_mb)


@flow
def child_killed(limit_mb: int, exit_code: int = 0) -> str:
    """A child dies for memory; the flow itself goes on, or ends with an error."""
    code = f"b = bytearray({2 * limit_mb} * 2**20)\nfor i in range(0, len(b), 4096): b[i] = 1"
    child = subprocess.run([sys.executable, "-c", code], check=False)
    if exit_code:
        raise RuntimeError(f"child ended with {child.returncode}")
    return f"survived, child ended with {child.returncode}"


def note(path: str, text: str) -> None:
    """Leave a line for the test to read."""
    with Path(path).open("a") as file:
        file.write(text + "\n")


def failed_hook(flow, flow_run, state):
    """Note that it ran."""
    note(flow_run.parameters["notes"], f"failure hook: {state.name}")


def cancelled_hook(flow, flow_run, state):
    """Note that it ran."""
    note(flow_run.parameters["notes"], f"cancellation hook: {state.name}")


@flow(on_failure=[failed_hook])
def application_error(notes: str) -> None:
    """Fails for a reason of its own."""
    raise ValueError("no such column: price")


@flow(on_failure=[failed_hook])
def permission_denied(notes: str) -> None:
    """Fails for good."""
    raise PermissionError(13, "Permission denied", "/data/secret.csv")


@flow(persist_result=True, retries=1)
def own_retry(need_mb: int) -> dict:
    """First killed for memory, then fails once by itself, then succeeds."""
    touch(need_mb)
    marker = Path(f"/tmp/heteroflow-own-retry-{runtime.id}")
    if not marker.exists():
        marker.write_text("once")
        raise ValueError("the first try fails")
    attempt = current_attempt()
    return {"attempt": attempt.attempt, "run_count": runtime.run_count}


@flow(retries=2)
def own_retry_before(marker: str) -> int:
    """First fails once by itself, then its process is killed; the next attempt succeeds."""
    attempt = current_attempt()
    if not Path(marker).exists():
        Path(marker).write_text("once")
        raise ValueError("the first try fails")
    if attempt.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt.attempt


def fail_once(marker: str) -> None:
    """An error of the flow's own at the first call; the file is there from then on."""
    if not Path(marker).exists():
        Path(marker).write_text("once")
        raise ValueError("the first try fails")


@flow(retries=2)
def own_retry_then_gpu(marker: str, need_gpu_mb: int) -> int:
    """First fails once by itself, then needs a GPU."""
    fail_once(marker)
    return need_gpu(need_gpu_mb)


@flow(retries=2, retry_delay_seconds=600)
def own_retry_later(marker: str) -> int:
    """Fails once by itself, and its process waits ten minutes then."""
    fail_once(marker)
    return current_attempt().attempt


@flow(retries=2, retry_delay_seconds=600)
async def async_own_retry_later(marker: str) -> int:
    """The same, asynchronously."""
    fail_once(marker)
    return current_attempt().attempt


def running_hook(flow, flow_run, state):
    """Stays in the first attempt."""
    attempt = current_attempt().attempt
    note(flow_run.parameters["notes"], f"running hook {attempt}")
    if attempt == 1:
        time.sleep(600)


@flow(on_running=[running_hook], on_cancellation=[cancelled_hook])
def stays_in_its_hook(notes: str) -> int:
    """Does not come to its body in its first attempt."""
    note(notes, "body")
    return current_attempt().attempt


@flow
def flaky_network(failures: int) -> int:
    """Cannot reach its server in the first attempts."""
    attempt = current_attempt()
    if attempt.attempt <= failures:
        import httpx

        raise httpx.ConnectTimeout("timed out")
    return attempt.attempt


def die_in_attempt_1(task_run_id: object, state: str) -> int:
    """Ends the process once the server knows that the task run is in this state."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    attempt = current_attempt()
    assert attempt is not None
    with get_client(sync_client=True) as client:
        while attempt.attempt == 1:
            with contextlib.suppress(ObjectNotFound):
                if client.read_task_run(task_run_id).state_name == state:
                    os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.1)
    return attempt.attempt


@task
def dies_in_attempt_1() -> int:
    """Ends the process as soon as the server knows that this task runs."""
    from prefect.runtime import task_run

    return die_in_attempt_1(task_run.id, "Running")


@flow
def dies_in_a_task() -> int:
    """Its task is running when the process ends."""
    return dies_in_attempt_1()


@task(retries=1, retry_delay_seconds=300)
def fails_in_attempt_1() -> int:
    """Waits for its retry for longer than the process lives."""
    attempt = current_attempt()
    assert attempt is not None
    if attempt.attempt == 1:
        raise ValueError("the first call")
    return attempt.attempt


@flow
def dies_with_a_waiting_task() -> int:
    """Its task waits for a retry when the process ends."""
    future = fails_in_attempt_1.submit()
    die_in_attempt_1(future.task_run_id, "AwaitingRetry")
    return future.result()


@flow
def called() -> int:
    """Called as a function by another flow; its task is running when the process ends."""
    return dies_in_attempt_1()


@flow
def dies_in_a_subflow() -> int:
    """Both flow runs are running when the process ends."""
    return called()


@flow
def stuck(points: list[str], file: str) -> str:
    """Says how far it came, and then cannot reach its server; succeeds after the last point."""
    attempt = current_attempt()
    assert attempt is not None
    if attempt.attempt > len(points):
        return "done"
    Path(file).write_text(points[attempt.attempt - 1] + "\n")
    import httpx

    raise httpx.ConnectTimeout("timed out")


@flow
def xid(on_node: str) -> str:
    """The driver reports an uncorrectable error of the GPU on one node."""
    attempt = current_attempt()
    assert attempt is not None
    if attempt.node == on_node:
        print("NVRM: Xid (PCI:0000:3b:00): 48, pid=4242, DBE (double bit error) on SBE", flush=True)
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    return attempt.node


@flow(on_cancellation=[cancelled_hook])
def sleepy(notes: str, seconds: float = 600.0) -> None:
    """Sleeps; says when it was interrupted."""
    note(notes, f"started {os.getpid()}")
    try:
        time.sleep(seconds)
    finally:
        note(notes, "cleaned up")


@flow
def pauses(notes: str) -> str:
    """Waits in its process for Resume."""
    note(notes, f"started {os.getpid()}")
    pause_flow_run(timeout=600, poll_interval=1)
    return "resumed"


@flow
async def async_sleepy(notes: str, seconds: float = 600.0) -> None:
    """Sleeps asynchronously."""
    note(notes, f"started {os.getpid()}")
    try:
        await asyncio.sleep(seconds)
    finally:
        note(notes, "cleaned up")


@flow
def gpu_sleepy(notes: str, need_gpu_mb: int) -> None:
    """Moves to a larger GPU and sleeps there."""
    need_gpu(need_gpu_mb)
    note(notes, "started")
    time.sleep(600)


@flow
def suicide(signal_number: int = signal.SIGSEGV, in_attempt: int = 1) -> str:
    """Dies by a signal in its first attempts."""
    attempt = current_attempt()
    get_run_logger().info("attempt %s", attempt)
    if attempt.attempt <= in_attempt:
        os.kill(os.getpid(), signal_number)
    return attempt.node


@flow
def parent(deployment: str, need_gpu_mb: int) -> int:
    """Runs a deployment as its subflow and uses its result."""
    from prefect.deployments import run_deployment

    run = run_deployment(deployment, parameters={"need_gpu_mb": need_gpu_mb}, poll_interval=1)
    assert run.state.is_completed(), run.state
    return run.state.result()


@flow
def gated(folder: str, ends: str = "return") -> str:
    """Goes on when a file named after its attempt is there, and says which attempt it was."""
    attempt = current_attempt().attempt
    Path(folder, f"started-{attempt}").touch()
    while not Path(folder, f"gate-{attempt}").exists():
        time.sleep(0.1)
    if ends == "raise":
        raise ValueError(f"attempt {attempt} fails of itself")
    return f"attempt {attempt}"


@flow
def says_and_raises(text: str, kind: str) -> None:
    """Prints a text, or logs it, and fails without a word of it."""
    if kind == "logged":
        get_run_logger().error(text)
    else:
        print(text)
    if kind == "exit":
        sys.exit(3)
    raise ConnectionError("reset") if kind == "transient" else ValueError("no")


@flow(timeout_seconds=1)
def too_slow() -> None:
    """Runs longer than it may."""
    time.sleep(60)


@flow(timeout_seconds=1)
async def too_slow_async() -> None:
    """Runs longer than it may."""
    await asyncio.sleep(60)


@flow(retries=1)
def own_retry_then_suspend(marker: str) -> None:
    """Fails, is retried by Prefect in its process, suspends itself, and ends after Resume."""
    if not Path(marker).exists():
        Path(marker).touch()
        raise ValueError("the first call")
    suspend_flow_run(timeout=600)
