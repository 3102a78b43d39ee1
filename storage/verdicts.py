"""Whose word counts of an answer that several people judged, as SQL that all who ask share.

Leave expressions and queries over feedback and grades. Of each person the last word stands, however
the name is spelled, and what was taken back is nobody's; who settled what others were at odds about
stands instead of them, of several the last. `flywheel.reviews` says the same of records; what
[labels] of a project's file wants is asked there alone.
"""

from flywheel.reviews import NAME, PERSON, SETTLER, SETTLES, SMALL, STANDING, SUBJECT


def person(name: str) -> str:
    """`flywheel.reviews.one_person` of a column."""
    large, bare = SMALL.upper(), f"trim({name}, ' ')"
    return (
        f"CASE WHEN lower(left({bare}, {len(SUBJECT)})) = '{SUBJECT}' "
        f"THEN '{SUBJECT}' || substr({bare}, {len(SUBJECT) + 1}) "
        f"ELSE translate({bare}, '{large}', '{SMALL}') END"
    )


ANSWER = "coalesce((SELECT stands_for FROM cards WHERE trace_id = target), target)"
"""What feedback on a trace is about: a word on a copy is a word on what it is a copy of."""
RULING = "body ->> '$.attributes.verdict'"
SETTLING = f"coalesce(body ->> '$.attributes.{SETTLES}' = 'true', false)"
VERDICT = "coalesce(arg_max(good::DOUBLE, (said, id)) FILTER (settles), avg(good::DOUBLE))"
"""What rows of `REVIEWS` come to, before anybody asks how many must have looked."""


def reviews(where: str) -> str:
    """The reviews that stand, one a person and answer: trace_id, person, said_by, good (accepted;
    rejected and corrected ones are not), settles, said, id.

    Args:
        where: which feedback.
    """
    return f"""SELECT trace_id, person, said_by, ruling = 'accepted' AS good, settles, said, id
    FROM (
        SELECT *, {ANSWER} AS trace_id, {person("said_by")} AS person, {RULING} AS ruling,
            {SETTLING} AS settles FROM feedback
        WHERE name = '{NAME}' AND target_kind = 'trace' AND {where}
        QUALIFY row_number() OVER (PARTITION BY project, trace_id, coalesce(person, id)
                                   ORDER BY said DESC, id DESC) = 1
    ) WHERE ruling IN {STANDING}"""


_GRADER = f"""CASE WHEN kind <> 'human' THEN NULL WHEN reward <> '{NAME}' THEN grader
    ELSE {person(f"regexp_replace(grader, '^({PERSON}|{SETTLER})', '')")} END"""


def rewarded(grades: str) -> str:
    """What traces earned by the latest grades of them as wholes: trace_id, graded (rewards that are
    known), ungiven (that are not), reward (the weighted mean; null where one is not known).

    Args:
        grades: the rows of the table that are looked at.
    """
    return f"""SELECT trace_id, count(value) AS graded, count(*) - count(value) AS ungiven,
        CASE WHEN count(value) = count(*) THEN sum(weight * value) / sum(weight) END AS reward
    FROM (
        SELECT trace_id, avg(weight) AS weight,
            CASE WHEN bool_or(settles) THEN arg_max(value, (given, digest)) FILTER (settles)
                WHEN count(value) = count(*) THEN avg(value) END AS value
        FROM (
            SELECT *, starts_with(grader, '{SETTLER}') AS settles FROM ({grades})
            WHERE span_id IS NULL
            QUALIFY row_number() OVER (PARTITION BY trace_id, reward, {_GRADER}
                ORDER BY given DESC, settles DESC, since DESC, digest DESC) = 1
        ) WHERE weight > 0 GROUP BY trace_id, reward
    ) GROUP BY trace_id"""
