"""A whole model read from its folder, for an engine that serves another one of its kind already.

Enter a folder and what serves. Leaves a model that takes and gives the same tokens and keeps keys
and values of the same size. It may be read in any thread; nothing that serves is touched.
"""

from pathlib import Path

from flywheel.errors import CorruptFile, MissingPart
from serving.engines.embedded_model import Model
from trainer.models import digest_of, load_base
from trainer.render import Rendering, renderer_for


def model_like(serves: Model, rendering: Rendering, folder: Path, name: str) -> Model:
    """
    Raises:
        MissingPart: there is none.
        CorruptFile: it cannot be read, or is of other tokens, another shape, or no numbers.
    """
    base = load_base(folder)
    theirs = renderer_for(base.tokenizer)
    for what in ("tokenizer_digest", "template_digest"):
        if getattr(theirs, what) != getattr(rendering, what):
            raise CorruptFile(f"{folder} has another {what.removesuffix('_digest')}")
    model = Model(base, name)
    if not model.is_like(serves):
        raise CorruptFile(f"{folder} has another vocabulary, or keys and values of another size")
    if not model.finite():
        raise CorruptFile(f"{folder}: weights that are not finite numbers")
    return model


def digest_if_any(folder: Path) -> str:
    """Of the weights in a folder; "" = they cannot be read, and whoever loads them says why."""
    try:
        return digest_of(folder)
    except (MissingPart, CorruptFile, OSError):
        return ""
