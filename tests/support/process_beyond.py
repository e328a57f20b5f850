"""What another process knows of classes sent by value: nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary, WeakValueDictionary

from cloudpickle import cloudpickle


@contextmanager
def another_process() -> Iterator[None]:
    """While it lasts, cloudpickle has met no class yet; afterwards it knows what it knew before."""
    by_class: Any = WeakKeyDictionary()
    by_id: Any = WeakValueDictionary()
    with (
        patch.object(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", by_class),
        patch.object(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", by_id),
    ):
        yield
