"""Against MLflow's own server, which was told spans by OTLP as any application tells it."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flywheel.home import Home
from flywheel.records import last_answer
from storage.pull.pulling import SOURCES, pull, server_of
from storage.queries import traces

pytestmark = pytest.mark.slow


@pytest.fixture
def mlflow(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = Home(tmp_path / "theirs")
    home.mlflow.mkdir(parents=True)
    command = [sys.executable, "-m", "serving.registry_server", str(home.root), str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        try:
            url = f"http://127.0.0.1:{port}"
            until = time.monotonic() + 300
            while not _answers(url):
                assert child.poll() is None and time.monotonic() < until
                time.sleep(0.2)
            yield url
        finally:
            child.kill()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def tell(url: str, experiment: str, numbers: range) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    said: dict[str, Any] = {}
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for number in numbers:
        span = spans.add(
            trace_id=number.to_bytes(16), span_id=number.to_bytes(8), name="ask",
            start_time_unix_nano=time.time_ns(), end_time_unix_nano=time.time_ns(),
        )  # fmt: skip
        said["mlflow.spanType"] = "CHAT_MODEL"
        said["mlflow.spanInputs"] = {"messages": [{"role": "user", "content": f"ask {number}"}]}
        answer = {"role": "assistant", "content": f"said {number}"}
        said["mlflow.spanOutputs"] = {"choices": [{"message": answer, "finish_reason": "stop"}]}
        for name, value in said.items():
            span.attributes.add(key=name).value.string_value = json.dumps(value)
    httpx.post(
        f"{url}/v1/traces", content=request.SerializeToString(), timeout=60,
        headers={"content-type": "application/x-protobuf", "x-mlflow-experiment-id": experiment},
    ).raise_for_status()  # fmt: skip


def test_what_mlflow_has_is_pulled_and_then_what_came_since(home: Home, mlflow: str) -> None:
    made = httpx.post(f"{mlflow}/api/2.0/mlflow/experiments/create", json={"name": "desk"})
    experiment = str(made.json()["experiment_id"])
    tell(mlflow, experiment, range(1, 4))

    def pulled() -> Any:
        return pull(home, "mlflow", server_of(SOURCES["mlflow"], mlflow, {}), "desk", project="d")

    assert pulled().report.traces == 3
    tell(mlflow, experiment, range(4, 6))
    again = pulled()
    assert (again.report.traces, again.report.spans, again.report.quarantined) == (2, 2, 0)
    found = [trace for batch in traces(home, project="d") for trace in batch]
    answers = [answer.message.text for one in found if (answer := last_answer(one))]
    assert sorted(answers) == [f"said {number}" for number in range(1, 6)]
