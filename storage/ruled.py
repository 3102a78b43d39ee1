"""What every rule says of some rows, each asked as if those before it had let the rows through.

Enter a curation's pool, its rules, and the traces that somebody asks about; leave for each of their
rows one verdict a rule, leakage first. Rules that compare rows see the others as they really stand:
only what is asked about stays in, whatever was said of it.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from flywheel.records import Record
from storage.curate import LEAK, RuleSpec, bound_rules, described
from storage.pool import Pool
from storage.rules.rule import Known

if TYPE_CHECKING:
    import polars as pl


class Ruled(Record, frozen=True, kw_only=True):
    row_id: str
    row: int
    """Which of the rows that are asked about, in the pool's order: one id may have several."""
    rehearsed: str | None
    """The earlier dataset that the row comes from."""
    rule: str
    note: str
    """Its parameters."""
    why: str | None
    """Why the row goes; None = it stays."""


def ruled(
    pool: Pool, rules: Sequence[RuleSpec], known: Known, traces: Collection[str]
) -> list[Ruled]:
    """Verdicts row by row, each in the order of the rules; none where no row is of these traces."""
    import polars as pl

    if not len(pool):
        return []
    frame = pool.frame()
    asked, said = pl.col("trace_id").is_in(sorted(traces)), list[Ruled]()
    shown = ("row_id", "rehearsed")

    def left(why: "pl.Series", rule: str, note: str) -> "pl.DataFrame":
        mine = frame.select(*shown, "trace_id", why=why).filter(asked).select(*shown, "why")
        said.extend(
            Ruled(row_id=row, row=at, rehearsed=earlier, rule=rule, note=note, why=reason)
            for at, (row, earlier, reason) in enumerate(mine.iter_rows())
        )
        return frame.filter(why.is_null() | frame.select(asked).to_series())

    frame = left(frame[LEAK].list.get(0, null_on_oob=True), "leakage", "")
    for name, rule, parameters in bound_rules(rules):
        frame = left(rule.judge(frame, parameters, known), name, described(parameters))
        if rule.weigh:
            frame = frame.with_columns(weight=rule.weigh(frame, parameters, known))
    return sorted(said, key=lambda one: one.row)
