"""The logprob check: the weights that were trained pass, all others are refused with numbers."""

import math
from pathlib import Path

import msgspec
import pytest

from flywheel.errors import CorruptFile, Refused
from flywheel.home import Home
from flywheel.records import say
from flywheel.serving_section import ServingSection
from serving import verify
from serving.engines.process import EngineProcess
from serving.smoke import Prompt, smoke
from serving.verify import Probe, ProbeEntry
from trainer.render import Rendering

TINY = Path(__file__).resolve().parents[1] / "sorting" / "base"


def rendering_of(model: Path) -> Rendering:
    from trainer.models import load_tokenizer
    from trainer.render import renderer_for

    return renderer_for(load_tokenizer(model))


def probe(new: tuple[float, ...], old: tuple[float, ...]) -> Probe:
    entry = ProbeEntry(prompt_ids=(1, 2), completion_ids=(3,) * len(new), new=new, old=old)
    return Probe(entries=(entry,))


def test_the_numbers_are_those_computed_by_hand() -> None:
    evidence = verify.compare(probe((-1.0, -2.0), (-1.5, -2.5)), [[-1.0, -2.0005]])
    assert evidence.tokens == 2
    assert math.isclose(evidence.largest, 0.0005, rel_tol=1e-9)
    assert math.isclose(evidence.mean, 0.00025, rel_tol=1e-9)
    assert math.isclose(evidence.mean_to_old, (0.5 + 0.4995) / 2, rel_tol=1e-9)
    assert math.isclose(evidence.moved, 0.5)
    assert evidence.ratio is not None and math.isclose(evidence.ratio, 0.49975 / 0.00025)
    assert verify.complaint(evidence) is None


@pytest.mark.parametrize(
    ("new", "old", "served", "why"),
    [
        ((-1.0,), (-1.5,), [-1.5], "differs from the trainer's by 0.5"),
        ((-1.0, -1.0), (-1.011, -1.011), [-1.0009, -1.0009], "times closer"),
        ((-1.0,), (-1.5,), [math.nan], "nan"),
        ((math.nan,), (-1.5,), [-1.0], "nan"),
        ((-1.0,), (math.nan,), [-1.0], "not finite"),
    ],
)
def test_what_is_not_the_new_weights_has_a_complaint(
    new: tuple[float, ...], old: tuple[float, ...], served: list[float], why: str
) -> None:
    said = verify.complaint(verify.compare(probe(new, old), [served]))
    assert said is not None and why in said


@pytest.mark.parametrize(
    ("new", "old", "served", "why"),
    [
        ((-1.0, -2.0), (-1.4, -2.5), [-1.06, -1.95], None),
        ((-1.0, -2.0), (-1.4, -2.5), [-1.4, -2.5], "times closer"),
        ((-1.0, -2.0), (-1.0, -2.1), [-1.0, -2.1], None),
        ((-1.0, -2.0), (-1.4, -2.5), [-2.0, -2.0], "differs from the trainer's by 1"),
    ],
)
def test_bfloat16_is_forgiven_its_rounding_and_no_other_weights(
    new: tuple[float, ...], old: tuple[float, ...], served: list[float], why: str | None
) -> None:
    bounds = verify.bounds_of(ServingSection(engine="vllm", dtype="bfloat16"), "vllm")
    said = verify.complaint(verify.compare(probe(new, old), [served], bounds=bounds), bounds)
    assert said is None if why is None else said is not None and why in said
    assert verify.bounds_of(ServingSection(dtype="bfloat16"), "embedded") == verify.FLOAT32


def test_weights_that_hardly_moved_are_judged_by_the_tolerance_alone() -> None:
    assert verify.complaint(verify.compare(probe((-1.0,), (-1.001,)), [[-1.0005]])) is None
    assert verify.complaint(verify.compare(probe((-1.0,), (-1.5,)), [[-1.0]])) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"entries": []}',
        b'{"entries": [{"prompt_ids": [1], "completion_ids": [2], "new": [], "old": [-1]}]}',
        b'{"entries": [{"prompt_ids": [], "completion_ids": [2], "new": [-1], "old": [-1]}]}',
    ],
)
def test_a_probe_that_proves_nothing_is_corrupt(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "probe.json"
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match=r"probe\.json"):
        verify.read_probe(path)
    with pytest.raises(CorruptFile):
        verify.read_probe(tmp_path / "absent.json")


@pytest.mark.slow
def test_an_engine_with_the_trained_weights_passes_and_with_others_is_refused(
    tmp_path: Path,
) -> None:
    import torch

    from serving.engines.client import EngineClient
    from trainer.models import add_adapter, load_base, save_adapter
    from trainer.probe import ProbePair, probe_logprobs, write_probe

    model = load_base(TINY, threads=1).model
    pairs = [ProbePair((1, 30 + i, 31, 32), (40, 41 + i, 2)) for i in range(6)]
    old = probe_logprobs(model, pairs)
    parameters = add_adapter(model, "trained", seed=1)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.randn(parameter.shape, generator=random) * 0.05)
    new = probe_logprobs(model, pairs)
    save_adapter(model, "trained", tmp_path / "adapter")
    write_probe(tmp_path / "probe.json", pairs, new=new, old=old)

    with (
        EngineProcess(
            Home(tmp_path / "home"), TINY, threads=1, adapters=lambda: {"v1": tmp_path / "adapter"}
        ) as engine,
        EngineClient(engine.url) as client,
    ):
        read = verify.read_probe(tmp_path / "probe.json")
        evidence = verify.check_logprobs(client, "v1", read)
        assert evidence["largest"] < 1e-4 and evidence["moved"] > 0.01
        assert evidence["tokens"] == 18 and evidence["ratio"] > 20
        msgspec.json.encode(evidence)
        with pytest.raises(Refused, match="base is not what was trained"):
            verify.check_logprobs(client, "base", read)
        ids = tuple(rendering_of(TINY).render_prompt([say("user", "3 1 2")]))
        asked = Prompt(messages=({"role": "user", "content": "3 1 2"},), ids=ids)
        seen = smoke(client, "v1", [asked])
        assert seen["prompts"] == 1 and seen["tokens"] > 0 and seen["largest"] < 1e-4
        other = Prompt(messages=asked.messages, ids=(*ids[:-1], 7))
        with pytest.raises(Refused, match=f"apart from token {len(ids)} on"):
            smoke(client, "v1", [other])
