"""What is personal or secret in a project's recorded traces, or in a file, before anything is done
about it.

Enter texts of one trace, or one row, at a time; leave counts by kind and source, with examples of
which no more is shown than tells what was found. Nothing is written.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from flywheel.data_section import Found
from flywheel.errors import BadRecord, UsageError
from flywheel.home import Home
from flywheel.progress import report
from flywheel.records import Record, Tokens
from storage.files_in import blocks, files_under
from storage.json_in import decode
from storage.privacy.clean import Cleaning
from storage.privacy.find import EVERYTHING, Policy
from storage.queries import traces
from storage.rows_in import Row, rows
from storage.zip_in import is_zip, zip_files

ORIGINS = ("production", "import", "demonstration")
EXAMPLES, _LONGEST = 3, 40
_IDS = frozenset(
    ("id", "external_id", "digest", "fidelity", "origin", "kind", "parents", "policy_versions")
)
"""Fields that say nothing that anybody said."""


class Finding(Record, frozen=True, kw_only=True, omit_defaults=False):
    kind: Found
    source: str
    """Of the traces; the file."""
    found: int
    """How often."""
    within: int
    """Traces, or rows of a file, that have it."""
    examples: tuple[str, ...]
    """Different ones, their letters and digits hidden."""


class Scan(Record, frozen=True, kw_only=True, omit_defaults=False):
    looked_at: int
    """Traces, or rows of a file."""
    with_any: int
    findings: tuple[Finding, ...]
    """The most frequent first."""
    unreadable: int = 0
    """Rows that are no JSON, or too long to read: they were looked at as far as they are text."""


class _Tally:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.looked_at = self.with_any = self.unreadable = 0
        self.found, self.within = Counter[tuple[str, Found]](), Counter[tuple[str, Found]]()
        self.examples: dict[tuple[str, Found], dict[str, None]] = {}

    def add(self, source: str, values: Any) -> None:
        made = Cleaning(self.policy)
        for value in values:
            made.value(value)
        self.looked_at += 1
        self.with_any += bool(made.found)
        self.within.update({(source, kind) for kind, _ in made.found})
        for kind, said in made.found:
            self.found[source, kind] += 1
            shown = self.examples.setdefault((source, kind), {})
            if len(shown) < EXAMPLES:
                shown[masked(said)] = None

    def scan(self) -> Scan:
        findings = [
            Finding(
                kind=kind,
                source=source,
                found=count,
                within=self.within[source, kind],
                examples=tuple(self.examples[source, kind]),
            )
            for (source, kind), count in sorted(
                self.found.items(), key=lambda pair: (-pair[1], pair[0])
            )
        ]
        return Scan(
            looked_at=self.looked_at,
            with_any=self.with_any,
            findings=tuple(findings),
            unreadable=self.unreadable,
        )


def scan_project(home: Home, project: str, policy: Policy = EVERYTHING) -> Scan:
    """All that was recorded or imported."""
    tally = _Tally(policy)
    for batch in traces(home, project=project, origin=ORIGINS):
        for trace in batch:
            # Where its bytes lie (DIGEST#120208+2341) looks like somebody's number.
            said = msgspec.structs.replace(trace, raw=None)
            tally.add(trace.source, dict.fromkeys(texts_of(said)))
        report("scan", tally.looked_at)
    return tally.scan()


def scan_path(path: Path, policy: Policy = EVERYTHING, max_line: int = 64 * 2**20) -> Scan:
    """A file, or every file of a folder, in any format that imports read, or none.

    Raises:
        UsageError: there is no file that can be read.
    """
    tally, files = _Tally(policy), 0
    for file in files_under(path):
        if file.problem is None:
            files += 1
            for row in _rows(file.path, max_line):
                tally.unreadable += row.problem is not None
                tally.add(str(file.path), [_value(row)])
                if tally.looked_at % 2000 == 0:
                    report("scan", tally.looked_at, None, file.path.name)
    if not files:
        raise UsageError(f"{path} holds no file that can be read")
    return tally.scan()


def masked(said: str) -> str:
    """Its first character and its form."""
    return said[:1] + re.sub(r"\w", "*", said[1:_LONGEST].replace("\n", " "))


def texts_of(value: Any) -> Iterator[str]:
    """Every text of a trace, in the order in which it was said; ids and tokens are none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, msgspec.Struct) and not isinstance(value, Tokens):
        for name in value.__struct_fields__:
            if name not in _IDS:
                yield from texts_of(getattr(value, name))
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from texts_of(key)
            yield from texts_of(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from texts_of(one)


def _rows(path: Path, max_line: int) -> Iterator[Row]:
    if is_zip(path):
        for _, found in zip_files(path, max_line):
            yield from found
    else:
        yield from rows(blocks(path), max_line)


def _value(row: Row) -> Any:
    try:
        return decode(row.data)
    except BadRecord:
        return row.data.decode("utf-8", "replace")
