"""Several turns at the embedded engine: exact ids, the engine's own logprobs, paths to train on."""

import asyncio
from typing import Any

import aiohttp
import pytest

from flywheel.episodes import Forced, Ticket
from flywheel.records import Trace
from serving.engines.client import EngineClient
from serving.engines.process import EngineProcess
from serving.interception import Interception, Served
from trainer.paths import paths_of, sample_of

pytestmark = pytest.mark.slow
TOOL = {"type": "function", "function": {"name": "sort", "parameters": {"type": "object"}}}


async def _episode(recorder: Interception, http: Any, number: int) -> Trace:
    ticket = Ticket("p", "rollout:r", f"x/{number}", "rollout", "x", "r", number, {})
    access = await recorder.open(ticket, Forced(1.0, 12, number))
    headers = {"authorization": f"Bearer {access.key}"}
    tools = [TOOL] * (number == 3)
    history: list[Any] = [
        {"role": "system", "content": "Sort the digits."},
        {"role": "user", "content": f"3 1 {number}"},
    ]
    for turn in range(3):
        asked = {"model": "m", "messages": history, **({"tools": tools} if tools else {})}
        url = access.url + "/chat/completions"
        async with http.post(url, json=asked, headers=headers) as answer:
            said = await answer.json()
            assert answer.status == 200, said
        history += [said["choices"][0]["message"], {"role": "user", "content": f"{turn} 2 1"}]
    return await recorder.close(access)


def test_what_the_engine_sampled_over_turns_is_one_path_with_its_own_logprobs(
    engine: EngineProcess, client: EngineClient
) -> None:
    async def go() -> list[Trace]:
        served = Served(engine.url, "tiny-v1")
        async with (
            Interception(served) as recorder,
            aiohttp.ClientSession() as http,
        ):
            return await asyncio.gather(*(_episode(recorder, http, k) for k in range(4)))

    for trace in asyncio.run(go()):
        assert [span.attributes.get("bridge") for span in trace.spans] == [None, "exact", "exact"]
        found = paths_of(trace)
        (path,) = found.paths
        assert not found.left_out and len(path.segments) == 3
        sample = sample_of(path, row_id=trace.id)
        assert sample.behaviour_logprobs and set(path.policy_versions) == {None, "tiny-v1"}
        for segment in path.segments:
            prompt, said = (
                path.token_ids[: segment.start], path.token_ids[segment.start : segment.end],
            )  # fmt: skip
            scored = client.logprobs("tiny-v1", prompt, said)
            recorded = sample.behaviour_logprobs[segment.start : segment.end]
            assert recorded == pytest.approx(scored, abs=1e-3)
