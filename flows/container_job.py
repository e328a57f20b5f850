"""A plain job: `image` + `command`, with no Prefect inside the image.

Its output becomes the run's log, its exit code the run's state, and it is retried and routed like
any flow. Submit one with

    heteroflow submit --image python:3.12-slim --command "python -c 'print(6 * 7)'" --watch

A run of this deployment without a command executes the flow, which explains how to submit.
"""

from prefect_heteroflow.container_job import container_job

__all__ = ["container_job"]
