"""The task that another process gets for the one that was sent."""

from __future__ import annotations

import pickle
import threading
from typing import Any

from prefect.cache_policies import NO_CACHE

from prefect_heteroflow.task_runner.bodies_sent import load_body, pack_body
from tests.support.runner_tasks import square


def sent(task: Any) -> Any:
    return load_body(pack_body(task).data)


def test_task_of_a_module_is_found_there() -> None:
    assert sent(square) is square


def test_task_with_other_options_arrives_with_them() -> None:
    arrived = sent(square.with_options(name="other", retries=3, tags=["more"]))
    assert (arrived.name, arrived.retries, arrived.tags) == ("other", 3, {"more"})
    assert arrived.fn is square.fn
    assert square.name == "square"


def test_only_what_differs_is_sent() -> None:
    """A copy that changes nothing costs no more than the task itself."""
    assert pack_body(square.with_options()) == pack_body(square)
    changes = pickle.loads(pickle.loads(pack_body(square.with_options(retries=3)).data)[3])
    assert set(changes) == {"retries"}


def test_what_only_the_engine_needs_is_not_sent() -> None:
    """It may live in its process only."""
    lock: Any = threading.Lock()
    changed = square.with_options(
        cache_policy=NO_CACHE, on_failure=[lambda *_: lock.acquire()], name="other"
    )
    assert sent(changed).name == "other"
