"""Says that runs wait because a node is cordoned: nobody else would."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun

from prefect_heteroflow.core.resources import Node
from prefect_heteroflow.orchestration.clock import utc_now

Logger = logging.Logger | logging.LoggerAdapter[Any]
_MOST_REMEMBERED = 10_000


class CordonNotice:
    """What one worker has said of its own cordon: each thing once, not at every poll.

    Args:
        logger: The worker's own.
        logger_of: That of a flow run, whose lines stand on the run's page.
    """

    def __init__(self, logger: Logger, logger_of: Callable[[FlowRun], Logger]) -> None:
        self._logger = logger
        self._logger_of = logger_of
        self._said: str | None = None
        self._told: dict[UUID, None] = {}

    def takes_runs(self) -> None:
        """The node is not cordoned; the next cordon is a new one."""
        self._said = None

    def leaves_alone(self, node: Node, flow_run: FlowRun, *, waits: bool) -> None:
        """The cordoned node leaves a run alone.

        Args:
            node: The worker's node.
            flow_run: A run that this worker was offered.
            waits: No other node of the pool takes it.
        """
        due = flow_run.next_scheduled_start_time
        if due is not None and due > utc_now():
            return  # it waits for its time
        why = f"node {node.name} is cordoned"
        why += f" ({node.cordon_reason})" if node.cordon_reason else ""
        way_out = f"`heteroflow node uncordon {node.name}`"
        if self._said != why:
            self._said = why
            self._logger.warning(
                "Runs of pool %s are left alone: %s. %s ends that.", node.pool, why, way_out
            )
        if not waits or flow_run.id in self._told:
            return
        while len(self._told) >= _MOST_REMEMBERED:
            self._told.pop(next(iter(self._told)))
        self._told[flow_run.id] = None
        self._logger_of(flow_run).warning(
            "The run waits: %s, and no other node of pool %s takes it. %s lets it start.",
            why,
            node.pool,
            way_out,
        )
