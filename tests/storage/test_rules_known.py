"""Rules that look beside the row: at other rows, at what was said of it, at what is known."""

from typing import Any

import pytest

from flywheel.records import say
from flywheel.rows import Signal, TrainingRow
from storage.curate import RuleSpec, curate
from storage.rules import RULES
from storage.rules.rule import Known
from tests.storage.rows_for_curation import a_row, a_signal, judged

DAY = 86_400 * 10**9
NOW = Known(project="support", now=100 * DAY)


def kept(reasons: list[str | None]) -> list[bool]:
    return [reason is None for reason in reasons]


# --- agreement -----------------------------------------------------------------------------------


def test_grades_far_apart_go_and_say_from_where_to_where() -> None:
    near = a_row(1, signals=(a_signal(0.5), a_signal(1.0, "judge")))
    far = a_row(2, signals=(a_signal(0.0), a_signal(1.0, "judge")))
    metric = a_row(3, signals=(a_signal(0.0, weight=0.0), a_signal(1.0, "judge")))
    assert judged("agreement", [near, far, metric]) == [
        None, "its grades reach from 0.0 to 1.0, at most 0.5 apart wanted", None,
    ]  # fmt: skip
    assert judged("agreement", [far], apart=None) == [None]
    assert judged("agreement", [near], graders=3) == ["2 grades, at least 3 wanted"]


def test_reviewers_must_be_enough_and_of_one_mind() -> None:
    rows = [a_row(k) for k in range(4)]
    known = Known(reviews={"trace-0": (3, 1.0), "trace-1": (3, 0.33), "trace-2": (4, 0.5)})
    assert judged("agreement", rows, known, share=0.6) == [
        None, None, "50% of its 4 reviewers agree, 60% wanted", None,
    ]  # fmt: skip
    assert judged("agreement", rows[3:], known, reviewers=2) == ["0 reviewers, at least 2 wanted"]


# --- difficulty, balance -------------------------------------------------------------------------


def test_problems_that_the_champion_always_or_never_solves_go() -> None:
    rows = [a_row(k) for k in range(4)]
    rates = {"problem-0": 0.0, "problem-1": 0.5, "problem-2": 1.0}
    known = Known(pass_rates=rates, tries={"problem-0": 8, "problem-1": 4})
    easy, hard = judged("difficulty", rows, known, low=0.1), judged("difficulty", rows, known)
    assert kept(easy) == [False, True, False, True] and kept(hard) == [True, True, False, True]
    assert easy[0] == "the champion passes its problem in 0% of 8 answers, 10% to 95% wanted"
    few = judged("difficulty", rows, known, answers=4, low=0.1, unknown="drop")
    assert kept(few) == [False, True, False, False]
    assert few[2] == "how hard its problem is for the champion is not known"


def test_strata_may_be_clusters_of_traffic_or_quarters_of_difficulty() -> None:
    rows = [a_row(k) for k in range(6)]
    known = Known(
        clusters={f"problem-{k}": "refunds" for k in range(4)},
        pass_rates={"problem-0": 0.3, "problem-1": 0.4, "problem-2": 1.0, "problem-3": 0.0},
    )
    by_cluster = judged("balance", rows, known, by="cluster", most=2)
    assert kept(by_cluster) == [True, True, False, False, True, True]
    assert by_cluster[2] == "cluster refunds has 2 rows already"
    by_quarter = judged("balance", rows, known, by=["difficulty"], most=1)
    assert by_quarter[1] == "difficulty 25 to 50% has 1 row already"
    assert kept(by_quarter) == [True, False, True, True, True, False]


# --- language, freshness -------------------------------------------------------------------------


def test_rows_in_other_languages_go_and_what_has_none_stays() -> None:
    texts = [
        "I was charged twice for my order, please refund one of them.",
        "Mir wurde die Bestellung zweimal berechnet, bitte erstatten Sie eine davon.",
        "4711",
    ]
    rows = [a_row(k, text=text, completion=say("assistant", "")) for k, text in enumerate(texts)]
    assert judged("language", rows, keep="en") == [None, "in de, wanted en", None]
    assert kept(judged("language", rows, keep=["en", "de"], unknown="drop")) == [True, True, False]


