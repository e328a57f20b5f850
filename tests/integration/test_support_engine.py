"""What a real Docker engine tells of kills, failed starts and failed pulls.

The product's rules rest on these facts, so they are tests: an engine that tells otherwise shows
here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest
from docker.models.containers import Container
from docker.types import DeviceRequest

from tests.support.docker_engine import DockerEngine, why_no_engine
from tests.support.images import PLAIN_IMAGE, TINY_IMAGE, ensure_image
from tests.support.needs import need
from tests.support.registry import FlakyProxy, Registry, why_no_registry

pytestmark = pytest.mark.docker

EAT = "b = bytearray(512 << 20)"
"""Python code that needs half a GiB: its zeros are written, so the pages are really taken."""

PARENT = f"""
import subprocess, sys
child = subprocess.run([sys.executable, "-c", {EAT!r}])
print("child ended with", child.returncode, flush=True)
sys.exit(int(sys.argv[1]))
"""
"""Outlives its killed child, and ends with the status it was told."""


@pytest.fixture
def client(engine: DockerEngine) -> Iterator[docker.DockerClient]:
    client = engine.client()
    yield client
    for container in client.containers.list(all=True):
        container.remove(force=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """For a test with an engine of its own."""
    need(why_no_engine())
    return tmp_path


def limited(client: docker.DockerClient, image: str, command: list[str]) -> Container:
    """A running container with 64 MiB of memory and no swap."""
    return client.containers.run(image, command, detach=True, mem_limit="64m", memswap_limit="64m")


def final_state(container: Container) -> dict[str, Any]:
    """The container's state after its end, read anew."""
    container.wait(timeout=60)
    container.reload()
    state: dict[str, Any] = container.attrs["State"]
    return state


def pull(client: docker.DockerClient, name: str, **options: Any) -> list[dict[str, Any]]:
    """All lines of a pull."""
    return list(client.api.pull(name, stream=True, decode=True, **options))


def test_main_process_over_its_limit_is_oom_killed_with_137(
    client: docker.DockerClient, plain_image: str
) -> None:
    """With swap ruled out, the kernel's kill shows as `OOMKilled` and exit code 137."""
    container = limited(client, plain_image, ["python3", "-c", EAT])
    state = final_state(container)
    assert (state["OOMKilled"], state["ExitCode"]) == (True, 137)


@pytest.mark.parametrize("status", [0, 3])
def test_oom_of_a_child_is_told_whatever_the_parent_ends_with(
    client: docker.DockerClient, plain_image: str, status: int
) -> None:
    """A killed child makes `OOMKilled` true, and the exit code is the surviving parent's."""
    command = ["python3", "-c", PARENT, str(status)]
    container = limited(client, plain_image, command)
    state = final_state(container)
    assert container.logs().decode() == "child ended with -9\n"
    assert (state["OOMKilled"], state["ExitCode"]) == (True, status)


def test_kill_from_outside_ends_with_137_and_is_no_oom(
    client: docker.DockerClient, plain_image: str
) -> None:
    """The exit code alone cannot tell a `docker kill` from an OOM kill."""
    container = limited(client, plain_image, ["sleep", "600"])
    container.kill()
    state = final_state(container)
    assert (state["OOMKilled"], state["ExitCode"]) == (False, 137)


def test_unknown_program_is_refused_at_the_start_with_127(
    client: docker.DockerClient, plain_image: str
) -> None:
    """The start raises, the container stays `created`, and its exit code is the shell's 127."""
    container = client.containers.create(plain_image, ["/no/such"])
    with pytest.raises(docker.errors.APIError) as failed:
        container.start()
    container.reload()
    assert 'exec: "/no/such": stat /no/such: no such file or directory' in str(failed.value)
    assert (container.status, container.attrs["State"]["ExitCode"]) == ("created", 127)


def test_container_reaches_the_host_at_the_gateway(
    engine: DockerEngine, client: docker.DockerClient, plain_image: str
) -> None:
    """A service that listens on the bridge is reachable from a container, without iptables."""
    assert engine.gateway
    with FlakyProxy("127.0.0.1:9", status=204, host=engine.gateway) as service:
        service.fail_next(1)
        ask = f"import urllib.request as r; print(r.urlopen('http://{service.address}/').status)"
        output = client.containers.run(plain_image, ["python3", "-c", ask])
    assert output.decode() == "204\n"


def test_gpu_request_is_taken_by_the_gpu_engine_only(
    engine: DockerEngine, client: docker.DockerClient, gpu_engine: DockerEngine, plain_image: str
) -> None:
    """The GPU node hands the asked GPUs to the container by environment; the other node refuses."""
    request = DeviceRequest(device_ids=["GPU-1", "GPU-2"], capabilities=[["gpu"]])
    script = ["python3", "-c", "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])"]
    ensure_image(gpu_engine.client(), PLAIN_IMAGE)
    output = gpu_engine.client().containers.run(
        plain_image, script, device_requests=[request], network_mode="host", remove=True
    )
    assert output.decode() == "GPU-1,GPU-2\n"
    with pytest.raises(docker.errors.APIError, match="could not select device driver"):
        client.containers.run(plain_image, script, device_requests=[request])


