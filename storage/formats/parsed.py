"""The seam between the importer and a trace format: what a format is, is given, and gives back.

A format is one file with `recognise(sample)` and `read(row, context)`. What enters is one decoded
row or document; what leaves is `Parsed`. Invariant: a value of the row that no record field holds
goes through `Rest.put`, so it stands among the attributes and is counted by its dotted path.
"""

import functools
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from flywheel.errors import BadRecord
from flywheel.records import Feedback, Text, Trace, Truncated

if TYPE_CHECKING:
    from storage.belonging import Belonging
    from storage.prepared import Preparing

BIG_FIELD = 1 << 20
"""Bytes from which a single field is kept in the raw store instead of in the record."""
KEPT_HEAD = 1024
"""Characters of such a field that stay in the record."""

_index = re.compile(r"\[\d+\]")
_EMPTY: tuple[Any, ...] = (None, [], {})


@dataclass(slots=True)
class Parsed:
    """What one row gave."""

    traces: list[Trace] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    unmapped: dict[str, int] = field(default_factory=dict)
    """Values by dotted path that went to attributes; list indices are written []."""
    rejects: list[BadRecord] = field(default_factory=list)
    """Parts of the row (a span of a batch) that could not be understood; the others stand."""


NOTHING_ELSE = Parsed()
"""Of a row that was made rows of tables, and gave nothing besides."""


class Context(msgspec.Struct, frozen=True, gc=False):
    """What a format may know about where its row comes from."""

    project: str
    keep: Callable[[bytes], str]
    """Puts bytes in the raw store and gives their digest."""
    raw: str | None = None
    """Key of the row's own bytes."""
    size: int = 0
    """Bytes of the row: where it is under BIG_FIELD, so is every field of it."""

    def rest(self) -> "Rest":
        return Rest(self.keep, self.size > BIG_FIELD)


Read: TypeAlias = Callable[[Any, Context], Parsed]


class Format(NamedTuple):
    recognise: Callable[[object], bool]
    """Whether a decoded row or document is of this format. Cheap, and never raises."""
    read: Read
    """Raises BadRecord where the whole row cannot be understood."""
    whole: bool = False
    """Whether a file's rows may be parts of one trace: `recognise` and `read` then take the list of
    them too."""
    quick: Callable[[bytes, Context], Parsed | None] | None = None
    """Reads the commonest rows of the format from their bytes; None = `read` must."""
    direct: Callable[[bytes, Context, "Belonging", "Preparing"], Parsed | None] | None = None
    """Makes rows of tables of what `quick` reads, its trace left out; None = `quick` must."""


def of_file(name: str, *, whole: bool = False, quick: bool = False) -> Format:
    """The format in the file of this name beside this one.

    It is loaded when a row is first shown to it: who imports logs of one kind pays for its reader
    alone, however many there are.
    """

    @functools.cache
    def load() -> Any:
        return importlib.import_module(f"storage.formats.{name}")

    def recognise(sample: object) -> bool:
        known: bool = load().recognise(sample)
        return known

    def read(row: Any, context: Context) -> Parsed:
        parsed: Parsed = load().read(row, context)
        return parsed

    def read_bytes(row: bytes, context: Context) -> Parsed | None:
        parsed: Parsed | None = load().quick(row, context)
        return parsed

    def make_rows(
        row: bytes, context: Context, told: "Belonging", ready: "Preparing"
    ) -> Parsed | None:
        parsed: Parsed | None = load().direct(row, context, told, ready)
        return parsed

    return Format(
        recognise, read, whole, read_bytes if quick else None, make_rows if quick else None
    )


class Rest:
    """Collects what no record field holds, and moves big fields out of the record."""

    __slots__ = ("attributes", "big", "counts", "keep")

    def __init__(self, keep: Callable[[bytes], str], big: bool) -> None:
        self.keep, self.big = keep, big
        self.attributes: dict[str, Any] = {}
        self.counts: dict[str, int] = {}

    def put(self, path: str, value: object) -> None:
        """Keeps one unmapped value. null, [] and {} say nothing and are left out."""
        if value in _EMPTY:
            return
        self.attributes[path] = self.bounded(value)
        self.tally(_index.sub("[]", path) if "[" in path else path)

    def tally(self, path: str) -> None:
        """Counts a value that is kept by the caller itself."""
        self.counts[path] = self.counts.get(path, 0) + 1

    def put_others(self, value: dict[str, Any], known: frozenset[str], path: str) -> None:
        """Keeps every key of `value` that is not in `known`."""
        for key in value.keys() - known:
            self.put(f"{path}.{key}" if path else key, value[key])

    def take(self) -> dict[str, Any]:
        """The attributes so far, to be put on a record; the counts go on."""
        taken, self.attributes = self.attributes, {}
        return taken

    def bounded(self, value: Any) -> Any:
        """`value`, or a marker with its size and digest where it is over BIG_FIELD."""
        if not self.big:
            return value
        data = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        if len(data) <= BIG_FIELD:
            return value
        return {"truncated": {"size": len(data), "digest": self.keep(data)}}

    def cut(self, text: str) -> tuple[str, Truncated | None]:
        """`text`, or its head and the marker that stands for it."""
        if not self.big or len(text) * 4 <= BIG_FIELD:
            return text, None
        data = text.encode()
        if len(data) <= BIG_FIELD:
            return text, None
        head = text[:KEPT_HEAD]
        return head, Truncated(kept=head, size=len(data), digest=self.keep(data))

    def shortened(self, path: str, text: str) -> str:
        """`text`, or its head with the marker among the attributes."""
        text, cut = self.cut(text)
        if cut is not None:
            said = {"size": cut.size, "digest": cut.digest}
            self.attributes[f"{path}.truncated"] = said
        return text

    def text(self, text: str) -> Text | Truncated:
        return self.cut(text)[1] or Text(text=text)
