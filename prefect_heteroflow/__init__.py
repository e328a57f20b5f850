"""The retry brain for Prefect on unequal machines.

Prefect finds the worker types `heteroflow` and `heteroflow-process` through the entry point
`prefect_heteroflow.collection`; a job imports this package for `current_attempt` and costs little.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CurrentAttempt",
    "HeteroTaskError",
    "HeteroTaskRunner",
    "HeteroflowSettings",
    "LostResultError",
    "WorkerDiedError",
    "aget_attempts",
    "current_attempt",
    "get_attempts",
    "requires",
    "retry_if",
    "retry_if_transient",
]

_HOMES = {
    "CurrentAttempt": "prefect_heteroflow.current",
    "HeteroTaskError": "prefect_heteroflow.task_runner.errors",
    "HeteroTaskRunner": "prefect_heteroflow.task_runner.runner",
    "HeteroflowSettings": "prefect_heteroflow.settings",
    "LostResultError": "prefect_heteroflow.task_runner.errors",
    "WorkerDiedError": "prefect_heteroflow.task_runner.errors",
    "aget_attempts": "prefect_heteroflow.orchestration.history",
    "current_attempt": "prefect_heteroflow.current",
    "get_attempts": "prefect_heteroflow.orchestration.history",
    "requires": "prefect_heteroflow.task_runner.requirements",
    "retry_if": "prefect_heteroflow.conditions",
    "retry_if_transient": "prefect_heteroflow.conditions",
}


def __getattr__(name: str) -> Any:
    """Load a public name, or `__version__`, when it is first asked for."""
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("prefect-heteroflow")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
