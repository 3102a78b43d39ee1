from pathlib import Path
from typing import Any

import pytest
import torch

from flywheel.errors import CorruptFile, FlywheelError, UsageError
from trainer.models import use_adapter
from trainer.probe import ProbePair, probe_logprobs, read_probe, write_probe

PAIRS = (ProbePair((5, 9, 11), (3, 4)), ProbePair((1,), (2, 60, 7, 8)))


def test_logprobs_are_the_full_softmax_of_each_sequence_alone(model: Any) -> None:
    found = probe_logprobs(model, PAIRS)
    for pair, logprobs in zip(PAIRS, found, strict=True):
        ids = [*pair.prompt_ids, *pair.completion_ids]
        truth = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        first = len(pair.prompt_ids)
        expected = [float(truth[at - 1, ids[at]].detach()) for at in range(first, len(ids))]
        assert logprobs == pytest.approx(expected, abs=1e-9)


def test_old_and_new_weights_are_told_apart(model: Any, tmp_path: Path) -> None:
    new = probe_logprobs(model, PAIRS)
    use_adapter(model, None)
    old = probe_logprobs(model, PAIRS)
    write_probe(tmp_path / "probe.json", PAIRS, new=new, old=old)
    entries = read_probe(tmp_path / "probe.json").entries
    assert [(entry.prompt_ids, entry.completion_ids) for entry in entries] == [
        (pair.prompt_ids, pair.completion_ids) for pair in PAIRS
    ]
    assert [entry.new for entry in entries] == new
    assert [entry.old for entry in entries] == old
    assert new != old


def test_a_pair_without_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match="probe pair"):
        ProbePair((), (1,))


def test_a_file_that_is_no_probe_is_named(tmp_path: Path) -> None:
    (tmp_path / "probe.json").write_text("{}")
    with pytest.raises(CorruptFile, match=r"probe\.json"):
        read_probe(tmp_path / "probe.json")


def test_weights_that_give_no_numbers_have_no_probe(tmp_path: Path) -> None:
    pairs = [ProbePair((1, 2), (3,))]
    with pytest.raises(FlywheelError, match="training diverged"):
        write_probe(tmp_path / "probe.json", pairs, new=[(float("nan"),)], old=[(-1.0,)])
    assert not (tmp_path / "probe.json").exists()
