"""The flow that stands for plain jobs: an image and a command with no Prefect inside.

A run of its deployment with the job variable `command` never executes the body: the worker starts
the command and reports its states itself.
"""

from __future__ import annotations

from prefect import flow

DEPLOYMENT_NAME = "container-job"
ENTRYPOINT = "prefect_heteroflow.container_job.container_job"

HOW_TO_SUBMIT = (
    "This run has no command, so there is nothing to do. Give it the job variables `image` and"
    " `command`: `heteroflow submit --image python:3.12 --command 'python -c \"print(1)\"'`, or"
    " `prefect deployment run container-job/container-job --job-variable image=python:3.12"
    " --job-variable command='...'`, or the field Job Variables when you start a custom run in"
    " the Prefect UI."
)


@flow(name="container-job")
def container_job() -> None:
    """Run an image and a command, given as job variables, and retry them where they fit."""
    raise ValueError(HOW_TO_SUBMIT)
