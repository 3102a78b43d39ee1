"""What a person sees while work goes on: one line a step, on standard error."""

import sys
import time

from flywheel import progress
from flywheel.plain import plain

BRIEF = ("committing",)
"""Steps inside other steps: shown only when they take long."""
BRIEF_S = 2.0


class Lines:
    """Shows progress: in place on a terminal, else a line every few seconds and at each end."""

    def __init__(self, every_s: float = 5.0) -> None:
        self.every_s, self.live = every_s, sys.stderr.isatty()
        self.step, self.started, self.shown = "", time.monotonic(), 0.0
        self.brief_since: float | None = None

    def __call__(self, step: str, done: int, total: int | None, note: str) -> None:
        now = time.monotonic()
        if step in BRIEF and not self._long(now, done, total):
            return
        if step != self.step:
            self._end()
            self.step, self.started, self.shown = step, now, 0.0
        over = total is not None and done >= total
        if self.live or over or now - self.shown >= self.every_s:
            self.shown = now
            of = f"{done}/{total}" if total is not None else (str(done) if done else "")
            text = f"  {step:<28} {of:>11} {now - self.started:6.1f} s  {plain(note)}"
            sys.stderr.write(f"\r\033[K{text}" if self.live else f"{text}\n")
            sys.stderr.flush()

    def _long(self, now: float, done: int, total: int | None) -> bool:
        """Whether a brief step has been going on for a while."""
        since = self.brief_since if self.brief_since is not None else now
        self.brief_since = None if total is not None and done >= total else since
        return now - since >= BRIEF_S

    def _end(self) -> None:
        if self.live and self.step:
            sys.stderr.write("\n")


def show_progress() -> None:
    progress.listen(Lines())
