"""What the runs have left behind when all of them have ended."""

from __future__ import annotations

from pathlib import Path

import psutil

from chaos.bed import Bed
from prefect_heteroflow.orchestration.leases import LEASE_PREFIX


def leftovers(bed: Bed) -> list[str]:
    """One sentence for each thing that nobody will remove any more."""
    return [
        *(f"Container {name} is left." for name in bed.containers()),
        *(f"Process {text} is left." for text in _processes(bed)),
        *(f"Scratch folder {path} is left." for path in _scratch(bed)),
        *(f"Lease {name} is left." for name in _leases(bed)),
        *(f"Cgroup {path} is left." for path in _cgroups(bed)),
    ]


def _processes(bed: Bed) -> list[str]:
    """Processes that have an attempt's variables: jobs, flows and what these have started."""
    mark = f"PREFECT_API_URL={bed.server.api_url}"
    found = []
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            of_attempt = "HETEROFLOW_TASK_ID" in environ
            if of_attempt and f"PREFECT_API_URL={environ.get('PREFECT_API_URL')}" == mark:
                found.append(f"{process.pid} ({' '.join(process.cmdline())[:120]})")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def _scratch(bed: Bed) -> list[Path]:
    return sorted(bed.scratch.glob("heteroflow-*"))


def _leases(bed: Bed) -> list[str]:
    variables = bed.api.post("/variables/filter", {"limit": 200})
    return [it["name"] for it in variables if it["name"].startswith(LEASE_PREFIX)]


def _cgroups(bed: Bed) -> list[Path]:
    """Groups of dead attempts: those of this run's tasks, by their names."""
    runs = {path.name for path in (bed.root / "marks").iterdir() if path.suffix != ".lock"}
    root = Path("/sys/fs/cgroup")
    groups = root.glob("**/heteroflow*") if root.is_dir() else ()
    return sorted(path for path in groups if any(run in path.name for run in runs))
