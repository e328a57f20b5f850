"""Two nodes in one pool: each leaves alone what belongs to the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "two-nodes"
SMALL, LARGE = "two-small", "two-large"


@pytest.fixture(scope="module")
def nodes(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    root = tmp_path_factory.mktemp("two")
    api.create_pool(POOL, "heteroflow-process")
    with (
        Worker(server, root, pool=POOL, node=SMALL, memory_mb=600, gpus="8192"),
        Worker(server, root, pool=POOL, node=LARGE, memory_mb=4096, gpus="24576"),
    ):
        yield


def deploy(api: Api, flow: str, **variables: object) -> str:
    return api.deploy(flow, POOL, name=f"two-{flow}", job_variables=variables)


def test_run_that_fits_only_one_node_runs_there(api: Api, nodes: None) -> None:
    run = api.submit(deploy(api, "host_oom", memory_mb=1024), {"need_mb": 1})
    assert api.wait_end(run).name == "Completed"
    assert [r["node"] for r in api.rows(run)] == [LARGE]


def test_memory_that_outgrows_its_node_moves_within_the_pool(api: Api, nodes: None) -> None:
    """400 MB on the small node; 800 MB fit only the large one."""
    flow = deploy(api, "host_oom", memory_mb=400, gpu_count=1)
    placement = {"prefer": SMALL, "avoid": [], "since": "2099-01-01T00:00:00+00:00"}
    run = api.submit(flow, {"need_mb": 500}, {"placement": placement})
    assert api.wait_end(run).name == "Completed"
    assert [(r["node"], r["memory_mb"]) for r in api.rows(run)] == [(SMALL, 400), (LARGE, 800)]
    assert api.subflow_runs(run) == []


def test_larger_gpu_of_the_same_pool_is_reached_without_a_new_run(api: Api, nodes: None) -> None:
    flow = deploy(api, "gpu_oom", memory_mb=512, gpu_count=1)
    placement = {"prefer": SMALL, "avoid": [], "since": "2099-01-01T00:00:00+00:00"}
    run = api.submit(flow, {"need_gpu_mb": 20000}, {"placement": placement})
    assert api.wait_end(run).name == "Completed"
    assert [r["node"] for r in api.rows(run)] == [SMALL, LARGE]
    assert api.subflow_runs(run) == []


def test_crashed_run_goes_to_the_other_node_of_its_pool(api: Api, nodes: None) -> None:
    run = api.submit(deploy(api, "suicide", memory_mb=512), {})
    assert api.wait_end(run).name == "Completed"
    first, second = api.rows(run)
    assert {first["node"], second["node"]} == {SMALL, LARGE}
    assert first["pool"] == second["pool"] == POOL


def test_retry_same_node_stays_on_its_node(api: Api, nodes: None) -> None:
    flow = deploy(api, "suicide", memory_mb=512, retry_strategy="retry_same_node")
    run = api.submit(flow, {})
    assert api.wait_end(run).name == "Completed"
    first, second = api.rows(run)
    assert first["node"] == second["node"]
