"""Grade: the environment says what recorded traces were worth, without running them again."""

from typing import Any

import msgspec

from flywheel.progress import report
from tasks.step import step
from tasks.turns import Turn, environment_of, home, project_of


@step(minutes=60)
def grade_recorded(turn: Turn) -> dict[str, Any]:
    """Grades every recorded trace of the snapshot against what feedback says is true.

    It leaves no note: what an hourly look graded is kept, and the turn that takes it notes it.
    """
    from environments.grading import Item, grade_all
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.moments import moment
    from storage.queries import feedback_for, traces

    environment = environment_of(project_of(turn))
    inbox, now = Inbox(home()), moment(home())
    graded = unknown = 0
    batches = traces(
        home(), project=turn.project, origin=RECORDED, snapshot=turn.sequence, batch=2000
    )
    for number, batch in enumerate(batches):
        said = feedback_for(home(), batch, snapshot=turn.sequence)
        items = [
            Item(trace, environment.problem_of(trace, said.get(trace.id, []))) for trace in batch
        ]
        grades = [
            msgspec.structs.replace(given, at=now)
            for one in grade_all(environment, items)
            for given in one
        ]
        inbox.append(grades, name=f"grades-{turn.run_id}-{number}")
        graded += len({one.trace_id for one in grades if one.value is not None and one.weight})
        unknown += len({one.trace_id for one in grades if one.value is None and one.weight})
        report("grading", graded + unknown)
    commit(home())
    return {"graded": graded, "not_gradable": unknown}


RECORDED = ("production", "import", "demonstration")
"""Origins of what happened outside our own runs."""
