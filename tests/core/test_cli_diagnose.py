"""`heteroflow diagnose` and `heteroflow rules` at the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from prefect_heteroflow.cli import diagnose as command
from prefect_heteroflow.cli.diagnosis_stream import answer_lines

OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity)"
)

app = typer.Typer()
command.register(app)
runner = CliRunner()


class _Out:
    def __init__(self) -> None:
        self.text = ""
        self.flushes = 0

    def write(self, text: str, /) -> None:
        self.text += text

    def flush(self) -> None:
        self.flushes += 1


def _answers(*lines: bytes) -> list[dict[str, Any]]:
    out = _Out()
    answer_lines(lines, out)
    assert out.flushes == len(lines)
    return [json.loads(line) for line in out.text.splitlines()]


def test_stream_answers_each_line_in_order() -> None:
    """One line out for each line in, with the id of the line; what is not JSON is told."""
    rows = _answers(
        json.dumps({"id": "a", "exit_code": 1, "log": OOM, "more": 1}).encode() + b"\n",
        b"not json\n",
        b"\n",
        b"[1]\n",
        json.dumps({"id": 7, "exit_code": 0, "log": OOM}).encode(),
    )
    assert [row["id"] for row in rows] == ["a", None, None, None, 7]
    assert rows[0]["failure"] == "GpuOutOfMemory"
    assert rows[0]["requested_bytes"] == 2 * 1024**3
    assert rows[0]["total_bytes"] == 8 * 1024**3
    assert all("error" in row for row in rows[1:4])
    assert rows[4]["failure"] is None


@pytest.mark.parametrize(
    "fields",
    [
        {"exit_code": "1"},
        {"exit_code": True},
        {"oom_killed": 1},
        {"phase": "end"},
        {"phase": []},
        {"log": ["x"]},
    ],
)
def test_field_of_a_wrong_type_is_an_error_with_the_id(fields: dict[str, Any]) -> None:
    """The rest goes on, and the line can be found by its id."""
    (row,) = _answers(json.dumps({"id": "x", **fields}).encode())
    assert row["id"] == "x"
    assert "must be" in row["error"]


def test_all_fields_may_be_null_or_absent() -> None:
    """Only `log` is needed, and even that may be missing."""
    rows = _answers(b'{"id": 1, "exit_code": null, "oom_killed": null, "phase": null}', b"{}")
    assert [row["failure"] for row in rows] == ["UnknownError", "UnknownError"]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_line_gets_one_json_object(line: bytes) -> None:
    """No bytes make the stream stop or skip a line."""
    assert len(_answers(line.replace(b"\n", b""))) == 1


def test_deep_nesting_is_an_error_line() -> None:
    """JSON that is nested without end does not end the stream."""
    (row,) = _answers(b"[" * 100_000)
    assert row["id"] is None


def test_stream_starts_without_prefect() -> None:
    """The protocol answers without the two seconds that importing Prefect takes."""
    code = (
        "import sys; from prefect_heteroflow.cli import app;"
        "sys.argv = ['heteroflow', 'diagnose', '--jsonl'];"
        "\ntry: app()\nexcept SystemExit: pass\nprint('prefect' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input='{"id": 1, "log": "x"}\n',
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[0])["id"] == 1
    assert done.stdout.splitlines()[1] == "False"


def test_log_from_standard_input_is_explained() -> None:
    """A person sees the class, the sentence, the line and the rule."""
    result = runner.invoke(app, ["diagnose", "--exit-code", "1"], input=OOM)
    assert result.exit_code == 0
    assert result.output.startswith("GpuOutOfMemory (escalate)")
    assert "torch-gpu-out-of-memory" in result.output


def test_file_as_json(tmp_path: Path) -> None:
    """`--json` gives the fields of the protocol."""
    log = tmp_path / "job.log"
    log.write_text(OOM)
    result = runner.invoke(app, ["diagnose", str(log), "--json"])
    assert json.loads(result.output)["failure"] == "GpuOutOfMemory"


def test_flags_are_evidence() -> None:
    """`--oom-killed` and `--exit-code` count as observed."""
    result = runner.invoke(app, ["diagnose", "-", "--oom-killed", "--exit-code", "137"], input="")
    assert result.output.startswith("CpuOutOfMemory")


def test_negative_exit_code_is_taken() -> None:
    """A signal may be given as Python gives it."""
    result = runner.invoke(app, ["diagnose", "--exit-code=-11"], input="")
    assert result.output.startswith("ProcessCrashed")


def test_success_is_said_plainly() -> None:
    """Exit code 0 without a witness is no failure."""
    result = runner.invoke(app, ["diagnose", "--exit-code", "0"], input=OOM)
    assert result.output.startswith("Nothing failed")


def test_rules_file_is_used(tmp_path: Path) -> None:
    """The user's rules decide here as they do in the worker."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("stop_on: [out of memory]\n")
    result = runner.invoke(app, ["diagnose", "--json", "--rules", str(rules)], input=OOM)
    assert json.loads(result.output)["verdict"] == "stop"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, without settings."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


