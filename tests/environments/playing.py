"""Plays episodes against a scripted engine, by way of the real interception."""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

from environments.attempt import Finished
from environments.define import Environment
from environments.episodes import Run, episodes
from environments.runtimes.pool import Pool
from flywheel.records import Problem, Span, say
from serving.interception import Interception, Served
from tests.environments.conftest import answer

Talk = Callable[[list[dict[str, Any]]], Any]


def problem(text: str = "go", **over: Any) -> Problem:
    return Problem(environment="e", messages=(say("user", text),), **over)


def play(
    environment: Environment,
    url: str,
    problems: Iterable[Problem] | None = None,
    *,
    samples: int = 1,
    pool: Callable[[], Pool] | None = None,
    **over: Any,
) -> list[Finished]:
    """All that ended, in the order in which it did."""
    run = Run("p", "run", "rollout", **{"backoff_s": 0.001, "max_tokens": 64} | over)
    asked = [problem()] if problems is None else problems
    attempts = ((one, k) for one in asked for k in range(samples))

    async def all_of_it() -> list[Finished]:
        async with Interception(Served(url, "base", deployment="p-v0")) as recorder:
            made = pool() if pool else None
            return [one async for one in episodes(environment, attempts, recorder, run, pool=made)]

    return asyncio.run(all_of_it())


def says(talk: Talk) -> Callable[[dict[str, Any]], tuple[int, Any]]:
    """An engine that answers what `talk` makes of the messages: a text, calls [(name, arguments)],
    or (status, message) of an error."""

    def reply(asked: dict[str, Any]) -> tuple[int, Any]:
        said = talk(asked["messages"])
        if isinstance(said, tuple):
            status, message = said
            return status, {"error": {"message": message}}
        if isinstance(said, list):
            calls = [
                {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": given
                 if isinstance(given, str) else json.dumps(given)}}
                for n, (name, given) in enumerate(said)
            ]  # fmt: skip
            message = {"role": "assistant", "content": None, "tool_calls": calls}
            return 200, answer(asked, message=message, finish_reason="tool_calls")
        return 200, answer(asked, message={"role": "assistant", "content": said})

    return reply


def spans(finished: Finished, kind: str) -> list[Span]:
    return [span for span in finished.trace.spans if span.kind == kind]


def ended(finished: Finished) -> Any:
    return finished.trace.attributes.get("ended")
