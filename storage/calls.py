"""Traces that are one model call without tokens or parents, made rows column by column.

Enter such calls one by one, with what makes the record of each; leave Arrow tables of traces, spans
and messages. Invariant: these are the rows that `storage.columns` makes of the records (a test
compares them), for less than half of the work: what is alike is looked at once, and hashes are made
in one go.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import astuple

from flywheel.records import Trace, Usage
from storage.arrow import lists_of, numbers_of, texts_of, together
from storage.columns import MESSAGES, SPANS, TRACES

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_ID = 32
"""Characters of a message's id."""
_pack = msgspec.msgpack.Encoder().encode


class Call(msgspec.Struct, frozen=True, gc=False):
    told: tuple[Any, ...]
    """Columns of the trace, from `project` to `raw`."""
    others: tuple[Any, ...]
    """Those from `rest` on."""
    span_id: str
    started: int | None
    ended: int | None
    roles: list[str]
    """Of the messages: those of the prompt, and last the answer."""
    said: list[bytes]
    """Their JSON."""
    finish: str | None
    tools: str
    model: str | None
    response_model: str | None
    usage: Usage
    cost: float | None
    cached: bool | None
    rest: bytes | None


class Calls:
    """
    Args:
        judged: their fidelity, and the reasons for it.
    """

    def __init__(self, judged: tuple[str, tuple[str, ...]]) -> None:
        self._judged = judged
        self._calls: dict[str, tuple[Call, Callable[[], Trace]]] = {}

    def __contains__(self, trace_id: str) -> bool:
        return trace_id in self._calls

    def add(self, trace_id: str, call: Call, record: Callable[[], Trace]) -> None:
        """A call of a trace that is not there yet; `record` makes its record."""
        self._calls[trace_id] = (call, record)

    def take(self, trace_id: str) -> Trace:
        """Takes one out again, as a record."""
        return self._calls.pop(trace_id)[1]()

    def tables(self, known: Collection[str]) -> "dict[str, pa.Table]":
        """
        Args:
            known: ids of messages that are left out.

        Raises:
            OverflowError, TypeError, ValueError: a value does not fit its column.
        """
        if not self._calls:
            return {}
        ids = list(self._calls)
        given = _Given(*zip(*[astuple(call) for call, _ in self._calls.values()], strict=True))
        messages = _Messages(given)
        return {
            "traces": together(TRACES, self._traces(ids, given, messages)),
            "spans": together(SPANS, _spans(ids, given, messages)),
            "messages": messages.table(known),
        }

    def _traces(self, ids: list[str], given: "_Given", messages: "_Messages") -> Iterable[Any]:
        count, told = len(ids), list(zip(*given.told, strict=True))
        fidelity, reasons = self._judged
        rest, tenant, consent, expires = zip(*given.others, strict=True)
        return (
            ids, _same(0, count), *told, [(raw,) for raw in told[-1]], _same(fidelity, count),
            _same(reasons, count), given.started, given.ended, _same(1, count),
            _same(False, count), self._digests(given, messages), messages.contents(),
            _same(None, count), rest, tenant, consent, expires,
        )  # fmt: skip

    def _digests(self, given: "_Given", messages: "_Messages") -> list[str]:
        """Of each trace's rows, as `Rows.add_trace` has it."""
        judged = self._judged
        return [
            blake2b(_pack([
                told, judged, others, [span_id],
                [("model", "chat", (), started, ended, None, 0, asked[:-1], asked[-1:], [finish],
                  tools, model, response_model, None, None, usage.input_tokens,
                  usage.cached_input_tokens, usage.output_tokens, usage.reasoning_tokens, cost,
                  cached, rest)],
                (),
            ]), digest_size=16).hexdigest()
            for (told, others, span_id, started, ended, _, _, finish, tools, model, response_model,
                 usage, cost, cached, rest), asked in zip(
                     zip(*given, strict=True), messages.ids(), strict=True)
        ]  # fmt: skip


