import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.curate_section import CurateSection
from flywheel.errors import ProjectError
from flywheel.records import say
from storage.curate import RuleSpec, check_rules, curate, rule_specs
from tests.storage.rows_for_curation import a_problem, a_row


def spec(name: str, **params: Any) -> RuleSpec:
    return RuleSpec(name=name, params=params)


DEFAULT = rule_specs(CurateSection())


def test_the_default_rules_of_a_project_keep_good_rows_and_count_each_loss() -> None:
    rows = [
        *(a_row(k) for k in range(4)),
        a_row(4, fidelity="view_only"),
        a_row(5, confirmed_by=None),
        a_row(6, reward=None),
        a_row(0, trace_id="copy"),
        a_row(7, problem_id="problem-1", reward=1.0),
        a_row(8, user="held"),
    ]
    curated = curate(rows, DEFAULT, [a_problem("Where is it?", user="held")], 0.7)
    assert len(curated.rows) == 4
    assert [(count.rule, count.rows_in, count.rows_out) for count in curated.counts] == [
        ("leakage", 10, 9),
        ("fidelity", 9, 8),
        ("self_training", 8, 7),
        ("min_reward", 7, 6),
        ("exact_duplicates", 6, 5),
        ("length", 5, 5),
        ("per_problem", 5, 4),
    ]
    assert len(curated.dropped) == 6
    assert {dropped.trace_id for dropped in curated.dropped if dropped.rule == "leakage"} == {
        "trace-8"
    }
    assert curated.counts[0].note == "against 1 held-out problems: 1 by user, touching 1 of them"
    assert curated.counts[3].note == "value=1.0"


def test_nothing_in_nothing_out_with_every_rule_counted() -> None:
    curated = curate([], DEFAULT, [], 0.7)
    assert curated.rows == () and curated.dropped == ()
    assert [(count.rows_in, count.rows_out) for count in curated.counts] == [(0, 0)] * 7


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_in_which_rows_come_changes_nothing(shuffler: random.Random) -> None:
    rows = [
        a_row(
            k,
            problem_id=f"p{k % 3}",
            slice="ab"[k % 2],
            messages=(say("user", f"q {k // 2}"),),
            completion=say("assistant", f"a {k % 4}"),
        )
        for k in range(12)
    ]
    rules = [spec("exact_duplicates"), spec("per_problem", keep=2), spec("balance", most=2)]
    heldout = [a_problem("one two three four"), a_problem("five", conversation="conversation-5")]
    expected = curate(rows, rules, heldout, 0.7)
    wanted = (expected.rows, expected.dropped, expected.counts)
    shuffler.shuffle(rows)
    shuffler.shuffle(heldout)
    found = curate(rows, rules, heldout, 0.7)
    assert (found.rows, found.dropped, found.counts) == wanted


def test_leakage_runs_even_where_a_project_has_no_rules_and_before_those_it_has() -> None:
    # The leak is the better rewarded of the two: it must not take the clean one's place.
    leak = a_row(1, problem_id="p", conversation="held")
    clean = a_row(2, problem_id="p", reward=0.5)
    heldout = [a_problem("x", conversation="held")]
    assert curate([leak], [], heldout, 0.7).rows == ()
    assert curate([leak, clean], [spec("per_problem")], heldout, 0.7).rows == (clean,)


def test_every_dropped_row_says_which_and_why() -> None:
    curated = curate([a_row(1, reward=0.0)], [spec("min_reward", value=1)], [], 0.7)
    [dropped] = curated.dropped
    assert (dropped.row_id, dropped.trace_id) == (a_row(1).id, "trace-1")
    assert (dropped.rule, dropped.reason) == ("min_reward", "reward 0 is under 1")


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (spec("min_rewrd", value=1), "no curation rule 'min_rewrd'; did you mean 'min_reward'?"),
        (spec("zzz"), "no curation rule 'zzz'; known: agreement, balance"),
        (spec("min_reward", vlaue=1), "no parameter 'vlaue'; did you mean 'value'?"),
        (spec("min_reward"), "value: Field required"),
        (spec("min_reward", value="much"), "value: Input should be a valid number"),
        (spec("min_reward", value=float("nan")), "finite number"),
        (spec("per_problem", keep=0), "keep: Input should be greater than or equal to 1"),
        (spec("exact_duplicates", by="text"), "no parameter 'by'; it takes none"),
        (spec("balance", by=[]), "at least 1 item"),
        (spec("balance", by="colour"), "by.0: Input should be 'slice'"),
        (spec("fidelity", accept=["view_only"]), "accept.0"),
        (spec("confirmed", exempt=["rollouts"]), "exempt.0"),
    ],
)
def test_a_rule_or_parameter_that_does_not_fit_is_named(rule: RuleSpec, told: str) -> None:
    with pytest.raises(ProjectError) as raised:
        curate([], [rule], [], 0.7)
    assert told in str(raised.value)


def test_all_that_does_not_fit_is_told_at_once() -> None:
    with pytest.raises(ProjectError) as raised:
        check_rules([spec("one"), spec("length", max=1), spec("length", max_tokens=5)])
    assert len(str(raised.value).splitlines()) == 2
    section = CurateSection.model_validate({"rules": [{"name": "fidelty"}]})
    with pytest.raises(ProjectError, match="'fidelity'"):
        rule_specs(section)
