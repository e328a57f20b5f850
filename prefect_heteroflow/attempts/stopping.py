"""What a worker says of its attempts when it stops before they have ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect_heteroflow.attempts.lives import Lives


def say_what_it_leaves(
    lives: Lives,
    logger: logging.Logger | logging.LoggerAdapter[Any],
    *,
    containers: bool,
) -> None:
    """Name the attempts that are under way, and what comes of them; nothing if there are none."""
    names = ", ".join(sorted(life.flow_run.name for life in lives))
    if not names:
        return
    what = (
        "go on in their containers, and are watched again when this node's worker is back"
        if containers
        else "end with this worker, and are tried again by the next one or another one"
    )
    logger.warning("This worker stops. Attempts that run %s: %s.", what, names)
