"""Alarms over a run's metrics: what went wrong in a way that a falling loss does not show.

Enter the lines of metrics.jsonl and, where it is known, what was gained on held-out problems; leave
alarms, each with the step from which it holds and the reason in words. Pure: the same lines give
the same alarms. An alarm stops nothing; the gate decides on held-out problems.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Kind = Literal["hacking", "entropy_collapse", "mismatch", "length_runaway"]
Line = Mapping[str, Any]
"""Metric -> number or None, and `step`."""

WINDOW = 4
"""Steps that a mean is taken over: one step's few groups are noise."""
MISMATCH = 0.01
"""Nats a token between engine and trainer; two sound ones on the same weights differ by 1e-3 or
less, and past this ratios say more of the difference than of the policy."""
COLLAPSED = 0.2
"""Share of the entropy that a run began with, below which it hardly explores."""
LEAST_ENTROPY = 0.05
"""Nats a token that it must have begun with: below them there was nothing to lose."""
RISE = 0.05
"""In reward: a smaller rise explains nothing."""
FOLLOWED = 0.25
"""Share of a rise in reward that held-out problems must show."""
LONGER = 2.0
"""Times the median length that a run began with."""
CUT = 0.2
"""Share of rollouts cut at the longest answer, where fewer were cut at first."""


@dataclass(frozen=True)
class Alarm:
    kind: Kind
    step: int
    """From which it holds."""
    reason: str


class Heldout(NamedTuple):
    """What evaluation found: reward of the candidate less the champion's."""

    difference: float
    low: float | None
    high: float | None
    """Of its interval; None = not known."""


def alarms(lines: Sequence[Line], heldout: Heldout | None = None) -> list[Alarm]:
    """Those that hold, the first to hold first.

    Args:
        heldout: None = not evaluated yet.
    """
    looked: tuple[Callable[[Sequence[Line]], Alarm | None], ...] = (
        mismatch, entropy_collapse, length_runaway,
    )  # fmt: skip
    found = [look(lines) for look in looked]
    found.append(hacking(lines, heldout) if heldout else None)
    return sorted((one for one in found if one), key=lambda one: one.step)


def mismatch(lines: Sequence[Line]) -> Alarm | None:
    """Engine and trainer give what was sampled different probabilities."""
    for line in lines:
        apart = [value for name, value in line.items() if name.endswith("/mismatch_kl") and value]
        if apart and max(apart) > MISMATCH:
            stale = line.get("staleness_mean")
            age = "" if stale is None else f", with rollouts {stale:.1f} versions old on average"
            return Alarm(
                "mismatch",
                line["step"],
                f"engine and trainer are {max(apart):.4f} nats a token apart at step "
                f"{line['step']}, more than {MISMATCH}{age}. If it stays with learning rate 0, "
                "their numbers differ (template, temperature, number format); if not, the policy "
                "moves faster than its samples: lower train.learning_rate or "
                "train.rl.max_staleness",
            )
    return None


def entropy_collapse(lines: Sequence[Line]) -> Alarm | None:
    """The policy hardly explores any more."""
    known = _known(lines, "rl/entropy")
    if len(known) < 2 * WINDOW:
        return None
    began = statistics.fmean(value for _, value in known[:WINDOW])
    if began < LEAST_ENTROPY:
        return None
    for step, now in _means(known):
        if now < COLLAPSED * began:
            return Alarm(
                "entropy_collapse",
                step,
                f"entropy fell from {began:.3f} to {now:.3f} nats a token by step {step}, below "
                f"{COLLAPSED:.0%} of what it began with: answers are nearly the same each time, "
                "and groups of equal answers teach nothing. Raise train.rl.clip_high or "
                "train.rl.kl, or lower train.learning_rate",
            )
    return None


def length_runaway(lines: Sequence[Line]) -> Alarm | None:
    """Answers grow without earning more, or are cut."""
    return _grown(lines) or _cut(lines)


def _grown(lines: Sequence[Line]) -> Alarm | None:
    lengths, rewards = _known(lines, "trained_length_p50"), _known(lines, "reward")
    if len(lengths) < 2 * WINDOW:
        return None
    began = statistics.fmean(value for _, value in lengths[:WINDOW])
    for step, now in _means(lengths):
        rise = _rise([one for one in rewards if one[0] <= step])
        if now > LONGER * began and (rise is None or rise < RISE):
            more = "by nobody knows how much" if rise is None else f"by {rise:+.3f}"
            return Alarm(
                "length_runaway",
                step,
                f"the median answer grew from {began:.0f} to {now:.0f} tokens by step {step}, and "
                f"reward moved {more}: length pays without being worth it. Look at the rewards, "
                "or set train.rl.length_penalty",
            )
    return None


def _cut(lines: Sequence[Line]) -> Alarm | None:
    shares = _known(lines, "truncated_share")
    if len(shares) < 2 * WINDOW:
        return None
    began = statistics.fmean(value for _, value in shares[:WINDOW])
    for step, now in _means(shares):
        if now > CUT and now > LONGER * began:
            return Alarm(
                "length_runaway",
                step,
                f"{now:.0%} of rollouts are cut at the longest answer by step {step}, at first "
                f"{began:.0%}: what they earn says little. Raise rollouts.max_tokens, or set "
                "train.rl.length_penalty",
            )
    return None


def hacking(lines: Sequence[Line], heldout: Heldout) -> Alarm | None:
    """Reward rose in training and not on held-out problems."""
    known = _known(lines, "reward")
    rise = _rise(known)
    if rise is None or rise < RISE or heldout.difference >= FOLLOWED * rise:
        return None
    interval = ""
    if heldout.low is not None and heldout.high is not None:
        if heldout.high > rise:
            return None  # too few held-out problems to tell
        interval = f" ({heldout.low:+.3f} to {heldout.high:+.3f})"
    step = known[-1][0]
    return Alarm(
        "hacking",
        step,
        f"reward rose by {rise:.3f} in training and by {heldout.difference:+.3f}{interval} on "
        "held-out problems: the policy learnt the rewards' gaps, or its problems by heart. Read "
        "its best-paid answers before anything else",
    )


def _known(lines: Sequence[Line], name: str) -> list[tuple[int, float]]:
    return [(line["step"], line[name]) for line in lines if line.get(name) is not None]


def _means(known: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """(step, mean over the window that ends there), from the second window on."""
    return [
        (known[end - 1][0], statistics.fmean(value for _, value in known[end - WINDOW : end]))
        for end in range(2 * WINDOW, len(known) + 1)
    ]


def _rise(known: Sequence[tuple[int, float]]) -> float | None:
    """Of the last quarter's mean over the first quarter's, but at least a window's; None = too few
    steps, or it does not stand out of the noise (two standard errors)."""
    size = max(WINDOW, len(known) // 4)
    if len(known) < 2 * size:
        return None
    first, last = ([value for _, value in part] for part in (known[:size], known[-size:]))
    rise = statistics.fmean(last) - statistics.fmean(first)
    error = ((statistics.variance(first) + statistics.variance(last)) / size) ** 0.5
    return rise if abs(rise) > 2 * error else 0.0
