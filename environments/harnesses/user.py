"""A simulated user: by script or played by another model.

Enter: what the model under test said, and the user's own memory of the talk. Leaves: what the user
answers; None = the user is gone, satisfied or not, which the memory says. Invariants: all that a
user remembers is JSON, so an episode's state may hold it; equal talks get equal scripted answers.

One simulator serves a conversation (`Environment.user`) and a tool (`user_server.py`).
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from flywheel.records import Span

End = Literal["satisfied", "left"]


class Rule(BaseModel):
    """What a scripted user says where the model's words match."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    when: str
    """A regular expression, searched in what the model said, whatever its case."""
    say: str = ""
    end: End | None = None
    """Set: the user says nothing more. It is satisfied, or it has had enough."""
    times: int = Field(1, ge=1)
    """How often this rule serves; after that the next one is looked at."""

    @field_validator("when")
    @classmethod
    def _compiles(cls, when: str) -> str:
        try:
            re.compile(when)
        except re.error as error:
            raise ValueError(f"{when!r} is no regular expression: {error}") from error
        return when


class ScriptedUser(BaseModel):
    """The first rule that matches speaks; where none does, the next of `turns`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["scripted"] = "scripted"
    turns: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    otherwise: str | None = None
    """Said, `patience` times, where neither has anything left. None = the user goes at once."""
    patience: int = Field(2, ge=1)
    done: End = "satisfied"
    """How a user goes that has nothing left to say."""


class ModelUser(BaseModel):
    """Another model in the user's part, at any OpenAI-compatible URL. Its calls are never the
    trained model's: they stand in spans without a model call."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["model"] = "model"
    url: str
    model: str
    key_file: Path | None = None
    """Its first line is the key. None = the URL wants none."""
    persona: str = ""
    goal: str
    """What the user wants, and what it knows."""
    turns: int = Field(12, ge=1)
    """After so many answers it leaves."""
    temperature: float = Field(0.7, ge=0)
    max_tokens: int = Field(300, ge=1)
    timeout_s: float = Field(25.0, gt=0)
    """Of one try; two of them must fit into the harness's `budget.tool_s`."""


UserConfig = Annotated[ScriptedUser | ModelUser, Field(discriminator="kind")]


async def answer(
    user: ScriptedUser | ModelUser, said: str, memory: dict[str, Any], spans: list[Span]
) -> str | None:
    """What the user answers to what was `said`. `memory` is empty at first, and then `heard` and
    `said`, parallel, `used`, and `ended` once the user is gone. A model's work goes to `spans`.

    Raises:
        EpisodeFailed: the user's own model could not be asked.
    """
    if memory.get("ended"):
        return None
    for key, empty in (("heard", []), ("said", []), ("used", {}), ("ended", None)):
        memory.setdefault(key, empty)
    memory["heard"].append(said)
    if isinstance(user, ScriptedUser):
        words, memory["ended"] = _scripted(user, said, memory["used"])
    else:
        from environments.harnesses.user_model import played

        words, memory["ended"] = await played(user, memory, spans)
    memory["said"].append(words)
    return None if memory["ended"] else words


def _scripted(user: ScriptedUser, said: str, used: dict[str, int]) -> tuple[str, End | None]:
    """`used` counts how often each rule, the turns and `otherwise` have served."""
    for number, rule in enumerate(user.rules):
        served = used.get(f"rule {number}", 0)
        if served < rule.times and re.search(rule.when, said, re.IGNORECASE):
            used[f"rule {number}"] = served + 1
            return rule.say, rule.end
    turn = used.get("turns", 0)
    if turn < len(user.turns):
        used["turns"] = turn + 1
        return user.turns[turn], None
    repeated = used.get("otherwise", 0)
    if user.otherwise is not None and repeated < user.patience:
        used["otherwise"] = repeated + 1
        return user.otherwise, None
    return "", user.done if user.otherwise is None else "left"
