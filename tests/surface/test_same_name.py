"""Workers of several nodes may have one name, as Prefect allows it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL, NAME = "same-name", "gpu-worker"
# Of looks that come about every 15 s there are three in this time.
THREE_LOOKS = timedelta(seconds=40)


def last_heartbeat(api: Api, node: str) -> datetime:
    name = "heteroflow_node_" + node.replace("-", "_")
    (variable,) = api.post("/variables/filter", {"variables": {"name": {"like_": name}}})
    return datetime.fromisoformat(variable["value"]["updated"])


def test_run_that_a_worker_is_about_to_start_is_left_alone_by_another_of_the_same_name(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """The run is `Pending` for as long as the hook takes, and no row tells its node."""
    gate, waits = tmp_path / "gate", tmp_path / "waits"
    hook = f"sh -c 'touch {waits}; until test -e {gate}; do sleep 0.1; done'"
    api.create_pool(POOL, "heteroflow-process")
    values = {"memory_mb": 512, "retry_strategy": "retry_same_node", "cleanup_hook": hook}
    flow = api.deploy("suicide", POOL, name="same-name", job_variables=values)
    first = Worker(server, tmp_path, pool=POOL, node="same-name-1", name=NAME)
    second = Worker(server, tmp_path, pool=POOL, node="same-name-2", name=NAME, other_machine=True)
    with first:
        run = api.submit(flow, {})
        wait_until(waits.exists, what="the hook of attempt 2", timeout_seconds=90)
        with second:
            start = last_heartbeat(api, "same-name-2")
            wait_until(
                lambda: last_heartbeat(api, "same-name-2") - start > THREE_LOOKS,
                what="looks of the second worker",
                timeout_seconds=90,
            )
            gate.touch()
            assert api.wait_end(run).name == "Completed"
    assert [(row["status"], row["node"]) for row in api.rows(run)] == [
        ("failed", "same-name-1"),
        ("completed", "same-name-1"),
    ]
    assert api.run(run)["labels"]["heteroflow.node"] == "same-name-1"
