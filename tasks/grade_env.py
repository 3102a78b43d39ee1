"""`flywheel grade --env`: any environment over what was recorded, in batches of thousands.

Enter an environment and a span of time. Leave grades in the store, by the environment's own digest,
and counts. Invariant: memory holds one batch, and doing it again stores nothing new.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any

from flywheel.home import Home
from flywheel.progress import report
from tasks.grade import MOST_REASONS, why_null
from tasks.judges import Heard
from tasks.regrade import RECORDED, Judging, Narrowed, keep, regraded

if TYPE_CHECKING:
    from environments.define import Environment
    from environments.judges.judge import ModelJudge


def grade_recorded_with(
    home: Home,
    environment: "Environment",
    which: Narrowed,
    judging: Judging = list,
    judge: "ModelJudge | None" = None,
) -> dict[str, Any]:
    """Commits what waits, grades, and commits again.

    Args:
        judge: the one that `judging` gives; what it says and costs is counted.
    """
    from environments.grading import score
    from storage.committer import commit
    from storage.moments import moment
    from storage.overview import recorded

    commit(home)
    now, counts, sums = moment(home), Counter[str](), 0.0
    reasons: Counter[str] = Counter()
    heard = Heard(judge)
    for batch in regraded(home, environment, which, judging):
        counts["stored"] += keep(home, batch, now)
        for one in batch:
            value = score([grade for grade in one.after if grade.span_id is None])
            heard.add(one.after)
            counts["traces"] += 1
            counts["graded"] += value is not None
            sums += value or 0.0
            if value is None:
                reasons[why_null(one.after)] += 1
        report("grading", counts["traces"])
        commit(home)
    there, newest = recorded(home, which.project, RECORDED)
    return {
        "environment": environment.name,
        "grader": environment.digest,
        "traces": counts["traces"],
        "graded": counts["graded"],
        "not_gradable": counts["traces"] - counts["graded"],
        "stored": counts["stored"],
        "reward": sums / counts["graded"] if counts["graded"] else None,
        "reasons": dict(reasons.most_common(MOST_REASONS)),
        "judge": heard.told(),
        "recorded": there,
        "newest": newest,
    }
