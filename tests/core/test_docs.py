"""What the documents say of names, defaults and files is what the code has."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefect_heteroflow.core.actions import ACTION_OF, Action
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus, retries_report
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.job_values import parse_job_values
from prefect_heteroflow.core.policy import RetryPolicy, RetryStrategy, delay_seconds
from prefect_heteroflow.core.user_rules import combine_user_rules
from prefect_heteroflow.current import CurrentAttempt
from prefect_heteroflow.environment import (
    ATTEMPT,
    GPU_MEMORY_MB,
    MEMORY_MB,
    NODE,
    PREVIOUS_FAILURE,
    SCRATCH,
    TASK_ID,
)
from prefect_heteroflow.job_configuration import RetryVariables
from prefect_heteroflow.orchestration.attempt_events import ATTEMPT_FAILED_EVENT
from prefect_heteroflow.orchestration.breaker_events import BREAKER_EVENTS
from prefect_heteroflow.settings import HeteroflowSettings

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "AGENTS.md")
PAGES = [ROOT / name for name in DOCUMENTS] + [ROOT / "deployments" / "README.md"]
README = (ROOT / "README.md").read_text(encoding="utf-8")

ACTION_TEXTS = {
    Action.GROW_MEMORY: "memory x2 on the same node, else where it fits",
    Action.GROW_MEMORY_HERE: "memory x2 on the same node, else stop",
    Action.LARGER_GPU: "the smallest GPU that is enough and larger than before",
    Action.LARGER_GPU_HERE: "a larger GPU of the same node, else stop",
    Action.GROW_SHM: "`/dev/shm` x2, up to `memory_mb`, on the same node",
    Action.AGAIN: "again",
    Action.OTHER_NODE: "on another node, if there is one that fits",
    Action.STOP: "stop",
}


def failure_table() -> list[str]:
    """The README's table of failure classes."""
    strategies = (RetryStrategy.RETRY_NEW_NODE, RetryStrategy.RETRY_SAME_NODE)
    return _table(
        ("class", "group", "under `retry_new_node`", "under `retry_same_node`"),
        [
            (
                f"`{failure.value}`",
                failure.group.value,
                *(ACTION_TEXTS[ACTION_OF[failure, strategy]] for strategy in strategies),
            )
            for failure in FailureClass
        ],
    )


def fields_table(model: Any, left_out: tuple[str, ...] = ()) -> list[str]:
    """A table of the fields of a model."""
    return _table(
        ("name", "default", "meaning"),
        [
            (f"`{name}`", _default(field.default), field.description)
            for name, field in model.model_fields.items()
            if name not in left_out
        ],
    )


def _default(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{value}`" if isinstance(value, str) else str(value).lower()


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


TABLES = {
    "failure classes": failure_table(),
    "settings": fields_table(HeteroflowSettings),
    "job variables": fields_table(RetryVariables),
}


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", TABLES)
def test_table_of_the_readme_is_what_the_code_has(name: str) -> None:
    """After a change: `python -m tests.core.test_docs` writes the tables anew."""
    assert "\n".join([f"<!-- table: {name} -->", "", *TABLES[name], ""]) in README


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_link_leads_somewhere(page: Path) -> None:
    """Files are there, and anchors are headings of this page."""
    text = page.read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        assert (page.parent / path).exists(), target
        assert path or anchor in headings, target


def test_delay_series_is_the_one_that_the_policy_gives() -> None:
    """30, 60, 120, 240, 300, 300 seconds with the defaults."""
    series = [round(delay_seconds(RetryPolicy(), n, 0.0)) for n in range(1, 7)]
    assert ", ".join(map(str, series)) in README


def test_memory_series_is_the_one_that_growth_gives() -> None:
    """From the default memory to the default limit."""
    series, limit = [RetryVariables().memory_mb], RetryPolicy().oom_memory_limit
    while series[-1] < limit:
        series.append(min(2 * series[-1], limit))
    assert re.search(r"[ \n]".join(f"{memory}," for memory in series), README)


def test_environment_variables_of_an_attempt_are_all_there() -> None:
    """Whoever writes no Python reads these."""
    names = (TASK_ID, ATTEMPT, NODE, MEMORY_MB, GPU_MEMORY_MB, PREVIOUS_FAILURE, SCRATCH)
    assert [name for name in names if f"`{name}`" not in README] == []


def test_fields_of_the_current_attempt_are_all_there() -> None:
    """Whoever writes Python reads these."""
    fields = CurrentAttempt.__dataclass_fields__
    assert [name for name in fields if f"`{name}`" not in README] == []


def test_event_and_its_labels_are_those_that_are_emitted() -> None:
    """Automations match these texts."""
    for event in (ATTEMPT_FAILED_EVENT, *BREAKER_EVENTS.values()):
        assert f"`{event}`" in README


def test_json_of_retries_has_the_fields_of_the_example() -> None:
    """Scripts read these."""
    shown = json.loads(next(text for text in blocks(README, "json") if "task_id" in text))
    row = Attempt(attempt=1, flow_run_id="run", status=AttemptStatus.COMPLETED)
    report: Any = retries_report("task", [row])
    assert (list(shown), list(shown["retries"][0])) == (list(report), list(report["retries"][0]))


def test_toml_example_holds_settings_that_exist() -> None:
    """It is the settings' own file format."""
    if sys.version_info < (3, 11):
        pytest.skip("tomllib came with Python 3.11")
    import tomllib

    for text in blocks(README, "toml"):
        values = tomllib.loads(text)["integrations"]["heteroflow"]
        assert set(values) <= set(HeteroflowSettings.model_fields)


def test_yaml_examples_hold_job_variables_that_are_accepted() -> None:
    """The parser that judges a run's variables judges the examples."""
    examples = [yaml.safe_load(text) for text in blocks(README, "yaml")]
    variables = [
        example["job_variables"]
        if "job_variables" in example
        else example["deployments"][0]["work_pool"]["job_variables"]
        for example in examples
    ]
    parsed = [parse_job_values(each) for each in variables]
    rules = [combine_user_rules(list(each.retry_on), list(each.stop_on)) for each in parsed]
    assert sum(map(len, rules)) == 5


@pytest.mark.parametrize(
    "module", sorted((ROOT / "prefect_heteroflow").rglob("*.py")), ids=lambda path: path.stem
)
def test_module_stands_in_the_module_map(module: Path) -> None:
    """The map of DESIGN.md is complete; rule files are found by their folder."""
    relative = module.relative_to(ROOT / "prefect_heteroflow")
    design = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    if module.name == "__init__.py" or relative.parts[:2] == ("core", "rules"):
        return
    assert f"`{module.stem}`" in design


def _write_tables() -> None:
    """Replace the README's tables by those of the code."""
    text = README
    for name, rows in TABLES.items():
        table = "\n".join([f"<!-- table: {name} -->", "", *rows, ""])
        pattern = rf"<!-- table: {name} -->\n(\n\|[^\n]*(\n\|[^\n]*)*\n)?"
        text = re.sub(pattern, lambda _, table=table: table, text)  # type: ignore[misc]
    (ROOT / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write_tables()
