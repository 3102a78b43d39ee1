import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from flywheel import progress
from flywheel.errors import UsageError
from flywheel.train_section import TrainSection
from trainer.algorithms.contract import Context
from trainer.feed import Epochs
from trainer.loop import Diverged, train
from trainer.metrics import read
from trainer.models import add_adapter, load_base, use_attention
from trainer.samples import Sample
from trainer.schedule import batches, learning_rate
from trainer.weights import Weights

TINY = Path(__file__).resolve().parents[1] / "sorting" / "base"
SETTINGS = TrainSection(epochs=2, batch=3, warmup_steps=2, checkpoint_every=100)


def run(model: Any, samples: list[Sample], folder: Path, **changes: Any) -> Any:
    settings = SETTINGS.model_copy(update=changes)
    feed = Epochs(samples, settings)
    return train(Weights(model), feed, settings, folder, job="j", activation_bytes=1 << 30)


def learnt(model: Any) -> list[torch.Tensor]:
    return [each.detach().clone() for each in model.parameters() if each.requires_grad]


def test_every_epoch_has_every_sample_once_in_an_order_of_its_own(samples: list[Sample]) -> None:
    plan = batches(samples, batch=3, epochs=2, seed=1)
    assert [len(step) for step in plan] == [2, 3, 3, 2, 3, 3]
    first, second = list(chain(*plan[:3])), list(chain(*plan[3:]))
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second
    assert plan != batches(samples, batch=3, epochs=2, seed=2)


def test_the_order_follows_rows_not_the_file(samples: list[Sample]) -> None:
    def named(given: list[Sample]) -> list[list[str]]:
        plan = batches(given, batch=3, epochs=2, seed=1)
        return [[given[index].row_id for index in step] for step in plan]

    assert named(samples) == named(samples[::-1])


def rates(count: int, **changes: Any) -> list[float]:
    settings = TrainSection(learning_rate=1.0, **changes)
    return [learning_rate(step, count, settings) for step in range(1, count + 1)]


def test_the_learning_rate_warms_up_and_follows_its_schedule() -> None:
    assert rates(6, warmup_steps=2) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert rates(4, warmup_steps=1, schedule="constant") == [1.0] * 4
    cosine = rates(5, warmup_steps=1, schedule="cosine")
    assert cosine == pytest.approx([1.0, 1.0, 0.8535534, 0.5, 0.1464466])
    assert rates(2, warmup_steps=3) == pytest.approx([1 / 3, 2 / 3])
    assert rates(1, warmup_steps=0) == [1.0]


def test_a_step_says_what_it_did(model: Any, samples: list[Sample], tmp_path: Path) -> None:
    heard: list[tuple[str, int, int | None]] = []
    stop = progress.listen(lambda step, done, total, note: heard.append((step, done, total)))
    try:
        done = run(model, samples, tmp_path)
    finally:
        stop()
    lines = read(tmp_path / "metrics.jsonl")
    assert [line.step for line in lines] == [1, 2, 3, 4, 5, 6]
    assert heard == [("training", step, 6) for step in range(7)]
    assert (
        done.tokens
        == sum(line.tokens for line in lines)
        == 2 * sum(len(sample.token_ids) for sample in samples)
    )
    assert sum(line.ce_tokens for line in lines) == 2 * sum(len(s.targets) for s in samples)
    assert all(line.computed_tokens < line.tokens for line in lines)
    assert (done.first_loss, done.last_loss) == (lines[0].loss, lines[-1].loss)


def test_training_is_the_same_however_it_is_cut_into_micro_batches(
    model_of: Any, samples: list[Sample], tmp_path: Path
) -> None:
    results = []
    for micro_tokens in (10_000, 36):
        model = model_of()
        run(model, samples, tmp_path / str(micro_tokens), micro_tokens=micro_tokens)
        results.append(learnt(model))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5)
    assert {line.micro_batches for line in read(tmp_path / "36" / "metrics.jsonl")} != {1}


