import io
from pathlib import Path
from typing import Any

import pytest
import torch

from flywheel.errors import BadRecord, UsageError
from trainer.attention import attend
from trainer.forward import recompute_layers, trained_logprobs
from trainer.models import load_base, use_attention
from trainer.packing import pack
from trainer.pictures import pictures_of
from trainer.samples import Picture, Sample

PLACE = 96
"""The placeholder's token id."""
SIZE = 4
"""Tokens of a picture: 16 x 16 points in patches of 8."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """A tiny random model that sees, as its files are."""
    from transformers import (
        CLIPImageProcessorPil,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )

    torch.manual_seed(0)
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        image_size=16, patch_size=8, projection_dim=16,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, initializer_range=0.3,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=PLACE, vision_feature_layer=-1
    )
    place: Path = tmp_path_factory.mktemp("sees")
    LlavaForConditionalGeneration(config).save_pretrained(place)
    crop = {"height": 16, "width": 16}
    sizes: dict[str, Any] = {"size": {"shortest_edge": 16}, "crop_size": crop}
    CLIPImageProcessorPil(**sizes).save_pretrained(place)
    tiny = Path(__file__).resolve().parents[1] / "sorting" / "base"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (place / name).write_bytes((tiny / name).read_bytes())
    return place


@pytest.fixture
def model(folder: Path) -> Any:
    model = load_base(folder).model
    use_attention(model, "flywheel_tree", attend)
    return model


def drawn(colour: str) -> bytes:
    from PIL import Image

    with io.BytesIO() as file:
        Image.new("RGB", (20, 20), colour).save(file, "PNG")
        return file.getvalue()


def sample_of(name: str, before: list[int], picture: bytes, after: list[int]) -> Sample:
    ids = [*before, *[PLACE] * SIZE, *after]
    trained = [False] * (len(ids) - len(after)) + [True] * len(after)
    return Sample(
        row_id=name,
        token_ids=tuple(ids),
        mask=tuple(trained),
        weights={"ce": (1.0,) * len(ids)},
        template_digest="t",
        pictures=pictures_of(ids, PLACE, [picture]),
    )


def alone(model: Any, sample: Sample) -> torch.Tensor:
    """The model's own forward pass, its own attention, whole softmax."""
    from PIL import Image

    images = [Image.open(io.BytesIO(one.data)) for one in sample.pictures]
    pixels = model.image_processor(images=images, return_tensors="pt")["pixel_values"]
    model.set_attn_implementation("eager")
    logits = model(input_ids=torch.tensor([sample.token_ids]), pixel_values=pixels).logits[0]
    use_attention(model, "flywheel_tree", attend)
    picked = logits.log_softmax(-1)
    return torch.stack([picked[at - 1, sample.token_ids[at]] for at in sample.targets])


def test_packed_samples_see_their_own_pictures(model: Any) -> None:
    red, blue = drawn("red"), drawn("blue")
    samples = [
        sample_of("a", [1, 2, 3], red, [4, 5]),
        sample_of("b", [1, 2, 3], red, [4, 6, 7]),
        sample_of("c", [1, 2, 3], blue, [4, 5]),
        sample_of("d", [9], blue, [4, 5]),
    ]
    (packed,) = pack(samples, 128)
    # The first two share text and picture; the third shares the text before it.
    assert len(packed.token_ids) == 3 + (SIZE + 1 + 1 + 2) + (SIZE + 2) + (1 + SIZE + 2)
    assert len(packed.pictures) == 3
    found = trained_logprobs(model, packed)
    truth = torch.cat([alone(model, sample) for sample in packed.samples])
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-5)


def test_another_picture_is_another_answer_and_the_eye_learns(model: Any) -> None:
    (one,), (other,) = (
        pack([sample_of("r", [1], drawn(colour), [4, 5])], 64) for colour in ("red", "green")
    )
    before = trained_logprobs(model, one)
    assert not torch.allclose(before, trained_logprobs(model, other))
    model.requires_grad_(True)
    assert recompute_layers(model, 64, 1) == 2
    model.train()
    trained_logprobs(model, one).sum().backward()  # type: ignore[no-untyped-call]
    first = next(model.model.vision_tower.parameters())
    assert first.grad is not None and float(first.grad.abs().sum()) > 0


def test_pictures_that_do_not_fit_are_refused_with_the_reason(model: Any, model_of: Any) -> None:
    with pytest.raises(BadRecord, match="2 pictures for 1 places"):
        pictures_of([1, PLACE, PLACE, 2], PLACE, [b"", b""])
    assert pictures_of([PLACE, 1, PLACE, PLACE], PLACE, [b"x", b"y"]) == (
        Picture(start=0, tokens=1, data=b"x"),
        Picture(start=2, tokens=2, data=b"y"),
    )
    (packed,) = pack([sample_of("r", [1], b"no picture", [4, 5])], 64)
    with pytest.raises(BadRecord, match="cannot be decoded"):
        trained_logprobs(model, packed)
    with pytest.raises(UsageError, match="rows r have pictures"):
        trained_logprobs(model_of(torch.float32), packed)
