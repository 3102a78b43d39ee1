"""What of each source's traces can be trained on, why the rest cannot, and what its sender must
change.

The store enters; leaves a report a source: shares by fidelity, and of each reason how many traces
have it, how many have no other one, and what to do. Reasons are those of `storage.fidelity`, as
they stand at each trace; that a system prompt is missing is known beside the source's other traces
alone.
"""

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from flywheel.home import Home
from flywheel.records import Fidelity, Record
from storage.copies import RECORDED
from storage.database import reading

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class Kind(NamedTuple):
    pattern: str
    """Of the reason's text."""
    what: str
    remedy: str
    """What the sender must change; "" = nothing is to be changed."""


KINDS: dict[str, Kind] = {
    "no_tokens": Kind(
        r"^no token ids|^token ids are empty|^log-probabilities", "token ids are missing",
        "send through the gateway, or have the engine return token ids and log-probabilities "
        "(vLLM: return_token_ids, logprobs) and log them",
    ),
    "infrastructure": Kind(
        r"^no answer: .*(\b(4(08|29)|5\d\d)\b|tim(e|ed)[ -]?out|connect|overload|rate.?limit|"
        r"unavailable|reset|refused to|network|internal server)",
        "the call failed on its way", "nothing: it is no fault of the log; retry at the sender",
    ),
    "rejected": Kind(
        r"^no answer: .*(\b4\d\d\b|bad ?request|invalid|unsupported|not supported|not found|"
        r"does not)", "the provider rejected the request",
        "mend the request as the provider's message says; such calls teach nothing",
    ),
    "no_answer": Kind(
        r"^no answer|^the answer has no content|never answered", "no answer was recorded",
        "log a call once its answer is there, with the answer",
    ),
    "cut": Kind(
        r"^the answer was cut", "the answer is cut",
        "log streams to their last chunk, with finish_reason; raise max_tokens where it ran out",
    ),
    "refusal": Kind(r"^the answer is a refusal", "the answer is a refusal", ""),
    "truncated": Kind(
        r"was truncated from", "bodies are truncated",
        "raise the logger's limit on attributes and bodies, so that messages are logged whole",
    ),
    "no_prompt": Kind(
        r"^no prompt|^an? \w+ message has no content", "the prompt is missing or has holes",
        "log the request's messages (OTLP: turn the capture of message content on)",
    ),
    "no_tools": Kind(
        r"^tools were not recorded", "tools were called, their schemas are not there",
        "log the request's `tools` (OTLP: gen_ai.tool.definitions)",
    ),
    "media": Kind(
        r"has an? (image|file) not kept", "images or files were not kept",
        "log images and files as data or as an address that stays",
    ),
    "unknown_part": Kind(
        r"part of unknown kind", "parts of messages are of no known kind",
        "log history that the provider keeps (previous_response_id, prompts by id) as messages; "
        "for other parts there is no record yet, and such traces are kept to be looked at",
    ),
    "disputed": Kind(
        r"^its parts contradict", "parts of one call contradict each other",
        "give each call an id of its own",
    ),
    "no_call": Kind(
        r"^no model call", "there is no model call",
        "log the model's calls, not only the steps around them",
    ),
    "incomplete": Kind(
        r"^incomplete:", "parent spans have not come",
        "export all spans of a trace; look for exporters that drop or sample spans",
    ),
}  # fmt: skip
NO_SYSTEM = Kind(
    "", "the system prompt is missing, which others of this source have",
    "log system prompts with every call (OTLP: gen_ai.system_instructions)",
)  # fmt: skip
OTHER = Kind("", "another reason", "")
_KINDS = {code: re.compile(kind.pattern, re.IGNORECASE) for code, kind in KINDS.items()}
_MOST_HAVE = 0.5
"""Share of a source's traces with a system prompt from which on the others lack one."""


class Reason(Record, frozen=True, kw_only=True, omit_defaults=False):
    code: str
    what: str
    traces: int
    alone: int
    """Traces that have no other reason: what its remedy alone would lift."""
    remedy: str
    example: str
    """Id of a trace."""
    said: str
    """The reason as it stands at that trace."""


class SourceFidelity(Record, frozen=True, kw_only=True, omit_defaults=False):
    project: str
    source: str
    traces: int
    trainable: int
    renderable: int
    view_only: int
    calls: int
    usage_known: int
    """Of the calls, those whose tokens were stated."""
    reasons: tuple[Reason, ...] = ()
    """The most frequent first."""


