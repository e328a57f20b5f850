"""The automation templates: created as a user creates them, fired, and heard by a real webhook."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_heteroflow.core.breaker import Breaker, BreakerStatus, deployment_key, reset
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.orchestration.attempt_events import emit_attempt_event
from prefect_heteroflow.orchestration.breaker_events import emit_breaker_event
from tests.support.prefect_server import PrefectServer

TEMPLATE = Path(__file__).parents[2] / "deployments" / "automations" / "attention.yaml"
Messages = queue.Queue[dict[str, str]]


@pytest.fixture(scope="module")
def messages() -> Iterator[tuple[str, Messages]]:
    """The address of a webhook, and what was posted to it."""
    posted: Messages = queue.Queue()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.put(json.loads(body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    hook = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=hook.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{hook.server_port}/", posted
    hook.shutdown()
    thread.join()
    hook.server_close()


@pytest.fixture(scope="module")
def heard(
    server: PrefectServer,
    messages: tuple[str, Messages],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Messages]:
    """The messages of automations that were created from the template."""
    url, posted = messages
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        block = CustomWebhookNotificationBlock(
            name="alerts", url=url, json_data={"subject": "{{subject}}", "body": "{{body}}"}
        )
        block_id = block.save("heteroflow-alerts", _sync=True)
        file = tmp_path_factory.mktemp("automations") / "attention.yaml"
        file.write_text(TEMPLATE.read_text().replace("BLOCK_DOCUMENT_ID", str(block_id)))
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "automation", "create", "--from-file", str(file)],
            env=server.env(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield posted


def attempt_failed(run: FlowRun, verdict: str) -> None:
    emit_attempt_event(
        run,
        task_id=run.id,
        attempt=4,
        failure="GpuOutOfMemory",
        rule="torch-gpu-out-of-memory",
        verdict=verdict,
        node="node-7",
        pool="gpu-80gb",
    )


def test_run_that_was_given_up_calls_a_person_and_a_retry_does_not(heard: Messages) -> None:
    run = FlowRun(id=uuid4(), flow_id=uuid4(), name="nightly")
    attempt_failed(run, "retry")
    attempt_failed(run, "stop")
    message = heard.get(timeout=90)
    assert message["subject"] == "nightly was given up: GpuOutOfMemory"
    assert " ".join(message["body"].split()) == (
        "Attempt 4 failed with GpuOutOfMemory (torch-gpu-out-of-memory) on node node-7 of pool"
        f" gpu-80gb; nothing is retried. Why: heteroflow retries {run.id}"
    )
    assert heard.empty()


def test_breaker_that_opened_calls_a_person_and_one_that_closed_does_not(heard: Messages) -> None:
    key = deployment_key(str(uuid4()), FailureClass.PROCESS_CRASHED)
    opened = Breaker(status=BreakerStatus.OPEN, opened_at=0.0, reason="Too many restarts.")
    emit_breaker_event(key, opened, reset("by hand"))
    emit_breaker_event(key, Breaker(), opened)
    message = heard.get(timeout=90)
    assert message["subject"] == f"Circuit breaker open: {key}"
    assert "Too many restarts. Its runs wait as AwaitingApproval." in message["body"]
    assert f"heteroflow breaker reset {key}" in message["body"]
    assert heard.empty()
