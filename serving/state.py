"""What the gateway knows of its engine: told by the server that keeps it, read by each request."""

from dataclasses import dataclass, field
from typing import Literal

from serving.engines.load import Load
from serving.refusal import ApiError

Phase = Literal["starting", "ready", "restarting", "stopping", "failed"]


@dataclass
class EngineState:
    phase: Phase = "starting"
    restarts: int = 0
    reason: str | None = None
    """Why it is not ready, where more is known than the phase says."""

    template_digest: str | None = None
    """Of the chat template by which the engine puts messages into tokens; None = it did not say."""
    tokenizer_digest: str | None = None
    lacking: dict[str, str] = field(default_factory=dict)
    """What it must serve and does not, by name, and why."""
    load: Load | None = None
    """How busy it was when it was asked last; None = it did not say."""

    def become(self, other: "EngineState") -> None:
        """In a gateway process: what the server says of the engine now."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(other, name))

    @property
    def answers(self) -> bool:
        return self.phase == "ready"

    def refusal(self) -> ApiError:
        because = f": {self.reason}" if self.reason else ""
        return ApiError(
            503,
            f"the engine is {self.phase}{because}",
            code="engine_away",
            retry_after=30 if self.phase == "failed" else 2,
        )
