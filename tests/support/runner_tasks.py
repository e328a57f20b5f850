"""Tasks for the tests of the task runner; children import this module, so it stays light."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task

from prefect_heteroflow import current_attempt
from prefect_heteroflow.task_runner.requirements import requires

MIB = 1024 * 1024
held: list[Any] = []
"""What a body keeps open after its return."""


@task
def process_id() -> int:
    return os.getpid()


@task
def square(number: int) -> int:
    return number * number


@task(retries=2, retry_delay_seconds=0)
def square_or_die_once(number: int, dying: int) -> int:
    attempt = current_attempt()
    assert attempt is not None
    if number == dying and attempt.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


@task
def end_by_signal(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


@task
def segfault() -> None:
    ctypes.string_at(0)


@task
def sleep_for(seconds: float) -> None:
    time.sleep(seconds)


@task
def allocate(megabytes: int) -> int:
    filled = bytearray(b"\1") * (megabytes * MIB)
    attempt = current_attempt()
    assert attempt is not None
    assert len(filled) == megabytes * MIB
    memory_mb: int = attempt.memory_mb
    return memory_mb


@task
def attempt_seen() -> Any:
    return current_attempt()


@task
def visible_gpus(folder: str, name: str, until: str | None = None) -> str | None:
    """The GPUs that it sees; it stays until a file says that it may go."""
    Path(folder, name).touch()
    if until is not None:
        wait_for_file(Path(folder, until))
    return os.environ.get("CUDA_VISIBLE_DEVICES")


@task
def start_daemon(folder: str) -> int:
    """A grandchild that left its parent's session, and whose parent is gone."""
    script = (
        "import os, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    file = Path(folder, "daemon")
    subprocess.run([sys.executable, "-c", script, str(file)], check=True)
    wait_for_file(file)
    os._exit(3)


@task
def hold_shared_memory(folder: str, is_killed: bool | None = None) -> None:
    """Writes the name of its memory and the pid of the tracker; waits if nothing is said."""
    tracker = import_module("multiprocessing.resource_tracker")
    memory = import_module("multiprocessing.shared_memory")
    held.append(memory.SharedMemory(create=True, size=MIB))
    Path(folder, "partly").write_text(f"{held[-1].name} {tracker._resource_tracker._pid}")
    Path(folder, "partly").rename(Path(folder, "started"))
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
    while is_killed is None:
        time.sleep(60)


@task(log_prints=True)
def say(text: str) -> None:
    print(f"printed {text}")
    get_run_logger().info("logged %s", text)


@task
def log_and_die(text: str) -> None:
    get_run_logger().info("last words %s", text)
    os.kill(os.getpid(), signal.SIGKILL)


@task
def wait_forever(folder: str, name: str = "started") -> None:
    Path(folder, name).write_text(str(os.getpid()))
    try:
        while True:
            time.sleep(60)
    except KeyboardInterrupt:
        Path(folder, f"{name}-interrupted").touch()
        raise


@task
def ignore_interrupts(folder: str) -> None:
    Path(folder, "started").write_text(str(os.getpid()))
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            Path(folder, "ignored").touch()


@task(timeout_seconds=1)
def too_slow() -> None:
    time.sleep(60)


@task(timeout_seconds=1)
def too_slow_and_stubborn() -> None:
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            continue


@task
def leave(code: int) -> None:
    os._exit(code)


@task
def close_all_descriptors() -> int:
    os.closerange(3, 4096)
    return 1


@task
def close_and_open_another(folder: str) -> int:
    os.closerange(3, 4096)
    files = [os.open(Path(folder, f"file-{n}"), os.O_CREAT | os.O_WRONLY) for n in range(64)]
    return len(files)


@task
def fork_and_return() -> int:
    """Both processes return from the body."""
    os.fork()
    return os.getpid()


@task
def print_much(megabytes: int) -> int:
    line = "x" * 1023
    for _ in range(megabytes * 1024):
        print(line)
    return megabytes


@task
def give_lambda_of_lock() -> Any:
    import threading

    return threading.Lock()


@task
def take(value: Any) -> str:
    return type(value).__name__


@task
@requires(memory_mb=256)
def needs_256() -> Any:
    return current_attempt()


def wait_for_file(path: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} did not appear")
        time.sleep(0.02)


@requires(gpu_count=1)
@task
def need_gpu_mb(megabytes: int) -> tuple[str, int]:
    """Fails as PyTorch does on a GPU that is too small."""
    attempt = current_attempt()
    assert attempt is not None
    has = attempt.gpu_memory_mb or 0
    if has < megabytes:
        raise RuntimeError(
            f"CUDA out of memory. Tried to allocate {megabytes}.00 MiB. GPU 0 has a total capacity"
            f" of {has / 1024:.2f} GiB of which {has}.00 MiB is free."
        )
    return attempt.node, attempt.attempt


@task
def fail_with_value_error(text: str) -> None:
    raise ValueError(text)


DEBIAN_PACKAGES = Path("/usr/lib/python3/dist-packages")


@requires(gpu_count=1)
@task
def need_gpu_mb_by_torch(megabytes: int) -> tuple[str, int, str]:
    """Raises PyTorch's own error on a GPU that is too small; gives node, attempt and its name."""
    # Behind all others: only PyTorch shall come from there.
    sys.path.append(str(DEBIAN_PACKAGES))
    kind = import_module("torch").cuda.OutOfMemoryError
    attempt = current_attempt()
    assert attempt is not None
    has = attempt.gpu_memory_mb or 0
    if has < megabytes:
        raise kind(
            f"CUDA out of memory. Tried to allocate {megabytes / 1024:.2f} GiB (GPU 0;"
            f" {has / 1024:.2f} GiB total capacity; 0 bytes already allocated;"
            f" {has / 1024:.2f} GiB free; 0 bytes reserved in total by PyTorch)"
        )
    return attempt.node, attempt.attempt, kind.__name__


class Unspeakable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@task
def fail_unspeakably() -> None:
    """Raises what cannot be printed."""
    raise Unspeakable("x")
