"""Mine: recorded traces whose truth is known become problems, split into training and held out."""

from typing import Any

from tasks.grade import RECORDED
from tasks.step import step
from tasks.turns import Turn, environment_of, home, note, project_of


@step(minutes=30)
def mine_problems(turn: Turn) -> dict[str, Any]:
    """Stores the snapshot's problems; returns the ids that this turn samples and evaluates.

    Returns: {"train": [id …], "heldout": [id …], "mined": count}, each list in a fixed order.
    """
    from environments.mining import choose, mine
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.queries import feedback_for, traces

    project = project_of(turn)
    environment = environment_of(project)
    recorded, said = [], {}
    for batch in traces(
        home(), project=turn.project, origin=RECORDED, snapshot=turn.sequence, batch=2000
    ):
        recorded += batch
        said.update(feedback_for(home(), batch, snapshot=turn.sequence))
    problems = mine(environment, recorded, said, project.problems)
    Inbox(home()).append(problems, name=f"problems-{turn.run_id}")
    commit(home())
    sides = {
        side: [one for one in problems if one.split == side and one.answer is not None]
        for side in ("train", "heldout")
    }
    seen = sampled_before(turn)
    found = {
        "train": [one.id for one in choose(sides["train"], project.problems.max_train, seen)],
        "heldout": [one.id for one in choose(sides["heldout"], project.problems.max_heldout)],
        "mined": len(problems),
    }
    note(turn, "problems", found)
    return found


def sampled_before(turn: Turn) -> frozenset[str]:
    """Problems that earlier turns sampled: the others come first."""
    from storage.queries import sampled_problems

    return sampled_problems(home(), turn.project, before_run=turn.run_id)
