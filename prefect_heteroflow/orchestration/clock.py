"""The one place that reads the wall clock for what is written to the API."""

from __future__ import annotations

from datetime import datetime, timezone


def utc_now() -> datetime:
    """The time, in UTC."""
    return datetime.now(timezone.utc)
