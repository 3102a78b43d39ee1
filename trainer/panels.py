"""What is drawn beside what: the metrics of a run's steps, as panels with lines.

Enter the names of the metrics that a run has (`trainer.metrics`); leave panels with those of their
lines that it has. MLflow's page and the dashboard draw the same ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    """Of the vertical axis."""
    lines: tuple[tuple[str, str], ...]
    """(metric, what a person calls it); a metric "*/NAME" is that of any component, "NAME/*" any
    that begins so, and the star is what its line is called by."""


PANELS: tuple[Panel, ...] = (
    Panel("Loss", "loss", (("loss", "loss"),)),
    Panel("Loss by component", "loss", (("loss/*", ""),)),
    Panel("Reward", "reward", (("reward", "mean"), ("reward_std", "spread"))),
    Panel("Reward by slice", "reward", (("reward/*", ""),)),
    Panel("Entropy", "nats a token", (("*/entropy", ""),)),
    Panel("Engine and trainer apart", "nats a token", (("*/mismatch_kl", ""),)),
    Panel(
        "Held back",
        "share of the tokens of that sign",
        (
            ("rl/clipped_positive", "clipped, advantage above 0"),
            ("rl/clipped_negative", "clipped, below 0"),
            ("rl/masked_positive", "masked, above 0"),
            ("rl/masked_negative", "masked, below 0"),
        ),
    ),
    Panel("Effective sample size", "share", (("rl/effective_sample_size", "of the tokens"),)),
    Panel(
        "KL",
        "nats a token",
        (("ref_kl/kl", "to the start"), ("distill/reverse_kl", "to the teacher")),
    ),
    Panel("Preferences", "share", (("dpo/accuracy", "pairs in the right order"),)),
    Panel(
        "Implicit rewards",
        "reward",
        (
            ("dpo/reward_chosen", "chosen"),
            ("dpo/reward_rejected", "rejected"),
            ("kto/reward_desirable", "desirable"),
            ("kto/reward_undesirable", "undesirable"),
        ),
    ),
    Panel("Staleness", "versions", (("staleness_mean", "mean"), ("staleness_max", "largest"))),
    Panel(
        "Lost and cut",
        "share of rollouts",
        (
            ("dropped_share", "dropped"),
            ("truncated_share", "cut at the longest answer"),
            ("ungraded_share", "without a reward"),
        ),
    ),
    Panel(
        "Idle",
        "share of the time",
        (("engine_idle_share", "engine"), ("trainer_idle_share", "trainer")),
    ),
    Panel(
        "Length",
        "tokens a rollout",
        (
            ("trained_length_p50", "median"),
            ("trained_length_p90", "90th percentile"),
            ("trained_length_p100", "longest"),
        ),
    ),
    Panel("Tokens per second", "tokens", (("tokens_per_second", "trained"),)),
    Panel("FLOPs share", "of a matrix product's", (("flops_share", "trainer"),)),
    Panel("Memory", "MiB", (("memory_mib", "most so far"),)),
    Panel("Gradient norm", "before clipping", (("grad_norm", "gradient norm"),)),
    Panel("Learning rate", "of AdamW", (("learning_rate", "learning rate"),)),
    Panel("Trained tokens", "of the cross-entropy", (("ce_tokens", "trained tokens"),)),
)
MOST_LINES = 12
"""In a panel; a run with more slices shows the first by name."""


def drawn(names: Iterable[str]) -> list[Panel]:
    """The panels that a run with these metrics has lines for."""
    known = sorted(set(names))
    found = []
    for panel in PANELS:
        lines = [line for wanted in panel.lines for line in _matched(*wanted, known)]
        if lines:
            found.append(Panel(panel.title, panel.unit, tuple(lines[:MOST_LINES])))
    return found


def _matched(wanted: str, label: str, known: list[str]) -> list[tuple[str, str]]:
    before, star, after = wanted.partition("*")
    if not star:
        return [(wanted, label)] if wanted in known else []
    return [
        (name, name.removeprefix(before).removesuffix(after))
        for name in known
        if name.startswith(before) and name.endswith(after) and len(name) > len(wanted) - 1
    ]
