"""The attack list: what hostile bytes must not do to the gateway, over plain sockets."""

import itertools
import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.guarded import Bounds
from serving.guesses import Guesses
from serving.keys import Keys
from serving.limits import Limits
from serving.refusal import ApiError
from tests.serving.running import Running, body, running
from tests.serving.scripted_upstream import Upstream, upstream

KEY, OTHER = "flywheel-right-key-7261", "flywheel-second-key-9911"
CHAT = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
SMUGGLED = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def engine() -> Iterator[Upstream]:
    with upstream() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory, engine: Upstream) -> Iterator[Running]:
    limits = Limits(body=2**20, read_s=1.0)
    with running(tmp_path_factory.mktemp("home"), engine.url, limits=limits) as up:
        yield up
        assert ask(up).status_code == 200, "after all attacks it still answers"


@pytest.fixture
def locked(tmp_path: Path, engine: Upstream) -> Iterator[Running]:
    keys = Keys(tuple(sha256(one.encode()).digest() for one in (KEY, OTHER)))
    with running(tmp_path, engine.url, keys=keys) as up:
        yield up


def ask(gateway: Running, content: bytes | None = None, **headers: str) -> httpx.Response:
    url = gateway.url + "/v1/chat/completions"
    named = {"content-type": "application/json", **headers}
    return httpx.post(url, content=content or body(), headers=named, timeout=60, verify=False)


def opened(gateway: Running) -> socket.socket:
    host, port = gateway.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), 60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def said(connection: socket.socket, content: str | bytes = b"") -> bytes:
    """What is answered until the connection is closed."""
    pieces = []
    try:
        connection.sendall(content.encode("latin-1") if isinstance(content, str) else content)
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(2**16):
            pieces.append(piece)
    except OSError:
        pass  # it was closed on us
    return b"".join(pieces)


def once(gateway: Running, content: str | bytes) -> bytes:
    with opened(gateway) as connection:
        return said(connection, content)


