"""What an ended attempt has left for its worker: the engine's report, how far it came, the rest."""

from __future__ import annotations

import logging
from typing import Any

from prefect_heteroflow.attempts.backend import AttemptBackend, AttemptHandle
from prefect_heteroflow.core.progress import Progress
from prefect_heteroflow.environment import EngineReport, report_from_json


async def read_report(
    backend: AttemptBackend, handle: AttemptHandle, logger: logging.LoggerAdapter[Any]
) -> EngineReport | None:
    """The report of the engine entry; `None` if it left none that can be read."""
    text = await backend.read_report(handle)
    if text is None:
        return None
    try:
        return report_from_json(text)
    except ValueError as error:
        logger.warning("The engine's report cannot be read: %s", error)
        return None


async def read_progress(
    backend: AttemptBackend, handle: AttemptHandle, logger: logging.LoggerAdapter[Any]
) -> Progress | None:
    """What the file says that the job variable `progress_file` names, if there is one."""
    path = getattr(handle.plan.configuration, "progress_file", None)
    if not isinstance(path, str) or not path:
        return None
    try:
        return await backend.read_progress(handle, path)
    except Exception as error:
        # The user's own file, by whatever engine: how far the job came decides nothing alone.
        logger.warning("The progress file %s cannot be read: %s", path, error)
        return None


async def discard(
    backend: AttemptBackend, handle: AttemptHandle, logger: logging.LoggerAdapter[Any]
) -> None:
    """Remove what is left of the attempt; when its evidence was read and its end acted on."""
    try:
        await backend.discard_attempt(handle)
    except Exception as error:
        # The run stands where it should; only its remains do not go.
        logger.warning("What is left of the attempt could not be removed: %s", error)
