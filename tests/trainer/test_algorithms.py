from typing import Any, get_args

import msgspec
import pytest

from flywheel.records import Text, Truncated, say
from flywheel.train_section import TrainSection
from trainer.algorithms import ALGORITHMS
from trainer.algorithms.contract import Context
from trainer.algorithms.rejection import rejection
from trainer.algorithms.sft import sft
from trainer.render import Rendering


def with_tokens(row: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(row, tokens=msgspec.structs.replace(row.tokens, **changes))


def test_the_settings_name_the_algorithms_that_there_are() -> None:
    names = get_args(TrainSection.model_fields["algorithm"].annotation)
    assert set(names) == set(ALGORITHMS)
    for name in names:
        given = {"algorithm": name, "teacher": {"hint": "It is {answer}."}}
        assert TrainSection.model_validate(given).algorithm == name


def test_rejection_trains_the_very_tokens_that_were_sampled(
    row_of: Any, rendering: Rendering
) -> None:
    row = row_of([3, 1, 2])
    # "12" as one token each is what was sampled, though the text would be rendered otherwise.
    odd = (*row.tokens.completion_ids[:1], 300, rendering.stop_ids[0])
    row = with_tokens(row, completion_ids=odd, logprobs=(-0.1, -0.2, -0.3))
    (sample,) = rejection([row], Context(rendering, TrainSection())).samples
    before = len(row.tokens.prompt_ids)
    assert sample.token_ids == (*row.tokens.prompt_ids, *odd)
    assert sample.targets == tuple(range(before, before + 3))
    assert sample.behaviour_logprobs == (0.0,) * before + (-0.1, -0.2, -0.3)
    assert sample.policy_versions == (None,) * before + ("sorting-v0",) * 3
    assert sample.weights["ce"] == (0.0,) * before + (1.0,) * 3
    assert (sample.group_id, sample.trace_id) == (row.problem_id, row.trace_id)


def test_sft_renders_messages_whatever_was_sampled(row_of: Any, rendering: Rendering) -> None:
    row = row_of([3, 1, 2])
    (sample,) = sft(
        [with_tokens(row, completion_ids=(300, 2), logprobs=None)],
        Context(rendering, TrainSection()),
    ).samples
    ids, mask = rendering.render_sample(row.messages, row.completion)
    assert (sample.token_ids, sample.mask) == (tuple(ids), tuple(mask))
    assert sample.behaviour_logprobs is None
    trained = [sample.token_ids[at] for at in sample.targets]
    assert rendering.decode(trained) == "1 2 3<|im_end|>"


def test_a_row_weighs_what_it_says(row_of: Any, rendering: Rendering) -> None:
    for make in (rejection, sft):
        row = row_of([1, 2], weight=0.25)
        (sample,) = make([row], Context(rendering, TrainSection())).samples
        assert {sample.weights["ce"][at] for at in sample.targets} == {0.25}


def test_rejection_renders_demonstrations_only(row_of: Any, rendering: Rendering) -> None:
    shown = row_of([2, 1], tokens=None, origin="demonstration", finish_reason=None)
    blind = row_of([4, 3], tokens=None)
    prepared = rejection([shown, blind], Context(rendering, TrainSection()))
    assert [sample.row_id for sample in prepared.samples] == [shown.id]
    assert prepared.refused == ((blind.id, "has no sampled tokens"),)


@pytest.mark.parametrize("reason", ["length", "content_filter", None])
def test_rejection_refuses_answers_that_did_not_end(
    row_of: Any, rendering: Rendering, reason: str | None
) -> None:
    prepared = rejection([row_of([2, 1], finish_reason=reason)], Context(rendering, TrainSection()))
    assert not prepared.samples
    assert "did not end" in prepared.refused[0][1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"template_digest": "other"}, "template other"),
        ({"template_digest": None}, "template None"),
        ({"tokenizer_digest": "other"}, "tokenizer other"),
        ({"completion_ids": ()}, "no tokens"),
        ({"completion_ids": (300, 301), "logprobs": None}, "stop token"),
        ({"completion_ids": (99_999, 2), "logprobs": None}, "does not know"),
        ({"logprobs": (-1.0,)}, "1 logprobs"),
        ({"logprobs": (float("nan"),) * 6}, "not finite"),
    ],
)
def test_rejection_refuses_tokens_that_do_not_fit(
    row_of: Any, rendering: Rendering, changes: dict[str, Any], reason: str
) -> None:
    prepared = rejection(
        [with_tokens(row_of([3, 1, 2]), **changes)], Context(rendering, TrainSection())
    )
    assert not prepared.samples
    assert reason in prepared.refused[0][1]


def test_sft_refuses_cut_messages_and_answers(row_of: Any, rendering: Rendering) -> None:
    cut = msgspec.structs.replace(
        say("assistant", ""), parts=(Text(text="1"), Truncated(kept="2", size=9, digest="d"))
    )
    rows = [
        row_of([1, 2], completion=cut),
        row_of([1, 3], finish_reason="length"),
        row_of([1, 4], messages=(cut,)),
        row_of([1, 5], completion=say("user", "1 5")),
        row_of([1, 6], weight=0.0),
    ]
    prepared = sft(rows, Context(rendering, TrainSection()))
    assert not prepared.samples
    assert [row_id for row_id, _ in prepared.refused] == [row.id for row in rows]


def test_imported_rows_without_a_finish_reason_are_rendered(
    row_of: Any, rendering: Rendering
) -> None:
    assert sft(
        [row_of([2, 1], finish_reason=None, tokens=None)], Context(rendering, TrainSection())
    ).samples
