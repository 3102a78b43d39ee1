"""Traffic in aggregates: rewards as training has them, unknown never counted as zero."""

from typing import Any

from flywheel.home import Home
from flywheel.records import Feedback, Grade, Usage
from storage.committer import commit
from storage.glance import glance, sequence
from storage.inbox import Inbox
from tests.storage.store_parts import spoken

HOUR = 3600 * 10**9


def stored(home: Home, *records: Any) -> None:
    Inbox(home).append(records)
    commit(home)


def test_a_home_without_a_store_is_unknown_not_zero(home: Home) -> None:
    assert glance(home, "shop") is None
    assert sequence(home) == 0


def test_rewards_are_means_over_what_was_graded_and_copies_count_once(home: Home) -> None:
    at = 1_700_000_000_000_000_000
    traces = [spoken(f"e{k}", question=f"q{k}", start=at + k * HOUR) for k in range(4)]
    again = spoken("other", question="q0", start=at, source="import:x", origin="import")
    sampled = spoken("r", question="q9", start=at, origin="rollout")
    grades = [
        Grade(trace_id=traces[0].id, reward="right", value=1.0, weight=3.0),
        Grade(trace_id=traces[0].id, reward="brief", value=0.0, weight=1.0),
        Grade(trace_id=traces[1].id, reward="right", value=0.0, at=1, grader="old"),
        Grade(trace_id=traces[1].id, reward="right", value=0.5, at=2, grader="new"),
        Grade(trace_id=traces[2].id, reward="right", value=None, reason="no truth"),
        Grade(trace_id=traces[2].id, reward="brief", value=1.0),
    ]
    stored(home, *traces, again, sampled, *grades)
    found = glance(home, "shop")
    assert found is not None
    assert (found.traces, found.graded, found.ungiven, found.unseen) == (4, 2, 1, 1)
    assert found.reward == (0.75 + 0.5) / 2
    assert [(one.traces, one.graded, one.reward) for one in found.buckets] == [
        (1, 1, 0.75), (1, 1, 0.5), (1, 0, None), (1, 0, None),
    ]  # fmt: skip
    assert sequence(home) == 1


def test_sums_say_over_how_much_they_are(home: Home) -> None:
    one, other = spoken("e1", question="a"), spoken("e2", question="b")
    import msgspec

    span = other.spans[0]
    assert span.call
    silent = msgspec.structs.replace(
        span.call, usage=Usage(reason="no usage"), deployment="shop-v2"
    )
    priced = msgspec.structs.replace(silent, cost_usd=0.25)
    stored(
        home,
        one,
        msgspec.structs.replace(other, spans=(msgspec.structs.replace(span, call=priced),)),
        spoken("e3", question="c", start=None),
    )
    found = glance(home, "shop")
    assert found is not None
    assert (found.calls, found.priced, found.cost_usd, found.undated) == (3, 1, 0.25, 1)
    by = {each.deployment: each for each in found.traffic}
    assert (by["shop-v2"].with_usage, by["shop-v2"].input_tokens) == (0, None)
    assert (by[None].with_usage, by[None].input_tokens, by[None].graded) == (2, 20, 0)


def test_a_stretch_of_time_narrows_and_widths_fit_it(home: Home) -> None:
    day = 24 * HOUR
    at = 1_700_000_000_000_000_000
    stored(home, *[spoken(f"e{k}", question=f"q{k}", start=at + k * day) for k in range(200)])
    whole, half = glance(home, "shop"), glance(home, "shop", since=at + 100 * day)
    assert whole is not None and half is not None
    assert (whole.width, len(whole.buckets)) == (7 * day, 30)
    assert (half.traces, half.first) == (100, at + 100 * day)
    assert glance(home, "other").traces == 0  # type: ignore[union-attr]


def test_a_grade_that_people_contradict_waits_for_a_reviewer(home: Home) -> None:
    one, other = spoken("e1", question="a"), spoken("e2", question="b")
    said = [
        Feedback(project="shop", target=each.id, name="liked", value=liked, kind="boolean", at=1)
        for each, liked in ((one, False), (other, True))
    ]
    grades = [Grade(trace_id=each.id, reward="right", value=1.0) for each in (one, other)]
    stored(home, one, other, *said, *grades)
    found = glance(home, "shop")
    assert found is not None and found.disagreeing == 1
