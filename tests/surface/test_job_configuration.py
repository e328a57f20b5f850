"""Reading a run's job variables leaves the run as it was."""

from __future__ import annotations

from uuid import UUID

from prefect.client.orchestration import PrefectClient

from prefect_heteroflow.process_worker import HeteroflowProcessJobConfiguration
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api


async def test_environment_of_the_run_is_still_there_for_its_retry(
    server: PrefectServer, api: Api
) -> None:
    """Core takes `env` out of the run that it is given; a retry writes the run's variables back."""
    api.create_pool("configuration", "heteroflow-process")
    flow = api.deploy(
        "host_oom", "configuration", name="env", job_variables={"env": {"A": "deployment"}}
    )
    run_id = api.submit(flow, {"need_mb": 1}, {"env": {"B": "run"}})
    async with PrefectClient(server.api_url) as client:
        run = await client.read_flow_run(UUID(run_id))
        configuration = await HeteroflowProcessJobConfiguration.resolve_for_flow_run(
            run,
            client=client,
            work_pool=await client.read_work_pool("configuration"),
            worker_name="w",
        )
    assert (configuration.env["A"], configuration.env["B"]) == ("deployment", "run")
    assert run.job_variables == {"env": {"B": "run"}}