def test_old_rows_go_and_older_ones_weigh_less() -> None:
    ages = (0, 10, 20, 40)
    rows = [*(a_row(k, at=(100 - age) * DAY) for k, age in enumerate(ages)), a_row(9, at=None)]
    rows.append(a_row(8, at=0, corrected=True))
    assert judged("freshness", rows, NOW, days=30) == [
        None, None, None, "40.0 days old, at most 30 wanted", None, None,
    ]  # fmt: skip
    rule = RuleSpec(name="freshness", params={"half_life": 10})
    weights = {row.trace_id: row.weight for row in curate(rows, [rule], [], 0.7, NOW).rows}
    assert [weights[f"trace-{k}"] for k in range(4)] == [1.0, 0.5, 0.25, 0.0625]
    assert weights["trace-9"] == weights["trace-8"] == 1.0
    assert judged("freshness", rows, Known(), days=1) == [None] * 6  # no snapshot, no age
    unknown = judged("freshness", rows, NOW, unknown="drop")
    assert unknown[4] == "when it was answered is not known" and kept(unknown).count(False) == 1


# --- self_training -------------------------------------------------------------------------------


def a_belief(k: int, **changed: Any) -> TrainingRow:
    """An answer that nothing outside confirms."""
    given = {"signals": (a_signal(1.0, "judge", lineage="other-7b"),)} | changed
    return a_row(k, confirmed_by=None, **given)


OWN = Known(project="support", deployments=frozenset({"support-v1"}), base="/models/tiny-1b")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (a_row(1), None),
        (a_belief(1), "the model's own answer, confirmed by nothing outside it"),
        (a_belief(1, origin="demonstration"), None),
        (a_belief(1, corrected=True), None),
        (a_belief(1, signals=(a_signal(1.0, "feedback"),)), None),
        (a_belief(1, origin="import", answered_by="gpt"), "another model's answer, confirmed by"),
        (
            a_belief(1, signals=(a_signal(1.0, "judge", lineage="tiny-1b"),)),
            "its own lineage alone",
        ),
        (a_belief(1, signals=(a_signal(1.0, "judge"),)), "own lineage alone (unknown)"),
    ],
)
def test_an_answer_needs_somebody_outside_the_model(row: TrainingRow, why: str | None) -> None:
    [reason] = judged("self_training", [row], OWN)
    assert reason == why if why is None else reason is not None and why in reason


def test_the_rest_is_capped_at_a_share_and_a_judge_of_the_same_lineage_is_no_ticket() -> None:
    own = a_signal(1.0, "judge", lineage="support-v1")
    rows = [
        *(a_row(k) for k in range(6)),
        a_belief(6, signals=(own, own)),
        a_belief(7, reward=None),
        *(a_belief(k) for k in range(8, 12)),
        a_belief(12, signals=(own, a_signal(1.0))),
    ]
    reasons = judged("self_training", rows, OWN, share=0.25)
    assert kept(reasons) == [True] * 6 + [False, False, True, True, False, False, False]
    assert reasons[10] and reasons[10].endswith("; 2 such rows stay")
    assert reasons[6] and "lineage alone" in reasons[6]


def test_others_answers_may_be_told_to_pass() -> None:
    rows = [a_belief(1, answered_by="gpt", origin="import"), a_belief(2, answered_by="support-v1")]
    assert kept(judged("self_training", rows, OWN, others="pass")) == [True, False]
    assert judged("self_training", [a_row(1, confirmed_by="code")], OWN, by="feedback") == [
        "confirmed by code, wanted feedback"
    ]


# --- label_noise ---------------------------------------------------------------------------------


def test_grades_people_and_equal_answers_that_contradict_are_suspect() -> None:
    odds = a_row(1, signals=(a_signal(0.0), a_signal(1.0, "judge")))
    said = a_row(2, signals=(a_signal(0.9), a_signal(0.1, "feedback")))
    same = [a_row(3, trace_id=f"s{k}", reward=float(k > 0)) for k in range(3)]
    reasons = judged("label_noise", [odds, said, *same, a_row(4)])
    assert reasons == [
        "suspicion: its grades disagree, from 0.0 to 1.0",
        "suspicion: people say 0.1 where it measures 0.9",
        "suspicion: the same answer to the same prompt was mostly rewarded otherwise",
        None, None, None,
    ]  # fmt: skip


