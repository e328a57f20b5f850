"""The flow's end of the template process, and of the children that it forks."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import prefect_heteroflow
from prefect_heteroflow.task_runner.flow_interpreter import interpreter_flags, main_module

START_SECONDS = 120.0
_MESSAGE_BYTES = 1 << 20
# The package is found where this process found it, whatever the interpreter's own path is.
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[2]);"
    " from prefect_heteroflow.task_runner.template_main import main; main(int(sys.argv[1]))"
)


class ChildNotStarted(Exception):
    """No child process could be started; the text says why."""


class ChildProcess:
    """One forked process: its connection, and how it ended."""

    def __init__(self, template: Template, number: int, ours: socket.socket) -> None:
        self._template = template
        self.known_path = template.known_path
        """`sys.path` of this process, as the child knows it."""
        self.known_argv: list[str] | None = None
        """The same of `sys.argv`; `None` if it knows nothing of it."""
        self._number = number
        self._lock = threading.Lock()
        self._open = True
        self._descriptor = ours.detach()
        self.connection = Connection(self._descriptor)
        self.pid: int | None = None
        self.error: str | None = None
        self.status: int | None = None
        """As of `subprocess`: the exit code, or minus the signal; `None` if nobody saw it end."""
        self.answered = threading.Event()
        """It was started, or it is known that it was not."""
        self.ended = threading.Event()

    def send_signal(self, number: int) -> None:
        """A signal to the process, if it still runs."""
        if not self.ended.is_set():
            self._template.tell({"do": "signal", "child": self._number, "signal": number})

    def set_ended(self, status: int | None) -> None:
        """The process is gone: whoever reads from it gets what it wrote, and then the end."""
        self.status = status
        self.ended.set()
        self.answered.set()
        with self._lock:
            if self._open:
                # A process that the child forked may hold the other end open.
                end = socket.socket(fileno=self._descriptor)
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.detach()

    def close(self) -> None:
        """Close the connection: an idle child leaves then."""
        with self._lock:
            if self._open:
                self._open = False
                self.connection.close()


class Template:
    """A running template process.

    Args:
        environment: Environment variables of the template and its children.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._owner_pid = os.getpid()
        self._numbers = itertools.count(1)
        self._children: dict[int, ChildProcess] = {}
        self._lock = threading.Lock()
        self.alive = True
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self.known_path: list[Any] = list(sys.path)
        """`sys.path` of this process when the template started."""
        package = str(Path(prefect_heteroflow.__file__).parents[1])
        self._process = subprocess.Popen(
            [sys.executable, *interpreter_flags(), "-c", _BOOT, str(theirs.fileno()), package],
            pass_fds=[theirs.fileno()],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            # Ctrl-C in a terminal is for the flow: it decides what happens to the bodies.
            start_new_session=True,
        )
        theirs.close()
        hello = {"sys_path": absolute_path(self.known_path), "main": main_module()}
        self._control.send(json.dumps(hello).encode())
        threading.Thread(target=self._listen, name="heteroflow-template", daemon=True).start()

    @property
    def usable(self) -> bool:
        """It runs, and it is this process's own (a fork of this process must not use it)."""
        return self.alive and self._owner_pid == os.getpid()

    def fork(self) -> ChildProcess:
        """A new child.

        Raises:
            ChildNotStarted: The template or the kernel gave none.
        """
        ours, theirs = socket.socketpair()
        with self._lock:
            number = next(self._numbers)
            child = self._children[number] = ChildProcess(self, number, ours)
        try:
            message = json.dumps({"do": "fork", "child": number}).encode()
            socket.send_fds(self._control, [message], [theirs.fileno()])
        except OSError as error:
            child.error = f"the template process is gone ({error})"
            child.set_ended(None)
        finally:
            theirs.close()
        if not self.alive:
            child.set_ended(None)
        if not child.answered.wait(START_SECONDS):
            child.error = f"the template process did not answer for {START_SECONDS:g} s"
        if child.pid is None:
            with self._lock:
                self._children.pop(number, None)
            child.close()
            raise ChildNotStarted(child.error or "the template process ended; see its output")
        return child

    @property
    def has_children(self) -> bool:
        """Some child of it still runs."""
        with self._lock:
            return bool(self._children)

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message to the template, if it still listens."""
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(message).encode())

    def close(self) -> None:
        """End the template, and with it all of its children."""
        if self._owner_pid != os.getpid():
            return
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def leave_to_owner(self) -> None:
        """In a fork of the flow's process: let go of what would hide the end of that process."""
        self._control.close()

    def _listen(self) -> None:
        while True:
            try:
                data = self._control.recv(_MESSAGE_BYTES)
            except OSError:
                data = b""
            if not data:
                break
            self._note(json.loads(data))
        with self._lock:
            self.alive = False
            left = list(self._children.values())
            self._children.clear()
        self._process.poll()
        for child in left:
            child.set_ended(None)
        self._control.close()

    def _note(self, message: dict[str, Any]) -> None:
        with self._lock:
            ended = "status" in message
            number = message["child"]
            child = self._children.pop(number, None) if ended else self._children.get(number)
        if child is None:
            return
        if ended:
            child.set_ended(message["status"])
            return
        child.pid = message.get("pid")
        child.error = message.get("error")
        child.answered.set()


def absolute_path(path: list[Any]) -> list[str]:
    """The entries of a `sys.path` as they are found from another working folder."""
    found = []
    for entry in path:
        if isinstance(entry, str):  # Python passes over what is none
            with contextlib.suppress(OSError):  # the working folder is gone
                found.append(os.path.abspath(entry))
    return found


_templates: dict[tuple[tuple[str, str], ...], Template] = {}
_templates_lock = threading.Lock()


def template_for(settings: Mapping[str, str]) -> Template:
    """The template of this process for these Prefect settings; started if there is none yet.

    It is kept when a flow run ends: each flow run gets a task runner of its own, and none of them
    shall wait for the imports again.

    Args:
        settings: Prefect settings as environment variables.
    """
    key = tuple(sorted(settings.items()))
    with _templates_lock:
        found = _templates.get(key)
        if found is None or not found.usable:
            _close_spare()
            found = _templates[key] = Template({**os.environ, **settings})
        return found


def _close_spare() -> None:
    """Close templates that nobody uses, but for the newest one; each holds 80 MB."""
    spare = [key for key, template in _templates.items() if not template.has_children]
    for key in spare[:-1]:
        _templates.pop(key).close()


@atexit.register
def _close_templates() -> None:
    for template in _templates.values():
        template.close()


def _leave_templates() -> None:
    for template in _templates.values():
        template.leave_to_owner()


# A pool of `multiprocessing` may outlive the flow's process; the template must see that end.
os.register_at_fork(after_in_child=_leave_templates)
