"""What the next dataset would hold, and why, before anything is sampled: a look at the store alone.

Enter a project's folder; leave plain data: candidates by origin, rows in and out of each rule with
examples that went, examples that stay; or every rule's verdict on one trace. No model is loaded and
no record is written; what does not fit in memory lies in the home's pools until the look is over.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from flywheel.consent import why_not
from flywheel.project import load_project
from flywheel.row_files import rows_in
from flywheel.rows import TrainingRow
from tasks.answered import training_problems
from tasks.curate import answers_to_train, rules_of, selected
from tasks.known import known
from tasks.rl_problems import is_online, posed
from tasks.rl_problems import rows_of as problem_rows
from tasks.turns import Turn, home, project_of, turn_to_come, turn_under_way

if TYPE_CHECKING:
    from storage.curate import Curated
    from storage.explain import Explained
    from storage.pool import Pool
    from storage.rules.rule import Known

EXAMPLES = 3
"""Rows shown a rule, and of those that stay."""


class Look(NamedTuple):
    turn: Turn
    under_way: bool
    """Whether that turn is open; else it is the one that would be opened now."""
    made: "Curated"
    pool: "Pool"
    known: "Known"


@contextmanager
def looked(folder: str) -> Iterator[Look]:
    """The project's next dataset, curated for the time of the block."""
    from storage.pool import Pool

    turn, under_way = _turn(folder)
    beside = known(turn)
    with Pool(home().pools) as pool:
        made = selected(turn, _candidates(turn, beside), beside, pool)
        yield Look(turn, under_way, made, pool, beside)


def preview(folder: str) -> dict[str, Any]:
    with looked(folder) as look:
        section = project_of(look.turn).curate
        gone = list(look.made.examples(EXAMPLES))
        kept = look.made.frame.head(EXAMPLES)["row_id"].to_list()
        told = _told(look.pool, {*kept, *(one.row_id for one in gone)})
        went = [{**told[one.row_id], **msgspec.to_builtins(one)} for one in gone]
        origins = look.pool.frame()["origin"].value_counts(sort=True).rows()
        return {
            "project": look.turn.project,
            "turn": look.turn.run_id if look.under_way else None,
            "sequence": look.turn.sequence,
            "candidates": dict(origins),
            "rules": [
                {**msgspec.to_builtins(count), "note": count.note,
                 "examples": [one for one in went if one["rule"] == count.rule]}
                for count in look.made.counts
            ],
            "rows": len(look.made.frame),
            "wanted": section.min_rows,
            "kept": [{"row_id": one, **told[one]} for one in kept],
        }  # fmt: skip


def verdicts(folder: str, found: "Explained") -> dict[str, Any]:
    """Every rule's verdict of now on the trace's rows; where it has none, why not."""
    from storage.ruled import ruled

    with looked(folder) as look:
        said = ruled(look.pool, rules_of(look.turn), look.known, found.ids)
        inside = look.made.frame["trace_id"].is_in(list(found.ids)).any()
        return {
            "turn": look.turn.run_id if look.under_way else None,
            "no_candidate": None if said else _no_candidate(look.turn, found),
            "inside": inside,
            "rules": [msgspec.to_builtins(one) for one in said],
        }


def _no_candidate(turn: Turn, found: "Explained") -> str:
    project = project_of(turn)
    source = "rollouts" if found.origin == "rollout" else "recorded"
    if found.project != project.traffic:
        return f"{project.name} learns from {project.traffic}, and it is of {found.project}"
    if found.origin == "evaluation":
        return "evaluations are never learnt from"
    if why := why_not(found, granted=project.retention.consent == "granted", at=turn.at):
        return why
    if source not in project.curate.sources:
        return f"[curate] sources does not name {source!r}"
    if source == "rollouts" and found.run_id != turn.run_id:
        return f"it is a rollout of run {found.run_id}, and the turn has its own"
    return "it has no answer that a row could be made of"


def _turn(folder: str) -> tuple[Turn, bool]:
    """The turn under way, or the one to come with the rollouts that are there already: its own are
    not sampled yet, and those of the last run are what comes nearest."""
    from storage.known import last_sampled

    project = load_project(Path(folder))
    if open_one := turn_under_way(home(), project.name):
        return open_one, True
    turn = turn_to_come(folder)
    last = last_sampled(home(), project.name)
    return (msgspec.structs.replace(turn, run_id=last) if last else turn), False


def _candidates(turn: Turn, beside: "Known") -> Iterator[TrainingRow]:
    if is_online(project_of(turn)):
        return iter(problem_rows(posed(turn, _picked(turn))))
    return answers_to_train(turn, beside)


def _picked(turn: Turn) -> list[str]:
    """Training problems that the store has, as a turn would choose among them."""
    from environments.mining import choose
    from storage.queries import sampled_problems

    seen = sampled_problems(home(), turn.project, before_run=turn.run_id)
    most = project_of(turn).problems.max_train
    return [one.id for one in choose(training_problems(turn), most, seen)]


def _told(pool: "Pool", rows: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What a person wants to see of these rows, by their ids."""
    from storage.row_texts import own_text

    frame = pool.frame()
    chosen = frame.filter(frame["row_id"].is_in(sorted(set(rows)))).unique(
        "row_id", keep="first", maintain_order=True
    )
    return {
        row.id: {
            "trace_id": row.trace_id,
            "asked": own_text(row),
            "answered": row.completion.text or _called(row),
            "reward": row.reward,
            "confirmed_by": row.confirmed_by,
        }
        for some in pool.rows(chosen)
        for row in rows_in(some)
    }


def _called(row: TrainingRow) -> str:
    return " ".join(f"{call.name}({call.arguments})" for call in row.completion.tool_calls)
