"""The slot that a run holds of its deployment's concurrency limit, while its attempt runs.

Prefect gives the slot for a while only, its lease; who runs the flow renews that. For a flow
Prefect's engine does so within the attempt. A plain job has no engine: its worker does it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
import httpx
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.orchestration.insisting import insist

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

LEASE_SECONDS = 300.0
_RENEWED_AFTER = 0.75  # of the lease; both as Prefect's engine has it


async def keep_deployment_slot(
    client: PrefectClient,
    flow_run_id: UUID,
    logger: logging.LoggerAdapter[Any],
    *,
    ended: anyio.Event,
    pause_seconds: float = LEASE_SECONDS * _RENEWED_AFTER,
) -> None:
    """Renew the lease at once and again and again, until the attempt has ended.

    Prefect's engine ends a flow whose lease is lost. Here the attempt runs on and the log says so:
    a lease is lost by an outage of the API, and an outage costs no attempt.

    Args:
        client: A client in use.
        flow_run_id: The run of the attempt. Nothing is done if its deployment has no limit.
        logger: The run's.
        ended: Set when the attempt has ended.
        pause_seconds: From one renewal to the next.
    """
    async with anyio.create_task_group() as group:
        group.start_soon(_renew, client, flow_run_id, logger, pause_seconds)
        await ended.wait()
        # What waits for an answer of the API does not keep the end of the attempt.
        group.cancel_scope.cancel()


async def _renew(
    client: PrefectClient,
    flow_run_id: UUID,
    logger: logging.LoggerAdapter[Any],
    pause_seconds: float,
) -> None:
    async def renew_once() -> bool:
        # Read each time: the server may give the run another lease when it starts to run.
        state = (await client.read_flow_run(flow_run_id)).state
        lease_id = None if state is None else state.state_details.deployment_concurrency_lease_id
        if lease_id is None:
            return False
        await client.renew_concurrency_lease(lease_id=lease_id, lease_duration=LEASE_SECONDS)
        return True

    try:
        what = "the renewal of its concurrency slot"
        while await insist(renew_once, logger, what):  # noqa: ASYNC110 - for time alone
            await anyio.sleep(pause_seconds)
    except ObjectNotFound:
        pass  # the run was deleted
    except httpx.HTTPStatusError as error:
        logger.warning(
            "The run's slot of its deployment's concurrency limit is lost (%s). Its attempt runs"
            " on, and the limit may be exceeded.",
            error,
        )
