"""Any command-line agent or program: it finds the model's address in its environment and acts.

Enter: a command, and an episode whose runtime it runs in. Leave: its files in the workspace, and a
span that says how it ended. Invariants: the program does not know that it is trained; in a runtime
with walls it reaches the model and nothing else (`door.py`, `relay.py`); whatever it does wrong is
an outcome, and only a runtime that fails is infrastructure.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PurePath

from environments.chat import to_chat
from environments.harnesses import relay
from environments.harnesses.contract import Episode, EpisodeFailed, Program
from environments.harnesses.door import Door
from environments.runtimes.contract import (
    Limits,
    Ran,
    Runtime,
    RuntimeConfig,
    RuntimeFailure,
    Sandbox,
    Trusted,
)
from flywheel.records import Span

FOLDER = ".model"
PORT = 8000
"""Inside walls, where no other program listens."""
GRACE_S = 5.0
"""For a program that was told that its calls are spent, to end by itself."""


class ProgramHarness:
    def __init__(self, config: Program) -> None:
        self.config = config

    async def run(self, episode: Episode) -> None:
        runtime, kind = episode.runtime, episode.environment.runtime
        if runtime is None or kind is None:
            raise EpisodeFailed(
                f"{episode.environment.name}: a program needs a runtime to run in: set "
                '[environment.config] runtime = {kind = "sandbox"}'
            )
        door = Door(episode.access, episode.budget.turns)
        prompt = "\n\n".join(filter(None, (one.text for one in episode.problem.messages)))
        try:
            await _lay(runtime, episode, prompt)
            async with _opened(door, runtime, kind) as (url, before):
                words = {"{model}": episode.access.model, "{url}": url, "{prompt}": prompt}
                command = (*before, *(_filled(word, words) for word in self.config.command))
                env = self._env(episode, url) | {
                    name: _filled(value, words) for name, value in self.config.env.items()
                }
                limits = kind.limits.model_copy(update={"wall_s": episode.budget.wall_s})
                await self._watched(episode, runtime, door, command, env, limits)
        except RuntimeFailure as error:
            raise EpisodeFailed(f"the program's runtime failed: {error}") from error

    def _env(self, episode: Episode, url: str) -> dict[str, str]:
        access = episode.access
        return {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_BASE": url,  # clients from before 2024
            "OPENAI_API_KEY": access.key,
            "OPENAI_MODEL": access.model,
        }

    async def _watched(
        self,
        episode: Episode,
        runtime: Runtime,
        door: Door,
        command: tuple[str, ...],
        env: dict[str, str],
        limits: Limits,
    ) -> None:
        start = time.time_ns()
        running = asyncio.create_task(runtime.exec(command, env=env, limits=limits))
        spent = asyncio.create_task(door.spent.wait())
        try:
            await asyncio.wait({running, spent}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await asyncio.wait({running}, timeout=GRACE_S)
            ran = running.result() if running.done() else None
        finally:
            for task in (running, spent):
                task.cancel()
            await asyncio.wait({running, spent})
        episode.ended = _ended(ran, door)
        name = PurePath(self.config.command[0]).name
        episode.spans.append(_span(name, start, ran, episode.ended, episode.budget.tool_output))


async def _lay(runtime: Runtime, episode: Episode, prompt: str) -> None:
    """The problem as files; never its answer."""
    problem = episode.problem
    posed = {"messages": to_chat(problem.messages), "tools": list(problem.tools)}
    await runtime.write("problem.json", json.dumps(posed, ensure_ascii=False, indent=1))
    await runtime.write("prompt.txt", prompt)


@asynccontextmanager
async def _opened(
    door: Door, runtime: Runtime, kind: RuntimeConfig
) -> AsyncIterator[tuple[str, tuple[str, ...]]]:
    """The URL that the program is given, and what its command is preceded by."""
    shared = isinstance(kind, Trusted) or (isinstance(kind, Sandbox) and kind.limits.network)
    if shared:
        async with door.open():
            yield door.url, ()
        return
    script, socket = f"{FOLDER}/relay.py", f"{FOLDER}/socket"
    await runtime.write(script, Path(relay.__file__).read_bytes())
    try:
        async with door.open(runtime.folder / socket):
            yield f"http://127.0.0.1:{PORT}/v1", ("python3", script, socket, str(PORT))
    finally:
        with suppress(OSError):
            (runtime.folder / socket).unlink(missing_ok=True)


def _filled(word: str, words: dict[str, str]) -> str:
    """Braces of other kinds stay: a command may hold JSON."""
    for mark, value in words.items():
        if word == mark:
            return value
        word = word.replace(mark, value) if mark != "{prompt}" else word
    return word


def _ended(ran: Ran | None, door: Door) -> str:
    if door.spent.is_set():
        return "budget: turns"
    if ran is None or ran.reason == "killed":
        return "program: killed"
    if ran.reason == "timeout":
        return "budget: wall"
    if ran.reason == "error":
        return f"program: exit code {ran.code}"
    return "answered" if ran.ok else f"program: {ran.reason}"


def _span(name: str, start: int, ran: Ran | None, ended: str, limit: int) -> Span:
    about = (
        {}
        if ran is None
        else ran._asdict()
        | {
            "stdout": cut(ran.stdout, limit),
            "stderr": cut(ran.stderr, limit),
        }
    )
    return Span(
        id="program",
        kind="agent",
        name=name,
        start=start,
        end=time.time_ns(),
        error=None if ended == "answered" else ended,
        attributes={key: value for key, value in about.items() if value is not None},
    )


def cut(text: str, limit: int) -> str:
    """The beginning and the end, where it is longer."""
    left_out = len(text) - limit
    if left_out <= 0:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {left_out} characters left out …]\n{text[-half:]}"
