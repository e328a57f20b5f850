"""Lines that the user's own rules match are kept, wherever they stand in the output."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow.core.rule_lines import RuleLines
from prefect_heteroflow.core.scanner import FailureScanner
from prefect_heteroflow.core.user_rules import combine_user_rules
from prefect_heteroflow.own_output import heard_by

RULES = combine_user_rules(retry_on=["not found", r"/loss is (nan|inf)$/"])
QUIET = "step done, all is well\n"


def lines_of(*chunks: str) -> str:
    lines = RuleLines(RULES)
    for chunk in chunks:
        lines.feed(chunk)
    return lines.text()


@pytest.mark.parametrize(
    ("output", "kept"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param(QUIET, "", id="no-rule"),
        pytest.param("Checkpoint not found\n", "Checkpoint not found", id="literal"),
        pytest.param("Checkpoint not\nfound\n", "", id="literal-over-two-lines"),
        pytest.param("loss is nan\n", "loss is nan", id="regex"),
        pytest.param("loss is nan today\n", "", id="regex-that-asks-for-the-end-of-the-line"),
        pytest.param("loss is inf", "loss is inf", id="line-without-an-end"),
        pytest.param(f"loss is nan\n{QUIET * 20_000}", "loss is nan", id="far-above"),
        pytest.param("loss is nan\nloss is inf\n", "loss is inf", id="the-newest-of-a-rule"),
        pytest.param("a not found\rloss is nan\r", "a not found\nloss is nan", id="progress-bar"),
    ],
)
def test_newest_line_of_each_rule_is_kept(output: str, kept: str) -> None:
    assert lines_of(output) == kept


@given(st.text(alphabet="loss ina\nnotfud\r", max_size=200), st.lists(st.integers(0, 200)))
def test_where_the_output_is_cut_into_chunks_does_not_matter(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[start:end] for start, end in pairwise(places)]
    assert lines_of(*chunks) == lines_of(text)


def test_scanner_keeps_the_line_of_a_users_rule_that_much_output_follows() -> None:
    scanner = FailureScanner()
    scanner.look_for(RULES)
    data = f"{QUIET * 20_000}Checkpoint not found: é\n{QUIET * 20_000}".encode()
    for start in range(0, len(data), 4093):
        scanner.feed(data[start : start + 4093])
    assert "Checkpoint not found: é" in scanner.evidence_text().split("\n")


def test_scanner_without_rules_of_a_user_leaves_such_a_line_out() -> None:
    scanner = FailureScanner()
    scanner.feed(f"{QUIET * 20_000}Checkpoint not found\n{QUIET * 20_000}".encode())
    assert "Checkpoint not found" not in scanner.evidence_text()


def heard(say: str) -> str:
    """What is heard of one way to say that something was not found."""
    lines, text = RuleLines(RULES), f"{say} not found"
    with heard_by(lines):
        if say == "print":
            print(text)
        elif say == "stderr":
            sys.stderr.write(text)
        elif say == "logger":
            logging.getLogger("prefect.any").error("%s not found", say)
        elif say == "thread":
            thread = threading.Thread(target=print, args=(text,))
            thread.start()
            thread.join()
        elif say == "process":
            subprocess.run(["echo", text], check=True)
    return lines.text()


@pytest.mark.parametrize("say", ["print", "stderr", "logger", "thread"])
def test_what_a_process_says_is_heard(say: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert heard(say) == f"{say} not found"


def test_what_another_process_says_is_not_heard() -> None:
    assert heard("process") == ""


def test_what_is_heard_goes_on_to_where_it_was_going(capsys: pytest.CaptureFixture[str]) -> None:
    heard("print")
    assert capsys.readouterr().out == "print not found\n"


def test_streams_are_as_before_once_nobody_listens() -> None:
    before = sys.stdout, sys.stderr
    heard("print")
    assert (sys.stdout, sys.stderr) == before
