"""Who settles a run that a worker has left: its node, nobody yet, or whoever finds it."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_heteroflow.core.contact import Whose, whose
from prefect_heteroflow.core.resources import Node


def node(name: str, *, live: bool = True, stopped: bool = False, pool: str = "pool") -> Node:
    return Node(name=name, pool=pool, memory_mb=1024, live=live, stopped=stopped)


LIVE, SILENT = node("live"), node("silent", live=False)
GONE, FOREIGN = node("gone", live=False, stopped=True), node("foreign", pool="other")


@pytest.mark.parametrize(
    ("facts", "looks", "expected"),
    [
        ({"left_by": "here"}, 1, Whose.OURS),
        ({"left_by": "there"}, 99, Whose.ANOTHERS),
        ({"taker": "me"}, 1, Whose.OURS),
        ({"taker": "you"}, 99, Whose.ANOTHERS),
        ({}, 1, Whose.OURS),
        ({"others": [GONE, FOREIGN]}, 1, Whose.OURS),
        ({"others": [LIVE]}, 7, Whose.ANOTHERS),
        ({"others": [LIVE]}, 8, Whose.NOBODYS),
        ({"others": [SILENT]}, 39, Whose.ANOTHERS),
        ({"others": [SILENT]}, 40, Whose.NOBODYS),
        ({"others": [LIVE, SILENT, GONE]}, 39, Whose.ANOTHERS),
        ({"others": [LIVE, SILENT, GONE]}, 40, Whose.NOBODYS),
    ],
    ids=[
        "row of this node",
        "row of another node",
        "label of this worker",
        "label of another worker",
        "alone",
        "the others were stopped",
        "live, and may be about to say so",
        "live, and does not look after it",
        "silent, not for long enough",
        "silent for long enough",
        "one of them silent, not for long enough",
        "one of them silent for long enough",
    ],
)
def test_run_is_settled_by_who_left_it_or_after_silence(
    facts: dict[str, Any], looks: int, expected: Whose
) -> None:
    """A worker that is only cut off from the API may still run it."""
    here = node("here")
    given = {"left_by": None, "taker": None, "others": [], **facts}
    found = whose(
        given["left_by"],
        taker=given["taker"],
        worker_name="me",
        node=here,
        others=[here, *given["others"]],
        looks=looks,
        looks_of_silence=40,
    )
    assert found is expected
