"""The gateway over real sockets before a scripted upstream: what clients see, what is kept."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from flywheel.records import Text, say
from serving.capture import Asked
from serving.dialects.chat import ChatDialect, SpeakingChat
from serving.keys import keys_of
from serving.limits import Limits
from serving.observing import Seen
from serving.state import EngineState
from tests.serving.running import Running, body, route, running
from tests.serving.scripted_upstream import IDS, PROMPT, WORDS, Upstream, upstream

ANSWER = "".join(WORDS)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One gateway for all that is refused without a trace."""
    with upstream() as scripted, running(tmp_path_factory.mktemp("home"), scripted.url) as up:
        yield up


def client(gateway: Running, key: str = "none", retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key=key, max_retries=retries, timeout=20)


def chat(gateway: Running, text: str = "hello", **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    create = client(gateway).chat.completions.create
    return create(model="support", messages=messages, **more)


def post(gateway: Running, content: bytes, **headers: str) -> httpx.Response:
    url = gateway.url + "/v1/chat/completions"
    return httpx.post(url, content=content, headers={"content-type": "application/json", **headers})


def test_an_answer_is_the_engines_and_the_record_holds_both_streams(gateway: Running) -> None:
    answer = chat(gateway, temperature=0.7, seed=3, user="ann")
    assert answer.choices[0].message.content == ANSWER
    assert answer.model == "support-v0"
    (trace,) = gateway.traces()
    (span,) = trace.spans
    call = span.call
    assert call is not None
    assert trace.external_id == span.id == answer.id == trace.conversation
    assert (trace.source, trace.origin, trace.user) == ("gateway", "production", "ann")
    assert call.input == (say("user", "hello"),)
    assert (call.deployment, call.model, call.routing_probability) == ("support-v0", "support", 1.0)
    (choice,) = call.choices
    assert choice.message == say("assistant", ANSWER)
    assert choice.finish_reason == "stop"
    assert choice.tokens is not None
    assert choice.tokens.prompt_ids == tuple(PROMPT)
    assert choice.tokens.completion_ids == tuple(IDS)
    assert choice.tokens.logprobs == (-0.25,) * 5
    assert choice.tokens.policy_versions == ("support-v0",)
    assert (call.usage.input_tokens, call.usage.output_tokens) == (4, 5)
    assert (call.sampling.temperature, call.sampling.seed, call.tools) == (0.7, 3, ())
    assert span.error is None and span.start and span.end and span.start < span.end


def test_a_stream_is_recorded_like_the_same_answer_in_one_piece(gateway: Running) -> None:
    pieces = list(chat(gateway, stream=True))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == ANSWER
    chat(gateway)
    streamed, whole = [trace.spans[0].call for trace in gateway.traces()]
    assert streamed and whole
    assert (streamed.choices, streamed.usage) == (whole.choices, whole.usage)


def test_a_client_gets_back_only_what_it_asked_for(gateway: Running, engine: Upstream) -> None:
    plain = post(gateway, body()).json()
    assert "prompt_token_ids" not in plain and "token_ids" not in plain["choices"][0]
    assert plain["choices"][0]["logprobs"] is None
    full = post(gateway, body(logprobs=True, return_token_ids=True)).json()
    assert full["prompt_token_ids"] == PROMPT and full["choices"][0]["token_ids"] == IDS
    assert len(full["choices"][0]["logprobs"]["content"]) == 5
    text = post(gateway, body(stream=True)).text
    assert "token_ids" not in text and '"usage"' not in text and "-0.25" not in text
    text = post(gateway, body(stream=True, stream_options={"include_usage": True})).text
    assert text.count('"completion_tokens":5') + text.count('"completion_tokens": 5') == 1
    assert all(request["logprobs"] and request["return_token_ids"] for request in engine.requests)


def test_what_the_gateway_does_not_know_passes_byte_for_byte(
    gateway: Running, engine: Upstream
) -> None:
    odd = b'{"as" : [1.50, 1e3, "\\u00e9", 123456789012345678901234567890], "b":{}}'
    content = body()[:-1] + b', "vllm_xargs": ' + odd + b"}"
    answer = post(gateway, content)
    assert answer.status_code == 200
    assert odd in engine.raw[0]
    assert b'{"as": ["it", "is", 1.5]}' in answer.content
    call = gateway.traces()[0].spans[0].call
    assert call and call.sampling.other["vllm_xargs"] == json.loads(odd)


def test_several_choices_each_keep_their_tokens(gateway: Running) -> None:
    assert len(chat(gateway, n=3).choices) == 3
    text = post(gateway, body(n=2, stream=True)).text
    assert text.count('"stop"') == 2 and text.endswith("data: [DONE]\n\n")
    whole, streamed = [trace.spans[0].call for trace in gateway.traces()]
    assert whole and streamed
    assert [len(choice.tokens.completion_ids) for choice in whole.choices if choice.tokens] == [
        5
    ] * 3
    assert [choice.message.text for choice in streamed.choices] == [ANSWER] * 2
    assert all(choice.tokens for choice in streamed.choices)


def test_parallel_calls_whose_fragments_are_mixed_stay_two_calls(gateway: Running) -> None:
    tools: Any = [{"type": "function", "function": {"name": "find", "parameters": {}}}]
    list(chat(gateway, "calls", stream=True, tools=tools))
    call = gateway.traces()[0].spans[0].call
    assert call and call.tools == tuple(tools)
    message = call.choices[0].message
    assert [(part.id, part.name, json.loads(part.arguments)) for part in message.tool_calls] == [
        ("call_a", "find", {"order": 1}),
        ("call_b", "send", {"to": "x"}),
    ]
    assert message.text == "" and not any(isinstance(part, Text) for part in message.parts)


@pytest.mark.parametrize("how", ["header", "metadata", "metadata short"])
def test_calls_of_one_conversation_are_parts_of_one_trace(gateway: Running, how: str) -> None:
    given: dict[str, Any] = {
        "header": {"extra_headers": {"x-conversation-id": "c-1"}},
        "metadata": {"metadata": {"conversation_id": "c-1", "user": "bob"}},
        "metadata short": {"metadata": {"conversation": "c-1"}},
    }[how]
    first, second = chat(gateway, **given), chat(gateway, **given)
    traces = gateway.traces()
    assert len({trace.id for trace in traces}) == 1
    assert [trace.spans[0].id for trace in traces] == [first.id, second.id]
    assert traces[0].conversation == traces[0].external_id == "c-1"
    assert traces[0].user == ("bob" if how == "metadata" else None)


def test_response_headers_name_trace_request_and_deployment(gateway: Running) -> None:
    for content in (body(), body(stream=True)):
        answer = post(gateway, content, **{"x-request-id": "mine-7"})
        assert answer.headers["x-request-id"] == "mine-7"
        assert answer.headers["x-flywheel-deployment"] == "support-v0"
        trace = gateway.traces()[-1]
        assert answer.headers["x-flywheel-trace-id"] == trace.id
        assert trace.spans[0].attributes["request_id"] == "mine-7"
    assert post(gateway, b"{").headers["x-request-id"].startswith("req-")


def test_models_and_health_say_what_serves(gateway: Running) -> None:
    with client(gateway) as openai_client:
        assert {model.id for model in openai_client.models.list()} == {"support", "support-v0"}
        assert openai_client.models.retrieve("support-v0").id == "support-v0"
        with pytest.raises(openai.NotFoundError):
            openai_client.models.retrieve("other")
    health = httpx.get(gateway.url + "/health").json()
    assert health["deployments"] == {"support": "support-v0"}
    assert health["canaries"] == {}
    assert health["engine"]["state"] == "ready" and health["status"] == "ok"
    assert httpx.get(gateway.url + "/ready").status_code == 200


def test_an_exact_deployment_is_answered_by_itself(gateway: Running, engine: Upstream) -> None:
    route(gateway.home, champion=2)
    post(gateway, body())
    assert engine.requests[-1]["model"] == "support-v2"
    old = post(gateway, json.dumps({**json.loads(body()), "model": "support-v0"}).encode())
    assert engine.requests[-1]["model"] == "base"
    assert old.json()["model"] == "support-v0"
    assert post(gateway, body().replace(b'"support"', b'"support-v9"')).status_code == 404


# --- what breaks off ----------------------------------------------------------------------------


def test_a_stream_that_the_engine_cuts_is_an_error_and_never_looks_complete(
    gateway: Running,
) -> None:
    seen = []
    with pytest.raises(openai.APIError):
        for piece in chat(gateway, "cut", stream=True):
            seen.append(piece)
    assert seen
    (span,) = gateway.traces()[0].spans
    assert span.error and span.call
    assert span.call.choices[0].finish_reason is None
    assert span.call.choices[0].message.text == "".join(WORDS[:2])
    assert span.call.usage.output_tokens is None


def test_an_error_amid_a_stream_reaches_the_client_and_the_record(gateway: Running) -> None:
    with pytest.raises(openai.APIError, match="out of memory"):
        list(chat(gateway, "late error", stream=True))
    (span,) = gateway.traces()[0].spans
    assert span.error and "out of memory" in span.error and span.call
    assert span.call.choices[0].finish_reason is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_is_recorded_and_stops_the_engine(
    gateway: Running, engine: Upstream, stream: bool
) -> None:
    with (
        pytest.raises(httpx.TimeoutException),
        httpx.stream(
            "POST",
            gateway.url + "/v1/chat/completions",
            content=body("hold" if stream else "hang", stream=stream),
            timeout=0.3,
        ) as answer,
    ):
        list(answer.iter_bytes())
    wait(lambda: gateway.traces())
    (span,) = gateway.traces()[0].spans
    assert span.error == "the client hung up" and span.call
    if stream:
        assert span.call.choices[0].finish_reason is None
        assert span.call.choices[0].message.text == WORDS[0]
    else:
        assert span.call.choices == ()
        wait(lambda: engine.hung_up)
    assert httpx.get(gateway.url + "/health").json()["running"] == 0


def test_the_end_of_a_stream_is_held_until_it_is_recorded(gateway: Running) -> None:
    """A client that saw a finish reason may count on the record."""
    gateway.home.journal.write_text("no folder can be made here")
    text = post(gateway, body(stream=True)).text
    assert WORDS[0] in text and '"stop"' not in text and "[DONE]" not in text
    assert "not_recorded" in text


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [("error", 502, "engine_error"), ("half", 502, "engine_error"), ("bad", 400, None)],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_engines_errors_come_in_openais_shape_and_are_recorded(
    gateway: Running, script: str, status: int, code: str | None, stream: bool
) -> None:
    answer = post(gateway, body(script, stream=stream))
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["code"] == code
    (span,) = gateway.traces()[0].spans
    assert span.error and span.call and span.call.choices == ()


def test_an_engine_that_is_silent_is_given_up(tmp_path: Path, engine: Upstream) -> None:
    with running(tmp_path, engine.url, limits=Limits(silence_s=0.2)) as up:
        answer = post(up, body("hang"))
        assert answer.status_code == 504
        assert up.traces()[0].spans[0].error == "the engine took too long"


def test_without_an_engine_a_client_is_told_to_come_again(tmp_path: Path) -> None:
    state = EngineState("ready")
    with running(tmp_path, "http://127.0.0.1:9", engine=state) as up:
        answer = post(up, body())
        assert answer.status_code == 503 and answer.headers["retry-after"]
        state.phase = "restarting"
        answer = post(up, body())
        assert answer.status_code == 503 and "restarting" in answer.json()["error"]["message"]
        health = httpx.get(up.url + "/health").json()
        assert health["status"] == "degraded" and health["engine"]["state"] == "restarting"
        assert httpx.get(up.url + "/ready").status_code == 503


def test_counts_that_are_zero_beside_content_are_unknown(gateway: Running) -> None:
    for script in ("zeros", "nousage", "short ids"):
        chat(gateway, script)
    zeros, none, short = [trace.spans[0] for trace in gateway.traces()]
    for span in (zeros, none):
        assert span.call and span.call.usage.output_tokens is None and span.call.usage.reason
        assert span.call.choices[0].tokens
    assert short.call and short.call.choices[0].tokens is None
    assert "9" in short.attributes["tokens"]


def test_half_an_emoji_from_the_engine_is_mended_not_fatal(gateway: Running) -> None:
    answer = post(gateway, body("surrogate"))
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "half \ufffd"
    call = gateway.traces()[0].spans[0].call
    assert call and call.choices[0].message.text == "half \ufffd"


# --- what is refused ----------------------------------------------------------------------------

BAD: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "latin": b'{"model": "\xff"}',
    "raw nul": b'{"model": "a\x00"}',
    "nul": body("a\0b"),
    "surrogate": body().replace(b"where", b"\\ud83d"),
    "deep list": b'{"model": "support", "messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "deep object": body()[:-1] + b', "x": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001,
    "deep, open": b"[" * 100_000,
    "huge number": body()[:-1] + b', "temperature": 1e999}',
    "not a number": body()[:-1] + b', "temperature": NaN}',
    "model is a number": body().replace(b'"support"', b"1"),
    "no model": b'{"messages": [{"role": "user", "content": "x"}]}',
    "no messages": b'{"model": "support", "messages": []}',
    "messages are text": b'{"model": "support", "messages": "hi"}',
    "message is text": b'{"model": "support", "messages": ["hi"]}',
    "no role": b'{"model": "support", "messages": [{"content": "x"}]}',
    "content is a number": b'{"model": "support", "messages": [{"role": "user", "content": 5}]}',
    "part is text": b'{"model": "support", "messages": [{"role": "user", "content": ["x"]}]}',
    "calls are text": b'{"model": "support", "messages": [{"role": "assistant", "tool_calls": 1}]}',
    "n is 0": body(n=0),
    "n is large": body(n=9),
    "n is text": body(n="2"),
    "stream is text": body(stream="yes"),
    "max_tokens": body(max_tokens=513),
    "max_completion_tokens": body(max_completion_tokens=10**30),
    "no tokens": body(max_tokens=0),
    "tools are an object": body(tools={}),
    "top_logprobs alone": body(top_logprobs=2),
    "seed": body(seed=2**70),
    "metadata id": body(metadata={"conversation_id": ["x"]}),
    "long user": body(user="x" * 300),
    "user with a break": body(user="a\nb"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_a_400_in_openais_shape(standing: Running, name: str) -> None:
    answer = post(standing, BAD[name])
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and error["message"]
    assert standing.traces() == []


def test_a_400_names_the_field(standing: Running) -> None:
    for content, param in [
        (BAD["n is text"], "n"),
        (BAD["no model"], "model"),
        (BAD["no role"], "messages[0].role"),
        (BAD["max_tokens"], "max_tokens"),
    ]:
        assert post(standing, content).json()["error"]["param"] == param


def test_other_refusals_have_their_status(tmp_path: Path, engine: Upstream) -> None:
    with running(tmp_path, engine.url, limits=Limits(body=1000, header=2000)) as up:
        assert post(up, body("x" * 2000)).status_code == 413
        assert post(up, body(), **{"x-long": "x" * 3000}).status_code == 431
        assert post(up, body(), **{"content-encoding": "gzip"}).status_code == 415
        assert post(up, body(), **{"x-conversation-id": "a" * 300}).status_code == 400
        for method, path, status in [
            ("GET", "/v1/chat/completions", 405),
            ("GET", "/nothing", 404),
        ]:
            answer = httpx.request(method, up.url + path)
            assert answer.status_code == status and answer.json()["error"]["message"]
        assert post(up, body()).status_code == 200


def test_more_requests_than_the_engine_takes_wait_for_their_turn(
    tmp_path: Path, engine: Upstream
) -> None:
    engine.delay = 0.1
    with running(tmp_path, engine.url, limits=Limits(concurrent=2)) as up:
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _: post(up, body()), range(6)))
        assert [answer.status_code for answer in answers] == [200] * 6
        waits = sorted(trace.spans[0].attributes["queue_ns"] for trace in up.traces())
        assert len(waits) == 6 and waits[-1] > 10**8


