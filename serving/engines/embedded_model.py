"""The loaded model as the sampler sees it: hidden states of parts, logits where they are wanted,
adapters by name, and whole models of the same shape beside it.

Only the sampler's thread calls it. Invariant: a forward pass runs through exactly the weights that
it names, whatever was loaded or unloaded before.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from flywheel.errors import CorruptFile, MissingPart
from serving.engines.embedded_attention import NAME, Part, attend
from serving.engines.embedded_cache import Shape
from trainer.models import Base, add_adapter, delete_adapter, use_adapter, use_attention

BASE = "base"
"""The name under which the base model itself is served."""


class Model:
    def __init__(self, base: Base, name: str = BASE) -> None:
        """`name`: under which it is served without an adapter."""
        config = base.model.config
        self._model = base.model
        use_attention(self._model, NAME, attend)
        self._decoder = self._model.get_decoder()
        self._head = self._model.get_output_embeddings()
        self.name = name
        self._active: str | None = None
        self._whole: dict[str, Model] = {}
        heads = config.num_attention_heads
        self.shape = Shape(
            layers=config.num_hidden_layers,
            heads=getattr(config, "num_key_value_heads", None) or heads,
            dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        )
        self.vocabulary = int(config.vocab_size)
        self.context = int(config.max_position_embeddings)

    def of(self, name: str) -> "Model":
        """Whose forward passes answer as `name`: a whole model's, or this one's."""
        return self._whole.get(name, self)

    def is_like(self, other: "Model") -> bool:
        """Whether what holds the one's keys and values, and its tokens, suits the other."""
        return (self.vocabulary, self.shape) == (other.vocabulary, other.shape)

    def finite(self) -> bool:
        return all(bool(torch.isfinite(one).all()) for one in self._model.parameters())

    def add(self, whole: "Model") -> None:
        """Serves it beside this one, under its own name."""
        self._whole[whole.name] = whole

    def hidden(
        self, adapter: str, ids: torch.Tensor, positions: torch.Tensor, parts: Sequence[Part]
    ) -> torch.Tensor:
        """Last hidden states, [batch, new, width], of `ids` at `positions`, both [batch, new]."""
        self._use(adapter)
        output = self._decoder(
            input_ids=ids, position_ids=positions, use_cache=False, parts=tuple(parts)
        )
        hidden = output.last_hidden_state
        assert isinstance(hidden, torch.Tensor)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: Any = self._head(hidden)
        assert isinstance(logits, torch.Tensor)
        return logits.float()

    def load(self, name: str, folder: Path) -> None:
        """Raises:
        CorruptFile: not an adapter of this model; the others serve on as before.
        """
        self._active = None
        try:
            parameters = add_adapter(self._model, name, folder)
        except MissingPart as error:
            raise CorruptFile(str(error)) from error
        if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
            delete_adapter(self._model, name)
            raise CorruptFile(f"{folder}: weights that are not finite numbers")

    def unload(self, name: str) -> None:
        if self._whole.pop(name, None) is None:
            self._active = None
            delete_adapter(self._model, name)

    def _use(self, adapter: str) -> None:
        if adapter != self._active:
            use_adapter(self._model, None if adapter == self.name else adapter)
            self._active = adapter
