"""The edges at which trainers silently go wrong: first and last tokens, stops, BOS, thoughts."""

from typing import Any

import pytest
import torch

from flywheel.errors import BadRecord
from flywheel.records import Message, Reasoning, Text, say
from flywheel.train_section import TrainSection
from tests.trainer.playing import Turn, group, played, rewarded
from trainer.algorithms.contract import Context
from trainer.algorithms.grpo import grpo
from trainer.algorithms.rejection import rejection
from trainer.algorithms.sft import sft
from trainer.forward import trained_logprobs
from trainer.packing import pack
from trainer.render import Rendering
from trainer.samples import Sample

SFT = TrainSection()


def grouped(rendering: Rendering, turns: list[Turn], other: list[Turn]) -> list[Sample]:
    finished = [played("t0", turns, rendering), played("t1", other, rendering)]
    made = group(finished, [rewarded("t0", 1.0), rewarded("t1", 0.0)])
    return list(grpo([made], Context(rendering, TrainSection(algorithm="grpo"))).samples)


def test_the_end_is_trained_though_padding_has_its_id(row_of: Any, rendering: Rendering) -> None:
    tokenizer = rendering.tokenizer
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == rendering.stop_ids[0] == 2
    row = row_of([3, 1, 2])
    for make in (sft, rejection):
        (sample,) = make([row], Context(rendering, SFT)).samples
        assert sample.token_ids[-1] == 2 and sample.mask[-1]
        # The prompt's own ends, of the same id, are not.
        earlier = [at for at, token in enumerate(sample.token_ids[:-1]) if token == 2]
        assert earlier and not any(sample.mask[at] for at in earlier)
        (packed,) = pack([sample], 128)
        assert packed.targets[-1] == 2
    acted = grouped(rendering, [((1, 40, 2), (2,))], [((1, 40, 2), (50, 2))])
    assert acted[0].mask == (False, False, False, True), "an answer that is nothing but its end"


def test_the_first_sampled_token_is_predicted_by_the_prompts_last_one(
    model: Any, rendering: Rendering
) -> None:
    sample, _ = grouped(rendering, [((1, 40, 41), (50, 51, 2))], [((1, 40, 41), (60, 2))])
    (packed,) = pack([sample], 64)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([sample.token_ids])).logits[0].log_softmax(-1)
        ours = trained_logprobs(model, packed)
    theirs = [float(logits[at - 1, sample.token_ids[at]]) for at in sample.targets]
    assert sample.targets == (3, 4, 5) and ours.tolist() == pytest.approx(theirs, abs=1e-9)


def test_nothing_predicts_the_very_first_token(rendering: Rendering) -> None:
    with pytest.raises(BadRecord, match="nothing predicts it"):
        Sample(row_id="r", token_ids=(1, 2), mask=(True, True), weights={"ce": (1.0, 1.0)},
               template_digest="t")  # fmt: skip


def test_a_second_bos_is_refused_wherever_the_tokens_come_from(
    row_of: Any, rendering: Rendering
) -> None:
    import msgspec

    first = rendering.tokenizer.bos_token_id
    row = row_of([2, 1])
    assert row.tokens.prompt_ids[0] == first
    twice = msgspec.structs.replace(row.tokens, prompt_ids=(first, *row.tokens.prompt_ids))
    prepared = rejection([msgspec.structs.replace(row, tokens=twice)], Context(rendering, SFT))
    assert "second BOS" in prepared.refused[0][1]
    (laid_out,) = sft([row], Context(rendering, SFT)).samples
    assert laid_out.token_ids[0] == first != laid_out.token_ids[1]


def test_a_conversation_keeps_its_one_bos_behind_a_prefix(rendering: Rendering) -> None:
    first = rendering.tokenizer.bos_token_id
    prompt = rendering.render_prompt([say("system", "Sort."), say("user", "2 1")])
    whole = rendering.after([say("system", "hint")], prompt)
    # Every turn of this template begins with the id that the tokenizer calls BOS: all of them stay.
    assert whole[-len(prompt) :] == prompt and whole.count(first) == prompt.count(first) + 1

    class Llama:
        """A template whose BOS stands once, before everything."""

        is_content: tuple[bool, ...] = ()

        def render_ids(self, messages: list[Any], **_: Any) -> list[int]:
            return [first, *(40 + len(one["content"]) for one in messages)]

    other = Rendering(rendering.tokenizer, Llama())
    assert other.after([say("system", "hint")], [first, 50]) == [first, 44, 50]


def test_thoughts_that_history_drops_fork_the_path_and_every_token_is_trained_once(
    rendering: Rendering,
) -> None:
    thought, answer, end = (70, 71), (50,), 2
    asked = (1, 40)
    turns: list[Turn] = [
        (asked, (*thought, *answer, end)),
        # The template left the thought out of the history.
        ((*asked, *answer, end, 42), (*thought, 51, end)),
    ]
    first, second, _ = grouped(rendering, turns, [(asked, (60, end))])
    assert [first.token_ids[at] for at in first.targets] == [*thought, *answer, end]
    assert [second.token_ids[at] for at in second.targets] == [*thought, 51, end]
    assert second.token_ids[: second.targets[0]] == (*asked, *answer, end, 42)


def test_a_rendered_answer_is_trained_from_its_first_word_to_its_end_without_its_thoughts(
    row_of: Any, rendering: Rendering
) -> None:
    parts = (Reasoning(text="3 is the larger one"), Text(text="1 3"))
    thinking = Message(role="assistant", parts=parts)
    history = (*row_of([2, 1]).messages, thinking, say("user", "3 1"))
    row = row_of([3, 1], messages=history, completion=thinking, tokens=None)
    (sample,) = sft([row], Context(rendering, SFT)).samples
    trained = rendering.decode([sample.token_ids[at] for at in sample.targets])
    assert trained == "1 3<|im_end|>"
    assert "larger" not in rendering.decode(sample.token_ids)
    assert rendering.decode(sample.token_ids).count("1 3") == 2, "earlier answers stand, once"