def test_one_step_is_what_plain_torch_does(
    model_of: Any, samples: list[Sample], tmp_path: Path
) -> None:
    model, oracle = model_of(), model_of(attention="sdpa")
    run(model, samples, tmp_path, epochs=1, batch=8, clip=0.5, weight_decay=0.1)
    total, weighed = torch.zeros((), dtype=torch.float64), 0
    for sample in samples:
        logprobs = oracle(torch.tensor([sample.token_ids])).logits[0].log_softmax(-1)
        for at in sample.targets:
            total = total - sample.weights["ce"][at] * logprobs[at - 1, sample.token_ids[at]]
            weighed += 1
    (total / weighed).backward()
    parameters = [each for each in oracle.parameters() if each.requires_grad]
    torch.nn.utils.clip_grad_norm_(parameters, 0.5)
    rate = learning_rate(1, 1, SETTINGS)
    torch.optim.AdamW(parameters, lr=rate, weight_decay=0.1).step()
    for one, other in zip(learnt(model), learnt(oracle), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_nothing_of_it(
    model: Any, samples: list[Sample], tmp_path: Path
) -> None:
    before = learnt(model)
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    with pytest.raises(Diverged, match=r"step 1: loss nan.*row-") as error:
        run(model, samples, tmp_path, checkpoint_every=1)
    named = sum(f"row-{index}" in str(error.value) for index in range(8))
    assert named == 2
    assert error.value.exit_code == 1
    assert not list(tmp_path.glob("checkpoints/*"))
    assert read(tmp_path / "metrics.jsonl") == []
    for one, other in zip(before, learnt(model), strict=True):
        assert torch.equal(one, other)


def test_gradients_that_are_not_numbers_stop_the_run(
    model: Any, samples: list[Sample], tmp_path: Path
) -> None:
    parameter = next(each for each in model.parameters() if each.requires_grad)
    parameter.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(Diverged, match="gradient norm"):
        run(model, samples, tmp_path)


def answers(model: Any, rendering: Any, problems: list[list[int]]) -> float:
    """Share of problems that greedy decoding sorts right."""
    right = 0
    model.eval()
    for digits in problems:
        from flywheel.records import say

        prompt = (say("system", "Sort the digits."), say("user", " ".join(map(str, digits))))
        ids = rendering.render_prompt(prompt)
        for _ in range(16):
            with torch.inference_mode():
                ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
            if ids[-1] in rendering.stop_ids:
                break
        expected = rendering.render_sample(
            prompt, say("assistant", " ".join(map(str, sorted(digits))))
        )
        right += ids == expected[0]
    return right / len(problems)


@pytest.mark.slow
def test_right_answers_teach_the_tiny_model_to_sort(
    row_of: Any, rendering: Any, tmp_path: Path
) -> None:
    from trainer.algorithms.rejection import rejection
    from trainer.attention import attend

    draw = random.Random(3)
    problems = [[draw.randrange(10) for _ in range(draw.choice((3, 4, 5, 6)))] for _ in range(136)]
    model = load_base(TINY, threads=1).model
    add_adapter(model, "candidate", trainable=True)
    use_attention(model, "flywheel_tree", attend)
    heldout = [each for each in problems[96:] if each not in problems[:96]]
    before = answers(model, rendering, heldout)
    samples = list(
        rejection(
            [row_of(each) for each in problems[:96]], Context(rendering, TrainSection())
        ).samples
    )
    done = run(model, samples, tmp_path, epochs=4, batch=8, learning_rate=2e-3, warmup_steps=3)
    assert done.last_loss < 0.7 * done.first_loss
    assert answers(model, rendering, heldout) > before + 0.25


def test_a_row_that_no_micro_batch_holds_is_told_before_anything_is_trained(
    samples: list[Sample],
) -> None:
    longest = max(samples, key=lambda one: len(one.token_ids))
    settings = SETTINGS.model_copy(update={"micro_tokens": len(longest.token_ids) - 1})
    with pytest.raises(UsageError, match=r"row row-\d has \d+ tokens, more than"):
        Epochs(samples, settings)
    Epochs(samples, settings.model_copy(update={"micro_tokens": len(longest.token_ids)}))
