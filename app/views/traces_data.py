"""What the Traces page shows, without the page: lists by filter and search, one trace in full.

Enter a home, a project and what was asked for; leave plain records. Reads are bounded; the search
index is brought up a piece at a time, by a thread where much is missing.
"""

import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from flywheel.errors import FlywheelError
from flywheel.home import Home
from flywheel.records import Span, Tokens, Trace
from storage import browse, search

Found = TypeVar("Found")
PER_PAGE = 50
_AT_ONCE = search.BATCH
"""So many missing traces are indexed while the page waits: about a second."""
_SMALL = 20_000
"""Of larger stores what came is always indexed beside the page."""
_threads: dict[tuple[Path, str], threading.Thread] = {}
_starting = threading.Lock()


_lately: dict[tuple[Any, ...], tuple[int, float, Any]] = {}
_LATELY_S = 30.0


def lately(home: Home, sequence: int, ask: Callable[[], Found], *key: Any) -> Found:
    """`ask()` as it was at this ledger sequence, or within the last half minute: for what need not
    be of this moment and is not cheap. An empty answer is asked again."""
    kept = _lately.get((home.root, *key))
    if kept is not None:
        at, since, value = kept
        if at == sequence or (value and time.monotonic() - since < _LATELY_S):
            found: Found = value
            return found
    if len(_lately) > 500:
        _lately.clear()
    found = ask()
    _lately[(home.root, *key)] = (sequence, time.monotonic(), found)
    return found


class Listed(NamedTuple):
    cards: list[browse.Card]
    previews: dict[str, search.Preview]
    total: int
    many: bool
    """The search had more matches than it gives; the newest are here."""
    words: list[str]


def detail_of(home: Home, sequence: int, trace_id: str) -> browse.Detail | None:
    """One trace as it stands at this ledger sequence; the last few are kept, which may be large."""
    return _details(home.root, sequence, trace_id)


@functools.lru_cache(maxsize=24)
def _details(root: Path, _sequence: int, trace_id: str) -> browse.Detail | None:
    return browse.detail(Home(root), trace_id)


def listed(home: Home, project: str, filters: browse.Filters, text: str, number: int) -> Listed:
    """Page `number` (from 0) of what the filters and the search let through."""
    many, words = False, []
    if text.strip():
        found = search.search(home, project, text)
        many, words = found.many, found.words
        filters = msgspec.structs.replace(filters, ids=tuple(found.ids))
    page = browse.page(home, project, filters, limit=PER_PAGE, offset=number * PER_PAGE)
    ids = [card.trace_id for card in page.cards]
    return Listed(page.cards, search.previews(home, project, ids), page.total, many, words)


def index(home: Home, project: str) -> search.Standing:
    """How far the search index is, after a small piece was added; a thread goes on with a large
    one."""
    standing = search.standing(home, project)
    small = standing.indexed + standing.waiting <= _SMALL
    if small and 0 < standing.waiting <= _AT_ONCE:
        search.advance(home, project)
        return search.standing(home, project)
    if standing.waiting:
        _go_on(home, project)
    return standing


def _go_on(home: Home, project: str) -> None:
    key = (home.root, project)
    with _starting:
        if key not in _threads or not _threads[key].is_alive():
            _threads[key] = threading.Thread(target=_bring_up, args=(home, project), daemon=True)
            _threads[key].start()


def _bring_up(home: Home, project: str) -> None:
    try:
        while search.advance(home, project):
            pass
    except FlywheelError:
        return  # a commit is under way, or the disk is full: the next page that looks goes on


class Row(NamedTuple):
    """A span in the tree, in the order to be shown."""

    span: Span
    depth: int
    also_under: tuple[str, ...]
    orphan: bool
    """Its parent has not come."""


def tree(trace: Trace, *, most: int = 500) -> list[Row]:
    """The spans as a tree, each once: under its first parent that is here, by time. Spans that
    are their own ancestors stand as roots."""
    by_id = {span.id: span for span in trace.spans}
    under: dict[str | None, list[Span]] = {}
    for span in sorted(trace.spans, key=lambda one: (one.start or 0, one.id)):
        parent = next((one for one in span.parents if one in by_id and one != span.id), None)
        under.setdefault(parent, []).append(span)
    rows: list[Row] = []
    seen: set[str] = set()
    left = [(span, 0) for span in reversed(under.get(None, []))]
    rest = iter(trace.spans)
    while len(rows) < most:
        if not left:
            circle = next((span for span in rest if span.id not in seen), None)
            if circle is None:
                break
            left = [(circle, 0)]
        span, depth = left.pop()
        if span.id in seen:
            continue
        seen.add(span.id)
        orphan = bool(span.parents) and not any(one in by_id for one in span.parents)
        also = tuple(one for one in span.parents[1:] if one in by_id)
        rows.append(Row(span, depth, also, orphan))
        left += [(child, depth + 1) for child in reversed(under.get(span.id, []))]
    return rows


def pieces(tokens: Tokens, base: Path | None) -> tuple[list[str], str | None]:
    """The text of each sampled token, and why it is its number instead where it is not known.

    A character of several tokens stands at its last one.
    """
    numbers = [f"[{one}]" for one in tokens.completion_ids]
    file = base / "tokenizer.json" if base else None
    if file is None or not file.is_file():
        return numbers, "the model's tokenizer is not here: numbers are shown"
    from tokenizers import Tokenizer
    from tokenizers.decoders import DecodeStream

    try:
        tokenizer: Any = Tokenizer.from_file(str(file))
        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(tokenizer, one) or "" for one in tokens.completion_ids], None
    except Exception as error:  # the library raises plain Exception
        return numbers, f"the tokenizer cannot say them ({str(error)[:200]}): numbers are shown"


def raw(home: Home, key: str) -> bytes:
    """The bytes that a trace came from.

    Raises:
        FlywheelError: they are not kept any more.
    """
    from storage.importer import raw_row

    try:
        return raw_row(home, key)
    except (KeyError, ValueError) as error:
        raise FlywheelError(f"the raw bytes are not here any more: {error}") from error


def base_of(folder: Path | None, models: Path) -> Path | None:
    """Where the project's base model lies; None = not known on this machine."""
    from flywheel.project import base_folder, load_project

    if folder is None:
        return None
    try:
        found = base_folder(load_project(folder), models)
    except FlywheelError:
        return None
    return found if found.is_dir() else None
