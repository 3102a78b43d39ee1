"""An environment of the verifiers package as one of ours: it acts and grades in its own process.

Enter its problems as the bridge told them. Leave episodes with all their grades. Invariant: what
the package did not grade is null with the reason, never 0; what it calls a provider's, sandbox's or
its own server's fault is infrastructure.
"""

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any

from environments.define import Environment
from environments.harnesses.contract import Budget, Episode, EpisodeFailed, Single
from environments.verifiers.child import Child
from flywheel.errors import EngineError
from flywheel.ids import digest
from flywheel.records import Grade, Message, Problem, Trace, say

STATE = "verifiers"
LEFT_OUT = "not graded: verifiers left it out"
_CALLS, _WALL_S = 1024, 4 * 3600.0
"""Generous: the package has limits of its own."""


class Foreign(Environment):
    """Made for one bridge; `act` is all that it does itself."""

    def __init__(self, name: str, child: Child, about: Mapping[str, Any], config: Any) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]
        self.child, self.about = child, about
        self.harness = Single(budget=Budget(turns=_CALLS, wall_s=_WALL_S))
        self.source = json.dumps([name, about, config], sort_keys=True)

    @property
    def grader(self) -> str:
        return digest(self.source)

    async def act(self, episode: Episode) -> None:
        """
        Raises:
            EpisodeFailed: infrastructure, by the package's own account.
        """
        forced = episode.problem.attributes
        try:
            told = await asyncio.wrap_future(
                self.child.run(
                    task=forced["task"],
                    url=episode.access.url,
                    key=episode.access.key,
                    model=episode.access.model,
                )
            )
        except EngineError as error:
            raise EpisodeFailed(str(error)) from error
        if told.get("infrastructure"):
            raise EpisodeFailed("; ".join(told["errors"])[:2000])
        if "error" in told:
            raise RuntimeError(f"verifiers: {told['error']}\n{told.get('trace', '')}")
        episode.state[STATE] = told
        episode.ended = str(told["ended"] or "answered")

    def problem(self, told: Mapping[str, Any]) -> Problem:
        """One task of the package."""
        data = told["data"]
        answer = data.get("answer")
        return Problem(
            environment=self.name,
            messages=_prompt(data),
            answer=answer,
            split="heldout",
            text=_text(data.get("prompt")),
            truth_from=None if answer is None else "ground_truth",
            key=told["key"],
            attributes={"task": told["task"], "name": data.get("name") or data.get("id")},
        )

    def grades(self, trace: Trace) -> list[Grade]:
        """What the package gave this episode, and what it should have given."""
        state = trace.attributes.get("state")
        told = state.get(STATE, {}) if isinstance(state, dict) else {}
        why = "; ".join(told.get("errors", ())) or None
        weights: Mapping[str, float] = self.about["rewards"]
        # Those of several agents, and of a reward that names its parts, are not the declared ones.
        given = told.get("rewards") or dict.fromkeys(weights)
        found = []
        for name, one in given.items():
            value, weight = one or (None, weights.get(name, 1.0))
            found.append(self._grade(trace, name, value, weight, why))
        for name, value in told.get("metrics", {}).items():
            found.append(self._grade(trace, name, value, 0.0, why))
        return found

    def _grade(
        self, trace: Trace, name: str, value: float | None, weight: float, why: str | None
    ) -> Grade:
        known = value is not None and math.isfinite(value)
        reason = None if known else why or LEFT_OUT
        if value is not None and not known:
            reason = f"returned {value}, which is no finite number"
        sign = -1.0 if weight < 0 else 1.0
        return Grade(
            trace_id=trace.id,
            reward=name,
            value=sign * value if known and value is not None else None,
            weight=abs(weight),
            reason=reason,
            grader=self.grader,
            problem_id=trace.problem_id,
        )


def _prompt(data: Mapping[str, Any]) -> tuple[Message, ...]:
    """The first messages as the package's harness will send them, as far as they are text."""
    system = data.get("system_prompt")
    before = (say("system", system),) if system else ()
    prompt = data.get("prompt")
    if isinstance(prompt, list):
        said = [say(str(one.get("role", "user")), _content(one.get("content"))) for one in prompt]
        return (*before, *said)
    return (*before, say("user", _text(prompt)))


def _text(prompt: Any) -> str:
    if isinstance(prompt, list):
        return "\n".join(_content(one.get("content")) for one in prompt)
    return str(prompt or "")


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(one.get("text", "")) for one in content if isinstance(one, dict))
    return str(content or "")
