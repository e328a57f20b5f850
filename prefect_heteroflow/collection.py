"""What Prefect loads to learn of this integration: importing it registers the worker types.

It is apart from the package itself, so that `import prefect_heteroflow` in a job costs no Docker.
"""

from __future__ import annotations

from prefect_heteroflow.process_worker import HeteroflowProcessWorker
from prefect_heteroflow.worker import HeteroflowWorker

__all__ = ["HeteroflowProcessWorker", "HeteroflowWorker"]
