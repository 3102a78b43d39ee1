"""What Flywheel asks of an engine. Two stand behind it: the embedded one, and vLLM.

Both speak OpenAI's routes as vLLM has them, so the gateway sends requests straight to `url` and
`EngineClient` is the same for both; what differs is how one is started, fed and stopped.
Invariants: the base model is served as `base`; an adapter's name is never used for other weights.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from flywheel.records import Record


class Generated(Record, frozen=True, kw_only=True):
    """One answer, token by token."""

    text: str
    token_ids: tuple[int, ...]
    """What was sampled, the stop token included where one ended it."""
    logprobs: tuple[float, ...]
    """Of each token under the distribution that it was drawn from: after temperature and
    truncation; greedy answers have the model's own. Parallel to token_ids."""
    finish_reason: str
    """stop, length or tool_calls."""


class Engine(Protocol):
    """A running engine, or one that can be started. Errors of all calls: `EngineError`."""

    @property
    def url(self) -> str:
        """Where its routes are: the same from the first start to the last stop."""

    def start(self) -> None:
        """Returns when it can generate, with the adapters that it had before."""

    def ready(self) -> bool:
        """Whether it can generate now."""

    def load_adapter(self, name: str, folder: Path) -> None:
        """Serves `base` with the adapter in `folder` as model `name`, beside all others. The same
        name and folder again is no error. The embedded engine takes a whole model too, of the
        base's shape and tokens.

        Raises:
            Refused: the folder is not an adapter of this model, or the name has other weights; all
                else serves on as before.
        """

    def unload_adapter(self, name: str) -> None:
        """Answers under way are finished first. An unknown name is no error."""

    def load_weights(self, folder: Path) -> None:
        """Serves another base model from now on, in place of the old one; adapters are gone.

        Raises:
            Refused: the folder is not a model; the old one serves on.
        """

    def generate(
        self, model: str, prompt_ids: Sequence[int], *, max_tokens: int, **sampling: Any
    ) -> list[Generated]:
        """`sampling`: n, temperature, top_p, top_k, seed, stop, as the routes have them."""

    def drain(self) -> None:
        """Returns when all that was let in is answered. The embedded engine lets nothing new in;
        vLLM does, so that whoever sends must have ceased."""

    def stop(self) -> None:
        """Ends it, and returns when it is gone."""
