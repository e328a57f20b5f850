"""Before a retry on the same node the worker cleans up what the attempt before has left there."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import nvml, wait_until
from tests.support.needs import need
from tests.support.nvml import FakeGpu
from tests.support.prefect_server import PrefectServer
from tests.support.processes import alive
from tests.support.workers import Api, Worker

POOL = "cleanup"
TIMED_OUT = "requests.exceptions.ConnectTimeout: timed out"
HOOK_SECONDS = {"PREFECT_INTEGRATIONS_HETEROFLOW_CLEANUP_HOOK_TIMEOUT": "1.5"}


@pytest.fixture(scope="module")
def worker(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    api.create_pool(POOL, "heteroflow-process")
    root = tmp_path_factory.mktemp("cleanup")
    with Worker(
        server, root, pool=POOL, node="cleanup", memory_mb=4096, settings=HOOK_SECONDS
    ) as running:
        yield running


def failing_once(tmp_path: Path, steps: str) -> str:
    """A job that does the steps in its scratch folder and cannot reach its server the first time.

    It notes what it finds there when it starts.
    """
    script = tmp_path / "job.sh"
    script.write_text(
        f"cd $HETEROFLOW_SCRATCH; ls > {tmp_path}/found-$HETEROFLOW_ATTEMPT\n{steps}\n"
        f"[ $HETEROFLOW_ATTEMPT = 2 ] || {{ echo {TIMED_OUT}; exit 1; }}\n"
    )
    return f"sh {script}"


def submit(api: Api, command: str, pool: str = POOL, **variables: object) -> str:
    flow = api.deploy("sleepy", pool, name="cleanup", job_variables={"memory_mb": 64})
    return api.submit(flow, job_variables={"command": command, "retry_delay": 0, **variables})


def scratch_of(run: str) -> list[Path]:
    """The scratch folders of a run on this machine."""
    return list(Path(tempfile.gettempdir()).glob(f"heteroflow-*-scratch-{run}"))


@pytest.mark.parametrize("delay", [0, 4], ids=["in place", "over the pool"])
def test_stale_lock_is_gone_in_the_next_attempt_and_its_row_says_so(
    api: Api, worker: Worker, tmp_path: Path, delay: int
) -> None:
    command = failing_once(tmp_path, "echo x > model.lock; echo y > weights.pt")
    run = submit(api, command, retry_delay=delay)
    assert api.wait_end(run).name == "Completed"
    assert (tmp_path / "found-1").read_text() == ""
    assert (tmp_path / "found-2").read_text() == "weights.pt\n"
    assert [row["cleanup"] for row in api.rows(run)] == [
        None,
        "Cleaned up: removed model.lock (2 bytes).",
    ]


def test_file_whose_name_is_no_utf8_keeps_no_run_from_its_end(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    run = submit(api, failing_once(tmp_path, "touch \"$(printf '\\377')a.lock\""))
    assert api.wait_end(run).name == "Completed"
    assert [row["cleanup"] for row in api.rows(run)] == [
        None,
        r"Cleaned up: removed \xffa.lock (0 bytes).",
    ]


def test_patterns_of_the_run_take_the_place_of_the_defaults(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    command = failing_once(tmp_path, "touch uv.lock; mkdir -p cache; touch cache/a.partial")
    run = submit(api, command, cleanup_patterns=["*.partial"])
    assert api.wait_end(run).name == "Completed"
    assert (tmp_path / "found-2").read_text() == "cache\nuv.lock\n"
    assert api.rows(run)[1]["cleanup"] == "Cleaned up: removed cache/a.partial (0 bytes)."


def test_scratch_folder_lasts_until_the_run_has_ended(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    waits = f"touch weights.pt; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    run = submit(api, failing_once(tmp_path, waits))
    folder = wait_until(lambda: scratch_of(run), what="the scratch folder", timeout_seconds=60)[0]
    assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "go").touch()
    assert api.wait_end(run).name == "Completed"
    wait_until(lambda: not folder.exists(), what="end of the scratch folder", timeout_seconds=60)


def test_leftover_process_of_the_attempt_is_dead_before_the_next_one_starts(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    """One that has left its session and its cgroup, so that the end of the attempt missed it."""
    need(None if os.geteuid() == 0 else "only root can leave a cgroup")
    (tmp_path / "daemon.sh").write_text(
        "for file in /sys/fs/cgroup/memory/cgroup.procs /sys/fs/cgroup/cgroup.procs; do\n"
        "  echo 0 > $file\n"
        f"done 2> {tmp_path}/errors\n"
        f"echo $$ > {tmp_path}/pid\n"
        "exec sleep 600\n"
    )
    daemon = f"env -u HETEROFLOW_PROCESS_TREE setsid sh {tmp_path}/daemon.sh > /dev/null 2>&1 &"
    steps = (
        f"if [ $HETEROFLOW_ATTEMPT = 1 ]; then {daemon}\n"
        f"  until [ -s {tmp_path}/pid ]; do sleep 0.1; done\n"
        # A zombie has ended, though nobody may ever reap it.
        f"else grep -qs '^State:.[^ZX]' /proc/$(cat {tmp_path}/pid)/status &&"
        f" touch {tmp_path}/beside; fi"
    )
    run = submit(api, failing_once(tmp_path, steps))
    assert api.wait_end(run).name == "Completed"
    assert not (tmp_path / "beside").exists()
    assert not alive(int((tmp_path / "pid").read_text()))
    assert api.rows(run)[1]["cleanup"] == "Cleaned up: ended 1 leftover process."


HOOKS = [
    ("command", "sh -c 'pwd > {folder}/hooked'", "the cleanup hook succeeded"),
    ("fails", "sh -c 'echo no space; exit 3'", "the cleanup hook ended with status 3: no space"),
    ("hangs", "sleep 600", "the cleanup hook was ended after 1.5 s"),
    ("missing", "no-such-command", "the cleanup hook could not be started"),
]


@pytest.mark.parametrize(("hook", "said"), [it[1:] for it in HOOKS], ids=[it[0] for it in HOOKS])
def test_hook_is_bounded_and_told_and_keeps_no_retry_from_starting(
    api: Api, worker: Worker, tmp_path: Path, hook: str, said: str
) -> None:
    command = failing_once(tmp_path, "true")
    run = submit(api, command, cleanup_hook=hook.format(folder=tmp_path))
    assert api.wait_end(run).name == "Completed"
    assert said in api.rows(run)[1]["cleanup"]
    wait_until(
        lambda: any(said in line for line in api.logs(run)), what=f"{said!r} in the run's log"
    )


def test_cancel_breaks_the_hook_off_and_the_row_says_what_was_done_until_then(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """It has 60 s, as by default."""
    pool = "cleanup-cancelled"
    api.create_pool(pool, "heteroflow-process")
    steps = failing_once(tmp_path, "touch a.lock")
    with Worker(server, tmp_path, pool=pool, node="cleanup-cancelled", memory_mb=4096):
        hook = f"sh -c 'touch {tmp_path}/hook; sleep 600'"
        run = submit(api, steps, pool, cleanup_hook=hook)
        wait_until((tmp_path / "hook").exists, what="start of the hook", timeout_seconds=60)
        api.cancel(run)
        assert api.wait_end(run, timeout_seconds=40).name == "Cancelled"
    row = api.rows(run)[1]
    assert (row["status"], row["cleanup"]) == (
        "cancelled",
        "Cleaned up: removed a.lock (0 bytes); the cleanup hook was ended: the run was cancelled.",
    )


def test_hook_knows_the_attempt_that_is_to_start(api: Api, worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "tidying.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "def tidy():\n"
        "    told = {name: os.environ['HETEROFLOW_' + name] for name in ('ATTEMPT', 'SCRATCH')}\n"
        "    in_scratch = os.getcwd() == told['SCRATCH']\n"
        "    Path(os.environ['NOTES']).write_text(f'{told[\"ATTEMPT\"]} {in_scratch}')\n"
    )
    notes = tmp_path / "notes"
    env = {"PYTHONPATH": str(tmp_path), "NOTES": str(notes)}
    run = submit(api, failing_once(tmp_path, "true"), cleanup_hook="tidying.tidy", env=env)
    assert api.wait_end(run).name == "Completed"
    assert notes.read_text() == "2 True"


REFUSED = [
    ("pattern", {"cleanup_patterns": ["../*.lock"]}, "leads out of the attempt's own folders"),
    ("absolute", {"cleanup_patterns": ["/data/*.lock"]}, "an absolute path"),
    ("hook", {"cleanup_hook": "sh -c 'rm x"}, "Close the quote"),
    ("blank hook", {"cleanup_hook": " "}, "give a command or package.module.function"),
]


@pytest.mark.parametrize(
    ("variables", "said"), [it[1:] for it in REFUSED], ids=[it[0] for it in REFUSED]
)
def test_cleanup_that_cannot_be_done_ends_the_run_before_it_starts(
    api: Api, worker: Worker, tmp_path: Path, variables: dict[str, object], said: str
) -> None:
    run = submit(api, f"touch {tmp_path}/started", **variables)
    end = api.wait_end(run)
    assert end.name == "PermanentFailure"
    assert said in end.message
    assert [row["failure"] for row in api.rows(run)] == ["InvalidConfig"]
    assert not (tmp_path / "started").exists()


def test_other_run_on_the_same_node_is_left_alone(api: Api, worker: Worker, tmp_path: Path) -> None:
    """Its lock, which it holds, and its process."""
    holds = (
        f"sh -c 'cd $HETEROFLOW_SCRATCH; touch own.lock; touch {tmp_path}/holds;"
        f" until [ -e {tmp_path}/go ]; do sleep 0.1; done; [ -e own.lock ]'"
    )
    other = submit(api, holds, max_retries=0)
    wait_until((tmp_path / "holds").exists, what="lock of the other run", timeout_seconds=60)
    run = submit(api, failing_once(tmp_path, "touch own.lock"))
    assert api.wait_end(run).name == "Completed"
    assert "own.lock" in api.rows(run)[1]["cleanup"]
    (tmp_path / "go").touch()
    assert api.wait_end(other).name == "Completed"


def test_what_an_attempt_left_is_cleaned_up_after_its_worker_was_killed(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    pool = "cleanup-killed"
    api.create_pool(pool, "heteroflow-process")
    steps = (
        f"touch model.lock weights.pt {tmp_path}/up\n"
        f"[ $HETEROFLOW_ATTEMPT = 2 ] || until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    )
    with Worker(server, tmp_path, pool=pool, node="cleanup-killed", memory_mb=4096) as worker:
        command = failing_once(tmp_path, steps)
        # A lost attempt would go to another node, as that of the other tests.
        run = submit(api, command, pool=pool, retry_strategy="retry_same_node")
        wait_until((tmp_path / "up").exists, what="attempt 1", timeout_seconds=60)
        wait_until(lambda: api.rows(run), what="row of attempt 1", timeout_seconds=60)
        worker.kill()
        worker.start()
        assert api.wait_end(run).name == "Completed"
    assert (tmp_path / "found-2").read_text() == "weights.pt\n"
    assert api.rows(run)[1]["cleanup"] == "Cleaned up: removed model.lock (0 bytes)."


def test_retry_waits_until_its_gpu_has_the_memory_of_before(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """The driver gives it back some time after the process has ended."""
    need(nvml.why_no_fake())
    pool, state = "cleanup-gpu", tmp_path / "gpus"
    free, full = (FakeGpu(uuid="GPU-aaaa", total_mb=24576, used_mb=used) for used in (100, 20000))
    nvml.build(tmp_path / "library")
    nvml.write_state(state, [free])
    api.create_pool(pool, "heteroflow-process")
    fills = f"[ $HETEROFLOW_ATTEMPT = 2 ] || echo '{full.line()}' > {state}"
    with Worker(
        server,
        tmp_path,
        pool=pool,
        node="cleanup-gpu",
        memory_mb=4096,
        settings=nvml.environment(tmp_path / "library", state),
    ):
        run = submit(api, failing_once(tmp_path, fills), pool=pool, gpu_count=1)
        wait_until(
            lambda: (
                any("ConnectTimeout" in line for line in api.logs(run))
                and api.run(run)["state"]["type"] == "PENDING"
            ),
            what="the wait for GPU memory",
            timeout_seconds=60,
        )
        assert not (tmp_path / "found-2").exists()
        nvml.write_state(state, [free])
        assert api.wait_end(run).name == "Completed"
    told = api.rows(run)[1]["cleanup"]
    assert re.fullmatch(r"Cleaned up: waited \d+ s for GPU memory\.", told)
