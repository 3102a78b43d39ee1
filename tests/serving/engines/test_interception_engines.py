"""Several turns at each engine: exact ids, the engine's own logprobs, paths to train on."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from flywheel.episodes import Forced, Ticket
from flywheel.records import Trace
from serving.engines.supervised import Supervised
from serving.interception import Interception, Served
from trainer.paths import paths_of, sample_of

pytestmark = pytest.mark.slow
TOOL = {"type": "function", "function": {"name": "sort", "parameters": {"type": "object"}}}


async def _ask(http: Any, url: str, asked: dict[str, Any], key: str) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {key}"}
    async with http.post(url + "/chat/completions", json=asked, headers=headers) as answer:
        text = await answer.text()
    assert answer.status == 200, text
    if not asked.get("stream"):
        whole: dict[str, Any] = json.loads(text)["choices"][0]["message"]
        return {"role": "assistant", "content": whole["content"], **_calls(whole)}
    said: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in text.split("\n\n"):
        for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
            said["content"] += choice["delta"].get("content") or ""
            said |= _calls(choice["delta"])
    return said


def _calls(said: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": said["tool_calls"]} if said.get("tool_calls") else {}


async def _episode(recorder: Interception, http: Any, number: int) -> Trace:
    """Three turns, some streamed; of one episode with tools."""
    ticket = Ticket("p", "rollout:r", f"x/{number}", "rollout", "x", "r", number, {})
    access = await recorder.open(ticket, Forced(1.0, 12, number))
    tools = {"tools": [TOOL]} if number == 3 else {}
    history: list[Any] = [
        {"role": "system", "content": "Sort the digits."},
        {"role": "user", "content": f"3 1 {number}"},
    ]
    for turn in range(3):
        asked = {"model": "m", "messages": history, "stream": (turn + number) % 2 == 0, **tools}
        history.append(await _ask(http, access.url, asked, access.key))
        history.append({"role": "user", "content": f"{turn} 2 1"})
    return await recorder.close(access)


def test_what_an_engine_sampled_over_turns_is_one_path_with_its_own_logprobs(
    either: Supervised,
) -> None:
    access = either.access
    served = Served(
        either.url, "tiny-v1", key=access.key, template_digest=access.template_digest,
        tokenizer_digest=access.tokenizer_digest, base=str(either.model),
    )  # fmt: skip

    async def go() -> list[Trace]:
        async with Interception(served) as recorder, aiohttp.ClientSession() as http:
            return await asyncio.gather(*(_episode(recorder, http, k) for k in range(4)))

    traces = asyncio.run(go())
    with either.client(timeout_s=120) as client:
        for trace in traces:
            assert [span.error for span in trace.spans] == [None] * 3
            bridges = [span.attributes.get("bridge") for span in trace.spans]
            assert bridges == [None, "exact", "exact"]
            found = paths_of(trace)
            (path,) = found.paths
            assert not found.left_out and len(path.segments) == 3
            sample = sample_of(path, row_id=trace.id)
            assert sample.behaviour_logprobs and set(path.policy_versions) == {None, "tiny-v1"}
            for segment in path.segments:
                prompt = path.token_ids[: segment.start]
                said = path.token_ids[segment.start : segment.end]
                scored = client.logprobs("tiny-v1", prompt, said)
                recorded = sample.behaviour_logprobs[segment.start : segment.end]
                assert recorded == pytest.approx(scored, abs=1e-3)