def sorted_mail(k: int) -> tuple[str, str]:
    kinds = {
        "billing": ["invoice", "charge", "refund", "payment", "card"],
        "shipping": ["parcel", "courier", "delivery", "tracking", "package"],
        "login": ["password", "account", "reset", "locked", "username"],
    }
    name = sorted(kinds)[k % 3]
    words = [kinds[name][(k + each) % 5] for each in range(3)]
    return f"mail {k} about my {' and '.join(words)}", name


def test_flipped_rewards_are_found_by_what_like_answers_earned_and_few_others_are() -> None:
    names = ["billing", "login", "shipping"]
    rows, flipped = [], []
    for k in range(600):
        text, name = sorted_mail(k)
        said = name if k % 2 else names[(names.index(name) + 1) % 3]
        wrong = k % 25 == 0 or k % 25 == 7
        rows.append(
            a_row(k, text=text, messages=(say("user", text),), completion=say("assistant", said),
                  reward=float((said == name) != wrong), problem_id=None)
        )  # fmt: skip
        flipped.append(wrong)
    reasons = judged("label_noise", rows)
    found = [reason is not None for reason in reasons]
    caught = sum(one and wrong for one, wrong in zip(found, flipped, strict=True))
    false = sum(one and not wrong for one, wrong in zip(found, flipped, strict=True))
    assert caught >= 0.75 * sum(flipped) and false <= 6
    assert all(reason is None or reason.startswith("suspicion") for reason in reasons)
    # Where words say nothing of what is right, nothing is doubted.
    noise = [a_row(k, reward=float(k * 7919 % 11 < 5)) for k in range(300)]
    assert judged("label_noise", noise) == [None] * 300


# --- corrections_first, rehearsal ----------------------------------------------------------------


def test_a_correction_stands_instead_of_what_the_model_said_to_the_same_prompt() -> None:
    asked = (say("user", "How do I pay?"),)
    rows = [
        a_row(1, messages=asked),
        a_row(2, messages=asked, corrected=True, origin="demonstration"),
        a_row(3, messages=asked, label="undesirable"),
        a_row(4, messages=asked, label="rejected", pair_id="p"),
        a_row(5, messages=asked, label="desirable"),
        a_row(6),
        a_row(7, problem_id="problem-2"),
    ]
    told = "a person's correction stands instead: trace trace-2"
    assert judged("corrections_first", rows) == [told, None, None, None, told, None, None]
    assert judged("corrections_first", rows, of="problem")[6] == told


def test_rehearsed_rows_are_new_to_the_dataset_each_once_and_a_share_of_it() -> None:
    fresh = [a_row(k) for k in range(8)]
    old = [a_row(k, rehearsed="a") for k in (0, 20, 21, 22)] + [a_row(20, rehearsed="b")]
    reasons = judged("rehearsal", [*fresh, *old], share=0.2)
    assert reasons[:8] == [None] * 8
    assert reasons[8:] == [
        "it is learnt anew in this dataset", None, None, "2 rows are rehearsed, 20% of all",
        "another earlier dataset had it too",
    ]  # fmt: skip
    assert kept(judged("exact_duplicates", [old[0], fresh[0]])) == [False, True]
    pair = [a_row(30, rehearsed="a", pair_id="p"), a_row(31, rehearsed="a", pair_id="p")]
    one = a_row(32, rehearsed="a")
    mixed = [pair[0], one, pair[1]]
    assert kept(judged("rehearsal", [*fresh, *mixed], share=0.2)[8:]) == [True, False, True]
    assert kept(judged("rehearsal", [*fresh[:4], *mixed], share=0.2)[4:]) == [False, False, False]


def test_rules_are_at_ease_where_there_are_no_rows() -> None:
    params: dict[str, Any] = {"language": {"keep": ["en"]}, "min_reward": {"value": 1.0}}
    specs = [RuleSpec(name=name, params=params.get(name, {})) for name in RULES]
    assert curate([], specs, []).frame.is_empty()


@pytest.mark.parametrize("lineage", ["org/base", "ORG/Base", "base:latest", "/models/base/"])
def test_a_judge_is_known_as_the_models_own_however_it_is_spelled(lineage: str) -> None:
    signals = (Signal(reward="said", value=1.0, kind="judge", lineage=lineage),)
    row = a_row(1, confirmed_by=None, signals=signals)
    rows = [row, *(a_row(k, confirmed_by="code") for k in range(2, 9))]
    known = Known(project="p", base="org/base")
    assert kept(judged("self_training", rows, known, share=0.5))[0] is False
