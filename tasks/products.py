"""Products: datasets that people ask for, of what the store has; nothing is sampled or trained.

Enter a project's folder and what the dataset is for; leaves the dataset, written and recorded, with
the same rules, leakage check and gate that a turn's has. Evaluation sets are the held-out problems
themselves, and calibration sets are people's verdicts: neither is trained on, nor decontaminated.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from flywheel.lineage import Dataset, Product, RuleCount
from flywheel.project import load_project
from flywheel.rows import TrainingRow
from tasks.answered import allowed, graded, row_of, training_problems
from tasks.curate import heldout_of, leaks_in, rows_to_train, rules_of, selected, taken
from tasks.data_gates import judge_dataset
from tasks.known import known
from tasks.mine import mined
from tasks.preferences import compared, joined
from tasks.recipes import product_of, recipe_of
from tasks.rl_problems import held_out_of
from tasks.rl_problems import rows_of as problem_rows
from tasks.turns import Turn, environment_of, home, project_of, turn_to_come

if TYPE_CHECKING:
    from storage.curate import Curated, RuleSpec
    from storage.leakage import Heldout
    from storage.pool import Pool

ALGORITHM: dict[Product, str] = {"rows": "rejection", "preferences": "dpo", "problems": "grpo"}
"""Whose rows a product has, where the project's own algorithm reads another one."""


class Chosen(NamedTuple):
    made: "Curated"
    rules: "tuple[RuleSpec, ...]"
    heldout: "Heldout | None"
    """None = leaks are not looked for: nothing is trained on it."""


def make(folder: str, product: Product) -> dict[str, Any]:
    """Makes the product of what the store has now.

    Returns: what `flywheel datasets make --json` prints.
    """
    from storage.committer import commit
    from storage.datasets import write_dataset
    from storage.inbox import Inbox
    from storage.pool import Pool

    commit(home())
    turn = turn_for(folder, product)
    # Before the first turn nothing would be held out yet, and what is to be would be learnt from.
    Inbox(home()).append(
        mined(project_of(turn), turn.sequence, turn.at), name=f"mined-{turn.snapshot}"
    )
    commit(home())
    problems = [one.id for one in training_problems(turn)] if product == "problems" else []
    with Pool(home().pools) as pool:
        chosen = choose_rows(turn, product, problems, pool)
        earlier = chosen.made.frame["rehearsed"].drop_nulls().unique().sort()
        dataset = write_dataset(
            home(), turn.project, chosen.made, parents=tuple(earlier), rules=chosen.rules,
            product=product, recipe=recipe_of(turn, chosen.heldout, problems),
        )  # fmt: skip
    said = judged(turn, dataset, chosen) if chosen.heldout is not None else {}
    dataset = msgspec.structs.replace(
        dataset, gate_passed=said.get("passed"), gate_report=said.get("report")
    )
    Inbox(home()).append([dataset], name=f"made-{dataset.id}")
    commit(home())
    return {
        **msgspec.to_builtins(dataset),
        "product": product,
        "gate_passed": dataset.gate_passed,
        "reason": said.get("reason"),
        "warnings": said.get("warnings", []),
    }


def turn_for(folder: str, product: Product) -> Turn:
    """What stands for a turn that makes this product: it opens none."""
    own = product_of(load_project(Path(folder)))
    other = product in ALGORITHM and product != own
    sections = {"train": {"algorithm": ALGORITHM[product]}} if other else None
    turn = turn_to_come(folder)
    return msgspec.structs.replace(turn, every=True, sections=sections)


def choose_rows(
    turn: Turn,
    product: Product,
    problems: list[str],
    pool: "Pool",
    heldout: "Heldout | None" = None,
) -> Chosen:
    """
    Args:
        heldout: what must not be touched; None = all that is held out now.
    """
    if product == "calibration":
        rows, count = reviewed(turn)
        return Chosen(taken(turn, rows, count, pool), (), None)
    if product == "evaluation":
        asked = allowed(turn, held_out_of(project_of(turn)))
        posed = problem_rows({"": asked})
        count = RuleCount(rule="heldout", rows_in=len(posed), rows_out=len(posed))
        return Chosen(taken(turn, posed, count, pool), (), None)
    heldout = heldout or heldout_of(turn)
    beside = known(turn)
    rows = rows_to_train(turn, {"problems": problems}, beside)
    return Chosen(selected(turn, rows, beside, pool, heldout), rules_of(turn), heldout)


def reviewed(turn: Turn) -> tuple[Iterator[TrainingRow], RuleCount]:
    """Answers that people settled on a verdict about, and pairs that they compared."""
    from storage.labels import labels, votes

    project = project_of(turn)
    found = labels(votes(home(), project.traffic), project.labels)
    values = {one: label.value for one, label in found.items() if label.value in (0.0, 1.0)}
    pairs = [row for pair in compared(turn) for row in joined(*pair)]
    states = [one.state for one in found.values()]
    note = f"{states.count('open')} open, {states.count('disputed')} disputed"
    rows = [*_verdicts(turn, values), *pairs]
    counted = RuleCount(
        rule="reviewed", rows_in=len(found) + len(pairs), rows_out=len(rows), note=note
    )
    return iter(rows), counted


def _verdicts(turn: Turn, values: Mapping[str, float | None]) -> Iterator[TrainingRow]:
    from storage.queries import traces

    batches = traces(home(), ids=sorted(values), snapshot=turn.sequence) if values else ()
    for batch in graded(turn, batches):
        for one in batch:
            value, row = values[one.trace.id], row_of(turn, one)
            if row is not None:
                yield msgspec.structs.replace(
                    row, label="desirable" if value else "undesirable", reward=value,
                    confirmed_by="human",
                )  # fmt: skip


def judged(turn: Turn, dataset: Dataset, chosen: Chosen) -> dict[str, Any]:
    """The gates' verdict. The Decisions are of no run: they name the dataset."""
    assert chosen.heldout is not None
    project = project_of(turn)
    return judge_dataset(
        msgspec.structs.replace(turn, run_id=dataset.id),
        dataset,
        chosen.made.frame,
        leaks=leaks_in(dataset, chosen.heldout),
        slices=sorted(chosen.heldout.slices.get(environment_of(project).name, ())),
        answered=dataset.product != "problems",
    )
