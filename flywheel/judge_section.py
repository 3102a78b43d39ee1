"""The section of flywheel.toml about a model that judges."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from flywheel.section import Section


class JudgeSection(Section):
    """A model that judges, for rewards that name `judge`. Without this section these are null."""

    kind: Literal["chat", "verifier"] = "chat"
    """A model that is told a rubric; or one that was trained to judge (`algorithm = "reward"` or
    "process_reward") and is asked for one token: it has no rubric, votes, prices or budget."""
    url: str = Field(pattern=r"^(https?://.*|home)$")
    """Of any OpenAI-compatible endpoint, as a rule with /v1 at its end. home = of a verifier, this
    home's own engine."""
    model: str = Field(min_length=1)
    """As the endpoint knows it. What it is called, not what it is: a model that changes under one
    name must be calibrated anew. With url = "home" the project that trains it: its champion is
    asked."""
    key_env: str | None = None
    """The environment variable that its key stands in."""
    key_file: Path | None = None
    """Or the file, relative to the project's folder."""
    rubric: str = ""
    """What is asked where a reward gives no rubric of its own; "" = whether the answer is right,
    complete and to the point."""
    scale: int = Field(4, ge=1, le=100)
    """It gives whole numbers from 0 to this; a value is the number divided by it."""
    votes: int = Field(1, ge=1, le=25)
    """Times that it is asked; above 1 only with a temperature."""
    aggregate: Literal["mean", "majority"] = "mean"
    """Of the votes. More than half of them must have come."""
    temperature: float = Field(0.0, ge=0, le=2)
    """It is asked at."""
    max_tokens: int = Field(512, ge=16)
    """Of its answer, its reasoning included."""
    vision: bool = False
    """Whether it sees pictures."""
    longest: int = Field(48_000, ge=256)
    """Characters of an answer that it is shown; a longer one gets no verdict. What the answer was
    given to loses its middle beyond them."""
    structured: bool = True
    """Ask for a JSON schema. An endpoint that takes none is asked again without, and remembered."""
    timeout_s: float = Field(60.0, gt=0, le=600)
    """Of one question, with its retries."""
    at_once: int = Field(8, ge=1, le=256)
    """Questions under way together, in one process."""
    price_in: float | None = Field(None, ge=0)
    """Dollars a million tokens of prompt. None = not known: no cost is known either."""
    price_out: float | None = Field(None, ge=0)
    """Dollars a million tokens of answer."""
    budget_usd: float | None = Field(None, ge=0)
    """A day (UTC), all processes of the home together; needs both prices. None = not bounded so."""
    budget_tokens: int | None = Field(None, ge=0)
    """A day."""
    budget_calls: int | None = Field(2000, ge=0)
    """A day."""
    share: float = Field(1.0, ge=0, le=1)
    """Of recorded traces, in each slice and day, that it is asked about."""
    bar: float = Field(0.6, ge=-1, le=1)
    """Least kappa with people's reviews from which its grades may gate and train."""
    least_reviews: int = Field(20, ge=2)
    """That kappa is taken over."""

    @model_validator(mode="after")
    def _fits(self) -> "JudgeSection":
        if self.url == "home" and self.kind != "verifier":
            raise ValueError('url = "home" is of a verifier: set kind = "verifier"')
        if self.key_env and self.key_file:
            raise ValueError("key_env and key_file are two places of one key: take one")
        if self.votes > 1 and self.temperature == 0:
            raise ValueError("votes at temperature 0 are one vote: set a temperature, or votes = 1")
        priced = self.price_in is not None and self.price_out is not None
        if self.budget_usd is not None and not priced:
            raise ValueError(
                "budget_usd needs price_in and price_out; where they are not known, set "
                "budget_tokens or budget_calls"
            )
        return self
