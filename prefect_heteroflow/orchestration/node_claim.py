"""Node names: of two live workers with one name, the second is refused."""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import httpx
from prefect.client.schemas.actions import VariableCreate, VariableUpdate
from prefect.exceptions import ObjectAlreadyExists
from prefect.logging import get_logger

from prefect_heteroflow.core.resources import Node
from prefect_heteroflow.orchestration.node_values import (
    Holder,
    NodeRecord,
    node_to_value,
    node_variable_name,
    parse_node_value,
)

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import Variable

CLAIM_POLL_SECONDS = 1.0
NODE_NAME_SETTING = "PREFECT_INTEGRATIONS_HETEROFLOW_NODE_NAME"

logger = get_logger("heteroflow.nodes")


class NodeNameTaken(Exception):
    """Another live worker publishes a node of this name; the text says which and what to do."""

    def __init__(self, holder: NodeRecord, *, age_seconds: float, free_in_seconds: float) -> None:
        self.holder = holder
        self.free_in_seconds = free_in_seconds
        """When the name is free if that worker is dead."""
        worker = holder.holder
        where = f" on host {worker.host} (process {worker.pid})" if worker.host else ""
        dead = (
            f"; if it is dead, the name is free in {max(free_in_seconds, 0):.0f} s"
            if math.isfinite(free_in_seconds)
            else ""
        )
        super().__init__(
            f"The node name {holder.node.name!r} is taken by another worker{where} of pool"
            f" {holder.node.pool!r}, heard of {max(age_seconds, 0):.0f} s ago. Give this node a"
            f" name of its own with {NODE_NAME_SETTING}, or stop that worker{dead}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClaim:
    """A node's name that is this worker's."""

    id: UUID
    """For `publish_node`."""
    node: Node
    """As it was published, with the pools of earlier workers of its name."""


async def claim_node_name(
    client: PrefectClient,
    node: Node,
    *,
    worker_instance_id: str,
    now: datetime,
    liveness_seconds: float,
    wait_seconds: float = 0.0,
) -> NodeClaim:
    """Take the node's name for this worker and publish the node for the first time.

    Safe against a second worker that does the same at the same moment: a name is created, or
    deleted by the id of the very Variable that was found dead and then created, and the API lets
    only one of two do that. A name is free when its worker said goodbye, was not heard of for
    `liveness_seconds`, or ran on this machine and its process is gone.

    Args:
        client: A client in use.
        node: The node to publish.
        worker_instance_id: Different for each start of a worker.
        now: The time, with a time zone.
        liveness_seconds: Age from which on a heartbeat counts for nothing.
        wait_seconds: How long to wait for a holder of the name that looks dead but is not old
            enough yet (a restarted container). A holder that gives a sign of life meanwhile ends
            the wait at once.

    Returns:
        The claim, with the node as it is to be published from now on.

    Raises:
        NodeNameTaken: Another live worker has the name.
        httpx.HTTPError: The API failed.
    """
    name = node_variable_name(node.name)
    started = time.monotonic()
    first_seen: NodeRecord | None = None
    while True:
        waited = time.monotonic() - started
        moment = now + timedelta(seconds=waited)
        me = own_holder(worker_instance_id)
        value = node_to_value(node, holder=me, heartbeat_at=moment)
        variable = await client.read_variable_by_name(name)
        if variable is None:
            try:
                created = await client.create_variable(VariableCreate(name=name, value=value))
            except ObjectAlreadyExists:
                continue
            return NodeClaim(id=created.id, node=node)
        record = _parse(variable)
        if record is not None and record.holder.instance_id == worker_instance_id:
            node = node.after(record.node)
            value = node_to_value(node, holder=me, heartbeat_at=moment)
            await client.update_variable(VariableUpdate(name=name, value=value))
            return NodeClaim(id=variable.id, node=node)
        if record is not None and not _is_free(record, me, moment, liveness_seconds):
            age = (moment - record.heartbeat_at).total_seconds()
            alive = first_seen is not None and first_seen.heartbeat_at != record.heartbeat_at
            if alive or waited >= wait_seconds:
                raise NodeNameTaken(record, age_seconds=age, free_in_seconds=liveness_seconds - age)
            first_seen = record
            await asyncio.sleep(min(CLAIM_POLL_SECONDS, wait_seconds))
            continue
        if record is not None:
            node = node.after(record.node)
        await _delete_variable(client, variable)


def _is_free(record: NodeRecord, me: Holder, now: datetime, liveness_seconds: float) -> bool:
    if record.stopped or (now - record.heartbeat_at).total_seconds() > liveness_seconds:
        return True
    holder = record.holder
    if holder.pid is None or not holder.shares_process_ids_with(me):
        return False
    return _process_start(holder.pid) != holder.pid_started


async def _delete_variable(client: PrefectClient, variable: Variable) -> None:
    # By id, not by name: of two workers that found the same dead holder only one deletes it, and
    # none can delete what the other has just created.
    try:
        await client.request("DELETE", "/variables/{id}", path_params={"id": str(variable.id)})
    except httpx.HTTPStatusError as error:
        if error.response.status_code != 404:
            raise


def _parse(variable: Variable) -> NodeRecord | None:
    try:
        return parse_node_value(variable.value)
    except ValueError as error:
        logger.warning("The Variable %s is replaced: %s.", variable.name, error)
        return None


def own_holder(worker_instance_id: str) -> Holder:
    """This process as the publisher of a node."""
    pid = os.getpid()
    return Holder(
        instance_id=worker_instance_id,
        host=socket.gethostname(),
        boot_id=_boot_id(),
        pid_namespace=_pid_namespace(),
        pid=pid,
        pid_started=_process_start(pid),
    )


@cache
def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


@cache
def _pid_namespace() -> str | None:
    try:
        return re.sub(r"\D", "", Path("/proc/self/ns/pid").readlink().name) or None
    except OSError:
        return None


def _process_start(pid: int) -> int | None:
    """Start of a process in the kernel's ticks since boot; `None` if it is gone or a zombie."""
    try:
        # The command in brackets may itself hold spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) if fields[0] not in "ZX" else None
    except (OSError, ValueError, IndexError):
        return None
