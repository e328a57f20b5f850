"""A private Docker engine: a `dockerd` of the test's own, on a socket of its own.

It shares nothing with another engine of the machine: data, state, bridge, containerd namespace
and configuration file are its own, and it writes no iptables rules. So its containers reach the
host (at `DockerEngine.gateway`, or with `network_mode="host"`) and each other, nothing outside.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import docker
import docker.errors
import requests.exceptions

from tests.support import wait_until
from tests.support.processes import alive, descendants, kill_all, mentioning, unmount_below

GPU_HOOK = "nvidia-container-runtime-hook"
"""The program whose presence on its PATH makes dockerd 20.10 accept GPU requests."""

LOG_TAIL_LINES = 40


def why_no_engine() -> str | None:
    """Why a `DockerEngine` cannot run here, or `None` when it can."""
    if not sys.platform.startswith("linux"):
        return f"a private dockerd needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "a private dockerd needs root"
    missing = [name for name in ("dockerd", "containerd", "runc", "ip") if not shutil.which(name)]
    return f"not installed: {', '.join(missing)}" if missing else None


class DockerEngine:
    """A `dockerd` for the time of a `with` block.

    Args:
        root: folder for images and containers (`root/data`), removed at the end, and for the log
            (`root/dockerd.log`), which stays.
        args: further arguments of dockerd, such as `["--live-restore"]`.
        bridge: give the engine a bridge network of its own. Without one (`--bridge=none`) its
            containers need `network_mode="host"` or `"none"`.
        gpus: make the engine accept `device_requests` for GPUs. A container asking for some gets
            `NVIDIA_VISIBLE_DEVICES` as on a GPU machine, and no device.
        data_mb: room for images and containers in MiB. They lie in memory (tmpfs): removing the
            images from a disk takes longer than most tests. What a container writes into its own
            file system therefore counts into its memory limit, and a small room is a full disk.
        start_timeout_seconds: how long the socket may take to answer.
    """

    def __init__(
        self,
        root: Path,
        *,
        args: Sequence[str] = (),
        bridge: bool = True,
        gpus: bool = False,
        data_mb: int = 4096,
        start_timeout_seconds: float = 60.0,
    ) -> None:
        self.root = root
        self.log_path = root / "dockerd.log"
        self.gpus = gpus
        self.data_mb = data_mb
        self.start_timeout_seconds = start_timeout_seconds
        self._args = list(args)
        self._id = f"hf{secrets.token_hex(4)}"
        self._bridge = self._id if bridge else None
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[docker.DockerClient] = []
        # Sockets have at most 107 characters in their path, and pytest's folders are long.
        self._run = Path(tempfile.mkdtemp(prefix=f"{self._id}-", dir="/tmp"))
        self.gateway: str | None = None

    @property
    def host(self) -> str:
        """The engine's address, as `DOCKER_HOST` takes it."""
        return f"unix://{self._run}/docker.sock"

    @property
    def pid(self) -> int | None:
        """Process id of the running dockerd, or `None`."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process else None

    def client(self, *, timeout_seconds: int = 60) -> docker.DockerClient:
        """A new client of this engine; closed at the engine's end at the latest."""
        client = docker.DockerClient(base_url=self.host, timeout=timeout_seconds)
        self._clients.append(client)
        return client

    def log_tail(self) -> str:
        """The last lines that dockerd wrote."""
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])

    def start(self) -> None:
        """Start dockerd and wait until its socket answers.

        Raises:
            RuntimeError: it ended or stayed silent; the message ends with the tail of its log.
        """
        if self.pid is not None:
            return
        self._mount_data()
        (self._run / "daemon.json").write_text("{}")
        # A pid file whose number now belongs to somebody else keeps dockerd from starting.
        (self._run / "docker.pid").unlink(missing_ok=True)
        if self._bridge and self.gateway is None:
            self.gateway = _add_bridge(self._bridge)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,
            )
        try:
            wait_until(
                self._answers, what="dockerd's answer", timeout_seconds=self.start_timeout_seconds
            )
        except (TimeoutError, RuntimeError) as exc:
            raise RuntimeError(f"dockerd did not start: {exc}\n{self.log_tail()}") from exc

    def stop(self, *, timeout_seconds: float = 30.0) -> None:
        """End dockerd by SIGTERM, which stops its containers (not with `--live-restore`)."""
        if self.pid is None or self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL dockerd alone, as a crash of the engine; its containers run on for a while."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget_containerd()

    def restart(self) -> None:
        """Stop dockerd, if it runs, and start it again on the same data and socket."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the engine, all its containers and mounts, and remove its data."""
        with contextlib.suppress(
            docker.errors.DockerException, requests.exceptions.RequestException
        ):
            self._kill_containers()
        for client in self._clients:
            client.close()
        self.stop()
        own = mentioning(self._id)
        below = [pid for parent in own for pid in descendants(parent)]
        kill_all([*own, *below])
        unmount_below(self.root)
        unmount_below(self._run)
        if self._bridge and self.gateway:
            _ip("link", "delete", self._bridge)
            self.gateway = None
        shutil.rmtree(self.root / "data", ignore_errors=True)
        shutil.rmtree(self._run, ignore_errors=True)

    def __enter__(self) -> DockerEngine:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _mount_data(self) -> None:
        data = self.root / "data"
        data.mkdir(parents=True, exist_ok=True)
        if not data.is_mount():
            size = f"size={self.data_mb}m,mode=711"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, self._id, data], check=True)

    def _command(self) -> list[str]:
        return [
            "dockerd",
            f"--config-file={self._run}/daemon.json",
            f"--data-root={self.root.resolve()}/data",
            f"--exec-root={self._run}/exec",
            f"--pidfile={self._run}/docker.pid",
            f"--host={self.host}",
            # Where the machine has a containerd, dockerd shares it: then the namespace parts them.
            f"--containerd-namespace={self._id}",
            f"--containerd-plugins-namespace={self._id}-plugins",
            f"--bridge={self._bridge or 'none'}",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-masq=false",
            "--storage-driver=overlay2",
            "--shutdown-timeout=5",
            # By default it tries a layer five times, and tells of the failure after 75 s.
            "--max-download-attempts=1",
            *self._args,
        ]

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY"):
            environment.pop(name, None)
        if self.gpus:
            hooks = self._run / "hooks"
            hooks.mkdir(exist_ok=True)
            hook = hooks / GPU_HOOK
            hook.write_text("#!/bin/sh\nexit 0\n")
            hook.chmod(0o755)
            environment["PATH"] = (
                f"{hooks}:{environment.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}"
            )
        return environment

    def _answers(self) -> bool:
        if self.pid is None:
            code = self._process.returncode if self._process else None
            raise RuntimeError(f"it ended with status {code}")
        # Not by docker-py: a client whose first question fails leaves its socket open.
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.settimeout(10)
            connection.connect(f"{self._run}/docker.sock")
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 OK" in connection.recv(64)
        return False

    def _forget_containerd(self) -> None:
        """Remove the pid file of a containerd that died with its dockerd.

        Where PID 1 does not reap, it stays a zombie, which dockerd takes for running: it then
        waits for its socket in vain.
        """
        pid_file = self._run / "exec" / "containerd" / "containerd.pid"
        if pid_file.exists():
            pid = int(pid_file.read_text())
            wait_until(lambda: not alive(pid), what="end of dockerd's containerd")
            pid_file.unlink(missing_ok=True)

    def _kill_containers(self) -> None:
        """Kill first: dockerd's own stop grants each container seconds of grace."""
        if self.pid is None:
            return
        client = self.client(timeout_seconds=20)
        for container in client.containers.list(ignore_removed=True):
            with contextlib.suppress(docker.errors.APIError):
                container.kill()


def _ip(*args: str) -> str:
    done = subprocess.run(["ip", *args], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def _add_bridge(name: str) -> str:
    """Make a bridge with a /24 that no interface of this machine has; gives the host's address."""
    interfaces: list[dict[str, Any]] = json.loads(_ip("-json", "address", "show"))
    used = [
        ipaddress.ip_interface(f"{address['local']}/{address['prefixlen']}").network
        for interface in interfaces
        for address in interface.get("addr_info", [])
        if address.get("family") == "inet"
    ]
    candidates = ipaddress.ip_network("10.213.0.0/16").subnets(new_prefix=24)
    subnet = next(net for net in candidates if not any(net.overlaps(other) for other in used))
    gateway = str(next(subnet.hosts()))
    _ip("link", "add", "name", name, "type", "bridge")
    _ip("address", "add", f"{gateway}/24", "dev", name)
    _ip("link", "set", name, "up")
    return gateway
