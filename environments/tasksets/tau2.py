"""tau2's tasks: what a user wants, the state at the start, and what must be so in the end.

The prompt is the domain's policy (option `policy`, a file) and what the user opens with: the
ticket, or the reason for the call. The answer is {"scenario", "initial_state", "criteria"}, all
hidden from the model; the task's id tells apart what opens with the same words. `path` is a file of
tasks; a split file beside it (option `splits`) may say which are for training.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from environments.tasksets.contract import Drawn, Given, Options, Reader, Side, Source
from environments.tasksets.fields import problem, require
from environments.tasksets.messages import prompt_of
from environments.tasksets.rows import SIDES, Row, shaped
from flywheel.errors import BadRecord, ProjectError

FIELDS = ("id", "user_scenario", "evaluation_criteria")


class Tau2(Options):
    policy: str = ""
    """A file, relative to the tasks': the system message."""
    splits: str = ""
    """A file of {split: [task ids]}, relative to the tasks'; names that are no side say nothing."""


def read(source: Source) -> Drawn:
    beside = source.path if source.path.is_dir() else source.path.parent
    options: Tau2 = source.options
    policy = _text(beside / options.policy).strip() if options.policy else ""
    system = "\n\n".join(part for part in (options.system, policy) if part)
    sides = _sides(beside / options.splits) if options.splits else {}

    def fit(row: Row, source: Source) -> Given:
        return _fit(row, source, system, sides)

    yield from shaped(fit)(source)


def _fit(row: Row, source: Source, system: str, sides: Mapping[str, Side]) -> Given:
    id = require(row.value, "id", str, "the task's name")
    scenario = require(row.value, "user_scenario", dict, "{persona, instructions}")
    criteria = row.value.get("evaluation_criteria")
    if criteria is not None and not isinstance(criteria, dict):
        raise BadRecord(f"is {type(criteria).__name__}, not an object", field="evaluation_criteria")
    state = row.value.get("initial_state") or {}
    answer = {"scenario": scenario, "initial_state": state, "criteria": criteria}
    opening = _opening(row.value, scenario)
    said = row.value.get("description")
    purpose = said.get("purpose") if isinstance(said, dict) else None
    return Given(
        problem(
            source,
            prompt_of(opening, "user_scenario.instructions", system),
            None if criteria is None else answer,
            why_none="the task has no evaluation_criteria",
            key=id,
            text="\n".join((opening, *_texts(scenario))),
            attributes={"id": id} | ({"purpose": purpose} if purpose else {}),
        ),
        sides.get(id) or row.side,
    )


def _opening(row: Mapping[str, Any], scenario: Mapping[str, Any]) -> str:
    instructions = scenario.get("instructions")
    if isinstance(instructions, dict):
        instructions = instructions.get("reason_for_call") or instructions.get("task_instructions")
    opening = row.get("ticket") or instructions
    if not isinstance(opening, str):
        reason = "says neither a text nor a reason_for_call, and there is no ticket"
        raise BadRecord(reason, field="user_scenario.instructions")
    return opening


def _texts(value: Any) -> Iterator[str]:
    """What the user knows and wants, which tells scenarios apart where their openings do not."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)


def _sides(path: Path) -> dict[str, Side]:
    try:
        named = msgspec.json.decode(_text(path), type=dict[str, list[str]])
    except msgspec.DecodeError as error:
        raise ProjectError(f"{path}: not {{split: [task ids]}}: {error}") from error
    return {id: SIDES[name] for name, ids in named.items() if name in SIDES for id in ids}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProjectError(f"{path} cannot be read: {error}; see tasks.options") from error


def recognises(_: Path, row: Mapping[str, Any] | None) -> bool:
    return row is not None and all(name in row for name in FIELDS)


READER = Reader(Tau2, recognises, read)
