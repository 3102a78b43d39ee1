"""Rows that somebody preferred, or not, become Samples: pairs, labels, verdicts."""

import math
from typing import Any

import msgspec
import pytest

from environments.judges.verifier import QUESTION
from flywheel.records import ToolCall, say
from flywheel.row_files import write_rows
from flywheel.rows import TrainingRow
from flywheel.train_section import TrainSection
from trainer.algorithms.contract import Context, Prepared
from trainer.algorithms.dpo import dpo
from trainer.algorithms.kto import kto
from trainer.algorithms.reward import reward
from trainer.job import run
from trainer.metrics import read
from trainer.render import Rendering
from trainer.schedule import batches


@pytest.fixture
def context(rendering: Rendering) -> Context:
    return Context(rendering, TrainSection())


def pair_of(row_of: Any, digits: list[int], **changes: Any) -> list[TrainingRow]:
    """A sampled chosen answer, and a rejected one that somebody wrote down."""
    chosen = row_of(digits, label="chosen", pair_id="pair-1")
    wrong = {"label": "rejected", "completion": say("assistant", "9 9"), "tokens": None}
    return [chosen, row_of(digits, pair_id="pair-1", **wrong | {"finish_reason": None} | changes)]


def reasons(prepared: Prepared) -> set[str]:
    assert not prepared.samples
    return {reason for _, reason in prepared.refused}


def test_a_pair_is_two_samples_after_one_prompt(row_of: Any, context: Context) -> None:
    rows = pair_of(row_of, [3, 1])
    better, worse = dpo(rows, context).samples
    assert {better.pair_id, worse.pair_id} == {"pair-1"}
    assert [sample.advantages[sample.targets[0]] for sample in (better, worse)] == [1.0, -1.0]  # type: ignore[index]
    start = better.targets[0]
    assert better.token_ids[:start] == worse.token_ids[: worse.targets[0]]
    tokens = rows[0].tokens
    assert tokens and better.token_ids == (*tokens.prompt_ids, *tokens.completion_ids)
    said = context.rendering.decode(worse.token_ids[worse.targets[0] :])
    assert said == "9 9<|im_end|>"
    assert set(worse.weights) == {"dpo"} and sum(worse.weights["dpo"]) == len(worse.targets)
    assert set(better.weights) == {"dpo", "ce"}, "the chosen answer is learnt as well"
    alone = context._replace(settings=TrainSection(chosen_ce=0.0))
    assert {name for sample in dpo(rows, alone).samples for name in sample.weights} == {"dpo"}


def test_tokens_of_another_template_are_rendered_anew(row_of: Any, context: Context) -> None:
    rows = pair_of(row_of, [3, 1])
    assert rows[0].tokens
    odd = msgspec.structs.replace(rows[0].tokens, template_digest="other", prompt_ids=(5, 6))
    rows[0] = msgspec.structs.replace(rows[0], tokens=odd)
    better, _ = dpo(rows, context).samples
    ids, _ = context.rendering.render_sample(rows[0].messages, rows[0].completion)
    assert better.token_ids == tuple(ids)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"label": "chosen"}, "a pair is a chosen and a rejected answer, not: chosen, chosen"),
        ({"messages": (say("user", "9 1"),)}, "the two answers are to different prompts"),
        ({"completion": say("assistant", "1 3")}, "the two answers are the same"),
        ({"finish_reason": "length"}, "its answer did not end: finish reason length"),
    ],
)
def test_both_of_a_pair_or_neither(
    row_of: Any, context: Context, changes: dict[str, Any], reason: str
) -> None:
    prepared = dpo(pair_of(row_of, [3, 1], **changes), context)
    assert reasons(prepared) == {reason} and len(prepared.refused) == 2


def test_a_pair_is_never_parted_by_a_step(sample_of: Any) -> None:
    samples = [
        sample_of(f"{name}-{pair}", [1, 2], [3], pair_id=f"pair-{pair}")
        for name in ("chosen", "rejected")
        for pair in range(5)
    ]
    plan = batches(samples, batch=3, epochs=2, seed=0)
    assert [len(step) for step in plan] == [2, 2, 2, 4] * 2
    for step in plan:
        pairs = [samples[index].pair_id for index in step]
        assert all(pairs.count(pair) == 2 for pair in pairs)
    assert batches(samples, batch=1, epochs=1, seed=0) == [
        step for step in batches(samples, batch=2, epochs=1, seed=0)
    ]


