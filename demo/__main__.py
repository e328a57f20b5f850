"""Runs the demo: `make demo`, or `python -m demo` where the package is installed."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

from demo.cases import NODES, POOL_TYPE, Case, cases
from demo.docker_engine import check_docker, remove_containers
from demo.report import Shown, is_over, print_report, progress
from demo.services import (
    DemoError,
    Home,
    Service,
    check_port,
    end_processes,
    environment,
    free_port,
    processes_of,
    server,
    stop,
    worker,
)

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from rich.console import Console

    from prefect_heteroflow.cli.watching import View

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_IMAGE = "prefecthq/prefect:3-python3.11"
_START_SECONDS = 120.0
_POLL_SECONDS = 1.5


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """What the Makefile or a person said."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave it up until Ctrl-C")
    parser.add_argument("--docker", action="store_true", help="run in containers")
    parser.add_argument("--image", default=DEFAULT_IMAGE, help="image with Python and Prefect")
    parser.add_argument("--port", type=int, help="port of the server; default: a free one")
    parser.add_argument("--home", type=Path, default=ROOT / ".demo", help="folder of the demo")
    parser.add_argument(
        "--timeout", type=float, default=240.0, help="seconds for all cases together"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the demo; 0 if every case ended as it should, 130 after Ctrl-C."""
    options = parse_arguments(arguments)
    # `kill` and a closed terminal end it as Ctrl-C does: with everything that it started.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return _run(options)
    except DemoError as error:
        print(f"\nThe demo stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; everything that the demo started has been ended.", file=sys.stderr)
        return 130


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    folder = options.home.resolve()
    if options.port is not None:
        check_port(options.port)
    gpus = check_docker(options.image) if options.docker else True
    with locked(folder):
        home = Home(folder=folder, port=options.port or free_port())
        left = end_processes(processes_of(folder))
        if left:
            print(f"Ended {left} processes of a demo that was killed before.")
        _empty(folder)
        # Prefect reads its settings when it is first imported, which has not happened yet.
        settings = environment(home.client_settings())
        os.environ.clear()
        os.environ.update(settings, PREFECT_LOGGING_LEVEL="ERROR")
        demo = Demo(home, options, gpus=gpus)
        try:
            failures = demo.run(started)
            if options.keep:
                demo.keep()
        finally:
            demo.end()
    return 1 if failures else 0


@contextmanager
def locked(folder: Path) -> Iterator[IO[str]]:
    """Keep a second demo out of the folder.

    Raises:
        DemoError: There is one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise DemoError(
                f"Another demo (process {lock.read().strip()}) uses {folder}. End it first."
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield lock


def _empty(folder: Path) -> None:
    """Remove what an earlier demo left, the lock apart."""
    for name in ("server", "client", "logs"):
        shutil.rmtree(folder / name, ignore_errors=True)


class Demo:
    """Server, nodes and cases of one demo."""

    def __init__(self, home: Home, options: argparse.Namespace, *, gpus: bool) -> None:
        from rich.console import Console

        self.home = home
        self.console: Console = Console(soft_wrap=False)
        if not self.console.is_terminal:
            self.console = Console(width=132)
        self._docker: bool = options.docker
        self._kept: bool = options.keep
        self._gpus = gpus
        self._timeout_seconds: float = options.timeout
        self._cases = cases(docker=options.docker, gpus=gpus, image=options.image)
        self._services: list[Service] = []
        self._run_ids: list[str] = []
        self._steps_from = time.monotonic()

    def run(self, started: float) -> int:
        """Everything up to the tables; gives how many cases did not end as they should."""
        self._steps_from = started
        kind = "containers" if self._docker else "child processes"
        self.console.print(
            f"[bold]prefect-heteroflow demo[/bold]: a Prefect server and three nodes on this"
            f" machine, runs in {kind}"
        )
        if not self._gpus:
            self.console.print(
                "Docker cannot give GPUs to containers here (no NVIDIA runtime), so the two cases"
                " about GPU memory are left out; `make demo` without DOCKER=1 has them."
            )
        self._start_server()
        self._start_nodes_and_deploy()
        views = asyncio.run(self._run_cases())
        failures = print_report(
            self.console,
            [
                Shown(case=case, view=view, url=self.home.run_url(run_id))
                for case, view, run_id in zip(self._cases, views, self._run_ids, strict=True)
            ],
            kept=self._kept,
            seconds=time.monotonic() - self._steps_from,
        )
        if failures:
            self.console.print(f"The logs of the server and the workers: {self.home.logs}")
        return failures

    def keep(self) -> None:
        """Leave everything up until Ctrl-C, and say where to look."""
        python = Path(sys.executable).parent
        self.console.print(
            f"\nStill up, until Ctrl-C. The UI: {self.home.url}\n"
            f"For commands in another terminal:\n"
            f"    export PREFECT_API_URL={self.home.api_url}\n"
            f"    {python}/heteroflow nodes\n"
            f"    {python}/prefect deployment run gpu-oom/gpu-oom --param need_gpu_mb=60000",
            highlight=False,
            soft_wrap=True,
        )
        while True:
            try:
                time.sleep(1)
            except KeyboardInterrupt:
                return
            for service in self._services:
                service.check_alive()

    def end(self) -> None:
        """End everything that the demo started; a second Ctrl-C does not leave half of it."""
        previous = [
            (number, signal.signal(number, signal.SIG_IGN))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        ]
        try:
            if self._services:
                self._step("ending the workers and the server")
            stop(self._services)
            end_processes(processes_of(self.home.folder))
            if self._docker:
                remove_containers(self._run_ids)
        finally:
            for number, handler in previous:
                signal.signal(number, handler)

    # ---- steps ------------------------------------------------------------------------------

    def _step(self, text: str) -> None:
        seconds = time.monotonic() - self._steps_from
        self.console.print(f"[dim]{seconds:5.1f} s[/dim]  {text}", highlight=False, soft_wrap=True)

    def _start(self, service: Service) -> Service:
        self._services.append(service)
        service.start()
        return service

    def _start_server(self) -> None:
        self._step(f"starting a Prefect server on SQLite: {self.home.url}")
        self._start(server(self.home)).await_ready(_START_SECONDS)

    def _start_nodes_and_deploy(self) -> None:
        asyncio.run(_create_pools(self._docker))
        workers = []
        for node in NODES:
            self._step(f"starting a worker: node {node.name}, {node.gpu_mb} MB GPU, {node.pool}")
            prefix = "PREFECT_INTEGRATIONS_HETEROFLOW"
            settings = {
                f"{prefix}_NODE_NAME": node.name,
                f"{prefix}_NODE_MEMORY_MB": str(node.memory_mb),
                f"{prefix}_NODE_GPUS": str(node.gpu_mb),
                # Half a minute and more by default; nobody wants to watch that.
                f"{prefix}_RETRY_DELAY": "1",
                f"{prefix}_RETRY_JITTER": "0",
                "PREFECT_WORKER_QUERY_SECONDS": "2",
            }
            started = worker(
                self.home,
                pool=node.pool,
                node=node.name,
                worker_type=POOL_TYPE[self._docker],
                settings=settings,
            )
            workers.append(self._start(started))
        self._step("deploying the flows of prefect.yaml: prefect deploy --all")
        _deploy(self.home)
        for started in workers:
            started.await_ready(_START_SECONDS)

    async def _run_cases(self) -> list[View]:
        from prefect.client.orchestration import get_client

        self._step(f"submitting {len(self._cases)} runs to gpu-8gb")
        async with get_client() as client:
            self._run_ids = [await _submit(client, case) for case in self._cases]
            return await self._watch(client)

    async def _watch(self, client: PrefectClient) -> list[View]:
        """The last view of each run; says what happens meanwhile."""
        from uuid import UUID

        from prefect_heteroflow.cli.watching import read_view

        views: list[View | None] = [None] * len(self._cases)
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            for index, case in enumerate(self._cases):
                before = views[index]
                if before is not None and is_over(before):
                    continue
                after = await read_view(client, UUID(self._run_ids[index]))
                for line in progress(before, after):
                    self._step(f"{case.name}: {line}")
                views[index] = after
            known = [view for view in views if view is not None]
            if all(map(is_over, known)) or time.monotonic() > deadline:
                return known
            for service in self._services:
                service.check_alive()
            await asyncio.sleep(_POLL_SECONDS)


async def _create_pools(docker: bool) -> None:
    """What `prefect work-pool create NAME --type heteroflow` does, three times."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.workers.base import BaseWorker

    kind = BaseWorker.get_worker_class_from_type(POOL_TYPE[docker])
    if kind is None:
        raise DemoError(f"The worker type {POOL_TYPE[docker]} is not registered with Prefect.")
    template = kind.get_default_base_job_template()
    async with get_client() as client:
        for node in NODES:
            pool = WorkPoolCreate(name=node.pool, type=kind.type, base_job_template=template)
            await client.create_work_pool(pool)


def _deploy(home: Home) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    (home.logs / "deploy.log").write_text(done.stdout)
    if done.returncode != 0:
        raise DemoError(f"`prefect deploy --all` failed:\n{done.stdout}")


async def _submit(client: PrefectClient, case: Case) -> str:
    """What `prefect deployment run` does."""
    deployment = await client.read_deployment_by_name(case.deployment)
    # A run's variables take the place of the deployment's one by one.
    run = await client.create_flow_run_from_deployment(
        deployment.id,
        parameters=dict(case.parameters),
        job_variables=dict(case.job_variables),
    )
    return str(run.id)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