def test_keys_are_needed_where_there_are_some_and_never_recorded(
    tmp_path: Path, engine: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flywheel.settings import Settings

    file = tmp_path / "keys"
    file.write_text("# ours\nsk-two\n")
    monkeypatch.setenv("FLYWHEEL_KEYS", "sk-one")
    keys = keys_of(Settings(api_keys_file=file))
    with running(tmp_path / "home", engine.url, keys=keys) as up:
        for key in ("sk-one", "sk-two"):
            assert post(up, body(), authorization=f"Bearer {key}").status_code == 200
        for header in ("", "Bearer", "Bearer sk-three", "Basic sk-one", "sk-one"):
            answer = post(up, body(), authorization=header)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert httpx.get(up.url + "/v1/models").status_code == 401
        assert httpx.get(up.url + "/health").status_code == 200
        assert len(up.traces()) == 2
        assert all(b"sk-" not in path.read_bytes() for path in up.home.journal.iterdir())
    assert all("authorization" not in request for request in engine.requests)


def test_without_keys_only_this_machines_programs_are_answered(gateway: Running) -> None:
    assert post(gateway, body(), host="evil.example").status_code == 403
    assert post(gateway, body(), origin="https://evil.example").status_code == 403
    assert post(gateway, body(), host="[").status_code in (400, 403)
    assert post(gateway, body(), origin="http://localhost:3000").status_code == 200


# --- records that cannot be written, large ones ---------------------------------------------------


def test_what_cannot_be_recorded_is_refused_before_anything_is_spent(
    gateway: Running, engine: Upstream
) -> None:
    gateway.home.journal.write_text("no folder can be made here")
    first = post(gateway, body())
    assert first.status_code == 503 and first.json()["error"]["code"] == "not_recorded"
    assert len(engine.requests) == 1
    second = post(gateway, body())
    assert second.status_code == 503 and second.headers["retry-after"]
    assert len(engine.requests) == 1
    assert gateway.gateway.recording.counts["unrecorded"] == 1
    assert gateway.gateway.recording.counts["dropped"] == 0  # nobody was answered
    assert httpx.get(gateway.url + "/health").json()["status"] == "degraded"
    gateway.home.journal.unlink()
    wait(lambda: post(gateway, body()).status_code == 200)
    assert len(gateway.traces()) == 1
    assert httpx.get(gateway.url + "/health").json()["status"] == "ok"


def test_a_project_may_rather_serve_unrecorded(tmp_path: Path, engine: Upstream) -> None:
    with running(tmp_path, engine.url, limits=Limits(unrecorded="serve")) as up:
        up.home.journal.write_text("no folder can be made here")
        assert post(up, body()).status_code == post(up, body(stream=True)).status_code == 200
        counts = httpx.get(up.url + "/health").json()["counts"]
        assert (counts["unrecorded"], counts["dropped"]) == (2, 2)
        assert "flywheel_dropped_records 2.0" in httpx.get(up.url + "/metrics").text


def test_large_images_and_texts_leave_the_record_but_not_the_store(
    gateway: Running, engine: Upstream
) -> None:
    import base64

    from flywheel.records import Image, Truncated
    from storage.raw import RawStore

    picture = bytes(range(256)) * 1024
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    output = "tool says " + "é" * 1_500_000
    messages = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": output},
        {"role": "user", "content": "hello"},
    ]
    content = json.dumps({"model": "support", "messages": messages}).encode()
    assert post(gateway, content).status_code == 200
    assert engine.requests[0]["messages"] == messages
    call = gateway.traces()[0].spans[0].call
    assert call
    (image,) = call.input[0].parts
    assert isinstance(image, Image) and image.url is None and image.digest
    assert image.media_type == "image/png"
    cut = call.input[1].parts[1]
    assert isinstance(cut, Truncated) and cut.size == len(output.encode())
    store = RawStore(gateway.home)
    assert store.get(image.digest) == picture
    assert store.get(cut.digest).decode() == output


