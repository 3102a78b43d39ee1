"""How an evaluation goes, in one line: what runs, the reward so far, speed, cost, time left."""

import math
import time

from tasks.eval_rows import Rows
from tasks.eval_summary import Price, cost_of

_EVERY_S = 2.0


class Pace:
    def __init__(self, rows: Rows, price: Price) -> None:
        self.rows, self.price = rows, price
        self.begun = 0
        """Attempts handed out by this process."""
        self.ended = 0
        self._since = time.monotonic()
        self._before = rows.done
        self._said = (0.0, "")

    def note(self, *, fresh: bool = False) -> str:
        """What runs is as it is now; the rest is computed anew every few seconds only."""
        now = time.monotonic()
        if fresh or now - self._said[0] > _EVERY_S:
            self._said = (now, self._note(now - self._since))
        left = self.rows.planned - self.rows.done
        running = f"{min(max(self.begun - self.ended, 0), left)} running"
        return " \u00b7 ".join(filter(None, (running, self._said[1])))

    def _note(self, seconds: float) -> str:
        rows = list(self.rows.rows.values())
        parts = [_reward(rows_scores(self.rows))]
        tokens = sum(row.output_tokens or 0 for row in rows[-self.ended :] if self.ended)
        if tokens and seconds > 0:
            parts.append(f"{tokens / seconds:.0f} tokens/s")
        cost = cost_of(rows, self.price)["usd"]
        if cost is not None and rows:
            parts.append(f"${cost:.4f}")
        left = self.rows.planned - self.rows.done
        if self.ended and left > 0:
            parts.append(f"{_duration(left * seconds / self.ended)} left")
        return " \u00b7 ".join(part for part in parts if part)


def rows_scores(rows: Rows) -> list[float]:
    return [row.score for row in rows.rows.values() if row.score is not None]


def _reward(scores: list[float]) -> str:
    """The mean with the half-width of its normal interval: of episodes, and only to look at."""
    if not scores:
        return ""
    mean = math.fsum(scores) / len(scores)
    if len(scores) < 2:
        return f"reward {mean:.3f}"
    spread = math.fsum((score - mean) ** 2 for score in scores) / (len(scores) - 1)
    return f"reward {mean:.3f} \u00b1 {1.96 * math.sqrt(spread / len(scores)):.3f}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
