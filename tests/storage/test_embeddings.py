"""Near-duplicates in meaning: asked of an endpoint once a text, the same from then on."""

import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from flywheel.errors import FlywheelError, UsageError
from flywheel.records import say
from flywheel.rows import TrainingRow
from storage.curate import RuleSpec, curate
from storage.embeddings import Embeddings, forget_signs
from storage.rules.rule import Known

VECTORS = {"refund": [1.0, 0.2, 0.0, -0.5], "money": [1.0, 0.25, 0.05, -0.5], "ship": [0, 1, 1, 1]}


class Endpoint(BaseHTTPRequestHandler):
    asked: list[dict[str, Any]]
    broken = False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        type(self).asked.append({**body, "key": self.headers.get("authorization")})
        found = [next(v for word, v in VECTORS.items() if word in text) for text in body["input"]]
        data = [{"index": at, "embedding": one} for at, one in enumerate(found)]
        told = json.dumps({"data": data[1:] if self.broken else data[::-1]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Endpoint.asked, Endpoint.broken = [], False
    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def row(name: str, text: str) -> TrainingRow:
    asked, answered = say("user", text), say("assistant", "ok")
    return TrainingRow(trace_id=name, span_id="s", messages=(asked,), completion=answered)


def test_what_means_the_same_goes_and_nothing_is_asked_twice(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "s3cret")
    rows = [row("a", "I want my refund"), row("b", "give me my money"), row("c", "ship it")]
    by = {"url": url, "model": "small", "key": "THE_KEY", "threshold": 0.97}
    rules = [RuleSpec(name="near_duplicates", params={"embeddings": by})]
    known = Known(embeddings=tmp_path / "embeddings.sqlite")
    made = curate(rows, rules, [], known=known)
    (gone,) = made.dropped
    kept = {one.trace_id for one in made.rows}
    assert kept in ({"a", "c"}, {"b", "c"})
    assert "the same in meaning as trace" in gone.reason
    assert [one["key"] for one in Endpoint.asked] == ["Bearer s3cret"]
    again = curate(rows[::-1], rules, [], known=known)
    assert again.dropped == made.dropped and len(Endpoint.asked) == 1
    assert curate(rows, rules, [], known=dataclasses.replace(known, embeddings=None)).dropped
    assert b"refund" not in (tmp_path / "embeddings.sqlite").read_bytes()


def test_an_endpoint_that_gives_no_vectors_and_a_key_that_is_not_there_are_named(url: str) -> None:
    Endpoint.broken = True
    with pytest.raises(FlywheelError, match=r"embeddings gave .* for 2 texts"):
        Embeddings(url, "small", None, None).signs(["refund", "", "money"])
    with pytest.raises(UsageError, match="NOT_SET"):
        Embeddings(url, "small", "NOT_SET", None)


def test_what_is_kept_goes_with_an_erasure(tmp_path: Path) -> None:
    kept = tmp_path / "embeddings.sqlite"
    for name in ("", "-wal", "-shm"):
        kept.with_name(kept.name + name).write_bytes(b"x")
    forget_signs(kept)
    forget_signs(kept)
    assert list(tmp_path.iterdir()) == []
