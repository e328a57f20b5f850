"""Takes a GPU or node out of use when its hardware is at fault, until a person undoes it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import httpx

from prefect_heteroflow.core.failures import Diagnosis
from prefect_heteroflow.core.node_health import (
    CordonAdvice,
    advise_cordon,
    advise_cordon_for_xid,
)
from prefect_heteroflow.infra.nvml_events import XidWatch
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.nodes import cordon_node

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

_WAIT_SECONDS = 1.0
"""A worker that ends waits for as long."""


async def cordon_after_attempt(
    client: PrefectClient, node: str, diagnosis: Diagnosis, gpu_uuids: Sequence[str]
) -> CordonAdvice | None:
    """Cordon what the end of an attempt proves to be faulty; gives what was cordoned.

    Raises:
        httpx.HTTPError: The API failed.
    """
    advice = advise_cordon(diagnosis, gpu_uuids)
    if advice is not None:
        await _cordon(client, node, advice)
    return advice


async def watch_gpu_faults(
    client: PrefectClient,
    node: str,
    *,
    has_gpus: bool,
    logger: logging.Logger | logging.LoggerAdapter[Any],
) -> None:
    """Cordon what the driver reports, as long as it runs; returns if the driver tells no events.

    What the API does not take is kept and tried again after the next look. That there are no
    events is worth a line only where there are GPUs.
    """
    watch = XidWatch()
    await anyio.to_thread.run_sync(watch.__enter__)
    untold: list[CordonAdvice] = []
    try:
        while watch.unavailable is None or untold:
            event = await anyio.to_thread.run_sync(watch.wait, _WAIT_SECONDS)
            if event is not None:
                advice = advise_cordon_for_xid(event.code, event.gpu_uuid)
                logger.warning("The driver reports Xid %d of GPU %s.", event.code, event.gpu_uuid)
                untold += [] if advice is None else [advice]
            elif watch.unavailable is not None:
                await anyio.sleep(_WAIT_SECONDS)
            untold = await _tell(client, node, untold, logger)
        level = logging.INFO if has_gpus else logging.DEBUG
        logger.log(level, "No Xid events of the driver: %s", watch.unavailable.reason)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(watch.__exit__, None, None, None)


async def _tell(
    client: PrefectClient,
    node: str,
    untold: list[CordonAdvice],
    logger: logging.Logger | logging.LoggerAdapter[Any],
) -> list[CordonAdvice]:
    while untold:
        advice = untold[0]
        try:
            await _cordon(client, node, advice)
        except httpx.HTTPError as error:
            logger.warning("The cordon (%s) is not told yet: %s", advice.reason, error)
            break
        what = "node" if advice.gpu_uuid is None else f"GPU {advice.gpu_uuid} of node"
        logger.error("The %s %s is cordoned: %s.", what, node, advice.reason)
        untold = untold[1:]
    return untold


async def _cordon(client: PrefectClient, node: str, advice: CordonAdvice) -> None:
    await cordon_node(
        client, node, reason=advice.reason, at=utc_now(), gpu_uuid=advice.gpu_uuid, keep=True
    )