def test_engine_that_was_killed_comes_back_with_its_containers(folder: Path) -> None:
    """After a SIGKILL and a new start the engine tells the end of what ran: 137, and no OOM."""
    with DockerEngine(folder) as engine:
        client = engine.client()
        container = client.containers.run(
            ensure_image(client, PLAIN_IMAGE),
            ["sleep", "600"],
            detach=True,
            network_mode="none",
            stop_signal="SIGKILL",
        )
        engine.kill()
        engine.start()
        state = final_state(container)
    assert (state["Status"], state["OOMKilled"], state["ExitCode"]) == ("exited", False, 137)


def test_live_restore_keeps_containers_through_a_restart(folder: Path) -> None:
    """An engine with `--live-restore` still has the same process running after its restart."""
    with DockerEngine(folder, args=["--live-restore"]) as engine:
        client = engine.client()
        container = client.containers.run(
            ensure_image(client, PLAIN_IMAGE), ["sleep", "600"], detach=True, network_mode="none"
        )
        container.reload()
        before = container.attrs["State"]["Pid"]
        engine.restart()
        container.reload()
        assert (container.status, container.attrs["State"]["Pid"]) == ("running", before)


def test_full_disk_of_the_engine_tells_no_space_left(folder: Path) -> None:
    """An import into an engine without room fails with the kernel's own words."""
    with DockerEngine(folder, data_mb=16) as engine:
        client = engine.client()
        with pytest.raises(docker.errors.APIError, match="no space left on device"):
            ensure_image(client, PLAIN_IMAGE)


def test_engine_that_cannot_start_raises_with_its_log(folder: Path) -> None:
    """The tail of dockerd's log tells why."""
    engine = DockerEngine(folder, args=["--no-such-option"])
    with pytest.raises(RuntimeError, match="unknown flag: --no-such-option"), engine:
        pass


def test_pull_of_an_unknown_tag_raises_not_found(
    client: docker.DockerClient, registry: Registry
) -> None:
    """404, with the registry's "manifest unknown"."""
    known = registry.push(client, ensure_image(client, TINY_IMAGE), "tiny:1")
    name = known.replace("tiny:1", "tiny:none")
    with pytest.raises(docker.errors.NotFound) as failed:
        pull(client, name)
    text = f"manifest for {name} not found: manifest unknown: manifest unknown"
    assert (failed.value.status_code, failed.value.explanation) == (404, text)


def test_pull_without_credentials_raises_no_basic_auth(
    client: docker.DockerClient, tmp_path: Path
) -> None:
    """Refused credentials come as a 500 of the engine: only the text tells them from a fault."""
    need(why_no_registry())
    with Registry(tmp_path, auth=("ann", "secret")) as closed:
        name = closed.push(client, ensure_image(client, TINY_IMAGE), "tiny:1")
        with pytest.raises(docker.errors.APIError) as without:
            pull(client, name)
        with pytest.raises(docker.errors.APIError) as wrong:
            pull(client, name, auth_config={"username": "ann", "password": "guess"})
        last = pull(client, name, auth_config=closed.auth_config)[-1]["status"]
    address = f"http://{closed.address}/v2/tiny/manifests/1"
    no_auth = f'Head "{address}": no basic auth credentials'
    assert (without.value.status_code, without.value.explanation) == (500, no_auth)
    unauthorized = "unauthorized: authentication required"
    assert (wrong.value.status_code, wrong.value.explanation) == (500, unauthorized)
    assert last == f"Status: Downloaded newer image for {name}"


def test_pull_from_a_registry_that_answers_503_raises_and_then_works(
    client: docker.DockerClient, registry: Registry
) -> None:
    """The engine itself tries a request three times, then tells the status it got."""
    registry.push(client, ensure_image(client, TINY_IMAGE), "tiny:1")
    with FlakyProxy(registry.address) as proxy:
        name = f"{proxy.address}/tiny:1"
        proxy.fail_next(1000)
        with pytest.raises(docker.errors.APIError) as failed:
            pull(client, name)
        text = "received unexpected HTTP status: 503 Service Unavailable"
        assert (failed.value.status_code, failed.value.explanation) == (500, text)
        proxy.fail_next(0)
        assert pull(client, name)[-1]["status"] == f"Status: Downloaded newer image for {name}"


def test_layer_that_fails_with_503_shows_as_an_error_line(
    client: docker.DockerClient, registry: Registry
) -> None:
    """Once the answer has begun, the error is a line of the stream: docker-py raises nothing."""
    registry.push(client, ensure_image(client, TINY_IMAGE), "tiny:1")
    # By its id: other tests pulled it under other names, and then no layer is fetched.
    client.images.remove(str(client.images.get(TINY_IMAGE).id), force=True)
    with FlakyProxy(registry.address) as proxy:
        proxy.fail_next(1000, containing="/blobs/")
        lines = pull(client, f"{proxy.address}/tiny:1")
    text = "received unexpected HTTP status: 503 Service Unavailable"
    # Before it may stand "error pulling image configuration: download failed after attempts=6: ".
    assert lines[-1]["error"].endswith(text)
    assert lines[-1]["errorDetail"] == {"message": lines[-1]["error"]}


def test_pull_from_a_closed_port_tells_connection_refused(client: docker.DockerClient) -> None:
    """A registry that is away looks like this."""
    with pytest.raises(docker.errors.APIError) as failed:
        pull(client, "127.0.0.1:1/tiny:1")
    text = 'Get "http://127.0.0.1:1/v2/": dial tcp 127.0.0.1:1: connect: connection refused'
    assert failed.value.explanation == text
