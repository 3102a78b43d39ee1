"""A step's numbers, worked out by hand."""

from trainer.orchestrator.contract import Facts
from trainer.orchestrator.report import Meter, overaged
from trainer.orchestrator.scheduler import Ready


def test_shares_are_of_the_time_since_the_step_before() -> None:
    meter = Meter(now=100.0)
    meter.tick(110.0, playing=3, capacity=4)
    meter.training = True
    meter.tick(130.0, playing=4, capacity=4)
    meter.training, meter.waiting = False, True
    meter.tick(140.0, playing=0, capacity=4)
    meter.ended, meter.dropped = 8, 2
    rollouts = (
        Facts((2, 3), 30, 10.0, (10, 20)),
        Facts((4,), 50, 2.0, (50,)),
        Facts((), 0, 1.0),
    )
    batch = [Ready("a", 0, 2, 4, rollouts)]
    told = meter.report(5, batch, oldest=3)
    assert told["engine_idle_share"] == 1 - (30 + 80 + 0) / (4 * 40)
    assert told["trainer_idle_share"] == 0.5
    assert told["waited_for_stragglers_share"] == 0.25
    assert told["rollouts_playing_mean"] == 110 / 40
    assert told["staleness_mean"] == 2.0 and told["staleness_max"] == 3.0
    assert told["overaged_tokens"] == 10.0
    assert told["dropped_share"] == 0.25
    assert told["trained_rollout_tokens"] == 80.0
    assert told["trained_length_p50"] == 30.0 and told["trained_length_p100"] == 50.0
    meter.tick(150.0, playing=4, capacity=4)
    assert meter.report(6, batch, oldest=4)["engine_idle_share"] == 0.0


def test_what_nothing_was_measured_of_is_not_known() -> None:
    told = Meter(now=0.0).report(0, [], oldest=-8)
    unknown = {name for name, value in told.items() if value is None}
    assert {"staleness_mean", "dropped_share", "engine_idle_share", "trained_length_p50"} <= unknown


def test_overaged_tokens_are_not_guessed() -> None:
    assert overaged([Facts((2, 5), 9, 1.0)], oldest=3) is None
    assert overaged([Facts((3, 5), 9, 1.0)], oldest=3) == 0.0
