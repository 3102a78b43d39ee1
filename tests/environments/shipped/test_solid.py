"""The environment `solid`: parts with figures from formulas, measured by a geometry kernel."""

import asyncio
import base64
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from environments.golden import trace_of
from environments.grading import Item, grade_all
from environments.harnesses.contract import Access, Episode
from environments.runtimes.sandbox import SandboxRuntime
from environments.shipped.solid.building import Built, build
from environments.shipped.solid.environment import Solid
from environments.shipped.solid.made import KINDS, made
from flywheel.records import Image, Text
from tests.environments.runtimes.conftest import why_none

HEAD = "import cadquery as cq\n"


@pytest.fixture
def built(tmp_path: Path) -> Callable[..., Built]:
    solid = Solid()
    if not solid.packages.is_dir():
        pytest.skip("no .venv-solid: make install-solid")
    if (reason := why_none()) is not None:
        pytest.skip(reason)

    def run(source: str, width: int = 0) -> Built:
        async def main() -> Built:
            runtime = SandboxRuntime(solid.runtime, tmp_path / "box")  # type: ignore[arg-type]
            await runtime.start()
            try:
                return await build(runtime, HEAD + source, solid.packages, picture=width)
            finally:
                await runtime.stop()

        return asyncio.run(main())

    return run


def test_parts_are_the_same_each_time_and_have_both_sides() -> None:
    problems = list(Solid().problems().problems)
    assert [one.id for one in problems] == [one.id for one in Solid().problems().problems]
    assert {one.slice for one in problems} == set(KINDS)
    assert {one.split for one in problems} == {"train", "heldout"}
    for part in made(70, 3):
        x, y, z = part.figures["size"]
        assert 0 < part.figures["volume"] <= x * y * z
        assert part.program != part.near and "cadquery" in part.program


def test_without_the_kernel_grades_are_null_and_say_so(tmp_path: Path) -> None:
    solid = Solid({"kernel": str(tmp_path)})
    problem = next(iter(solid.problems().problems))
    (grades,) = grade_all(solid, [Item(trace_of(problem, solid.gold(problem) or ""), problem)])
    if why_none() is None:
        assert all(one.value is None and "install-solid" in str(one.reason) for one in grades)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shaft", "bracket", "flange"])
def test_the_kernel_agrees_with_the_formulas(built: Callable[..., Built], kind: str) -> None:
    (part,) = made(1, 5, [kind])
    assert built(part.program.removeprefix(HEAD)).right(part.figures), part.text


@pytest.mark.slow
def test_what_is_no_good_part_is_seen(built: Callable[..., Built]) -> None:
    torus = built("result = cq.Solid.makeTorus(10, 2)")
    assert (torus.holes, torus.watertight) == (1, True)
    face = built("result = cq.Workplane().box(9, 9, 9).faces('>Z')")
    assert (face.solids, face.watertight) == (0, False)
    failed = built("x = 1\nresult = cq.Workplane().box(1)")
    assert "line 3" in str(failed.error) and "TypeError" in str(failed.error)


@pytest.mark.slow
def test_what_was_built_is_told_and_shown(built: Callable[..., Built], tmp_path: Path) -> None:
    solid = Solid({"pictures": True, "width": 64})
    problem = next(one for one in solid.problems().problems if one.slice == "plate")

    async def checked(answer: str) -> object:
        runtime = SandboxRuntime(solid.runtime, tmp_path / "episode")  # type: ignore[arg-type]
        await runtime.start()
        try:
            episode = Episode(solid, problem, Access("", "", ""), random.Random(0), runtime)
            return await solid.check(episode, answer)
        finally:
            await runtime.stop()

    assert asyncio.run(checked(str(solid.gold(problem)))) is None
    said = asyncio.run(checked(str(solid.wrong(problem)[0])))
    assert isinstance(said, tuple)
    text, image = said
    assert isinstance(text, Text) and "0 hole(s) through" in text.text
    assert isinstance(image, Image) and image.url is not None
    picture = base64.b64decode(image.url.partition(",")[2])
    assert picture.startswith(b"\x89PNG") and len(picture) > 200
