"""A bucket as the storage between two pools: `prefect_aws.S3Bucket` on a server of moto."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from prefect import flow
from prefect_aws import AwsCredentials, S3Bucket
from prefect_aws.client_parameters import AwsClientParameters

from prefect_heteroflow import HeteroTaskRunner, WorkerDiedError, requires
from tests.support import free_port, runner_tasks, wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here
from tests.support.workers import Api, Worker

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"
LARGE, BUCKET = "bucket-large", "heteroflow-results"
KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


@pytest.fixture(scope="module")
def storage(server: PrefectServer) -> Iterator[str]:
    """The name of a saved block for a new bucket."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [str(Path(sys.executable).with_name("moto_server")), "-p", url.rsplit(":", 1)[1]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = boto3.client("s3", endpoint_url=url, **KEYS)

        def created() -> bool:
            try:
                client.create_bucket(Bucket=BUCKET)
            except (BotoCoreError, ClientError):
                return False
            return True

        wait_until(created, what="a bucket at moto's server", timeout_seconds=60)
        client.close()
        with flows_run_here(server):
            AwsCredentials.register_type_and_schema()
            S3Bucket.register_type_and_schema()
            here = AwsClientParameters(endpoint_url=url)
            credentials = AwsCredentials(aws_client_parameters=here, **KEYS)
            S3Bucket(bucket_name=BUCKET, credentials=credentials).save("shared", overwrite=True)
        yield "s3-bucket/shared"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", autouse=True)
def large_node(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    api.create_pool(LARGE, "heteroflow-process")
    root = tmp_path_factory.mktemp("bucket")
    with Worker(server, root, pool=LARGE, node="bucket-large", memory_mb=8192):
        yield


def end_of(
    server: PrefectServer, patch: pytest.MonkeyPatch, storage: str, task: Any, *arguments: Any
) -> Any:
    """The state of a task that needs more than this node has."""
    patch.setenv(f"{PREFIX}NODE_MEMORY_MB", "3000")
    larger = requires(memory_mb=4096, max_retries=0)(task)

    states = []

    @flow(task_runner=HeteroTaskRunner(), result_storage=storage)
    def body() -> None:
        future = larger.submit(*arguments)
        future.wait()
        states.append(future.state)

    with flows_run_here(server):
        body()
    return states[0]


def test_value_comes_home_by_way_of_the_bucket(
    server: PrefectServer, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    state = end_of(server, monkeypatch, storage, runner_tasks.square, 7)
    assert state.result() == 49


def test_exception_comes_home_by_way_of_the_bucket(
    server: PrefectServer, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    state = end_of(server, monkeypatch, storage, runner_tasks.fail_with_value_error, "wrong")
    with pytest.raises(ValueError, match="wrong"):
        state.result()


def test_body_that_was_killed_there_has_died_though_the_bucket_holds_no_reply(
    server: PrefectServer, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    """S3 says so in an exception of its own library."""
    task, number = runner_tasks.end_by_signal, int(signal.SIGSEGV)
    state = end_of(server, monkeypatch, storage, task, number)
    error = state.result(raise_on_failure=False)
    assert isinstance(error, WorkerDiedError)
    assert error.diagnosis is not None
    assert error.diagnosis.failure.value == "ProcessCrashed"
