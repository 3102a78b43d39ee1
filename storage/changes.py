"""What of a merged trace is new beside how it stood, as rows.

Enters a trace as merged, and how the store had it; leaves rows of what changed alone, and which
rows they replace.
"""

from collections import Counter
from collections.abc import Collection

from flywheel.records import Trace
from storage import columns
from storage.merge import copies, counted_once, judged, missing_parents

State = tuple[Trace, dict[str, str], list[str]]
"""A trace as stored, its copied spans, its raw keys."""


def add_changed(
    rows: columns.Rows,
    trace: Trace,
    raws: Collection[str],
    was: State | None,
    counts: Counter[str],
) -> list[tuple[str, str]]:
    """Adds what is new of `trace` to `rows`; returns the spans whose rows it replaces."""
    copied = copies(trace)
    seen = judged(counted_once(trace, copied))
    old = {one.id: (one, was[1].get(one.id)) for one in was[0].spans} if was else {}
    replaced = []
    for span in trace.spans:
        now = (span, copied.get(span.id))
        if old.get(span.id) == now:
            continue
        if span.id in old:
            replaced.append((trace.id, span.id))
        counts["spans"] += span.id not in old
        rows.add_span(trace.id, *now)
    rows.add_trace(
        seen,
        raws=sorted({*raws, *(was[2] if was else ())}),
        absent=bool(missing_parents(seen)),
    )
    counts["traces"] += was is None
    return replaced