class _Given(NamedTuple):
    """The fields of `Call`, of all calls."""

    told: Sequence[tuple[Any, ...]]
    others: Sequence[tuple[Any, ...]]
    span_id: Sequence[str]
    started: Sequence[int | None]
    ended: Sequence[int | None]
    roles: Sequence[list[str]]
    said: Sequence[list[bytes]]
    finish: Sequence[str | None]
    tools: Sequence[str]
    model: Sequence[str | None]
    response_model: Sequence[str | None]
    usage: Sequence[Usage]
    cost: Sequence[float | None]
    cached: Sequence[bool | None]
    rest: Sequence[bytes | None]


def _spans(ids: list[str], given: _Given, messages: "_Messages") -> Iterable[Any]:
    count, usage = len(ids), given.usage
    return (
        ids, given.span_id, _same(0, count), _same("model", count), _same("chat", count),
        _same((), count), given.started, given.ended, _same(None, count), _same(0, count),
        _same(None, count), messages.prompts(), messages.answers(),
        [(one,) for one in given.finish], given.tools, given.model, given.response_model,
        _same(None, count), _same(None, count), [one.input_tokens for one in usage],
        [one.cached_input_tokens for one in usage], [one.output_tokens for one in usage],
        [one.reasoning_tokens for one in usage], given.cost, given.cached, given.rest,
    )  # fmt: skip


class _Messages:
    """What all calls said: each message's id, and whose it is."""

    def __init__(self, given: _Given) -> None:
        self._roles = list(chain.from_iterable(given.roles))
        self._bodies = list(chain.from_iterable(given.said))
        self._ends = list(accumulate([len(one) for one in given.said]))
        self._digests = b"".join([blake2b(one, digest_size=16).digest() for one in self._bodies])
        text = self._digests.hex()
        self._text = text.encode()
        self._ids = [text[at : at + _ID] for at in range(0, len(text), _ID)]

    def _bounds(self) -> Iterable[tuple[int, int]]:
        return zip(chain((0,), self._ends), self._ends)  # noqa: B905  # the first is one longer

    def ids(self) -> list[list[str]]:
        """Of each call's messages, the answer last."""
        return [self._ids[start:end] for start, end in self._bounds()]

    def contents(self) -> list[str]:
        """Of each call, as `Rows.add_trace` has it: a hash of what was said, without ids, times."""
        text = self._text
        return [
            blake2b(text[start * _ID : end * _ID], digest_size=16).hexdigest()
            for start, end in self._bounds()
        ]

    def prompts(self) -> "pa.Array":
        import numpy as np

        asked = np.ones(len(self._ids), bool)
        asked[np.array(self._ends) - 1] = False
        ends = np.array(self._ends) - np.arange(1, len(self._ends) + 1)
        return lists_of(ends, texts_of(self._each()[asked].tobytes(), _ID))

    def answers(self) -> "pa.Array":
        import numpy as np

        last = self._each()[np.array(self._ends) - 1]
        return lists_of(np.arange(1, len(last) + 1), texts_of(last.tobytes(), _ID))

    def _each(self) -> "NDArray[np.void]":
        import numpy as np

        return np.frombuffer(self._text, f"V{_ID}")

    def table(self, known: Collection[str]) -> "pa.Table":
        """Each message once."""
        import numpy as np

        keys = (np.frombuffer(self._digests, ">u8")[::2] >> np.uint64(4)).astype(np.int64)
        if not known and len(set(self._ids)) == len(self._ids):
            held = texts_of(self._text, _ID), self._roles, self._bodies, numbers_of(keys)
            return together(MESSAGES, held)
        last_first = zip(reversed(self._ids), range(len(self._ids) - 1, -1, -1), strict=True)
        places = [at for one, at in dict(last_first).items() if one not in known]
        places.sort()
        return together(MESSAGES, (
            [self._ids[at] for at in places], [self._roles[at] for at in places],
            [self._bodies[at] for at in places], numbers_of(keys[places]),
        ))  # fmt: skip


def _same(value: Any, count: int) -> list[Any]:
    return list(repeat(value, count))