SETTING = "PREFECT_INTEGRATIONS_HETEROFLOW_"
STOP_ON_OOM = 'stop_on = ["out of memory"]'


def verdict(*arguments: str, log: str = OOM) -> object:
    result = runner.invoke(app, ["diagnose", "--json", *arguments], input=log)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)["verdict"]


def write_toml(folder: Path, *lines: str) -> None:
    (folder / "prefect.toml").write_text("\n".join(["[integrations.heteroflow]", *lines]))


def test_rules_of_the_settings_decide_as_in_a_run(folder: Path) -> None:
    """They stand in `prefect.toml` here."""
    assert verdict() is None
    write_toml(folder, STOP_ON_OOM)
    assert verdict() == "stop"


def test_rules_of_the_environment_decide_as_in_a_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{SETTING}RETRY_ON", "out of memory")
    assert verdict() == "retry"


def test_rules_file_of_the_settings_decides_as_in_a_run(folder: Path) -> None:
    (folder / "site.yaml").write_text("stop_on: [out of memory]\n")
    write_toml(folder, 'rules_file = "site.yaml"')
    assert verdict() == "stop"


def test_retry_exceptions_of_the_settings_decide_as_in_a_run(folder: Path) -> None:
    log = "Traceback (most recent call last):\n  File 'x.py', line 1\nValueError: bad\n"
    assert verdict(log=log) is None
    write_toml(folder, "retry_exceptions = true")
    assert verdict(log=log) == "retry"


def test_rules_of_the_option_come_before_those_of_the_settings(folder: Path) -> None:
    """A file can be tried out wherever one stands."""
    write_toml(folder, STOP_ON_OOM)
    (folder / "mine.yaml").write_text("retry_on: [out of memory]\n")
    assert verdict("--rules", "mine.yaml") == "retry"


def test_stream_takes_no_rules_of_the_settings(folder: Path) -> None:
    """A program gets the same answers everywhere, and at once."""
    write_toml(folder, STOP_ON_OOM)
    result = runner.invoke(app, ["diagnose", "--jsonl"], input=json.dumps({"log": OOM}))
    assert json.loads(result.output)["verdict"] is None


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (["max_retries = -7"], f"Error: {SETTING}MAX_RETRIES is -7: "),
        (['stop_on = ["/(/"]'], "Error: The settings cannot be used. stop_on: '/(/' "),
        (['rules_file = "no.yaml"'], "Error: The settings cannot be used. The rules file no.yaml "),
        (["stop_on = ["], "Error: Failed to load Prefect settings from prefect.toml: invalid TOML"),
    ],
)
def test_setting_that_cannot_be_used_is_refused_in_one_line(
    folder: Path, toml: list[str], said: str
) -> None:
    write_toml(folder, *toml)
    result = runner.invoke(app, ["diagnose"], input=OOM)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert result.stderr.startswith(said)


@pytest.mark.parametrize(
    "arguments",
    [["no-such-file.log"], ["--phase", "end"], ["--rules", "no-such-file.yaml"], ["."]],
)
def test_bad_input_is_refused_with_status_2(arguments: list[str]) -> None:
    """A log, phase or rules file that cannot be used ends the command before it reads."""
    result = runner.invoke(app, ["diagnose", *arguments], input="")
    assert result.exit_code == 2


def test_rules_are_listed_with_a_sample() -> None:
    """`heteroflow rules` shows every row of the table."""
    rows = json.loads(runner.invoke(app, ["rules", "--json"]).output)["rules"]
    assert len(rows) > 100
    assert all(row["sample"] and row["near_miss"] for row in rows)


def test_rules_of_one_class() -> None:
    """`--class` lists the rules of one class."""
    result = runner.invoke(app, ["rules", "--class", "Preempted"])
    assert "scheduler-preempted  Preempted" in result.output
    assert "GpuOutOfMemory" not in result.output


def test_rules_of_a_class_that_does_not_exist_are_refused_with_the_classes() -> None:
    """A typo must not look like a class without rules."""
    result = runner.invoke(app, ["rules", "--class", "GpuOutOfMemry"])
    assert result.exit_code == 2
    assert "GpuOutOfMemory" in result.output
