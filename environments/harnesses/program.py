"""Any command-line agent or program: it finds the model's address in its environment and acts.

Enter: a command, and an episode whose runtime it runs in. Leave: its files in the workspace, and a
span that says how it ended. Invariants: the program does not know that it is trained; in a runtime
without a network it reaches the model's address and nothing else; what it does wrong is an outcome,
and only a runtime that fails is infrastructure. Calls beyond the budget are refused by the address
itself (`refused_calls` of the trace).
"""

import json
import time
from pathlib import PurePath
from typing import Any

from environments.harnesses.contract import Access, Episode, Program
from environments.runtimes.contract import Container, Ran
from flywheel.chat import to_chat
from flywheel.errors import ProjectError
from flywheel.records import Span

LAST_S = 5.0
"""Of the budget's wall time, at most, that is left to write down how the program ended."""


class ProgramHarness:
    def __init__(self, config: Program) -> None:
        self.config = config

    async def run(self, episode: Episode) -> None:
        runtime, kind = episode.runtime, episode.environment.runtime
        if runtime is None or kind is None:
            raise ProjectError(
                f"{episode.environment.name}: a program needs a runtime to run in: set "
                '[environment.config] runtime = {kind = "sandbox"}'
            )
        if isinstance(kind, Container):
            raise ProjectError(
                f"{episode.environment.name}: a container has no way to the model's address on "
                "this machine: let the program run in a sandbox, or trusted"
            )
        prompt = "\n\n".join(filter(None, (one.text for one in episode.problem.messages)))
        posed = {
            "messages": to_chat(episode.problem.messages),
            "tools": list(episode.problem.tools),
        }
        await runtime.write("problem.json", json.dumps(posed, ensure_ascii=False, indent=1))
        await runtime.write("prompt.txt", prompt)
        wall = episode.budget.wall_s
        limits = kind.limits.model_copy(update={"wall_s": wall - min(LAST_S, wall / 10)})
        start, ran = time.time_ns(), None
        try:
            ran = await runtime.exec(
                [_filled(word, episode.access, prompt) for word in self.config.command],
                env=_environment(episode.access)
                | {k: _filled(v, episode.access, prompt) for k, v in self.config.env.items()},
                limits=limits,
                door=None if limits.network else episode.access.url,
            )
            episode.ended = _ended(ran)
        finally:
            name = PurePath(self.config.command[0]).name
            episode.spans.append(_span(name, start, ran, episode.budget.tool_output))


def _environment(access: Access) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": access.url,
        "OPENAI_API_BASE": access.url,  # older clients
        "OPENAI_API_KEY": access.key,
        "OPENAI_MODEL": access.model,
    }


def _filled(word: str, access: Access, prompt: str) -> str:
    """Braces of other kinds stay: a command may hold JSON. The prompt stands alone in its word, so
    that nothing in it is filled in."""
    if word == "{prompt}":
        return prompt
    return word.replace("{model}", access.model).replace("{url}", access.url)


def _ended(ran: Ran) -> str:
    if ran.reason == "timeout":
        return "budget: wall"
    if ran.reason == "error":
        return f"program: exit code {ran.code}"
    return "answered" if ran.ok else f"program: {ran.reason}"


def _span(name: str, start: int, ran: Ran | None, limit: int) -> Span:
    """`ran` None = it was ended from outside, before it said anything."""
    about: dict[str, Any] = {}
    if ran is not None:
        said = {"stdout": cut(ran.stdout, limit), "stderr": cut(ran.stderr, limit)}
        about = {key: value for key, value in (ran._asdict() | said).items() if value is not None}
    ended = "program: killed" if ran is None else _ended(ran)
    return Span(
        id="program",
        kind="agent",
        name=name,
        start=start,
        end=time.time_ns(),
        error=None if ended == "answered" else ended,
        attributes=about,
    )


def cut(text: str, limit: int) -> str:
    """The beginning and the end, where it is longer."""
    left_out = len(text) - limit
    if left_out <= 0:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {left_out} characters left out …]\n{text[-half:]}"