_COUNTED = f"""
WITH told AS (
    SELECT id, project, source, fidelity, fidelity_reasons FROM traces
    WHERE duplicate_of IS NULL AND origin IN {RECORDED} AND coalesce(project = $project, true)
        AND coalesce(source = $source, true)
)
"""
_REASONS = f"""{_COUNTED}
SELECT project, source, fidelity, fidelity_reasons, count(*), min(id) FROM told
GROUP BY ALL ORDER BY ALL
"""
_CALLS = f"""{_COUNTED}
SELECT project, source, count(input), count(input_tokens) FROM told
JOIN spans ON trace_id = told.id WHERE copy_of IS NULL GROUP BY ALL
"""
_SYSTEMS = f"""{_COUNTED}
, first AS (
    SELECT project, source, told.id, min(input[1]) AS message FROM told
    JOIN spans ON trace_id = told.id WHERE len(input) > 0 AND copy_of IS NULL GROUP BY ALL
)
SELECT project, source, count(*), count(*) FILTER (role IN ('system', 'developer')),
    min(first.id) FILTER (role NOT IN ('system', 'developer'))
FROM first JOIN messages ON messages.id = message GROUP BY ALL
"""


def code_of(reason: str) -> str:
    """The kind of a reason: a key of KINDS, or "other"."""
    return next((code for code, kind in _KINDS.items() if kind.search(reason)), "other")


def fidelity_of(
    home: Home, *, project: str | None = None, source: str | None = None
) -> list[SourceFidelity]:
    """A report of each source, by project and source. None does not narrow."""
    with reading(home) as database:
        if database is None:
            return []
        values = {"project": project, "source": source}
        rows = database.execute(_REASONS, values).fetchall()
        calls = _keyed(database, _CALLS, values)
        systems = _keyed(database, _SYSTEMS, values)
    found: dict[tuple[str, str], _Tally] = {}
    for named, of, fidelity, reasons, count, example in rows:
        found.setdefault((named, of), _Tally()).add(fidelity, reasons or (), count, example)
    reports = []
    for (named, of), tally in sorted(found.items()):
        total, known = calls.get((named, of), (0, 0))
        spoken, told, example = systems.get((named, of), (0, 0, None))
        if example is not None and _MOST_HAVE * spoken <= told < spoken:
            tally.note("no_system", spoken - told, 0, example, "no system prompt")
        by = tally.by_fidelity
        reports.append(
            SourceFidelity(
                project=named, source=of, traces=sum(by.values()), calls=total, usage_known=known,
                trainable=by.get("trainable", 0), renderable=by.get("renderable", 0),
                view_only=by.get("view_only", 0), reasons=tally.reasons(),
            )
        )  # fmt: skip
    return reports


class _Tally:
    """One source's counts."""

    def __init__(self) -> None:
        self.by_fidelity: dict[Fidelity, int] = {}
        self._reasons: dict[str, Reason] = {}

    def add(self, fidelity: Fidelity, reasons: tuple[str, ...], count: int, example: str) -> None:
        self.by_fidelity[fidelity] = self.by_fidelity.get(fidelity, 0) + count
        codes: dict[str, str] = {}
        for reason in reasons:
            codes.setdefault(code_of(reason), reason)
        for code, said in codes.items():
            self.note(code, count, count if len(codes) == 1 else 0, example, said)

    def note(self, code: str, count: int, alone: int, example: str, said: str) -> None:
        kind = NO_SYSTEM if code == "no_system" else KINDS.get(code, OTHER)
        held = self._reasons.get(code)
        self._reasons[code] = Reason(
            code=code, what=kind.what, remedy=kind.remedy,
            traces=count + (held.traces if held else 0),
            alone=alone + (held.alone if held else 0),
            example=held.example if held else example, said=held.said if held else said,
        )  # fmt: skip

    def reasons(self) -> tuple[Reason, ...]:
        return tuple(sorted(self._reasons.values(), key=lambda one: (-one.traces, one.code)))


def _keyed(
    database: "DuckDBPyConnection", query: str, values: dict[str, str | None]
) -> dict[tuple[str, str], tuple[Any, ...]]:
    rows = database.execute(query, values).fetchall()
    return {(project, source): tuple(rest) for project, source, *rest in rows}
