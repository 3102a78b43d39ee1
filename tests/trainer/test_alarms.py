from collections.abc import Sequence
from typing import Any

import pytest

from trainer.alarms import Heldout, alarms


def run(count: int = 16, **metrics: Sequence[float | None] | float) -> list[dict[str, Any]]:
    """Lines of a run; a number is a metric's value at each step."""
    return [
        {"step": step + 1}
        | {
            name.replace("__", "/"): values if isinstance(values, float) else values[step]
            for name, values in metrics.items()
        }
        for step in range(count)
    ]


def line(first: float, last: float, count: int = 16) -> list[float]:
    return [first + (last - first) * step / (count - 1) for step in range(count)]


def kinds(lines: list[dict[str, Any]], heldout: Heldout | None = None) -> list[str]:
    return [one.kind for one in alarms(lines, heldout)]


SOUND = {
    "rl__entropy": line(1.0, 0.6), "rl__mismatch_kl": 1e-4, "trained_length_p50": 40.0,
    "truncated_share": 0.02, "reward": line(0.3, 0.8),
}  # fmt: skip


def test_a_sound_run_raises_none() -> None:
    assert kinds(run(**SOUND), Heldout(0.4, 0.3, 0.5)) == []
    assert kinds([]) == kinds(run(2, **SOUND)) == [], "too short to tell"
    assert kinds(run(loss=line(2.0, 0.1)), Heldout(-0.1, -0.2, 0.0)) == [], "nothing is measured"


def test_reward_without_held_out_gain() -> None:
    (alarm,) = alarms(run(**SOUND), Heldout(0.01, -0.05, 0.07))
    assert alarm.kind == "hacking" and alarm.step == 16
    assert "+0.010 (-0.050 to +0.070) on held-out problems" in alarm.reason
    assert kinds(run(**SOUND), Heldout(0.05, -0.6, 0.7)) == [], "too few problems to tell"
    flat = SOUND | {"reward": 0.5}
    assert kinds(run(**flat), Heldout(-0.2, -0.3, -0.1)) == [], "nothing rose"
    noise = SOUND | {"reward": [0.2, 0.8] * 8}
    assert kinds(run(**noise), Heldout(0.0, -0.1, 0.1)) == []


def test_entropy_collapse() -> None:
    fallen = SOUND | {"rl__entropy": line(1.0, 0.02)}
    (alarm,) = alarms(run(**fallen))
    assert alarm.kind == "entropy_collapse" and alarm.step == 16
    assert "nats a token by step 16" in alarm.reason
    never = SOUND | {"rl__entropy": line(0.03, 0.001)}
    assert kinds(run(**never)) == [], "there was none to lose"


@pytest.mark.parametrize("name", ["rl__mismatch_kl", "distill__mismatch_kl"])
def test_mismatch(name: str) -> None:
    values = [1e-4] * 5 + [0.02] * 11
    (alarm,) = alarms(run(**(SOUND | {name: values, "staleness_mean": 3.0})))
    assert (alarm.kind, alarm.step) == ("mismatch", 6)
    assert "0.0200 nats" in alarm.reason and "3.0 versions old" in alarm.reason


def test_length_runaway() -> None:
    longer = SOUND | {"trained_length_p50": line(40.0, 160.0), "reward": 0.5}
    (alarm,) = alarms(run(**longer))
    assert alarm.kind == "length_runaway" and "+0.000" in alarm.reason
    assert kinds(run(**(longer | {"reward": line(0.3, 0.8)}))) == [], "length that earns is welcome"
    cut = SOUND | {"truncated_share": line(0.0, 0.6)}
    (alarm,) = alarms(run(**cut))
    assert alarm.kind == "length_runaway" and "are cut" in alarm.reason


def test_several_stand_in_the_order_they_came_and_nulls_are_skipped() -> None:
    lines = run(**(SOUND | {"rl__entropy": line(1.0, 0.02), "rl__mismatch_kl": 0.5}))
    assert kinds(lines) == ["mismatch", "entropy_collapse"]
    empty = run(**{name: [None] * 16 for name in SOUND})
    assert kinds(empty, Heldout(0.0, None, None)) == []
