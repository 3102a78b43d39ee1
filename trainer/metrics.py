"""metrics.jsonl: one line an optimizer step, in the operating system's hands when the step is done.

A run that resumes at a step first drops the lines after it: each step has one line, however often
the run was killed.
"""

from pathlib import Path
from types import TracebackType

import msgspec

from flywheel.durable import write


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


class MetricsFile:
    def __init__(self, path: Path, *, after: int) -> None:
        """Opens `path` to go on after step `after`."""
        write(path, b"".join(msgspec.json.encode(line) + b"\n" for line in read(path, up_to=after)))
        self._file = path.open("ab", buffering=0)

    def append(self, line: StepMetrics) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")

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
            line = msgspec.json.decode(raw, type=StepMetrics)
        except msgspec.DecodeError:
            break
        if up_to is None or line.step <= up_to:
            lines.append(line)
    return lines
