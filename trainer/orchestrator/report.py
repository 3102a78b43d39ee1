"""What a step's batch says of how it was scheduled: staleness, what was dropped, who was idle.

Enter what the driver notes as it goes; leaves name -> number for the step's metrics. None = not
known, as where a run just went on and has measured nothing yet.
"""

import statistics
from collections.abc import Sequence

from trainer.orchestrator.contract import Facts
from trainer.orchestrator.scheduler import Ready

Report = dict[str, float | None]


class Meter:
    """Shares are of the time since the step before; counts of dropped work, of the whole run since
    it was last started."""

    def __init__(self, now: float) -> None:
        self.ended = self.dropped = self.retried = self.refused = 0
        """Rollouts that ended; rollouts of them that no step will train, for their age or because
        infrastructure failed them; tries that failed and were repeated; groups not to be trained
        on."""
        self.training = False
        self.waiting = False
        """For stragglers, with enough groups ready."""
        self._last = self._since = now
        self._busy = self._room = self._trained = self._waited = 0.0

    def tick(self, now: float, playing: int, capacity: int) -> None:
        """`playing` and `capacity`: as they were since the last tick."""
        passed, self._last = now - self._last, now
        self._busy += passed * playing
        self._room += passed * max(capacity, playing)
        self._trained += passed * self.training
        self._waited += passed * self.waiting

    def report(self, base: int, batch: Sequence[Ready], oldest: int) -> Report:
        """
        Args:
            base: the version that the step trains from.
            oldest: the oldest version that may be trained; tokens of older ones are overaged.
        """
        rollouts = [one for group in batch for one in group.rollouts]
        ages = [base - min(one.versions) for one in rollouts if one.versions]
        seconds, lengths = [one.seconds for one in rollouts], [one.tokens for one in rollouts]
        passed = self._last - self._since
        told: Report = {
            "staleness_mean": statistics.fmean(ages) if ages else None,
            "staleness_max": float(max(ages)) if ages else None,
            "overaged_tokens": overaged(rollouts, oldest),
            "rollout_seconds_mean": statistics.fmean(seconds) if seconds else None,
            "trained_rollout_tokens": float(sum(lengths)),
            "ended_rollouts": float(self.ended),
            "dropped_rollouts": float(self.dropped),
            "dropped_share": self.dropped / self.ended if self.ended else None,
            "retried_rollouts": float(self.retried),
            "refused_groups": float(self.refused),
            "rollouts_playing_mean": self._busy / passed if passed else None,
            "engine_idle_share": 1 - self._busy / self._room if self._room else None,
            "trainer_idle_share": 1 - self._trained / passed if passed else None,
            "waited_for_stragglers_share": self._waited / passed if passed else None,
        }
        for part in (50, 90, 100):
            told[f"rollout_seconds_p{part}"] = percentile(seconds, part)
            told[f"trained_length_p{part}"] = percentile(lengths, part)
        self._since = self._last
        self._busy = self._room = self._trained = self._waited = 0.0
        return told


def overaged(rollouts: Sequence[Facts], oldest: int) -> float | None:
    """Tokens that a version before `oldest` sampled; None = not every rollout says."""
    late = 0
    for one in rollouts:
        if one.versions and one.versions[0] < oldest and not one.sampled:
            return None
        late += sum(
            count
            for version, count in zip(one.versions, one.sampled, strict=False)
            if version < oldest
        )
    return float(late)


def percentile(values: Sequence[float], part: int) -> float | None:
    """Nearest rank."""
    if not values:
        return None
    return float(sorted(values)[max(0, -(-len(values) * part // 100) - 1)])
