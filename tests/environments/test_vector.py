from environments.vector import Entry, token_values, vector
from flywheel.records import Grade, ModelCall, Span, Trace


def grade(reward: str, value: float | None, weight: float = 1.0, span: str | None = None) -> Grade:
    reason = "why" if value is None else None
    return Grade(trace_id="t", reward=reward, value=value, weight=weight, span_id=span,
                 reason=reason)  # fmt: skip


def trace() -> Trace:
    """Two model calls; the first asked for two tools, one of them without a parent; a sub-agent's
    tool hangs on the second."""
    call = ModelCall(input=())
    spans = (
        Span(id="m1", kind="model", start=1, call=call),
        Span(id="t1", kind="tool", start=2, parents=("m1",)),
        Span(id="t2", kind="tool", start=3),
        Span(id="m2", kind="model", start=4, call=call, parents=("m1",)),
        Span(id="a", kind="agent", start=5, parents=("m2",)),
        Span(id="t3", kind="tool", start=6, parents=("a",)),
    )
    return Trace(id="t", project="p", source="s", external_id="x", origin="rollout", spans=spans)


def test_a_vector_has_one_entry_a_reward_and_a_null_step_makes_its_entry_null() -> None:
    given = [
        grade("right", 1.0, 2.0), grade("length", 5.0, 0.0), grade("lost", None),
        grade("step", 1.0, span="m1"), grade("step", 0.0, span="m2"),
        grade("tool", 1.0, span="t1"), grade("tool", None, span="t2"),
    ]  # fmt: skip
    assert vector(given) == (
        Entry("right", 1.0, 2.0),
        Entry("length", 5.0, 0.0),
        Entry("lost", None, 1.0, None, "why"),
        Entry("step", 0.5, 1.0, 2),
        Entry("tool", None, 1.0, 2, "why"),
    )


def test_each_call_is_worth_the_weighted_mean_of_all_that_speaks_of_it() -> None:
    given = [
        grade("right", 1.0, 2.0), grade("style", 0.5, 1.0), grade("length", 9.0, 0.0),
        grade("step", 0.0, 1.0, "m1"), grade("step", 1.0, 1.0, "m2"),
        grade("tool", 1.0, 3.0, "t1"), grade("tool", 0.0, 3.0, "t2"), grade("tool", 1.0, 3.0, "t3"),
    ]  # fmt: skip
    assert token_values(trace(), given) == {
        "m1": (2 * 1.0 + 1 * 0.5 + 1 * 0.0 + 3 * 0.5) / 7,
        "m2": (2 * 1.0 + 1 * 0.5 + 1 * 1.0 + 3 * 1.0) / 7,
    }


def test_a_null_outcome_masks_the_trace_and_a_null_step_its_own_call() -> None:
    step = [grade("step", None, 1.0, "m1"), grade("step", 1.0, 1.0, "m2")]
    assert token_values(trace(), [grade("right", 0.0), *step]) == {"m1": None, "m2": 0.5}
    assert token_values(trace(), [grade("right", None), *step]) == {"m1": None, "m2": None}
    assert token_values(trace(), [grade("length", None, 0.0)]) == {"m1": None, "m2": None}
    assert token_values(trace(), [grade("right", 1.0)]) == {"m1": 1.0, "m2": 1.0}
