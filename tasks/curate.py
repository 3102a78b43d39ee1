"""Curate: graded rollouts become rows; rows pass the rules, the leakage check and the data gate."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.lineage import Dataset, RuleCount
from flywheel.records import Problem
from flywheel.row_files import read_batches
from flywheel.rows import TrainingRow
from tasks.candidates import candidates
from tasks.data_gates import judge_dataset
from tasks.gates import Verdict
from tasks.known import known, rehearsed
from tasks.private import privacy_of
from tasks.recipes import product_of, recipe_of
from tasks.rl_problems import held_out_of, is_online, posed, rows_of, store
from tasks.step import step
from tasks.turns import Turn, environment_of, home, note, project_of

if TYPE_CHECKING:
    from storage.curate import Curated, RuleSpec
    from storage.leakage import Heldout, Leak
    from storage.pool import Pool
    from storage.rules.rule import Known


@step(minutes=60)
def curate_dataset(turn: Turn, rollouts: dict[str, Any]) -> Verdict:
    """Writes the turn's dataset; the verdict has its id, rows and the counts of each rule.

    Of an algorithm that samples while it trains the dataset are its problems, and the only rule is
    that of leakage.
    """
    from storage.datasets import write_dataset
    from storage.pool import Pool

    project, beside, heldout = project_of(turn), known(turn), heldout_of(turn)
    with Pool(home().pools) as pool:
        made = selected(turn, rows_to_train(turn, rollouts, beside), beside, pool, heldout)
        earlier = made.frame["rehearsed"].drop_nulls().unique().sort()
        dataset = write_dataset(
            home(), turn.project, made, parents=(turn.run_id, *earlier), rules=rules_of(turn),
            product=product_of(project),
            recipe=recipe_of(turn, heldout, rollouts["problems"] if is_online(project) else ()),
        )  # fmt: skip
    said = judge_dataset(
        turn,
        dataset,
        made.frame,
        leaks=leaks_in(dataset, heldout),
        slices=sorted(heldout.slices.get(environment_of(project).name, ())),
        answered=not is_online(project),
        rules=[msgspec.to_builtins(count) for count in made.counts],
    )
    keep(
        turn,
        msgspec.structs.replace(dataset, gate_passed=said["passed"], gate_report=said["report"]),
    )
    note(turn, "dataset", said)
    return said


def selected(
    turn: Turn,
    rows: Iterable[TrainingRow],
    beside: "Known",
    pool: "Pool | None" = None,
    heldout: "Heldout | None" = None,
) -> "Curated":
    """What the leakage check and the project's rules leave of `rows`; nothing is written."""
    from storage.curate import curate

    rules, apart = rules_of(turn), heldout or heldout_of(turn)
    return _cleaned(turn, rows, lambda found: curate(found, rules, apart, known=beside, pool=pool))


def heldout_of(turn: Turn) -> "Heldout":
    """Every held-out problem of every project of this home: none of them may be touched."""
    from storage.queries import problems

    own = held_out_of(project_of(turn))
    found = {one.id: one for one in (*problems(home(), split="heldout"), *own)}
    return held_apart(turn, found.values())


def held_apart(turn: Turn, problems: Collection[Problem]) -> "Heldout":
    """Each as it is, and as the turn's rows read."""
    from storage.leakage import Heldout

    privacy = privacy_of(turn)
    also = privacy.forms(problems) if privacy else ()
    return Heldout(problems, project_of(turn).curate.near_duplicate, also)


def leaks_in(dataset: Dataset, heldout: "Heldout") -> "list[Leak]":
    """The hard gate: what was written is looked at once more, as it will be read."""
    from storage.rows import no_collection

    batches = read_batches(home().path(dataset.path) / "rows.parquet")
    with no_collection():
        return [leak for batch in batches for leak in heldout.leaks(batch)]


def taken(
    turn: Turn, rows: Iterable[TrainingRow], count: RuleCount, pool: "Pool | None" = None
) -> "Curated":
    """Rows that no rule chooses among, as a dataset may hold them."""
    from storage.curate import gathered

    return _cleaned(turn, rows, lambda found: gathered(found, count, pool))


def _cleaned(
    turn: Turn,
    rows: Iterable[TrainingRow],
    choose: "Callable[[Iterable[TrainingRow]], Curated]",
) -> "Curated":
    """What is chosen of `rows` without what is personal in them, where the project asks for that;
    then its count stands first."""
    privacy = privacy_of(turn)
    if privacy is None:
        return choose(rows)
    made = choose(privacy.clean(rows))
    return replace(made, counts=(privacy.count(), *made.counts))


def rules_of(turn: Turn) -> "tuple[RuleSpec, ...]":
    from storage.curate import rule_specs

    project = project_of(turn)
    return () if is_online(project) else rule_specs(project.curate)


def rows_to_train(turn: Turn, rollouts: dict[str, Any], beside: "Known") -> Iterator[TrainingRow]:
    if is_online(project_of(turn)):
        problems = posed(turn, rollouts["problems"])
        store(turn, problems)
        yield from rows_of(problems)
        return
    yield from answers_to_train(turn, beside)


def answers_to_train(turn: Turn, beside: "Known") -> Iterator[TrainingRow]:
    """The turn's candidates, then what is rehearsed of earlier datasets."""
    yield from candidates(turn)
    for batch in rehearsed(turn, beside):
        yield from batch


def keep(turn: Turn, dataset: Any) -> None:
    from storage.committer import commit
    from storage.inbox import Inbox

    Inbox(home()).append([dataset], name=f"dataset-{turn.run_id}-{dataset.id}")
    commit(home())
