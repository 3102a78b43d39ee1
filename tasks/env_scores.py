"""What an environment gives its own gold answers, wrong answers and those of other problems.

Enter an environment, in a process of its own whose hash seed the caller chose. Leaves one Scored
for each answer, in a file. Gold goes through the harness where that does more than ask once, with a
scripted model in the model's place; else, and for wrong answers where it can be, a trace made by
hand is graded.
"""

import argparse
import asyncio
import contextlib
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec import field

from environments.attempt import FAILED
from environments.define import Environment
from environments.golden import Said, trace_of
from environments.grading import Item, grade_all, score
from environments.load import load_environment, problems_of
from flywheel.records import Grade, Problem, Record, Trace
from tasks.env_scripted import NAME, scripted
from tasks.env_words import brief

Which = Literal["gold", "wrong", "swapped"]
Route = Literal["trace", "harness"]
_PLAYED = ("tools", "conversation", "correcting", "mcp")
"""Harnesses that a scripted model can lead through; others ask in a way of their own."""


class Scored(Record, frozen=True, kw_only=True):
    problem: str
    which: Which
    number: int
    route: Route
    score: float | None
    """Of the rewards that need neither a judge nor a group. None = `why`."""
    why: str | None = None
    rewards: dict[str, float | None] = field(default_factory=dict)
    """All grades by name, those of steps with their span; what must be the same each time."""


class Answer(NamedTuple):
    problem: Problem
    which: Which
    number: int
    said: Said


def answers(environment: Environment, problems: Sequence[Problem]) -> list[Answer]:
    """Gold and wrong answers of each problem, and gold of the next one that has another truth."""
    golds = [(one, environment.gold(one)) for one in problems]
    known = [(one, said) for one, said in golds if said is not None]
    found = []
    for at, (problem, said) in enumerate(known):
        found.append(Answer(problem, "gold", 0, said))
        found += [
            Answer(problem, "wrong", number, one)
            for number, one in enumerate(environment.wrong(problem))
        ]
        others = (known[(at + step) % len(known)] for step in range(1, len(known)))
        other = next((one for one in others if one[0].answer != problem.answer), None)
        if other is not None:
            found.append(Answer(problem, "swapped", 0, other[1]))
    return found


def scored(environment: Environment, found: Sequence[Answer]) -> list[Scored]:
    """By both routes for gold, where the harness is one that can be led; by one for the rest."""
    live = any("runtime" in method.arguments for method in environment.methods)
    led = environment.harness.kind in _PLAYED or type(environment).act is not Environment.act
    by_hand = [] if live else list(found)
    by_harness = [one for one in found if live or (led and one.which == "gold")]
    made = _graded(environment, by_hand)
    return made + (asyncio.run(_played(environment, by_harness)) if by_harness else [])


def _graded(environment: Environment, found: Sequence[Answer]) -> list[Scored]:
    traces = [trace_of(one.problem, one.said, at) for at, one in enumerate(found)]
    items = [Item(trace, one.problem, (trace,)) for trace, one in zip(traces, found, strict=True)]
    given = grade_all(environment, items)
    return [_scored(environment, one, "trace", grades)
            for one, grades in zip(found, given, strict=True)]  # fmt: skip


async def _played(environment: Environment, found: Sequence[Answer]) -> list[Scored]:
    """One after the other: the scripted model has one script."""
    from environments.episodes import Run, episodes
    from environments.runtimes.pool import Pool
    from serving.interception import Interception, Served

    made = []
    async with contextlib.AsyncExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="flywheel-check-"))
        model = await stack.enter_async_context(scripted())
        served = Served(model.url, NAME, tokens=False)
        recorder = await stack.enter_async_context(Interception(served))
        pool = Pool(environment.runtime, Path(place), 1) if environment.runtime else None
        for at, one in enumerate(found):
            model.script(one.said)
            run = Run(project=environment.name, run_id=f"check-{at}", origin="evaluation",
                      concurrency=1, tries=1)  # fmt: skip
            playing = episodes(environment, [(one.problem, 0)], recorder, run, pool=pool)
            async with contextlib.aclosing(playing):
                async for finished in playing:
                    grades = await asyncio.to_thread(
                        _whole, environment, one.problem, finished.trace, finished.grades
                    )
                    failed = finished.trace.attributes.get(FAILED)
                    made.append(_scored(environment, one, "harness", grades, failed))
    return made


def _whole(
    environment: Environment, problem: Problem, trace: Trace, live: Sequence[Grade]
) -> list[Grade]:
    (given,) = grade_all(environment, [Item(trace, problem, (trace,))])
    have = {(one.reward, one.span_id) for one in live}
    return [*live, *(one for one in given if (one.reward, one.span_id) not in have)]


def _scored(
    environment: Environment,
    answer: Answer,
    route: Route,
    grades: Sequence[Grade],
    failed: str | None = None,
) -> Scored:
    apart = {
        method.name
        for method in environment.methods
        if "judge" in method.arguments or method.mark.kind == "group_reward"
    }
    counted = [one for one in grades if one.reward not in apart]
    value = score(counted)
    missing = [f"{one.reward}: {brief(one.reason or 'no reason was kept')}" for one in counted
               if one.value is None and one.weight > 0]  # fmt: skip
    told = "; ".join(missing) or "no reward here does without a judge or a group"
    why = brief(failed) if failed else told
    return Scored(
        problem=answer.problem.id,
        which=answer.which,
        number=answer.number,
        route=route,
        score=value,
        why=None if value is not None else why[:1000],
        rewards={_label(one, at): one.value for at, one in enumerate(_in_order(grades))
                 if one.reward not in apart},
    )  # fmt: skip


def _in_order(grades: Iterable[Grade]) -> list[Grade]:
    return sorted(grades, key=lambda one: (one.reward, one.span_id or ""))


def _label(grade: Grade, at: int) -> str:
    return grade.reward if grade.span_id is None else f"{grade.reward}@{at}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tasks.env_scores", description=__doc__)
    parser.add_argument("environment")
    parser.add_argument("problems", type=Path, help="which: JSON, by id")
    parser.add_argument("out", type=Path)
    parser.add_argument("--base", type=Path, default=Path())
    parser.add_argument("--config", default="{}")
    given = parser.parse_args(arguments)
    config = msgspec.json.decode(given.config)
    environment = load_environment(given.environment, given.base, config)
    wanted = set(msgspec.json.decode(given.problems.read_bytes(), type=list[str]))
    problems = [one for one in problems_of(environment).problems if one.id in wanted]
    made = scored(environment, answers(environment, problems))
    given.out.write_bytes(msgspec.json.encode(made))


if __name__ == "__main__":
    main()
