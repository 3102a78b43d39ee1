"""Pictures: from a sample's encoded files to what a model that sees takes beside its tokens.

Enter a model that was loaded with its image processor and a micro-batch; leaves further arguments
of the forward pass. Pictures stand in the order of their placeholder tokens, which the packed
layout keeps: so each one's features go where its sample says.
"""

import io
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flywheel.errors import BadRecord, UsageError
from trainer.samples import Picture

if TYPE_CHECKING:
    from trainer.packing import Packed

PROCESSOR = "preprocessor_config.json"


def load_processor(folder: Path) -> Any:
    """None = the model of this folder does not see."""
    if not (folder / PROCESSOR).is_file():
        return None
    from transformers import AutoImageProcessor

    kind: Any = AutoImageProcessor
    return kind.from_pretrained(str(folder), local_files_only=True)


def pictures_of(
    token_ids: Sequence[int], placeholder: int, files: Sequence[bytes]
) -> tuple[Picture, ...]:
    """The files, each with the run of placeholders that it stands in.

    Raises:
        BadRecord: there are not as many runs as files.
    """
    runs: list[tuple[int, int]] = []
    at = 0
    for token, group in groupby(token_ids):
        size = len(list(group))
        if token == placeholder:
            runs.append((at, size))
        at += size
    if len(runs) != len(files):
        raise BadRecord(f"{len(files)} pictures for {len(runs)} places in the prompt")
    return tuple(
        Picture(start=start, tokens=size, data=data)
        for (start, size), data in zip(runs, files, strict=True)
    )


def seen(model: Any, packed: "Packed") -> dict[str, Any]:
    """
    Raises:
        UsageError: the model does not see, or tells places in a picture by more than their order.
        BadRecord: a picture cannot be decoded; names its sample.
    """
    if not packed.pictures:
        return {}
    processor = getattr(model, "image_processor", None)
    rows = ", ".join(sample.row_id for sample in packed.samples if sample.pictures)
    if processor is None:
        raise UsageError(f"rows {rows} have pictures, and the base model's folder no {PROCESSOR}")
    text = model.config.get_text_config()
    if "mrope_section" in (getattr(text, "rope_parameters", None) or {}):
        raise UsageError("models with rotary positions in three axes cannot be trained on pictures")
    from PIL import Image, UnidentifiedImageError

    try:
        images = [Image.open(io.BytesIO(one.data)).convert("RGB") for one in packed.pictures]
    except (UnidentifiedImageError, OSError) as error:
        raise BadRecord(f"a picture cannot be decoded: {error}", field=rows) from error
    first = next(model.parameters())
    found = processor(images=images, return_tensors="pt")
    return {
        name: value.to(first.device, first.dtype if value.is_floating_point() else None)
        for name, value in found.items()
    }
