"""What reading files gave, added up over chunks, files and processes.

Enter receipts of chunks; leaves one tally. An import's report is made of it, once it is committed.
"""

import msgspec

from storage.receipts import Receipt, Reject

MOST_REJECTS = 10_000
"""Rejects that a report names; all are counted, and all are in the quarantine."""


class Tally(msgspec.Struct, kw_only=True):
    """What reading files gave, before it is committed; several are added up."""

    files: int = 0
    spans: int = 0
    quarantined: int = 0
    formats: dict[str, int] = msgspec.field(default_factory=dict)
    unmapped: dict[str, int] = msgspec.field(default_factory=dict)
    rejects: list[Reject] = msgspec.field(default_factory=list)
    refused: int = 0
    fresh: int = 0
    """Chunks that were read, being unknown."""

    def add(self, path: str, first: int, receipt: Receipt) -> None:
        self.spans += receipt.spans
        self.refused += receipt.refused
        _count(self.formats, receipt.formats)
        _count(self.unmapped, receipt.unmapped)
        self.quarantined += len(receipt.rejects)
        for reject in receipt.rejects[: max(0, MOST_REJECTS - len(self.rejects))]:
            named = msgspec.structs.replace(reject, path=path, line=first + reject.line)
            self.rejects.append(named)

    def join(self, other: "Tally") -> None:
        self.files += other.files
        self.spans += other.spans
        self.quarantined += other.quarantined
        self.refused += other.refused
        self.fresh += other.fresh
        _count(self.formats, other.formats)
        _count(self.unmapped, other.unmapped)
        self.rejects += other.rejects[: max(0, MOST_REJECTS - len(self.rejects))]


def _count(counts: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count
