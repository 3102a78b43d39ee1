"""CAD programs: the model writes CadQuery, a geometry kernel builds and measures the part.

The kernel lies in an environment of its own (`make install-solid`). What is asked for has figures
that are worked out by hand: volume, holes through it, size. With `harness = {kind = "correcting"}`
the model is told what it built, and with `pictures = true` it is shown it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from environments.define import Environment
from environments.harnesses.contract import Episode
from environments.marks import Ungraded, metric, reward
from environments.runtimes.contract import Runtime, Sandbox
from environments.shipped.solid.building import LIMITS, Built, build
from environments.shipped.solid.made import made
from environments.tasksets.contract import TaskSet
from flywheel.errors import MissingPart
from flywheel.records import Image, Message, Part, Problem, Text, say

COUNT = 140
_APART = Path(__file__).resolve().parents[3] / ".venv-solid"
_MISSING = "the geometry kernel is not here: make install-solid"
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_ASKED = (
    "Write a Python program with CadQuery (`import cadquery as cq`) that binds the part to "
    "`result`, one solid. Lengths are in millimetres. Answer with one ```python block and nothing "
    "else."
)


class Solid(Environment):
    """Slices: the kinds of parts."""

    tasks = TaskSet(kind="made", near_duplicate=None)
    # Another length makes another part, though most words are the same.
    runtime = Sandbox(limits=LIMITS)

    class Config(Environment.Config):
        pictures: bool = False
        """The model can see: what it built is shown to it, where it may correct itself."""
        width: int = Field(256, ge=64, le=1024)
        """Of a picture."""
        kernel: Path = _APART
        """The kernel's environment."""

    config: Config

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        self.packages = self.config.kernel / "lib" / "python3.11" / "site-packages"
        if self.packages.is_dir() and isinstance(self.runtime, Sandbox):
            readable = (*self.runtime.readable, self.packages)
            self.runtime = self.runtime.model_copy(update={"readable": readable})

    def lacks(self) -> str | None:
        return None if self.packages.is_dir() else _MISSING

    # --- problems

    def made(self, tasks: TaskSet) -> Iterator[Problem]:
        for part in made(tasks.limit or COUNT, tasks.seed):
            answer = {**part.figures, "program": part.program, "near": part.near}
            asked = (say("user", f"{part.text}\n\n{_ASKED}"),)
            yield Problem(environment=self.name, messages=asked, answer=answer, slice=part.kind,
                          text=part.text, truth_from="ground_truth")  # fmt: skip

    # --- what the model is told, where it may correct itself

    async def check(self, episode: Episode, answer: str) -> str | Sequence[Part] | None:
        """What was built, never what would be right.

        Raises:
            MissingPart: there is no kernel.
        """
        if not self.packages.is_dir():
            raise MissingPart(_MISSING)
        assert episode.runtime is not None, "a Correcting harness needs the environment's runtime"
        width = self.config.width if self.config.pictures else 0
        built = await build(episode.runtime, program(answer), self.packages, picture=width)
        if built.right(episode.problem.answer):
            return None
        said = _told(built)
        if built.picture is None:
            return said
        url = f"data:image/png;base64,{built.picture}"
        return (Text(text=said), Image(url=url, media_type="image/png"))

    # --- rewards

    @reward(1.0)
    async def right(
        self, answer: str, problem: Problem, sandbox: Runtime, state: dict[str, Any]
    ) -> bool:
        """One watertight solid with all its figures."""
        return (await self._built(answer, sandbox, state)).right(problem.answer)

    @reward(0.1)
    async def watertight(
        self, answer: str, problem: Problem, sandbox: Runtime, state: dict[str, Any]
    ) -> bool:
        built = await self._built(answer, sandbox, state)
        return built.watertight and built.solids == 1

    @reward(0.2)
    async def volume(
        self, answer: str, problem: Problem, sandbox: Runtime, state: dict[str, Any]
    ) -> float:
        """1 at the wanted volume, 0 from a tenth beside it."""
        built, wanted = await self._built(answer, sandbox, state), float(problem.answer["volume"])
        if built.near(problem.answer, "volume"):
            return 1.0
        return max(0.0, 1.0 - 10.0 * abs(built.volume - wanted) / wanted)

    @reward(0.1)
    async def holes(
        self, answer: str, problem: Problem, sandbox: Runtime, state: dict[str, Any]
    ) -> bool:
        """How many go through it."""
        built = await self._built(answer, sandbox, state)
        return built.solids > 0 and built.near(problem.answer, "holes")

    @reward(0.1)
    async def size(
        self, answer: str, problem: Problem, sandbox: Runtime, state: dict[str, Any]
    ) -> float:
        """The share of its three lengths that are right."""
        built, wanted = await self._built(answer, sandbox, state), problem.answer["size"]
        pairs = zip(built.size, wanted, strict=True)
        return float(sum(abs(a - b) <= 1e-3 * max(1.0, b) for a, b in pairs)) / 3

    @metric
    async def builds(self, answer: str, sandbox: Runtime, state: dict[str, Any]) -> bool:
        """The program runs, and leaves a shape."""
        return (await self._built(answer, sandbox, state)).error is None

    async def _built(self, answer: str, sandbox: Runtime, state: dict[str, Any]) -> Built:
        """Once a trace; the others read what the first one found."""
        if not self.packages.is_dir():
            raise Ungraded(_MISSING)
        kept = state.get("_built")
        if not isinstance(kept, Built):
            kept = state["_built"] = await build(sandbox, program(answer), self.packages)
        return kept

    # --- `flywheel env check`

    def gold(self, problem: Problem) -> str | list[Message] | None:
        return f"```python\n{problem.answer['program']}```"

    def wrong(self, problem: Problem) -> Sequence[str | list[Message]]:
        """A near miss, figures that are only said, and a program that fails."""
        said = f"print({dict(list(problem.answer.items())[:3])!r})\nresult = 1"
        return tuple(f"```python\n{one}\n```" for one in (problem.answer["near"], said, "1 / 0"))


def program(answer: str) -> str:
    """The last block of an answer, else all of it."""
    blocks = _FENCED.findall(answer)
    return str(blocks[-1]) if blocks else answer


def _told(built: Built) -> str:
    if built.error is not None:
        return f"The program built nothing:\n{built.error}\n\n{_ASKED}"
    size = " x ".join(f"{one:g}" for one in built.size)
    whole = "watertight" if built.watertight else "not watertight"
    return (
        f"This is not what was asked for. The program built {built.solids} solid(s), {whole}, "
        f"{size} along X, Y, Z, of volume {built.volume:.1f}, with {built.holes:g} hole(s) "
        f"through. Correct it.\n\n{_ASKED}"
    )
