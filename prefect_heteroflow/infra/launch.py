"""Joins a cgroup or takes a mark, then becomes the command: nothing runs outside of its limit.

A script of the standard library only, started by its path (`python -I -S launch.py ...`, about
10 ms): importing the package here would cost each attempt the import of Prefect.
"""

from __future__ import annotations

import os
import signal
import sys

CANNOT_JOIN = 126
CANNOT_START = 127
OOM_SCORE_ADJ = "500"
"""When the whole node runs out of memory, the kernel is to take an attempt, not the worker."""

USAGE = "usage: launch.py [--parent PID] [--cgroup DIR] [--env NAME=VALUE] -- COMMAND..."
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Become the command after `--`.

    Returns:
        126 if the cgroup cannot be joined, 127 if the command cannot be started, 2 for a wrong
        call; does not return otherwise.
    """
    if "--" not in arguments or arguments[-1] == "--":
        return _refuse(USAGE, 2)
    split = arguments.index("--")
    options, command = arguments[:split], arguments[split + 1 :]
    if len(options) % 2:
        return _refuse(USAGE, 2)
    for option, value in zip(options[::2], options[1::2], strict=True):
        if option == "--cgroup":
            try:
                # "0" stands for the process that writes, in v1 and v2 alike.
                _write(os.path.join(value, "cgroup.procs"), "0")
            except OSError as error:
                return _refuse(f"cannot join the cgroup {value}: {error}", CANNOT_JOIN)
        elif option == "--parent" and value.isdigit():
            _die_with_parent()
            if os.getppid() != int(value):
                return _refuse("the worker has ended meanwhile", CANNOT_START)
        elif option == "--env" and "=" in value:
            name, _, content = value.partition("=")
            os.environ[name] = content
        else:
            return _refuse(USAGE, 2)
    _be_taken_first()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        return _refuse(f"cannot start {command[0]}: {error}", CANNOT_START)


def _die_with_parent() -> None:
    """SIGKILL when the thread that started this process ends, as it does with its worker.

    Without its worker an attempt writes into a broken pipe, and runs beside the one that follows.
    """
    import ctypes

    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _be_taken_first() -> None:
    path = "/proc/self/oom_score_adj"
    try:
        with open(path) as file:
            now = int(file.read())
        if now < int(OOM_SCORE_ADJ):
            _write(path, OOM_SCORE_ADJ)
    except (OSError, ValueError):
        pass  # not Linux, or not allowed: it only matters when the whole node is full


def _write(path: str, text: str) -> None:
    # Not `pathlib`: importing it takes as long as all the rest here.
    with open(path, "w") as file:
        file.write(text)


def _refuse(message: str, status: int) -> int:
    print(f"heteroflow launch: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
