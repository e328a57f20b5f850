"""The flow that runs the body of a task on another pool: the far side of `remote_attempts`."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from dataclasses import dataclass, field
from typing import Any

from prefect import flow
from prefect.client.orchestration import get_client

from prefect_heteroflow.orchestration.task_bodies import FLOW_NAME
from prefect_heteroflow.task_runner import contexts
from prefect_heteroflow.task_runner.bodies_sent import load_body
from prefect_heteroflow.task_runner.child import raised_reply, value_of_body, value_reply
from prefect_heteroflow.task_runner.sealed_storage import storage_at

DEPLOYMENT_NAME = "heteroflow-task-body"
ENTRYPOINT = "prefect_heteroflow.task_runner.remote_body.task_body"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCall:
    """What is stored for the other side, pickled."""

    body: bytes
    """From `remote_attempts.pack_for_elsewhere`."""
    flow: bytes | None
    run: bytes
    folder: str
    paths: tuple[str, ...]
    """`sys.path` of the flow: modules of the user are found where the same folders exist."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment that tells the body which attempt it is."""


@flow(name=FLOW_NAME)
def task_body(call_key: str, reply_key: str, storage: dict[str, str], seal: str) -> None:
    """Run one attempt of a task that needs more than the node of its flow has.

    Created by `HeteroTaskRunner`; there is nothing to run by hand.

    Args:
        call_key: Where the body and its arguments are stored.
        reply_key: Where its value or exception is to be stored.
        storage: The address of that storage.
        seal: The key of the attempt's digests.
    """
    sealed = storage_at(storage)
    call: RemoteCall = pickle.loads(sealed.get_call(call_key, seal))
    sys.path.extend(path for path in call.paths if path not in sys.path and os.path.isdir(path))
    with contextlib.suppress(OSError):
        os.chdir(call.folder)
    os.environ.update(call.variables)
    task = load_body(call.body)
    flow_part = None if call.flow is None else pickle.loads(call.flow)
    run = contexts.load_run(call.run, task)
    assets: dict[str, dict[str, Any]] = {}
    try:
        with (
            get_client(sync_client=True) as client,
            contexts.entered(task, flow_part, run, client, assets),
        ):
            value = value_of_body(task, run.parameters)
    except BaseException as error:
        sealed.put(reply_key, pickle.dumps(raised_reply(error)), seal)
        raise
    sealed.put(reply_key, pickle.dumps(value_reply(value, assets)), seal)
