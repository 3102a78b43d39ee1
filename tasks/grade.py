"""Grade: the environment says what recorded traces were worth, without running them again."""

from typing import Any

import msgspec

from flywheel.ids import digest
from flywheel.progress import report
from tasks.judges import Heard, judge_of, sampled
from tasks.step import step
from tasks.turns import Turn, environment_of, home, project_of


@step(minutes=60)
def grade_recorded(turn: Turn) -> dict[str, Any]:
    """Grades every recorded trace of the snapshot against what feedback says is true.

    It leaves no note: what an hourly look graded is kept, and the turn that takes it notes it.
    """
    from environments.asked import posed
    from environments.grading import grade_all
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.moments import moment
    from storage.queries import feedback_for, traces

    project = project_of(turn)
    environment, judge = environment_of(project), judge_of(project, home())
    inbox, now, heard = Inbox(home()), moment(home()), Heard(judge)
    graded = unknown = seen = 0
    batches = traces(
        home(), project=project.traffic, origin=RECORDED, snapshot=turn.sequence, batch=2000
    )
    for number, batch in enumerate(batches):
        said = feedback_for(home(), batch, snapshot=turn.sequence)
        items = [posed(environment, trace, said.get(trace.id, ())) for trace in batch]
        given = grade_all(environment, sampled(items, project, judge))
        for one in given:
            heard.add(one)
        grades = [grade for one in given for grade in one]
        # By content: a judge that was calibrated since, or has a new day's budget, grades anew.
        name = f"grades-{turn.run_id}-{number}-{digest(grades)[:12]}"
        grades = [msgspec.structs.replace(grade, at=now) for grade in grades]
        inbox.append(grades, name=name)
        graded += len({one.trace_id for one in grades if one.value is not None and one.weight})
        unknown += len({one.trace_id for one in grades if one.value is None and one.weight})
        seen += len(batch)
        report("grading", seen)
    commit(home())
    return {"graded": graded, "not_gradable": unknown, "judge": heard.told()}


RECORDED = ("production", "import", "demonstration")
"""Origins of what happened outside our own runs."""
