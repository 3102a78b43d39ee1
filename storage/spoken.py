"""What was said in traces, as text to be searched: each message once, system prompts left out.

Enter trace ids and an open database; leave, by trace, all of the words, and the last question and
answer. Bounded: what lies beyond `LONGEST` characters of a trace is left out.
"""

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from flywheel.records import Message, Reasoning, Refusal, Text, ToolCall, ToolResult, Truncated
from storage.rows import bodies, seen_as, table_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LONGEST = 64 << 10
"""Characters of one trace that are indexed; what is beyond is not found."""


class Spoken(NamedTuple):
    said: str
    ask: str
    answer: str


NOTHING = Spoken("", "", "")


def spoken(database: "DuckDBPyConnection", ids: list[str]) -> dict[str, Spoken]:
    """What was said in each trace, each message once, and its last question and answer."""
    with seen_as(database, "wanted", table_of({"wanted_id": "VARCHAR"}, [(one,) for one in ids])):
        rows = database.execute(
            "SELECT trace_id, input, output FROM spans WHERE rowid IN (SELECT rowid FROM spans "
            "WHERE trace_id IN (SELECT wanted_id FROM wanted)) AND input IS NOT NULL "
            "ORDER BY coalesce(started, 0), id"
        ).fetchall()
    keys = {key for _, asked, given in rows for key in (*asked, *given)}
    read = msgspec.json.Decoder(Message).decode
    texts = {key: _text(read(body)) for key, body in bodies(database, "messages", keys)}
    order: dict[str, dict[str, None]] = {}
    last: dict[str, tuple[str, str]] = {}
    for trace_id, asked, given in rows:
        order.setdefault(trace_id, {}).update(dict.fromkeys((*asked, *given)))
        ask = next((text for key in reversed(asked) if (text := texts[key][1])), "")
        if given or trace_id not in last:
            last[trace_id] = (ask, texts[given[0]][0] if given else "")
    return {
        trace_id: Spoken(
            "\n".join(filter(None, (texts[key][0] for key in said)))[:LONGEST], *last[trace_id]
        )
        for trace_id, said in order.items()
    }


def _text(message: Message) -> tuple[str, str]:
    """What a message says, and the same where it is a user's."""
    if message.role in ("system", "developer"):
        return "", ""
    pieces = []
    for part in message.parts:
        match part:
            case Text() | Reasoning() | Refusal():
                pieces.append(part.text)
            case ToolCall():
                pieces.append(f"{part.name} {part.arguments}")
            case ToolResult():
                pieces.append(part.content)
            case Truncated():
                pieces.append(part.kept)
            case _:
                pass
    text = "\n".join(pieces)[:LONGEST].replace("\x00", " ")
    text = text.encode("utf-8", "replace").decode()
    return text, text if message.role == "user" else ""