# --- many ---------------------------------------------------------------------------------------


def test_a_swap_of_the_routing_file_under_load_loses_nothing(
    tmp_path: Path, engine: Upstream
) -> None:
    engine.delay = 0.01
    with running(tmp_path, engine.url) as up:
        url = up.url + "/v1/chat/completions"
        with httpx.Client(limits=httpx.Limits(max_connections=8)) as http:

            def ask(number: int) -> tuple[str, str]:
                if number in (30, 60, 90):
                    route(up.home, champion=number // 30)
                answer = http.post(url, content=body(stream=number % 2 == 0), timeout=20)
                assert answer.status_code == 200, answer.text
                return answer.headers["x-flywheel-trace-id"], answer.headers[
                    "x-flywheel-deployment"
                ]

            with ThreadPoolExecutor(6) as pool:
                answers = list(pool.map(ask, range(120)))
        kept = {trace.id: trace.spans[0].call for trace in up.traces()}
        assert set(kept) == {trace for trace, _ in answers} and len(kept) == 120
        assert all(kept[trace].deployment == name for trace, name in answers if kept[trace])
        assert {name for _, name in answers} == {f"support-v{number}" for number in range(4)}


def test_a_routing_file_that_is_broken_leaves_the_old_one_in_force(gateway: Running) -> None:
    assert post(gateway, body()).status_code == 200
    gateway.home.routing.write_text("{")
    assert post(gateway, body()).status_code == 200
    assert "routing file" in httpx.get(gateway.url + "/health").json()["routing"]["problem"]
    gateway.home.routing.unlink()
    assert post(gateway, body()).status_code == 200


def wait(condition: Any, seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_ours_is_a_500_in_the_clients_shape(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    def fault(*_: Any) -> None:
        raise ZeroDivisionError("what nobody thought of")

    with monkeypatch.context() as patch:
        patch.setattr(gateway.gateway.keeping, "read", fault)
        answer = post(gateway, body(stream=stream))
        assert answer.status_code == 500 and "nobody" not in answer.text
        assert answer.json()["error"]["message"].startswith("a fault in the gateway")
    assert post(gateway, body(stream=stream)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_ours_is_recorded_and_told_too(
    tmp_path: Path, engine: Upstream, stream: bool
) -> None:
    class Faulty(ChatDialect):
        def whole(self, asked: Asked, body: bytes) -> bytes:
            raise KeyError("what the engine said")

        def stream(self, asked: Asked) -> SpeakingChat:
            return FaultySpeaking()

    class FaultySpeaking(SpeakingChat):
        def say(self, event: bytes) -> bytes:
            raise KeyError("what the engine said")

    seen: list[Seen] = []
    with running(tmp_path, engine.url) as up:
        up.gateway.inference.dialects = {"/v1/chat/completions": Faulty()}
        up.gateway.observers.add(seen.append)
        said = httpx.post(f"{up.url}/v1/chat/completions", content=body(stream=stream))
        assert said.status_code == 500 and "fault in the gateway" in said.text
        (span,) = up.traces()[0].spans
    assert span.error == "the gateway failed: KeyError"
    assert [one.end for one in seen] == ["failed" if stream else "cut"]
