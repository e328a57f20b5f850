"""Write the base job templates in `work-pools/` anew from the worker classes.

    python deployments/write_templates.py

`tests/surface/test_deployments.py` fails where they differ.
"""

import json
from pathlib import Path
from typing import Any

from prefect.workers.base import BaseWorker

from prefect_heteroflow.process_worker import HeteroflowProcessWorker
from prefect_heteroflow.worker import HeteroflowWorker

FOLDER = Path(__file__).parent / "work-pools"
WORKERS: tuple[type[BaseWorker[Any, Any, Any]], ...] = (HeteroflowWorker, HeteroflowProcessWorker)


def main() -> None:
    """One file per worker type, named after it."""
    FOLDER.mkdir(exist_ok=True)
    for worker in WORKERS:
        text = json.dumps(worker.get_default_base_job_template(), indent=2)
        (FOLDER / f"{worker.type}.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
