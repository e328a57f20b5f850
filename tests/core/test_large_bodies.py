"""What of a body that is sent by value takes the most room."""

from __future__ import annotations

from typing import Any

from prefect import task

from prefect_heteroflow.task_runner.large_bodies import LARGE_BYTES, LargeBodies, largest_part

LITTLE = "little"
TABLE = bytes(100_000)


def _reads_table() -> int:
    return len(TABLE)


def _reads_it_through_another() -> int:
    return sum(_reads_table() for _ in LITTLE)


def test_global_that_a_body_reads_is_its_largest_part() -> None:
    name, size = largest_part(_reads_table) or ("", 0)
    assert name == "TABLE"
    assert 100_000 <= size < 101_000


def test_global_that_another_function_reads_is_found_through_it() -> None:
    name, _ = largest_part(_reads_it_through_another) or ("", 0)
    assert name == "TABLE"


def test_variable_of_the_enclosing_function_can_be_the_largest_part() -> None:
    mine = bytes(1_000)

    def body(more: bytes = b"few") -> int:
        return len(mine) + len(more)

    name, _ = largest_part(body) or ("", 0)
    assert name == "mine"


def test_default_of_the_signature_can_be_the_largest_part() -> None:
    def body(more: bytes = bytes(1_000)) -> str:
        return LITTLE * len(more)

    name, _ = largest_part(body) or ("", 0)
    assert name == "more"


def test_body_that_reads_nothing_has_no_largest_part() -> None:
    assert largest_part(lambda: 1) is None


def said(*sizes: int) -> list[Any]:
    heard: list[Any] = []
    bodies = LargeBodies(lambda *words: heard.append(words))
    for size in sizes:
        bodies.look_at(task(_reads_table, name="reads"), size)
    return heard


def test_large_body_is_told_once_with_its_largest_part() -> None:
    ((name, words),) = said(LARGE_BYTES, 2 * LARGE_BYTES)
    assert name == "reads"
    assert words.startswith("its body takes 10 MB with it, pickled anew for each call; the largest")
    assert "'TABLE'" in words


def test_body_that_is_not_large_is_not_told() -> None:
    assert said(LARGE_BYTES - 1) == []
