"""Pulled once, whole, and on from where it was stopped: against scripted servers that answer as the
vendors' do."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from flywheel import failpoints
from flywheel.errors import FlywheelError, MissingPart, UsageError
from flywheel.home import Home
from flywheel.records import Trace, last_answer
from storage.judgements import feedback_for
from storage.pull import asking, langfuse, pulling
from storage.pull.pulling import SOURCES, pull, server_of
from storage.queries import traces

Answer = Callable[[str, str, dict[str, list[str]], Any], Any]
DAY = "2026-11-2{}T10:00:00.000Z"


class Later(Exception):
    """The server puts us off."""


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            size = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, said, more = 200, None, {}
            try:
                said = answer(self.command, asked.path, parse_qs(asked.query), body)
            except Later:
                status, said, more = 429, {"message": "slow down"}, {"retry-after": "0"}
            except KeyError:
                status, said = 404, {"message": "not found"}
            except PermissionError:
                status, said = 401, {"message": "no"}
            data = json.dumps(said).encode()
            self.send_response(status)
            for name, value in {"content-length": str(len(data)), **more}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def pulled(home: Home, name: str, url: str, **more: Any) -> pulling.Pulled:
    keys = {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "LANGSMITH_API_KEY": "ls"}
    return pull(home, name, server_of(SOURCES[name], url, keys), "desk", project="desk", **more)


def stored(home: Home) -> list[Trace]:
    return [trace for batch in traces(home, project="desk") for trace in batch]


def said(home: Home) -> list[str]:
    return sorted(answer.message.text for one in stored(home) if (answer := last_answer(one)))


# --- Langfuse, as its public API answers: a list of traces, then each with its observations


class Langfuse:
    def __init__(self, count: int) -> None:
        self.ids = [f"t{at}" for at in range(count)]
        self.asked = Counter[str]()
        self.put_off = 0

    def __call__(self, _: str, path: str, query: dict[str, list[str]], body: Any) -> Any:
        self.asked[path] += 1
        if self.put_off:
            self.put_off -= 1
            raise Later
        if path == "/api/public/traces":
            page, size = int(query["page"][0]), int(query["limit"][0])
            since = query.get("fromTimestamp", [""])[0]
            found = [one for one in map(self.trace, self.ids) if one["timestamp"] >= since]
            some = found[(page - 1) * size : page * size]
            pages = -(-len(found) // size)
            return {"data": some, "meta": {"page": page, "limit": size, "totalPages": pages}}
        name = path.rsplit("/", 1)[1]
        if name not in self.ids:
            raise KeyError
        return self.trace(name) | {"observations": [self.observation(name)], "scores": []}

    def trace(self, name: str) -> dict[str, Any]:
        return {"id": name, "timestamp": DAY.format(int(name[1:]) % 9), "name": "ask",
                "userId": "u", "sessionId": f"s-{name}", "tags": [], "metadata": {}}  # fmt: skip

    def observation(self, name: str) -> dict[str, Any]:
        return {"id": f"o-{name}", "traceId": name, "type": "GENERATION", "name": "llm",
                "startTime": self.trace(name)["timestamp"], "model": "m", "level": "DEFAULT",
                "input": [{"role": "user", "content": f"ask {name}"}],
                "output": {"role": "assistant", "content": f"said {name}"},
                "usageDetails": {"input": 3, "output": 4}}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langfuse, "_PAGE", 2)
    monkeypatch.setattr(pulling, "ROWS", 2)
    monkeypatch.setattr(asking, "FIRST_WAIT_S", 0.001)


def test_what_came_since_is_pulled_and_nothing_is_there_twice(home: Home) -> None:
    server = Langfuse(5)
    with serving(server) as url:
        server.put_off = 2
        first = pulled(home, "langfuse", url)
        assert (first.report.traces, first.rows, first.again, first.resumed) == (5, 5, 2, False)
        assert said(home) == [f"said t{at}" for at in range(5)]
        server.ids += ["t5", "t6"]
        again = pulled(home, "langfuse", url, since=0)
        assert (again.report.traces, again.report.spans, again.rows) == (2, 2, 7)
        server.asked.clear()
        third = pulled(home, "langfuse", url)
        assert third.since == again.until - pulling.LATE_NS and third.rows == 0
    assert not list(home.pulls.glob("*.jsonl"))


def test_killed_anywhere_it_goes_on(home: Home) -> None:
    server = Langfuse(7)
    with serving(server) as url:
        for _ in range(2):
            child = os.fork()
            if child == 0:
                failpoints.arm("pull-taken")
                pulled(home, "langfuse", url)
                os._exit(1)
            _, status = os.waitpid(child, 0)
            assert os.WTERMSIG(status) == signal.SIGKILL
        server.asked.clear()
        done = pulled(home, "langfuse", url)
        assert said(home) == [f"said t{at}" for at in range(7)]
        assert done.report.traces == 7


def test_it_goes_on_at_the_page_where_it_stopped(home: Home) -> None:
    server = Langfuse(6)

    def failing(*asked: Any) -> Any:
        if asked[1].endswith("/t4"):
            raise PermissionError
        return server(*asked)

    with serving(failing) as url, pytest.raises(MissingPart, match="LANGFUSE_SECRET_KEY"):
        pulled(home, "langfuse", url)
    (state,) = home.pulls.glob("*.json")
    assert json.loads(state.read_bytes())["next"] == {"page": 3}


def test_a_server_that_is_never_ready_or_knows_nothing_is_told_of(home: Home) -> None:
    server = Langfuse(1)
    with serving(server) as url:
        server.put_off = 100
        with pytest.raises(FlywheelError, match=r"6 tries.*429"):
            pulled(home, "langfuse", url)
        assert server.asked["/api/public/traces"] == asking.TRIES
        server.put_off = 0
        with pytest.raises(UsageError, match="404"):
            pulled(home, "phoenix", url)


def test_a_server_says_when_to_come_again_in_seconds_or_as_a_date() -> None:
    assert asking._asked_for("7", 1.0) == 7.0
    assert asking._asked_for("-3", 1.0) == 0.0
    assert asking._asked_for("999999", 1.0) == asking.LONGEST_WAIT_S
    assert asking._asked_for("Wed, 21 Oct 2015 07:28:00 GMT", 1.0) == 0.0
    assert asking._asked_for("soon", 1.0) == asking._asked_for(None, 1.0) == 1.0


# --- LangSmith: runs by cursor, feedback on those that have any


def test_runs_and_what_was_said_of_them_come_by_the_servers_cursor(home: Home) -> None:
    def run(at: int) -> dict[str, Any]:
        return {"id": f"0000000{at}-0000-4000-8000-000000000000", "run_type": "llm", "name": "llm",
                "trace_id": f"0000000{at}-0000-4000-8000-000000000000", "dotted_order": f"{at}",
                "start_time": DAY.format(at), "end_time": DAY.format(at),
                "inputs": {"messages": [{"role": "user", "content": f"ask {at}"}]},
                "outputs": {"choices": [{"message": {"role": "assistant", "content": f"said {at}"},
                                         "finish_reason": "stop", "index": 0}]},
                "feedback_stats": {"good": {"n": 1}} if at == 1 else {}}  # fmt: skip

    def answer(method: str, path: str, query: dict[str, list[str]], body: Any) -> Any:
        if path == "/api/v1/sessions":
            return [{"id": "session"}] if query["name"] == ["desk"] else []
        if path == "/api/v1/feedback":
            assert query["run"] == [run(1)["id"]]
            return [{"id": "f", "run_id": run(1)["id"], "trace_id": run(1)["trace_id"],
                     "key": "good", "score": 1.0, "created_at": DAY.format(3)}]  # fmt: skip
        assert (method, path, body["session"]) == ("POST", "/api/v1/runs/query", ["session"])
        at = int(body.get("cursor") or 0)
        return {"runs": [run(at)], "cursors": {"next": str(at + 1) if at < 2 else None}}

    with serving(answer) as url:
        assert pulled(home, "langsmith", url).report.traces == 3
    found = stored(home)
    assert said(home) == ["said 0", "said 1", "said 2"]
    (heard,) = feedback_for(home, found).values()
    assert heard[0].name == "good" and heard[0].value == 1.0


# --- Phoenix: spans by cursor, as version 20.26 answers (the newest first)


def test_spans_come_by_the_servers_cursor(home: Home) -> None:
    def span(at: int) -> dict[str, Any]:
        moment = f"2026-11-2{at}T10:00:00.123456+00:00"
        return {"id": f"U3Bhbjo{at}", "name": "llm", "span_kind": "LLM", "parent_id": None,
                "context": {"trace_id": f"{at:032x}", "span_id": f"{at:016x}"},
                "start_time": moment, "end_time": moment, "status_code": "UNSET",
                "status_message": "", "events": [], "attributes": {
                    "llm.model_name": "m", "llm.token_count.prompt": 3,
                    "llm.input_messages.0.message.role": "user",
                    "llm.input_messages.0.message.content": f"ask {at}",
                    "llm.output_messages.0.message.role": "assistant",
                    "llm.output_messages.0.message.content": f"said {at}"}}  # fmt: skip

    def answer(_: str, path: str, query: dict[str, list[str]], body: Any) -> Any:
        assert path == "/v1/projects/desk/spans" and "end_time" in query
        at = int(query.get("cursor", ["1"])[0])
        return {"data": [span(at)], "next_cursor": str(at + 1) if at < 3 else None}

    with serving(answer) as url:
        assert pulled(home, "phoenix", url).report.traces == 3
        again = pulled(home, "phoenix", url, since=0)
        assert (again.report.traces, again.report.spans) == (0, 0)
    assert said(home) == ["said 1", "said 2", "said 3"]


@pytest.mark.parametrize(
    ("said", "why"),
    [({"data": [{"a": 1}], "next_cursor": "same"}, "same page again"), ([1], "as its API says"),
     ({"data": {"a": 1}}, "as its API says")],
    ids=["a cursor that leads back", "a list", "no page"],
)  # fmt: skip
def test_a_server_that_lies_is_told_and_left(tmp_path: Any, said: Any, why: str) -> None:
    with serving(lambda *_: said) as url, pytest.raises(FlywheelError, match=why):
        pulled(Home(tmp_path), "phoenix", url)
