"""Which patterns of a user are taken, what they match, and how a cleanup is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow.core.cleanup import (
    DEFAULT_PATTERNS,
    CleanupReport,
    is_matched,
    parse_cleanup_patterns,
)

REFUSED = [
    ("absolute", "/etc/*.lock", "leads out of the attempt's own folders (an absolute path)"),
    ("home", "~/cache/*.lock", "leads out of the attempt's own folders (an absolute path)"),
    ("parent", "../other/*.lock", "leads out of the attempt's own folders (`..`)"),
    ("parent inside", "cache/../../x", "leads out of the attempt's own folders (`..`)"),
    ("drive", "C:/x", "leads out of the attempt's own folders (an absolute path)"),
    ("variable", "$HOME/x", "variables, backslashes and line breaks"),
    ("backslash", "a\\..\\b", "variables, backslashes and line breaks"),
    ("empty", "  ", "it is empty"),
    ("empty part", "cache//x", "an empty part"),
    ("dot", "./x", "an empty part or a `.`"),
    ("number", 7, "it is no text"),
    ("long", "x" * 201, "longer than 200 characters"),
    ("deep", "**/a/**/b/**", "`**` more than 2 times"),
]


@pytest.mark.parametrize(
    ("value", "said"), [it[1:] for it in REFUSED], ids=[it[0] for it in REFUSED]
)
def test_pattern_that_could_leave_the_attempts_folders_is_refused(value: object, said: str) -> None:
    with pytest.raises(ValueError, match="cleanup pattern") as raised:
        parse_cleanup_patterns(["*.partial", value])
    assert said in str(raised.value)
    assert "Allowed is a name like" in str(raised.value)
    assert "'*.partial'" not in str(raised.value)


def test_sound_patterns_are_taken_once_each() -> None:
    given_patterns = ["*.partial", " cache/**/*.tmp ", "*.partial", "..hidden", "a..b"]
    assert parse_cleanup_patterns(given_patterns) == (
        "*.partial",
        "cache/**/*.tmp",
        "..hidden",
        "a..b",
    )


def test_too_many_patterns_are_refused() -> None:
    with pytest.raises(ValueError, match="51 cleanup patterns: allowed are 50"):
        parse_cleanup_patterns([f"x{number}" for number in range(51)])


MATCHES = [
    ("*.lock", "a.lock", True),
    ("*.lock", "deep/er/a.lock", True),
    ("*.lock", "a.lock/file", False),
    ("*.lock", "a.locked", False),
    ("lock", "torch_extensions/my_op/lock", True),
    ("lock", "unlock", False),
    ("cache/*.tmp", "cache/a.tmp", True),
    ("cache/*.tmp", "other/cache/a.tmp", False),
    ("cache/*.tmp", "cache/b/a.tmp", False),
    ("cache/**/*.tmp", "cache/a.tmp", True),
    ("cache/**/*.tmp", "cache/b/c/a.tmp", True),
    ("**/part-?", "x/y/part-1", True),
    ("**/part-?", "part-12", False),
]


@pytest.mark.parametrize(("pattern", "path", "expected"), MATCHES)
def test_pattern_matches_a_name_at_any_depth_or_a_path(
    pattern: str, path: str, expected: bool
) -> None:
    assert is_matched(path, [pattern]) is expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("torch_extensions/py311_cu121/op/lock", True),
        ("hub/.locks/model.lock", True),
        ("nccl-Yg5XkA", True),
        ("block", False),
        ("checkpoint.pt", False),
        ("poetry.lock.md", False),
    ],
)
def test_defaults_are_stale_locks_alone(path: str, expected: bool) -> None:
    assert is_matched(path, DEFAULT_PATTERNS) is expected


def test_defaults_are_sound() -> None:
    assert parse_cleanup_patterns(DEFAULT_PATTERNS) == DEFAULT_PATTERNS


@given(st.text(st.sampled_from("ab*./~$\\"), max_size=8))
def test_pattern_that_is_taken_has_no_way_up(text: str) -> None:
    try:
        (pattern,) = parse_cleanup_patterns([text])
    except ValueError:
        return
    assert not pattern.startswith(("/", "~"))
    assert ".." not in pattern.split("/")


def test_report_is_one_sentence_for_the_history() -> None:
    report = CleanupReport(
        removed=tuple(f"{name}.lock" for name in "abcdefg"),
        removed_bytes=12,
        ended_processes=2,
        gpu_wait_seconds=4.4,
        hook="the cleanup hook succeeded",
        problems=("x could not be removed (Permission denied)",),
    )
    assert report.text() == (
        "Cleaned up: removed a.lock, b.lock, c.lock, d.lock, e.lock and 2 more (12 bytes); ended 2"
        " leftover processes; waited 4 s for GPU memory; the cleanup hook succeeded; x could not be"
        " removed (Permission denied)."
    )


def test_report_of_nothing_is_empty() -> None:
    assert CleanupReport().text() == ""
