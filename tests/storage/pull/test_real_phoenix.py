"""Against Phoenix's own server (`make install-phoenix`), which was told spans by OTLP."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flywheel.home import Home
from flywheel.records import last_answer
from storage.pull.pulling import SOURCES, pull, server_of
from storage.queries import traces

PHOENIX = Path(__file__).resolve().parents[3] / ".venv-phoenix" / "bin" / "phoenix"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PHOENIX.exists(), reason="no Phoenix: `make install-phoenix`"),
]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    place = {
        "PHOENIX_WORKING_DIR": str(tmp_path / "phoenix"), "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port), "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([PHOENIX, "serve"], env={**os.environ, **place}, **quiet) as child:  # type: ignore[call-overload]
        try:
            url = f"http://127.0.0.1:{port}"
            wait(lambda: httpx.get(f"{url}/v1/projects", timeout=5).status_code == 200, child)
            yield url
        finally:
            child.kill()


def wait(so: Callable[[], bool], child: "subprocess.Popen[bytes] | None" = None) -> None:
    until = time.monotonic() + 300
    while True:
        try:
            if so():
                return
        except httpx.HTTPError:
            pass
        assert (child is None or child.poll() is None) and time.monotonic() < until
        time.sleep(0.2)


def tell(url: str, numbers: range) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    sent = request.resource_spans.add()
    sent.resource.attributes.add(key="openinference.project.name").value.string_value = "desk"
    spans = sent.scope_spans.add().spans
    for number in numbers:
        now = time.time_ns()
        span = spans.add(
            trace_id=number.to_bytes(16), span_id=number.to_bytes(8), name="llm",
            start_time_unix_nano=now, end_time_unix_nano=now + 1000,
        )  # fmt: skip
        said = {
            "openinference.span.kind": "LLM", "llm.model_name": "m",
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": f"ask {number}",
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": f"said {number}",
        }  # fmt: skip
        for name, value in said.items():
            span.attributes.add(key=name).value.string_value = value
    httpx.post(
        f"{url}/v1/traces", content=request.SerializeToString(), timeout=60,
        headers={"content-type": "application/x-protobuf"},
    ).raise_for_status()  # fmt: skip


def there(url: str) -> int:
    found = httpx.get(f"{url}/v1/projects/desk/spans", params={"limit": 100}, timeout=10)
    return len(found.json().get("data", [])) if found.status_code == 200 else 0


def test_what_phoenix_has_is_pulled_and_then_what_came_since(home: Home, phoenix: str) -> None:
    def pulled() -> Any:
        return pull(home, "phoenix", server_of(SOURCES["phoenix"], phoenix, {}), "desk",
                    project="d")  # fmt: skip

    tell(phoenix, range(1, 4))
    wait(lambda: there(phoenix) == 3)
    assert pulled().report.traces == 3
    tell(phoenix, range(4, 6))
    wait(lambda: there(phoenix) == 5)
    again = pulled()
    assert (again.report.traces, again.report.quarantined) == (2, 0)
    found = [trace for batch in traces(home, project="d") for trace in batch]
    answers = [answer.message.text for one in found if (answer := last_answer(one))]
    assert sorted(answers) == [f"said {number}" for number in range(1, 6)]