def test_a_row_without_its_partner_is_refused(row_of: Any, context: Context) -> None:
    (reason,) = reasons(dpo(pair_of(row_of, [3, 1])[:1], context))
    assert reason == "a pair is a chosen and a rejected answer, not: chosen"


def test_rare_labels_are_weighed_up(row_of: Any, context: Context) -> None:
    rows = [
        row_of([1, 2], label="desirable"),
        *(row_of([3, 4 + more], label="undesirable") for more in range(3)),
    ]
    samples = kto(rows, context).samples
    signs = [sample.advantages[sample.targets[0]] for sample in samples]  # type: ignore[index]
    assert signs == [1.0, -1.0, -1.0, -1.0]
    weights = [sample.weights["kto"][sample.targets[0]] for sample in samples]
    assert weights == [3.0, 1.0, 1.0, 1.0]
    assert reasons(kto([row_of([1, 2])], context)) == {"nobody said whether it is desirable"}


def test_a_verifier_learns_one_token_after_the_question(row_of: Any, context: Context) -> None:
    rows = [row_of([2, 1], label="desirable"), row_of([4, 3], label="undesirable")]
    yes, no = reward(rows, context).samples
    for sample, row, verdict in ((yes, rows[0], "Yes"), (no, rows[1], "No")):
        said = context.rendering.decode(sample.token_ids)
        assert f"{row.completion.text}<|im_end|>" in said and QUESTION in said
        assert sample.targets == (len(sample.token_ids) - 1,)
        assert verdict.startswith(context.rendering.decode(sample.token_ids[-1:]))
        assert sample.weights["ce"][-1] == 1.0
    assert yes.token_ids[-1] != no.token_ids[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "first"), [("dpo", math.log(2)), ("kto", 0.5)])
def test_what_was_preferred_becomes_likelier_from_where_the_weights_started(
    algorithm: str, first: float, row_of: Any, job_in: Any
) -> None:
    """At the start weights every margin is 0, so the first loss is known: the reference is them."""
    job = job_in(algorithm, train={"algorithm": algorithm, "chosen_ce": 0.0, "epochs": 3})
    rows = []
    for number in range(12):
        digits = [9 - number % 5, number % 4, 5]
        given = {"completion": say("assistant", " ".join(map(str, digits))), "tokens": None}
        labels = ("chosen", "rejected") if algorithm == "dpo" else ("desirable", "undesirable")
        pair = f"pair-{number}" if algorithm == "dpo" else None
        rows.append(row_of(digits, label=labels[0], pair_id=pair))
        rows.append(row_of(digits, label=labels[1], pair_id=pair, finish_reason=None, **given))
    write_rows(job.parent / "rows.parquet", rows)
    result = run(job)
    assert result.refused == () and result.first_loss == pytest.approx(first, abs=1e-5)
    assert result.last_loss is not None and result.last_loss < 0.9 * first
    if algorithm == "dpo":
        assert read(job.parent / "metrics.jsonl")[-1].measured["dpo/accuracy"] == 1.0


def test_a_step_that_called_a_tool_is_judged_like_an_answer(row_of: Any, context: Context) -> None:
    call = ToolCall(name="look", arguments="{}", id="c1")
    step = msgspec.structs.replace(say("assistant", ""), parts=(call,))
    row = row_of([1, 2], completion=step, finish_reason="tool_calls", label="chosen", tokens=None)
    (sample,) = reward([row], context).samples
    assert "look" in context.rendering.decode(sample.token_ids)


@pytest.mark.parametrize("algorithm", [kto, reward])
def test_only_what_is_trained_on_enters_the_balance(
    row_of: Any, context: Context, algorithm: Any
) -> None:
    """Answers that did not end, or whose weight is no number, weigh nothing and shift nothing."""
    good = [row_of([one, 1], label="desirable") for one in (2, 3, 4)]
    cut = [row_of([one, 2], label="desirable", finish_reason="length") for one in (3, 4, 5)]
    odd = [row_of([9, one], label="undesirable", weight=float("nan")) for one in (1, 2)]
    bad = [row_of([9, 3], label="undesirable", weight=0.5)]
    prepared = algorithm([*cut, *good, *odd, *bad], context)
    sums = {one.id: 0.0 for one in (*good, *bad)}
    for sample in prepared.samples:
        (values,) = sample.weights.values()
        sums[sample.row_id] += max(values)
    assert [sums[one.id] for one in (*good, *bad)] == [1.0, 1.0, 1.0, 3.0]
    assert {row for row, _ in prepared.refused} == {one.id for one in (*cut, *odd)}
    assert not algorithm(cut, context).samples
