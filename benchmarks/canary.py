"""Canaries by simulation: how often one that is no better is promoted, and after how many requests
a regression is rolled back; ours, looked at after every answer, beside the test that one would
write instead: a z-test of two means at 95%, looked at as often.

    python benchmarks/canary.py [--canaries 200] [--requests 20000] [--picture FILE.png] [--json]

Rewards are 0 or 1; a tenth of the conversations goes to the candidate unless said otherwise. Every
canary ends after `requests` conversations, where guard rails are watched after 5,000 at most. They
see 1% of failed answers of either.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from flywheel.serving_section import ReleaseSection
from serving.observing import Seen
from serving.rails import Rails
from serving.sequential import Interval, Unit, difference

SECTION = ReleaseSection()
_BASE, _SHARE, _FIRST = 0.7, 0.1, 50


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--canaries", type=int, default=200, help="of each kind: %(default)s")
    parser.add_argument("--requests", type=int, default=20_000, help="of each: %(default)s")
    parser.add_argument("--picture", type=Path, help="write a plot there")
    parser.add_argument("--json", action="store_true", help="print one object")
    given = parser.parse_args()
    found = {
        "canaries": given.canaries,
        "requests": given.requests,
        "no_better": {f"{change:+.2f}": no_better(change, given) for change in (0.0, -0.01, -0.03)},
        "regression_of_10_points": {
            f"{share:.0%}": regression(share, given) for share in (0.05, 0.1, 0.2, 0.5)
        },
        "better_by_10_points": better(given),
        "guard_rails": {name: rail(name, given) for name in _RAILS},
    }
    if given.picture:
        picture(found, given.picture)
    for one in found["regression_of_10_points"].values():
        one.pop("after")
    print(json.dumps(found, indent=None if given.json else 2))


def conversations(
    champion: float, candidate: float, share: float, count: int, seed: str
) -> list[Unit]:
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        arm = draw.random() < share
        made.append(Unit(arm, share, float(draw.random() < (candidate if arm else champion))))
    return made


def no_better(change: float, given: argparse.Namespace) -> dict[str, float]:
    """Shares of canaries that are promoted though the candidate is no better."""
    ours = peeked = 0
    for number in range(given.canaries):
        units = conversations(_BASE, _BASE + change, _SHARE, given.requests, f"{change}{number}")
        last, _ = difference(units, SECTION.confidence, grid=401)
        ours += last.low > 0
        peeked += z_test(units) == "promoted"
    return {"promoted": ours / given.canaries, "promoted_by_z_test": peeked / given.canaries}


def regression(share: float, given: argparse.Namespace) -> dict[str, Any]:
    """Conversations until a candidate that is worse by 10 points is rolled back."""
    after = []
    for number in range(given.canaries):
        units = conversations(_BASE, _BASE - 0.1, share, given.requests, f"{share}{number}")
        _, curve = difference(units, SECTION.confidence, grid=401)
        after.append(next((one.units for one in curve if one.high < 0), None))
    return {**spread(after), "after": after}


def better(given: argparse.Namespace) -> dict[str, Any]:
    after = []
    for number in range(given.canaries):
        units = conversations(_BASE, _BASE + 0.1, _SHARE, given.requests, f"better{number}")
        _, curve = difference(units, SECTION.confidence, grid=401)
        after.append(next((one.units for one in curve if one.low > 0), None))
    return spread(after)


def spread(after: Sequence[int | None]) -> dict[str, Any]:
    known = sorted(one for one in after if one is not None)
    at = lambda share: known[min(int(share * len(after)), len(known) - 1)]  # noqa: E731
    return {
        "share_ended": len(known) / len(after),
        "median": at(0.5) if len(known) > len(after) / 2 else None,
        "nine_tenths": at(0.9) if len(known) > 0.9 * len(after) else None,
    }


def z_test(units: Sequence[Unit]) -> str:
    """What two means and 1.96 say at the first look that finds anything, from 50 answers on."""
    n, total = [0, 0], [0.0, 0.0]
    for one in units:
        n[one.challenger] += 1
        total[one.challenger] += one.reward
        if n[1] < _FIRST or not one.challenger:
            continue
        means = [total[arm] / n[arm] for arm in (0, 1)]
        error = math.sqrt(sum(means[arm] * (1 - means[arm]) / n[arm] for arm in (0, 1)))
        if error and abs(means[1] - means[0]) > 1.96 * error:
            return "promoted" if means[1] > means[0] else "rolled back"
    return "nothing"


_RAILS: dict[str, dict[str, float]] = {
    "alike": {},
    "fails_always": {"errors": 1.0},
    "fails_in_11_of_100": {"errors": 0.11},
    "three_times_as_slow": {"slower": 3.0},
    "no_json_in_20_of_100": {"broken": 0.2},
}


def rail(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Requests until the guard rails take a candidate out; `alike`: how often they are wrong."""
    count = min(given.requests, 5000)
    after = [_watched(_RAILS[name], count, f"{name}{n}") for n in range(given.canaries)]
    return spread(after) if any(one is not None for one in after) else {"share_ended": 0.0}


