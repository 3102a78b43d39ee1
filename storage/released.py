"""What a canary's arms earned: one row for each unit that was assigned to an arm. Read-only, one
short open.

A unit is a conversation; calls that no conversation was named for belong to their user, who then
stays with one arm, and of a user the first graded trace counts. Invariant: only such count as
could have gone to either of the two; of a draw against another champion the half that went to this
challenger would tell nothing but its own mean.
"""

from flywheel.home import Home
from flywheel.records import Record
from storage.database import reading
from storage.graded import SCORED

_CALLED = """SELECT trace_id, arg_min(deployment, started) AS deployment,
        arg_min(routing_probability, started) AS probability, min(started) AS begun,
        arg_min(CASE WHEN routing_probability < 1
                THEN json_keys(rest, '$.attributes.drawn.among') END, started) AS among,
        list(id) AS spans
    FROM spans WHERE deployment IS NOT NULL AND routing_probability IS NOT NULL
    AND (rest IS NULL OR NOT contains(rest, '"shadow_of"')) GROUP BY trace_id"""


class Assigned(Record, frozen=True, kw_only=True):
    unit: str
    challenger: bool
    probability: float
    """That it went to the challenger, as logged with its first call."""
    score: float
    """As `environments.grading.score`; not bounded."""


class Arms(Record, frozen=True, kw_only=True):
    assigned: tuple[Assigned, ...]
    ungraded: tuple[int, int]
    """Traces of the champion and of the challenger whose reward is not known yet."""


def arms(home: Home, project: str, champion: str, challenger: str, since: int) -> Arms:
    """Of the canary that began at `since`: production traces that began no earlier, whose first
    call was drawn for; by time."""
    with reading(home) as database:
        if database is None:
            return Arms(assigned=(), ungraded=(0, 0))
        rows = database.execute(
            f"""WITH drawn AS (
                SELECT CASE WHEN conversation IS NULL OR list_contains(called.spans, conversation)
                        THEN coalesce('user:' || user_id, traces.id)
                        ELSE 'conversation:' || conversation END AS unit,
                    called.deployment = $challenger AS challenged, called.probability, score,
                    begun, traces.id
                FROM traces JOIN ({_CALLED}) called ON called.trace_id = traces.id
                LEFT JOIN ({SCORED}) graded ON graded.trace_id = traces.id
                WHERE project = $project AND origin = 'production' AND duplicate_of IS NULL
                AND called.deployment IN ($champion, $challenger) AND called.probability < 1
                AND called.probability > 0 AND begun >= $since
                AND (among IS NULL OR list_has_all(among, [$champion, $challenger])))
            SELECT unit, challenged, probability, score FROM drawn
            QUALIFY score IS NULL OR row_number() OVER (
                PARTITION BY unit, score IS NULL ORDER BY begun, id) = 1
            ORDER BY begun, id""",
            {"project": project, "champion": champion, "challenger": challenger, "since": since},
        ).fetchall()
    waiting = [bool(challenged) for _, challenged, _, score in rows if score is None]
    return Arms(
        assigned=tuple(
            Assigned(
                unit=unit,
                challenger=bool(challenged),
                probability=probability if challenged else 1 - probability,
                score=score,
            )
            for unit, challenged, probability, score in rows
            if score is not None
        ),
        ungraded=(waiting.count(False), waiting.count(True)),
    )


class Mirrored(Record, frozen=True, kw_only=True):
    """A request that the shadow was asked too; both answers are graded."""

    unit: str
    """The trace that users saw."""
    shadow: float
    served: float


def mirrored(home: Home, project: str, champion: str, shadow: str) -> tuple[Mirrored, ...]:
    """By time. Only of conversations of one call, which the champion answered: a whole one's reward
    is not one answer's."""
    with reading(home) as database:
        if database is None:
            return ()
        rows = database.execute(
            f"""WITH copies AS (
                SELECT spans.trace_id, spans.started,
                    json_extract_string(spans.rest, '$.attributes.shadow_of.trace') AS seen
                FROM spans JOIN traces ON traces.id = spans.trace_id
                WHERE project = $project AND deployment = $shadow
                AND contains(spans.rest, '"shadow_of"')),
            single AS (SELECT trace_id FROM spans GROUP BY trace_id
                HAVING count(*) = 1 AND any_value(deployment) = $champion)
            SELECT seen, mine.score, its.score FROM copies
            SEMI JOIN single ON single.trace_id = copies.seen
            JOIN ({SCORED}) mine ON mine.trace_id = copies.trace_id
            JOIN ({SCORED}) its ON its.trace_id = copies.seen
            QUALIFY row_number() OVER (PARTITION BY seen ORDER BY copies.trace_id) = 1
            ORDER BY started, copies.trace_id""",
            {"project": project, "champion": champion, "shadow": shadow},
        ).fetchall()
    return tuple(Mirrored(unit=unit, shadow=mine, served=its) for unit, mine, its in rows)
