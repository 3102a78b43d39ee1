"""Many episodes on one server before a scripted upstream: what harnesses get, what is recorded."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from flywheel import children
from flywheel.episodes import Access, Forced, Ticket
from flywheel.errors import BadRecord, UsageError
from flywheel.ids import digest_bytes, seed_of
from flywheel.records import Span, Trace, Truncated, trace_id
from serving.interception import LIMITS, Interception, Served
from serving.interception_episodes import AT_ONCE
from serving.policies import Policies, Policy
from tests.serving.scripted_upstream import IDS, PROMPT, WORDS, Upstream

ANSWER = "".join(WORDS)
FORCED = Forced(0.7, 64, 5)


def ticket(number: int = 0) -> Ticket:
    more = {"environment": "e", "side": "champion"}
    return Ticket("p", "rollout:r", f"x/{number}", "rollout", "x", "r", number, more)


def body(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": text}], **more}


class Up:
    """An interception and a client."""

    def __init__(self, recorder: Interception, http: aiohttp.ClientSession) -> None:
        self.recorder, self.http = recorder, http

    async def post(
        self, access: Access, asked: dict[str, Any] | bytes, **headers: str
    ) -> tuple[int, str, Any]:
        """Status, text, headers."""
        headers = {"authorization": f"Bearer {access.key}", **headers}
        data = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
        url = access.url + "/chat/completions"
        async with self.http.post(url, data=data, headers=headers) as answer:
            return answer.status, await answer.text(), answer.headers


@contextlib.asynccontextmanager
async def listening(url: str, **more: Any) -> AsyncIterator[Up]:
    served = Served(url, "base", deployment="p-v1", template_digest="t", tokenizer_digest="k")
    async with Interception(served, **more) as recorder, aiohttp.ClientSession() as http:
        yield Up(recorder, http)


def one_span(trace: Trace) -> Span:
    (span,) = trace.spans
    return span


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def test_what_the_run_says_is_asked_for_and_both_streams_are_recorded(engine: Upstream) -> None:
    asked = body(
        temperature=0.1, top_p=0.5, top_k=4, seed=9, max_tokens=900, logit_bias={"1": 5},
        stop=["x"], frequency_penalty=1.0, response_format={"type": "text"},
    )  # fmt: skip

    async def go() -> tuple[Any, Trace]:
        async with listening(engine.url) as up:
            access = await up.recorder.open(ticket(3), FORCED)
            answer = await up.post(access, asked)
            return answer, await up.recorder.close(access)

    (status, text, headers), trace = asyncio.run(go())
    assert status == 200
    said = json.loads(text)
    assert said["choices"][0]["message"]["content"] == ANSWER and said["model"] == "p-v1"
    assert "prompt_token_ids" not in said and said["choices"][0]["logprobs"] is None
    assert headers["x-flywheel-span"] == "call-0000"
    assert headers["x-flywheel-trace-id"] == trace.id == trace_id("p", "rollout:r", "x/3")
    (request,) = engine.requests
    assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0.7, 1.0, 64)
    assert request["seed"] == seed_of(5, 0) and request["stop"] == ["x"]
    assert not {"top_k", "logit_bias", "frequency_penalty"} & request.keys()
    assert request["model"] == "base" and request["response_format"] == {"type": "text"}
    assert (trace.origin, trace.problem_id, trace.run_id, trace.attempt) == ("rollout", "x", "r", 3)
    assert trace.attributes == {"environment": "e", "side": "champion"}
    span = one_span(trace)
    assert span.call and span.id == "call-0000" and span.parents == () and span.error is None
    assert span.attributes["overruled"] == {
        "frequency_penalty": 1.0, "logit_bias": {"1": 5}, "max_tokens": 900, "seed": 9,
        "temperature": 0.1, "top_k": 4, "top_p": 0.5,
    }  # fmt: skip
    sampling = span.call.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 1.0, None)
    assert (sampling.max_tokens, sampling.seed, sampling.stop) == (64, seed_of(5, 0), ("x",))
    assert sampling.other == {"response_format": {"type": "text"}}
    tokens = span.call.choices[0].tokens
    assert tokens and (tokens.prompt_ids, tokens.completion_ids) == (tuple(PROMPT), tuple(IDS))
    assert tokens.logprobs == (-0.25,) * 5 and tokens.policy_versions == ("p-v1",)
    assert (tokens.template_digest, tokens.tokenizer_digest) == ("t", "k")
    assert (span.call.model, span.call.deployment) == ("any", "p-v1")


def test_a_server_whose_queue_is_full_is_waited_for_and_the_newest_version_answers(
    engine: Upstream,
) -> None:
    policies = Policies(Policy(0, "base", "r-v0"))

    async def go() -> tuple[int, Trace]:
        async with listening(engine.url, policies=policies) as up:
            access = await up.recorder.open(ticket(), FORCED)
            asking = asyncio.create_task(up.post(access, body("busy")))
            await until(lambda: engine.requests)
            policies.switch(Policy(1, "r-v1-x", "r-v1"))
            status, *_ = await asking
            return status, await up.recorder.close(access)

    status, trace = asyncio.run(go())
    assert status == 200 and not policies.in_use("base")
    assert [one["model"] for one in engine.requests] == ["base", "r-v1-x"]
    call = one_span(trace).call
    assert call and call.deployment == "r-v1" and call.choices[0].tokens
    assert call.choices[0].tokens.policy_versions == ("r-v1",)


def test_a_harness_that_wants_fewer_tokens_gets_fewer(engine: Upstream) -> None:
    async def go() -> None:
        async with listening(engine.url) as up:
            access = await up.recorder.open(ticket(), FORCED)
            await up.post(access, body(max_completion_tokens=7))
            await up.post(access, body(max_tokens=3, max_completion_tokens=7))
            await up.post(access, body(logprobs=True, return_token_ids=True, stream=True))
            await up.recorder.close(access)

    asyncio.run(go())
    assert [request.get("max_completion_tokens") for request in engine.requests] == [7, None, None]
    assert [request.get("max_tokens") for request in engine.requests] == [None, 3, 64]
    assert len({request["seed"] for request in engine.requests}) == 3


def test_many_episodes_on_one_server_are_never_mixed(engine: Upstream) -> None:
    async def episode(up: Up, number: int) -> Trace:
        access = await up.recorder.open(ticket(number), FORCED._replace(seed=number))
        for turn in range(3):
            status, text, _ = await up.post(
                access, body(f"episode {number} turn {turn}", stream=(number + turn) % 2 == 0)
            )
            assert status == 200 and WORDS[1] in text
        return await up.recorder.close(access)

    async def go() -> tuple[list[Trace], Any]:
        async with listening(engine.url) as up:
            traces = await asyncio.gather(*(episode(up, number) for number in range(64)))
            return traces, up.recorder.counts

    engine.delay = 0.02
    traces, counts = asyncio.run(go())
    assert len({trace.id for trace in traces}) == 64 and counts["answered"] == 192
    for number, trace in enumerate(traces):
        assert [span.id for span in trace.spans] == ["call-0000", "call-0001", "call-0002"]
        for turn, span in enumerate(trace.spans):
            assert span.call and span.call.input[0].text == f"episode {number} turn {turn}"
            assert span.call.sampling.seed == seed_of(number, turn)
            assert span.call.choices[0].tokens and span.call.choices[0].finish_reason == "stop"


def test_openais_own_client_is_served_and_told_when_the_budget_is_spent(engine: Upstream) -> None:
    async def go() -> Trace:
        async with listening(engine.url) as up:
            access = await up.recorder.open(ticket(), FORCED._replace(calls=2))
            async with openai.AsyncOpenAI(base_url=access.url, api_key=access.key) as client:
                assert [model.id async for model in client.models.list()] == [access.model]
                assert (await client.models.retrieve("p-v1")).id == "p-v1"
                create = client.chat.completions.create
                whole = await create(**body(n=2))
                pieces = [piece async for piece in await create(**body("calls", stream=True))]
                assert len(whole.choices) == 2
                assert pieces[-1].choices[0].finish_reason == "tool_calls"
                for _ in range(3):
                    with pytest.raises(openai.RateLimitError, match="budget of 2 model calls"):
                        await create(**body())
            return await up.recorder.close(access)

    trace = asyncio.run(go())
    assert len(engine.requests) == 2 and len(trace.spans) == 2
    # A client that were told to come again would have come three times as often.
    assert trace.attributes["refused_calls"] == {"429": 3}
    first, second = (span.call for span in trace.spans)
    assert first and len(first.choices) == 2 and all(choice.tokens for choice in first.choices)
    assert second and [call.name for call in second.choices[0].message.tool_calls] == [
        "find", "send",
    ]  # fmt: skip


def test_only_the_key_of_an_open_episode_is_answered(engine: Upstream) -> None:
    async def go() -> None:
        async with listening(engine.url) as up:
            access = await up.recorder.open(ticket(), FORCED)
            other = await up.recorder.open(ticket(1), FORCED)
            assert access.key != other.key
            await up.recorder.close(access)
            with pytest.raises(UsageError, match="closed before"):
                await up.recorder.close(access)
            for key in (access.key, "", "sk-none", "ä"):
                status, text, _ = await up.post(access._replace(key=key), body())
                assert status == 401 and json.loads(text)["error"]["code"] == "invalid_api_key"
            assert (await up.post(other, body()))[0] == 200
            headers = {"authorization": f"Bearer {other.key}"}
            for method, path in [("GET", "/chat/completions"), ("POST", "/responses")]:
                async with up.http.request(method, other.url + path, headers=headers) as answer:
                    assert answer.status == 404 and (await answer.json())["error"]["message"]
            assert len((await up.recorder.close(other)).spans) == 1
        with pytest.raises(UsageError, match="does not listen"):
            await up.recorder.open(ticket(), FORCED)

    asyncio.run(go())
    assert len(engine.requests) == 1


def test_a_bad_request_is_refused_and_counted_and_no_call(engine: Upstream) -> None:
    async def go() -> Trace:
        limits = LIMITS.__class__(body=2000, messages=20, max_tokens=2**31)
        many = {**body(), "messages": body()["messages"] * 21}
        async with listening(engine.url, limits=limits) as up:
            access = await up.recorder.open(ticket(), FORCED._replace(calls=5))
            statuses = [
                (await up.post(access, asked))[0]
                for asked in (b"{", body(n=0), body("x" * 3000), many, body(), body())
            ]
            assert statuses == [400, 400, 413, 400, 200, 429]
            return await up.recorder.close(access)

    trace = asyncio.run(go())
    assert one_span(trace).id == "call-0000"
    assert trace.attributes["refused_calls"] == {"400": 3, "413": 1, "429": 1}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("script", "status"), [("error", 502), ("bad", 400), ("half", 502)])
def test_errors_of_the_upstream_reach_the_harness_and_the_record(
    engine: Upstream, script: str, status: int, stream: bool
) -> None:
    async def go() -> tuple[Any, Trace]:
        async with listening(engine.url) as up:
            access = await up.recorder.open(ticket(), FORCED)
            answer = await up.post(access, body(script, stream=stream))
            return answer, await up.recorder.close(access, error="it failed")

    (got, text, headers), trace = asyncio.run(go())
    assert got == status and headers["x-flywheel-span"] == "call-0000"
    assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
    span = one_span(trace)
    assert span.error and span.call and not span.call.choices
    assert span.attributes["status"] == status and trace.attributes["error"] == "it failed"


@pytest.mark.parametrize("script", ["cut", "late error"])
def test_a_stream_that_breaks_off_is_recorded_as_that(engine: Upstream, script: str) -> None:
    async def go() -> tuple[Any, Trace]:
        async with listening(engine.url) as up:
            access = await up.recorder.open(ticket(), FORCED)
            answer = await up.post(access, body(script, stream=True))
            return answer, await up.recorder.close(access)

    (_, text, _), trace = asyncio.run(go())
    assert '"error"' in text and "[DONE]" not in text
    span = one_span(trace)
    assert span.error and span.call and span.call.choices[0].finish_reason is None
    assert span.call.choices[0].message.text == "".join(WORDS[:2])


def test_an_upstream_that_is_silent_or_gone_is_said_to_be(engine: Upstream) -> None:
    async def go() -> list[Any]:
        found = []
        silent = LIMITS.__class__(silence_s=0.2, max_tokens=2**31)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
            for url, script in ((engine.url, "hang"), (nobody, "hello")):
                async with listening(url, limits=silent) as up:
                    access = await up.recorder.open(ticket(), FORCED)
                    status, _, headers = await up.post(access, body(script))
                    found.append((status, headers.get("retry-after")))
                    span = one_span(await up.recorder.close(access))
                    assert span.error and span.attributes["status"] == status
        return found

    assert asyncio.run(go()) == [(504, None), (503, "2")]


def test_a_stream_that_stalls_is_given_up_and_recorded_as_cut(engine: Upstream) -> None:
    async def go() -> tuple[Any, Trace]:
        limits = LIMITS.__class__(silence_s=0.3, max_tokens=2**31)
        async with listening(engine.url, limits=limits) as up:
            access = await up.recorder.open(ticket(), FORCED)
            answer = await up.post(access, body("hold", stream=True))
            return answer, await up.recorder.close(access)

    (_, text, _), trace = asyncio.run(go())
    assert "took too long" in text and "[DONE]" not in text
    span = one_span(trace)
    assert span.call and span.attributes["status"] == 504
    assert [choice.finish_reason for choice in span.call.choices] == [None]


@pytest.mark.parametrize("stream", [False, True])
def test_a_harness_that_hangs_up_is_recorded_and_stops_the_engine(
    engine: Upstream, stream: bool
) -> None:
    async def go() -> Trace:
        async with listening(engine.url) as up:
            access = await up.recorder.open(ticket(), FORCED)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await up.post(access, body("hold" if stream else "hang", stream=stream))
            await until(lambda: up.recorder.counts["hung_up"])
            return await up.recorder.close(access)

    span = one_span(asyncio.run(go()))
    assert span.error == "the client hung up" and span.call
    assert [choice.finish_reason for choice in span.call.choices] == [None] * stream


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_under_way_when_an_episode_ends_is_cut(engine: Upstream, stream: bool) -> None:
    async def go() -> tuple[Any, Trace]:
        async with listening(engine.url) as up:
            access = await up.recorder.open(ticket(), FORCED)
            script = "hold" if stream else "hang"
            asking = asyncio.create_task(up.post(access, body(script, stream=stream)))
            await until(lambda: engine.requests)
            await asyncio.sleep(0.2)
            trace = await up.recorder.close(access)
            return await asking, trace

    (status, text, _), trace = asyncio.run(go())
    assert status == (200 if stream else 401) and "has ended" in text and "[DONE]" not in text
    span = one_span(trace)
    assert span.error == "the episode ended while this call was under way"
    assert span.call and all(choice.finish_reason is None for choice in span.call.choices)


def test_sub_agents_in_parallel_name_the_span_they_come_from(engine: Upstream) -> None:
    async def go() -> Trace:
        async with listening(engine.url) as up:
            access = await up.recorder.open(ticket(), FORCED)
            _, _, headers = await up.post(access, body("split it"))
            parent = headers["x-flywheel-span"]
            await asyncio.gather(
                *(
                    up.post(access, body(f"part {k}"), **{"x-flywheel-parent": f"{parent}, agent"})
                    for k in range(4)
                )
            )
            await up.post(access, body("odd"), **{"x-flywheel-parent": "nobody"})
            agent = Span(id="agent", kind="agent", parents=(parent,))
            with pytest.raises(BadRecord, match="call-0001"):
                await up.recorder.close(access, [Span(id="call-0001", kind="tool")])
            return await up.recorder.close(access, [agent])

    trace = asyncio.run(go())
    root, *parts, odd, agent = trace.spans
    assert root.parents == () and agent.id == "agent"
    assert [span.parents for span in parts] == [("call-0000", "agent")] * 4
    assert {span.call.input[0].text for span in parts if span.call} == {
        f"part {k}" for k in range(4)
    }
    assert odd.parents == () and odd.attributes["unknown_parents"] == ["nobody"]


def test_one_episode_may_not_take_the_whole_server(engine: Upstream) -> None:
    async def go() -> list[int]:
        async with listening(engine.url) as up:
            access = await up.recorder.open(ticket(), FORCED)
            tasks = [asyncio.create_task(up.post(access, body("hang"))) for _ in range(AT_ONCE + 3)]
            await until(lambda: sum(task.done() for task in tasks) >= 3)
            await up.recorder.close(access)
            return sorted(status for status, _, _ in await asyncio.gather(*tasks))

    assert asyncio.run(go()) == [401] * AT_ONCE + [429] * 3


def test_calls_over_the_servers_bound_wait_for_their_turn(engine: Upstream) -> None:
    async def go() -> list[int]:
        limits = LIMITS.__class__(concurrent=2, max_tokens=2**31)
        async with listening(engine.url, limits=limits) as up:
            access = await up.recorder.open(ticket(), FORCED)
            answers = await asyncio.gather(*(up.post(access, body()) for _ in range(6)))
            return [status for status, _, _ in answers]

    engine.delay = 0.02
    assert asyncio.run(go()) == [200] * 6


def raw(access: Access, length: int) -> tuple[str, int, bytes]:
    """Host, port, and the head of a call whose body comes by itself."""
    host, _, port = access.url.removeprefix("http://").removesuffix("/v1").partition(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n"
    return host, int(port), f"{head}Authorization: Bearer {access.key}\r\n\r\n".encode()


def test_those_who_send_slowly_hold_up_only_themselves(engine: Upstream) -> None:
    async def go() -> int:
        limits = LIMITS.__class__(concurrent=2, max_tokens=2**31)
        async with listening(engine.url, limits=limits) as up:
            slow, quick = [await up.recorder.open(ticket(n), FORCED) for n in range(2)]
            host, port, head = raw(slow, 99)
            held = []
            for _ in range(4):
                held.append((await asyncio.open_connection(host, port))[1])
                held[-1].write(head + b"{")
            await until(lambda: up.recorder.counts["requests"] == 4)
            status, _, _ = await up.post(quick, body())
            for writer in held:
                writer.close()
            return status

    assert asyncio.run(go()) == 200


@pytest.mark.slow
def test_a_harness_that_stops_reading_has_left(engine: Upstream) -> None:
    async def go() -> tuple[int, Trace]:
        loop = asyncio.get_running_loop()
        limits = LIMITS.__class__(read_s=0.5, max_tokens=2**31, concurrent=1)
        async with listening(engine.url, limits=limits) as up:
            stalled, other = [await up.recorder.open(ticket(n), FORCED) for n in range(2)]
            asked = json.dumps(body("flood", stream=True)).encode()
            host, port, head = raw(stalled, len(asked))
            with socket.socket() as idle:
                idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                idle.setblocking(False)
                await loop.sock_connect(idle, (host, port))
                await loop.sock_sendall(idle, head + asked)
                await until(lambda: up.recorder.counts["hung_up"] == 1)
                status, _, _ = await up.post(other, body())
            return status, await up.recorder.close(stalled)

    status, trace = asyncio.run(go())
    assert status == 200 and one_span(trace).error == "the client hung up"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_never_ends_is_given_up(engine: Upstream, stream: bool) -> None:
    async def go() -> tuple[str, Trace]:
        limits = LIMITS.__class__(answer=2**20, max_tokens=2**31)
        async with listening(engine.url, limits=limits) as up:
            access = await up.recorder.open(ticket(), FORCED)
            _, text, _ = await up.post(access, body("flood" if stream else "large", stream=stream))
            return text, await up.recorder.close(access)

    text, trace = asyncio.run(go())
    assert "larger than 1048576 bytes" in text[-300:]
    assert "larger than 1048576 bytes" in (one_span(trace).error or "")


def test_numbers_that_cannot_be_are_not_recorded_as_such(engine: Upstream) -> None:
    async def go() -> list[Span]:
        async with listening(engine.url) as up:
            access = await up.recorder.open(ticket(), FORCED)
            for script in ("odd ids", "odd logprobs", "odd count"):
                assert (await up.post(access, body(script)))[0] == 200
            return list((await up.recorder.close(access)).spans)

    ids, logprobs, count = (span.call for span in asyncio.run(go()))
    assert ids and logprobs and count
    assert ids.choices[0].tokens is None
    tokens = logprobs.choices[0].tokens
    assert tokens and tokens.completion_ids == tuple(IDS) and tokens.logprobs is None
    assert count.usage.output_tokens is None and count.usage.input_tokens is None


def test_an_engine_that_is_killed_amid_a_call_is_an_error_of_that_call(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    module, log = "tests.serving.scripted_upstream", tmp_path / "log"
    child = children.start(module, [str(port)], log=log)

    async def go() -> Trace:
        async with listening(f"http://127.0.0.1:{port}") as up:
            access = await up.recorder.open(ticket(), FORCED._replace(calls=1000))
            while (await up.post(access, body()))[0] != 200:
                await asyncio.sleep(0.1)
            hanging = [
                asyncio.create_task(up.post(access, body("hang", stream=k > 1))) for k in range(4)
            ]
            await asyncio.sleep(0.3)
            child.kill()
            assert {status for status, _, _ in await asyncio.gather(*hanging)} <= {502, 503}
            assert (await up.post(access, body()))[0] == 503
            return await up.recorder.close(access)

    try:
        *_, after = asyncio.run(go()).spans
    finally:
        child.kill()
        child.wait()
        if child.stdin is not None:
            child.stdin.close()
    assert after.error and "cannot be reached" in after.error and after.attributes["status"] == 503


def test_an_answer_of_twenty_megabytes_is_passed_on_and_gone_on_from(engine: Upstream) -> None:
    async def go() -> tuple[int, Trace]:
        async with listening(engine.url) as up:
            access = await up.recorder.open(ticket(), FORCED)
            _, text, _ = await up.post(access, body("large"))
            said = json.loads(text)["choices"][0]["message"]
            messages = [*body("large")["messages"], said, {"role": "user", "content": "on"}]
            assert (await up.post(access, {"model": "m", "messages": messages}))[0] == 200
            return len(said["content"]), await up.recorder.close(access)

    size, trace = asyncio.run(go())
    first, second = trace.spans
    assert size == 20 * 2**20 and second.parents == ("call-0000",)
    assert first.call and isinstance(first.call.choices[0].message.parts[0], Truncated)


def test_twenty_megabytes_pass_whole_and_leave_the_record(engine: Upstream) -> None:
    large = "a tool says " * (20 * 2**20 // 12)
    kept: dict[str, bytes] = {}

    def put(data: bytes) -> str:
        kept[digest_bytes(data)] = data
        return digest_bytes(data)

    async def go() -> Trace:
        async with listening(engine.url, put=put) as up:
            access = await up.recorder.open(ticket(), FORCED)
            messages = [
                {"role": "user", "content": "go"},
                {"role": "tool", "tool_call_id": "c", "content": large},
            ]
            assert (await up.post(access, {"model": "m", "messages": messages}))[0] == 200
            return await up.recorder.close(access)

    span = one_span(asyncio.run(go()))
    assert engine.requests[0]["messages"][1]["content"] == large
    assert span.call
    cut = span.call.input[1].parts[1]
    assert isinstance(cut, Truncated) and kept[cut.digest].decode() == large


def test_it_answers_at_a_unix_socket_too(engine: Upstream, tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def go() -> None:
        async with listening(engine.url, socket=path) as up:
            access = await up.recorder.open(ticket(), FORCED)
            assert up.recorder.address and up.recorder.address.socket == path
            connector = aiohttp.UnixConnector(str(path))
            async with aiohttp.ClientSession(connector=connector) as http:
                assert (await Up(up.recorder, http).post(access, body()))[0] == 200
            assert len((await up.recorder.close(access)).spans) == 1

    asyncio.run(go())
    assert not path.exists()
