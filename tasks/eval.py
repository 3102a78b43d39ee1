"""An evaluation from beginning to end: any model on any environment.

Enter a Setting: an environment, its problems, a plan, whose answers are wanted. Leaves the run's
folder (`plan.json`, `results.jsonl`, `summary.json`, `report.html`) and, in the store, traces of
origin "evaluation" with their grades. Invariant: what the log holds decides; summary and report are
made of it alone, and can be made again.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from flywheel import durable
from flywheel.errors import Busy
from flywheel.home import Home
from flywheel.progress import report
from flywheel.records import Grade, Problem
from tasks.eval_log import EvalLog, Played, opened
from tasks.eval_plan import Plan
from tasks.eval_report import write_report
from tasks.eval_rows import Rows
from tasks.eval_run import Episodes, Work, resumed, sender
from tasks.eval_summary import Price, summarise
from tasks.playing import pool_of

if TYPE_CHECKING:
    from environments.attempt import Finished
    from environments.define import Environment
    from environments.episodes import Run
    from environments.judges.contract import Judge
    from serving.interception import Interception, Served

Playing = Callable[["Interception"], AbstractAsyncContextManager[Episodes]]
"""Given the run's interception: what plays attempts, for the time of a block."""


class Setting(NamedTuple):
    home: Home
    folder: Path
    """The run's."""
    plan: Plan
    environment: "Environment | None"
    """None = it grades by itself (`verifiers:NAME`): its episodes bring all their grades."""
    problems: list[Problem]
    concurrency: int = 32
    pass_mark: float = 1.0
    price: Price = Price()
    judge: "Judge | None" = None
    rejects: int = 0
    unreadable: tuple[str, ...] = ()
    """The first of these: file, line, reason."""
    stored: bool = False
    """The problems are the store's own, and need not be put there."""

    @property
    def run_id(self) -> str:
        return self.folder.name


def evaluate(
    setting: Setting, served: "Served", playing: "Playing | None" = None
) -> dict[str, Any]:
    """Plays, grades and stores what is left of the run; returns its summary.

    Raises:
        Busy: another process works on it.
        EngineError: no episode, or none of the last many, could be had.
        KeyboardInterrupt: Ctrl-C; all that ended before is kept.
    """
    with opened(setting.folder / "results.jsonl") as log:
        rows = _rows(setting)
        resumed(log, rows)
        work = Work(log, rows, setting.run_id, setting.price)
        try:
            asyncio.run(_played(setting, work, served, playing or of_environment(setting)))
        finally:
            summary = concluded(setting, log, work)
    return summary


def _rows(setting: Setting) -> Rows:
    environment = setting.environment
    methods = environment.methods if environment is not None else ()
    grouped = frozenset(one.name for one in methods if one.mark.kind == "group_reward")
    return Rows(setting.problems, setting.plan.samples, bonuses=grouped)


async def _played(setting: Setting, work: Work, served: "Served", playing: Playing) -> None:
    from serving.interception import Interception
    from storage.raw import RawStore

    async with (
        Interception(served, put=RawStore(setting.home).put) as recorder,
        playing(recorder) as play,
    ):
        await work.run(play, grading(setting), sender(setting.home))


def run_of(setting: Setting) -> "Run":
    from environments.episodes import Run

    return Run(
        project=setting.plan.project,
        run_id=setting.run_id,
        origin="evaluation",
        samples=setting.plan.samples,
        temperature=setting.plan.temperature,
        max_tokens=setting.plan.max_tokens,
        concurrency=setting.concurrency,
    )


def of_environment(setting: Setting) -> Playing:
    """The environment's own harness in its own runtimes."""
    from environments.episodes import episodes

    environment = setting.environment
    assert environment is not None

    @contextlib.asynccontextmanager
    async def playing(recorder: "Interception") -> AsyncIterator[Episodes]:
        pool = pool_of(environment, setting.folder / "runtimes", setting.concurrency)

        def play(
            attempts: Iterable[tuple[Problem, int]],
        ) -> "AsyncGenerator[Finished, None]":
            return episodes(environment, attempts, recorder, run_of(setting), pool=pool)

        yield play

    return playing


def grading(setting: Setting) -> Callable[[list[list[Played]]], list[list[list[Grade]]]]:
    """How whole groups of episodes are graded; what was graded while an episode lived stays."""
    known = {one.id: one for one in setting.problems}

    def grade(groups: list[list[Played]]) -> list[list[list[Grade]]]:
        environment = setting.environment
        if environment is None:
            return [[list(one.grades) for one in group] for group in groups]
        from environments.grading import Item, grade_all

        items = []
        for group in groups:
            traces = tuple(one.trace for one in group)
            items += [Item(one.trace, known.get(one.problem), traces, judge=setting.judge)
                      for one in group]  # fmt: skip
        given = iter(grade_all(environment, items))
        return [[_joined(one, next(given)) for one in group] for group in groups]

    return grade


def _joined(played: Played, given: list[Grade]) -> list[Grade]:
    live = {(one.reward, one.span_id) for one in played.grades}
    return [one for one in given if (one.reward, one.span_id) not in live] + list(played.grades)


def concluded(setting: Setting, log: EvalLog, work: Work) -> dict[str, Any]:
    """The store gets what it lacks, and the run its summary and report, whatever ended it."""
    rows = work.rows
    if not rows.rows:
        return {}
    _store(setting, work)
    listed = [rows.rows[key] for key in sorted(rows.rows, key=_order(setting.problems))]
    plan = setting.plan
    summary = {
        "run": setting.run_id,
        "environment": plan.environment,
        "model": plan.served or plan.model,
        **summarise(
            listed,
            planned=rows.planned,
            samples=plan.samples,
            pass_mark=setting.pass_mark,
            price=setting.price,
        ),
        "unreadable_problems": setting.rejects,
        "unreadable": list(setting.unreadable),
    }
    about = {
        "environment": plan.environment,
        "model": summary["model"],
        "told": _told(plan, setting.pass_mark),
    }
    summary["report"] = str(write_report(setting.folder, about, summary, listed, rows.problems))
    text = msgspec.json.format(msgspec.json.encode(summary))
    durable.write(setting.folder / "summary.json", text)
    if rows.done == rows.planned:
        durable.write(setting.folder / "done", b"")
    return summary


def _store(setting: Setting, work: Work) -> None:
    from storage.committer import commit
    from storage.inbox import Inbox

    if not setting.stored:
        Inbox(setting.home).append(setting.problems, name=f"eval-{setting.run_id}-problems")
    work.send(sender(setting.home))
    try:
        commit(setting.home, wait_s=20)
    except Busy as error:
        report("committing", 0, None, f"{error}; `flywheel ingest` does it later")


def _order(problems: list[Problem]) -> Callable[[tuple[str, int]], tuple[int, int]]:
    place = {one.id: number for number, one in enumerate(problems)}
    return lambda key: (place.get(key[0], len(place)), key[1])


def _told(plan: Plan, pass_mark: float) -> list[str]:
    told = [
        f"{plan.samples} attempts a problem",
        f"temperature {plan.temperature:g}",
        f"at most {plan.max_tokens} tokens an answer",
        f"passed from {pass_mark:g} on, group rewards aside",
        f"{plan.split} problems",
    ]
    if plan.config:
        told.append(f"config {msgspec.json.encode(plan.config).decode()}")
    return [*told, f"grader {plan.digest[:12]}"]
