"""Docker's engine, as far as the demo needs it: engine and image at first, no container at last."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from demo.services import DemoError


def check_docker(image: str) -> bool:
    """Make sure of engine and image; gives whether the engine can give GPUs to containers.

    Raises:
        DemoError: There is no engine, or the image cannot be had.
    """
    import docker
    import docker.errors
    import requests.exceptions

    from prefect_heteroflow.infra.node_probe import docker_gpu_support

    try:
        client = docker.from_env()
        info = client.info()
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise DemoError(
            f"No Docker engine answers ({error}). Start it, or point DOCKER_HOST at it, or run"
            " `make demo` without DOCKER=1."
        ) from None
    try:
        try:
            client.images.get(image)
        except docker.errors.ImageNotFound:
            print(f"Pulling {image}")
            client.images.pull(image)
    except (docker.errors.APIError, requests.exceptions.RequestException) as error:
        raise DemoError(
            f"The image {image} cannot be pulled ({getattr(error, 'explanation', None) or error})."
            " Name one that has Python and Prefect 3: make demo DOCKER=1 IMAGE=NAME"
        ) from None
    finally:
        client.close()
    return docker_gpu_support(info) is not False


def remove_containers(run_ids: Sequence[str]) -> None:
    """Remove what is left of the containers of these runs; a failure is told, not raised."""
    import docker
    import docker.errors

    client = docker.from_env()
    try:
        for run_id in run_ids:
            wanted: dict[str, Any] = {"label": f"io.prefect-heteroflow.task-id={run_id}"}
            for container in client.containers.list(all=True, filters=wanted):
                container.remove(force=True, v=True)
    except docker.errors.APIError as error:
        print(f"Containers of the demo may be left: {error}", file=sys.stderr)
    finally:
        client.close()