def _watched(does: dict[str, float], count: int, seed: str) -> int | None:
    draw, rails = random.Random(seed), Rails()
    for number in range(1, count + 1):
        arm, seconds = draw.random() < _SHARE, draw.lognormvariate(0, 0.6)
        failed = draw.random() < (does.get("errors", 0.01) if arm else 0.01)
        broken = arm and draw.random() < does.get("broken", 0.0)
        seen = Seen(
            project="p", deployment="", at=0, end="failed" if failed else "answered",
            total_s=seconds * (does.get("slower", 1.0) if arm else 1.0),
            output_tokens=int(100 * seconds), refusal=False, broken="no JSON" if broken else None,
        )  # fmt: skip
        rails.hear(seen, arm, SECTION)
        # Looked at after each answer of the candidate while it is new, later every 20th request.
        if ((number < 1000 and arm) or number % 20 == 0) and rails.breach(SECTION):
            return number
    return None


def picture(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    units = conversations(_BASE, _BASE - 0.1, _SHARE, 6000, "picture")
    _, curve = difference(units, SECTION.confidence)
    one_canary(left, curve)
    for share, color in zip(found["regression_of_10_points"], _COLORS, strict=True):
        after = found["regression_of_10_points"][share]["after"]
        known = sorted(one for one in after if one is not None)
        heights = [(place + 1) / len(after) for place in range(len(known))]
        right.step(known, heights, where="post", label=f"{share} of requests", color=color)
    right.set(
        xscale="log", xlabel="conversations, both arms together", ylabel="share rolled back",
        title="A candidate worse by 10 points", ylim=(0, 1.02),
    )  # fmt: skip
    right.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=110)


_COLORS = ("#9aa5b1", "#3b82c4", "#2f9e6e", "#e07b39")


def one_canary(axes: Any, curve: Sequence[Interval]) -> None:
    at = [one.units for one in curve]
    axes.fill_between(
        at, [one.low for one in curve], [one.high for one in curve], color="#3b82c4", alpha=0.2,
        label="95% at all looks together",
    )  # fmt: skip
    means = [math.nan if one.difference is None else one.difference for one in curve]
    axes.plot(at, means, color="#3b82c4", label="difference of means")
    axes.axhline(0, color="#9aa5b1", linestyle="--")
    ended = next((one.units for one in curve if one.high < 0), None)
    if ended is not None:
        axes.axvline(ended, color="#d1495b", label=f"rolled back after {ended:,}")
    axes.set(
        ylim=(-0.5, 0.5), xlabel="conversations, a tenth to the candidate",
        ylabel="candidate's reward less champion's", title="One canary, 10 points worse",
    )  # fmt: skip
    axes.legend(frameon=False)


if __name__ == "__main__":
    main()
