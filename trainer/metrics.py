"""metrics.jsonl: one line an optimizer step, in the operating system's hands when the step is done.

A line is flat: the fields of StepMetrics, and beside them whatever else the step measured, by name.
`loss/COMPONENT` is that component's part of the loss; `COMPONENT/NAME` a stat of it
(`trainer.losses`); without a slash before it, what the rollouts' side told (`trainer.spool.Batch`)
or the machine did. None = not known. A run that resumes at a step first drops the lines after it:
each step has one line, however often the run was killed.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from flywheel.durable import no_space, write


class StepMetrics(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    """From 1."""
    loss: float
    ce_tokens: int
    """Trained tokens of the cross-entropy; its denominator."""
    tokens: int
    """Of all samples, as if each were computed alone."""
    computed_tokens: int
    """Really computed: shared prefixes once a micro-batch."""
    micro_batches: int
    learning_rate: float
    grad_norm: float
    """Before clipping."""
    tokens_per_second: float
    """Of `tokens`."""
    seconds: float
    measured: Mapping[str, float | None] = {}
    """All else, by name. In the file it stands beside the fields, and gives way to them."""


_FIELDS = frozenset(StepMetrics.__struct_fields__) - {"measured"}


def encode(line: StepMetrics) -> bytes:
    """One line, without its end. A number that is none (not finite) is not known."""
    flat: dict[str, Any] = msgspec.structs.asdict(line)
    measured = flat.pop("measured")
    known = {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in measured.items()
    }
    return msgspec.json.encode(known | flat)


def decode(raw: bytes) -> StepMetrics:
    """
    Raises:
        msgspec.DecodeError: not a whole line of ours.
    """
    flat = msgspec.json.decode(raw, type=dict[str, Any])
    measured = {name: flat[name] for name in flat if name not in _FIELDS}
    fields = {name: flat[name] for name in flat if name in _FIELDS}
    return msgspec.convert({**fields, "measured": measured}, StepMetrics)


class MetricsFile:
    def __init__(self, path: Path, *, after: int) -> None:
        """Opens `path` to go on after step `after`."""
        write(path, b"".join(encode(line) + b"\n" for line in read(path, up_to=after)))
        self._path, self._file = path, path.open("ab", buffering=0)

    def append(self, line: StepMetrics) -> None:
        rest = encode(line) + b"\n"
        with no_space(self._path):
            while rest:  # a disk that is nearly full takes a part, and says so at the next one
                rest = rest[self._file.write(rest) :]

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


def read(path: Path, *, up_to: int | None = None) -> list[StepMetrics]:
    """The whole lines of `path`; what a kill left half written ends the list."""
    if not path.exists():
        return []
    lines: list[StepMetrics] = []
    for raw in path.read_bytes().split(b"\n"):
        try:
            line = decode(raw)
        except msgspec.DecodeError:
            break
        if up_to is None or line.step <= up_to:
            lines.append(line)
    return lines
