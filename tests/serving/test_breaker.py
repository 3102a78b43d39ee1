"""When a deployment that fails is left alone, and when it is tried again."""

from serving.breaker import Breaker


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ended(breaker: Breaker, *passed: bool) -> None:
    for one in passed:
        breaker.begin()
        (breaker.passed if one else breaker.failed)()


def test_five_failures_in_a_row_open_it_and_four_do_not() -> None:
    breaker = Breaker(Clock())
    ended(breaker, False, False, False, False, True, False, False, False, False)
    assert breaker.may()
    ended(breaker, False)
    assert not breaker.may()


def test_half_of_twenty_failing_opens_it_though_never_five_in_a_row() -> None:
    breaker = Breaker(Clock())
    ended(breaker, *[True, False] * 9, True)
    assert breaker.may()
    ended(breaker, False)
    assert not breaker.may()


def test_what_failed_over_a_minute_ago_does_not_count() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    ended(breaker, *[True, False] * 9)
    clock.now = 61.0
    ended(breaker, True, False, False)
    assert breaker.may()


def test_after_its_pause_one_request_probes_and_no_second_beside_it() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    ended(breaker, *[False] * 5)
    clock.now = 2.5
    assert breaker.may()
    breaker.begin()
    assert not breaker.may()
    breaker.passed()
    assert breaker.may() and not breaker.open


def test_each_failed_probe_doubles_the_pause_up_to_a_minute() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    ended(breaker, *[False] * 5)
    for pause in (2, 4, 8, 16, 32, 60, 60):
        begun = clock.now
        clock.now = begun + pause * 0.79
        assert not breaker.may()
        clock.now = begun + pause * 1.21
        assert breaker.may()
        ended(breaker, False)


def test_a_probe_whose_client_left_makes_room_for_another() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    ended(breaker, *[False] * 5)
    clock.now = 3.0
    breaker.begin()
    breaker.left()
    assert breaker.may()