SIZE = len(SMUGGLED)
SMUGGLING = {
    "both lengths": f"content-length: {SIZE}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked first": f"transfer-encoding: chunked\r\ncontent-length: {SIZE}\r\n\r\n0\r\n\r\n",
    "two lengths": f"content-length: 0\r\ncontent-length: {SIZE}\r\n\r\n",
    "a list of lengths": f"content-length: 0, {SIZE}\r\n\r\n",
    "a signed length": "content-length: +0\r\n\r\n",
    "a negative length": "content-length: -1\r\n\r\n",
    "an endless length": "content-length: 99999999999999999999999\r\n\r\n",
    "a blank before the colon": f"content-length : {SIZE}\r\n\r\n",
    "not chunked at last": "transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked twice": "transfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n0\r\n\r\n",
    "nearly chunked": "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a chunk of no size": "transfer-encoding: chunked\r\n\r\nZZ\r\n\r\n",
    "a chunk of an endless size": "transfer-encoding: chunked\r\n\r\n" + "f" * 40 + "\r\n\r\n",
    "a chunk longer than it says": "transfer-encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
    "a header over two lines": "x-a: b\r\n content-length: 0\r\n\r\n",
    "a NUL in a header": "x-a: b\0c\r\ncontent-length: 0\r\n\r\n",
    "a bare return in a header": f"x-a: b\rcontent-length: {SIZE}\r\n\r\n",
    "no name": ": b\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_no_request_hides_in_another(standing: Running, name: str) -> None:
    """Nothing is taken for a second request that a proxy before us would read as a body."""
    answers = once(standing, CHAT + SMUGGLING[name] + SMUGGLED)
    assert b'"object"' not in answers and b" 200 " not in answers
    assert answers.count(b"HTTP/1.1 ") <= 1 and b"HTTP/1.1 5" not in answers


@pytest.mark.parametrize(
    "line",
    [
        "GET /health HTTP/1.1\nhost: a\n\n",
        "GET /health HTTP/9.9\r\n\r\n",
        "GET  /health HTTP/1.1\r\n\r\n",
        "G\0T /health HTTP/1.1\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_http_is_no_fault(standing: Running, line: str) -> None:
    answers = once(standing, line)
    assert b"HTTP/1.1 5" not in answers and answers.count(b"HTTP/1.1 ") <= 1


OVERSIZED = {
    "one header": CHAT + "x-a: " + "b" * 2**20 + "\r\n\r\n",
    "a header without end": CHAT + "x-a: " + "b" * 2**21,
    "a name without end": CHAT + "x" * 2**21,
    "many headers": CHAT + "x-a: b\r\n" * 10_000 + "\r\n",
    "a line without end": "GET /" + "a" * 2**21,
    "a path": "GET /" + "a" * 2**20 + " HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a body": CHAT + f"content-length: {2**30}\r\n\r\n" + "x" * 1000,
    "chunks": CHAT + "transfer-encoding: chunked\r\n\r\n" + f"{2**18:x}\r\n{'x' * 2**18}\r\n" * 6,
}


@pytest.mark.parametrize("name", OVERSIZED)
def test_what_is_too_large_is_refused_before_it_is_there(standing: Running, name: str) -> None:
    answers = once(standing, OVERSIZED[name])
    assert b" 200 " not in answers and b"HTTP/1.1 5" not in answers
    assert not answers or answers.split()[1] in (b"413", b"431", b"400")


ANSWERED = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize("begun", ["", "POST /v1/chat/compl", CHAT, ANSWERED])
def test_many_slow_heads_keep_nobody_out_and_are_closed(
    tmp_path: Path, engine: Upstream, begun: str
) -> None:
    bounds = Bounds(connections=10, head_s=1.0)
    with running(tmp_path, engine.url, bounds=bounds) as gateway, ExitStack() as stack:
        slow = [stack.enter_context(opened(gateway)) for _ in range(30)]
        for connection in slow:
            with_nothing(connection, begun.encode())
            if begun == ANSWERED:  # and then blanks, so that uvicorn's own timer stops
                received(connection)
                with_nothing(connection, b"\r\n")
        assert ask(gateway).status_code == 200
        assert all(not connection_lives(connection) for connection in slow)


def test_many_slow_bodies_keep_nobody_out_and_are_refused(tmp_path: Path, engine: Upstream) -> None:
    begun = (CHAT + "content-length: 500\r\n\r\n{").encode()
    bounds, limits = Bounds(connections=10), Limits(read_s=2.0)
    with running(tmp_path, engine.url, bounds=bounds, limits=limits) as gateway, ExitStack() as all:
        slow = [all.enter_context(opened(gateway)) for _ in range(30)]
        for connection in slow:
            with_nothing(connection, begun)
        assert ask(gateway).status_code == 200
        answers = [received(connection) for connection in slow]
    assert {one.split()[1] for one in answers if one} <= {b"408"} and any(answers)


def test_many_large_bodies_take_no_more_memory_than_they_may(
    tmp_path: Path, engine: Upstream
) -> None:
    begun = (CHAT + f"content-length: {2**20}\r\n\r\n").encode() + b"x" * 2**19
    bounds, limits = Bounds(bodies=2**20), Limits(read_s=2.0)
    with running(tmp_path, engine.url, bounds=bounds, limits=limits) as gateway, ExitStack() as all:
        large = [all.enter_context(opened(gateway)) for _ in range(6)]
        for connection in large:
            with_nothing(connection, begun)
        assert ask(gateway).status_code == 200
        answers = [received(connection) for connection in large]
    assert len([one for one in answers if b" 408 " not in one]) >= 4, "those beyond the bound"


def with_nothing(connection: socket.socket, content: bytes) -> None:
    """Sends, and lets a connection that was closed meanwhile be."""
    with suppress(ConnectionError):
        connection.sendall(content)


def received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(2**16)
    except ConnectionError:
        return b""


def connection_lives(connection: socket.socket) -> bool:
    """After what it is told: a 408, or nothing at all."""
    try:
        while connection.recv(2**16):
            pass
    except TimeoutError:
        return True
    except ConnectionError:
        pass
    return False


PATHS = (
    "/v1/../v1/models", "//v1/models", "/v1//models", "/./v1/models", "/health/../v1/models",
    "/health/..%2fv1/models", "/%2e%2e/v1/models", "/v1%2fmodels/..", "/v1/models/../../health",
    "/V1/models", "/v1/models;a=b", "/v1/models%00", "/v1/models%0d%0ax-a:b", "/v1/models%ff",
    "/v1/models/..%2f..%2fkeys.json", "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "*", "/metrics/",
    "http://localhost/v1/models", "http://elsewhere.example/v1/models", "/health%2f..%2fmetrics",
    "/v1/models?a=%", "/v1/models#x", "/\\..\\v1\\models", "/v1/models/" + "a/" * 500,
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_past_the_door(locked_module: Running, path: str) -> None:
    for method in ("GET", "POST"):
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        answers = once(locked_module, head + "content-length: 0\r\n\r\n")
        assert answers[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 401", b"HTTP/1.1 404"), answers
        assert b"x-a:b" not in answers.lower().split(b"\r\n\r\n")[0]


@pytest.fixture(scope="module")
def locked_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    keys = Keys((sha256(KEY.encode()).digest(),))
    with running(tmp_path_factory.mktemp("home"), "http://127.0.0.1:9", keys=keys) as up:
        yield up


ODD_JSON = {
    "an endless number": b'{"model":"support","messages":[{"content":1%s}]}' % (b"0" * 50_000),
    "an endless number apart": b'{"x":%s,"model":"support","messages":[]}' % (b"9" * 50_000),
    "an endless temperature": body()[:-1] + b',"temperature":1e999}',
    "an endless fraction": body()[:-1] + b',"temperature":0.%s}' % (b"1" * 50_000),
    "an endless n": body()[:-1] + b',"n":%s}' % (b"9" * 5_000),
    "no number": body()[:-1] + b',"top_p":NaN}',
    "deep": body()[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": body()[:-1] + b',"x":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
    "a lone half": b'{"model":"support","messages":[{"role":"user","content":"\\ud800"}]}',
    "a NUL": b'{"model":"support","messages":[{"role":"user","content":"a\\u0000"}]}',
    "bytes": b'{"model":"support","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "two values": body() + body(),
    "an id over two lines": body(metadata={"conversation_id": "a\r\nset-cookie: b"}),
    "a user over two lines": body(user="a\nb"),
    "no end": b'{"model": "support", "messages": [',
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_JSON)
def test_odd_json_is_refused_or_answered_and_no_fault(standing: Running, name: str) -> None:
    for path in ("chat/completions", "completions", "responses", "messages", "feedback", "traces"):
        headers = {"content-type": "application/json"}
        answer = httpx.post(
            f"{standing.url}/v1/{path}", content=ODD_JSON[name], headers=headers, verify=False,
            timeout=60,
        )  # fmt: skip
        assert answer.status_code in (200, 400, 404), (path, answer.text[:300])
    assert ask(standing, ODD_JSON[name]).status_code in (200, 400)


def test_a_key_that_stands_there_twice_means_one_thing(standing: Running, engine: Upstream) -> None:
    """Who decides and who answers read the same value."""
    twice = b'{"model":"other","model":"support","max_tokens":9999,"max_tokens":5,' + body()[1:]
    before = len(engine.requests)
    assert ask(standing, twice).status_code == 200
    assert engine.raw[before].count(b'"max_tokens"') == 1
    assert engine.requests[before]["max_tokens"] == 5


@pytest.mark.parametrize("name", ["authorization", "host", "x-conversation-id", "content-type"])
def test_a_header_that_must_stand_once_does(standing: Running, name: str) -> None:
    twice = f"{name}: a\r\n{name}: b\r\ncontent-length: 0\r\n\r\n"
    answers = once(standing, CHAT + twice)
    assert answers.startswith(b"HTTP/1.1 400")


def test_ids_cannot_break_out_of_their_line(standing: Running) -> None:
    for given in ("\xff", "a" * 129, ""):
        head = f"x-request-id: {given}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        answer = once(standing, CHAT + head)
        assert b"x-request-id: req-" in answer


def test_guessing_keys_is_bounded_and_who_has_one_goes_on(locked: Running) -> None:
    assert ask(locked, authorization=f"Bearer {KEY}").status_code == 200
    statuses = [
        httpx.get(
            locked.url + "/v1/models", headers={"x-api-key": f"guess {n}"}, verify=False
        ).status_code
        for n in range(70)
    ]
    assert statuses == [401] * 60 + [429] * 10
    assert ask(locked, authorization=f"Bearer {KEY}").status_code == 200
    late = ask(locked, authorization=f"Bearer {OTHER}")
    assert late.status_code == 429 and int(late.headers["retry-after"]) <= 61
    assert httpx.get(locked.url + "/health", verify=False).status_code == 200


def test_guesses_are_counted_by_address_and_in_bounded_memory() -> None:
    guesses = Guesses(Keys((sha256(KEY.encode()).digest(),)), most=3)
    right, wrong = ({b"x-api-key": key} for key in (KEY.encode(), b"no"))
    for address in map(str, range(10_010)):
        with pytest.raises(ApiError, match="no valid key"):
            guesses.admit(wrong, "infer", address)
    assert len(guesses._wrong) == 10_000
    for _, expected in itertools.product(range(3), ["no valid key"]):
        with pytest.raises(ApiError, match=expected):
            guesses.admit(wrong, "infer", "here")
    with pytest.raises(ApiError, match="too many"):
        guesses.admit(right, "infer", "here")
    assert guesses.admit(right, "infer", "there").name == "unnamed"
    assert guesses.admit(right, "infer", "here").name == "unnamed"
    for _ in range(10):
        with pytest.raises(ApiError, match="no valid key"):
            guesses.admit({}, "infer", "nobody")


def test_no_secret_is_in_answers_logs_or_files(
    locked: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "a-wrong-secret-5523"
    answers = [
        ask(locked, authorization=f"Bearer {KEY}"),
        ask(locked, body("error"), authorization=f"Bearer {KEY}"),
        ask(locked, b"{", **{"x-api-key": KEY}),
        ask(locked, authorization=f"Bearer {wrong}"),
        ask(locked, **{"x-api-key": wrong}),
    ]
    url = f"{locked.url}/v1/feedback?api_key={wrong}"
    named = {"authorization": f"Bearer {KEY}"}
    answers.append(httpx.post(url, json={"trace_id": "t", "value": 1}, headers=named, verify=False))
    answers.append(httpx.get(f"{locked.url}/nowhere?key={wrong}", headers=named, verify=False))
    assert [one.status_code for one in answers] == [200, 502, 400, 401, 401, 202, 404]
    texts: list[Any] = [one.text + json.dumps(dict(one.headers)) for one in answers]
    theirs = ("httpx", "httpcore")  # this client's own log
    texts += [one.getMessage() for one in caplog.records if not one.name.startswith(theirs)]
    texts += [path.read_bytes() for path in locked.home.root.rglob("*") if path.is_file()]
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        assert KEY.encode() not in data and wrong.encode() not in data


def test_whoever_takes_nothing_of_a_large_answer_gives_its_turn_back(
    tmp_path: Path, engine: Upstream
) -> None:
    with running(tmp_path, engine.url, limits=Limits(concurrent=1)) as gateway:
        greedy, content = opened(gateway), body("large")
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        greedy.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        while not gateway.gateway.recording.counts["answered"]:
            time.sleep(0.02)
        assert ask(gateway).status_code == 200
        assert len(gateway.traces()) == 2
        greedy.close()


def test_from_elsewhere_health_and_ready_name_no_project(locked: Running) -> None:
    here = httpx.get(f"{locked.url}/health").json()
    assert here["deployments"]
    for header in ("x-forwarded-for", "forwarded"):
        passed_on = httpx.get(f"{locked.url}/health", headers={header: "for=192.0.2.1"})
        assert set(passed_on.json()) == {"status", "version"}
    locked.gateway.engine.phase = "failed"
    locked.gateway.engine.reason = "support is away"
    said = httpx.get(f"{locked.url}/ready", headers={"x-forwarded-for": "192.0.2.1"})
    assert said.status_code == 503 and "support" not in said.text
