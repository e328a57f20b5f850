"""Which node of a pool takes a run: each worker leaves alone what belongs to another node."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.attempts.cordon_notice import CordonNotice
from prefect_heteroflow.core.job_values import RESOURCE_NAMES, JobValueError, parse_job_values
from prefect_heteroflow.core.resources import Cluster, Node, Resources
from prefect_heteroflow.core.routing import awaited_nodes, fits
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.transitions import job_variables_of
from prefect_heteroflow.settings import HeteroflowSettings

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

# One poll reads each deployment once; a deployment that was just changed counts as it is now.
_DEPLOYMENT_SECONDS = 2.0
_NAMES = (*RESOURCE_NAMES, "oom_memory_limit")


class Placements:
    """Judges the runs that a poll has found.

    Args:
        client: Of the server.
        settings: The worker's.
        notice: Says which runs a cordon keeps waiting.
    """

    def __init__(
        self, client: PrefectClient, settings: HeteroflowSettings, notice: CordonNotice
    ) -> None:
        self._client = client
        self._notice = notice
        self._grace_seconds = settings.placement_grace_seconds
        self._deployments: dict[UUID, tuple[float, Mapping[str, Any]]] = {}

    async def is_for(
        self,
        node: Node,
        flow_run: FlowRun,
        cluster: Cluster,
        base_job_template: Mapping[str, Any],
    ) -> bool:
        """Whether this node takes the run; if no other live node of the pool can, it does."""
        others = [
            other
            for other in cluster.nodes
            if other.pool == node.pool and other.name != node.name and other.takes_runs
        ]
        placement = job_variables_of(flow_run).get("placement")
        if not isinstance(placement, Mapping):
            placement = {}
        given = placement.get("avoid")
        avoided = list(given) if isinstance(given, list | tuple) else []
        if node.cordoned:
            if placement.get("strict"):
                others = [other for other in others if other.name not in avoided]
            waits = not await self._able(others, flow_run, base_job_template)
            self._notice.leaves_alone(node, flow_run, waits=waits)
            return False
        self._notice.takes_runs()
        if placement.get("strict") and node.name in avoided:
            return False  # retry_same_node: it waits until its own node is back
        awaited = _awaited(placement, node, cluster)
        if not others and awaited is None:
            return True
        resources = await self._resources(flow_run, base_job_template)
        if resources is None:
            return True  # the values are bad: whoever takes the run says so
        able = [other for other in others if fits(resources, other)]
        if not able:
            # Whoever took it would refuse it, and it was decided that it waits.
            waits = awaited is not None and fits(resources, awaited)
            return fits(resources, node) or not waits
        if not fits(resources, node):
            return False
        if node.name in avoided and any(other.name not in avoided for other in able):
            return False
        preferred = placement.get("prefer")
        if not isinstance(preferred, str):
            return True
        if preferred == node.name or preferred not in {other.name for other in able}:
            return True
        return not self._within_grace(flow_run, placement)

    async def _able(
        self, nodes: Sequence[Node], flow_run: FlowRun, base_job_template: Mapping[str, Any]
    ) -> bool:
        """Whether one of the nodes takes the run; whoever takes one of bad values refuses it."""
        if not nodes:
            return False
        resources = await self._resources(flow_run, base_job_template)
        return resources is None or any(fits(resources, node) for node in nodes)

    def _within_grace(self, flow_run: FlowRun, placement: Mapping[str, Any]) -> bool:
        since = _time(placement.get("since"))
        due = flow_run.next_scheduled_start_time or flow_run.expected_start_time
        waits_since = max((time for time in (since, due) if time is not None), default=None)
        if waits_since is None:
            return False
        return (utc_now() - waits_since).total_seconds() < self._grace_seconds

    async def _resources(
        self, flow_run: FlowRun, base_job_template: Mapping[str, Any]
    ) -> Resources | None:
        properties = base_job_template.get("variables", {}).get("properties", {})
        values: dict[str, Any] = {
            name: properties[name]["default"]
            for name in _NAMES
            if properties.get(name, {}).get("default") is not None
        }
        for source in (
            await self._deployment_values(flow_run.deployment_id),
            job_variables_of(flow_run),
        ):
            values.update({k: v for k, v in source.items() if k in _NAMES})
        try:
            return parse_job_values({k: v for k, v in values.items() if v is not None}).resources
        except JobValueError:
            return None

    async def _deployment_values(self, deployment_id: UUID | None) -> Mapping[str, Any]:
        if deployment_id is None:
            return {}
        now = time.monotonic()
        known = self._deployments.get(deployment_id)
        if known is not None and now - known[0] < _DEPLOYMENT_SECONDS:
            return known[1]
        try:
            deployment = await self._client.read_deployment(deployment_id)
        except ObjectNotFound:
            return {}
        values = deployment.job_variables or {}
        self._deployments[deployment_id] = (now, values)
        return values


def _awaited(placement: Mapping[str, Any], node: Node, cluster: Cluster) -> Node | None:
    """Another node of the pool for which the run was planned, whether it takes runs now or not."""
    names = awaited_nodes(placement)
    found = (
        other
        for other in cluster.nodes
        if other.pool == node.pool and other.name != node.name and other.name in names
    )
    return next(found, None)


def _time(text: object) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=timezone.utc)
