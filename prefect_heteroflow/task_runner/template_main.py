"""The template: a process that has imported Prefect once and forks the children of task runners.

A fork takes milliseconds where a new interpreter takes seconds. It is safe because the template
runs no thread and never runs a task: no lock is held, no CUDA context exists, no connection is
open at the time of a fork. It is also the one that sees its children end, and that ends what a
dead child left behind: as their subreaper it inherits every orphan.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from prefect_heteroflow.infra.resource_trackers import TrackersLast

_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE_BYTES = 1 << 20
OOM_SCORE_ADJ = "500"
"""When the whole node runs out of memory, the kernel is to take a child, not the flow."""


def main(descriptor: int) -> None:
    """Fork children as they are asked for, until the other end of the socket is closed."""
    control = socket.socket(fileno=descriptor)
    hello = json.loads(control.recv(_MESSAGE_BYTES))
    sys.path[:] = hello["sys_path"]
    for name in ("main", "sys"):  # a script may have its own
        vars(sys.modules["__main__"]).pop(name, None)
    from prefect_heteroflow.task_runner import child, flow_interpreter

    flow_interpreter.show_main_module(hello["main"])
    child.prepare_template()
    if threading.active_count() != 1:
        names = ", ".join(thread.name for thread in threading.enumerate())
        raise RuntimeError(f"the template must not run threads when it forks, but has: {names}")
    become_subreaper()
    gc.collect()
    gc.freeze()
    _Template(control).serve()


def become_subreaper() -> bool:
    """Orphans below this process become its children; False where the kernel has no such thing."""
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    return False


def own_children() -> list[int]:
    """Ids of the direct children of this process, zombies included."""
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in path.read_text().split()]
    return found


class _Template:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, int] = {}
        """Process id -> number of the child."""
        self._orphans = TrackersLast()

    def serve(self) -> None:
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wake, select.POLLIN)
        is_over = False
        while not (is_over and not own_children()):
            seconds = self._orphans.seconds_left()
            milliseconds = None if seconds is None else 1000 * seconds + 1
            ready = {descriptor for descriptor, _ in poll.poll(milliseconds)}
            if wake.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    wake.recv(4096)
                self._reap()
            if self._control.fileno() in ready and not self._obey((wake, woken)):
                # The flow's process is gone: nobody waits for any of them.
                is_over = True
                poll.unregister(self._control)
                self._children.clear()
            self._end_orphans()

    def _obey(self, own: tuple[socket.socket, ...]) -> bool:
        """Do what the next message asks for; False at the end of the conversation."""
        data, descriptors, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 1)
        if not data:
            return False
        message = json.loads(data)
        if message["do"] == "fork":
            self._fork(message["child"], descriptors[0], own)
        elif message["do"] == "signal":
            for pid, child in self._children.items():
                if child == message["child"]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, message["signal"])
        return True

    def _fork(self, child: int, descriptor: int, own: tuple[socket.socket, ...]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            os.close(descriptor)
            self._tell({"child": child, "error": f"cannot fork: {error}"})
            return
        if pid == 0:
            self._be_child(descriptor, own)
        os.close(descriptor)
        self._children[pid] = child
        self._tell({"child": child, "pid": pid})

    def _be_child(self, descriptor: int, own: tuple[socket.socket, ...]) -> None:
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (self._control, *own):
                inherited.close()
            gc.unfreeze()
            # A daemon that a body starts stays below its child, where it is found and ended.
            become_subreaper()
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJ)
            from prefect_heteroflow.task_runner import child

            status = child.serve(descriptor)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is None:
                continue  # an orphan that was inherited, and ended
            self._end_orphans()  # before anybody hears of its end
            code = os.waitstatus_to_exitcode(status)
            self._tell({"child": child, "status": code})

    def _end_orphans(self) -> None:
        """End what children left behind: everything below us that we did not fork."""
        left = [pid for pid in own_children() if pid not in self._children]
        for pid in self._orphans.due(left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the other end is gone: `_obey` sees that too
            self._control.send(json.dumps(message).encode())
