"""The sections of flywheel.toml about what is learnt from: problems, rollouts and their rows."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flywheel.section import Section


class ProblemsSection(Section):
    heldout_share: float = Field(0.4, gt=0, lt=1)
    """Share of conversations and users kept for evaluation; never trained on."""
    heldout_slices: tuple[str, ...] = ()
    """Slices that are held out whole."""
    max_train: int = Field(64, ge=1)
    """Problems sampled in one turn, at most."""
    max_heldout: int = Field(64, ge=1)
    """Problems evaluated in one turn, at most."""


class RolloutsSection(Section):
    samples: int = Field(4, ge=1)
    """Answers a problem."""
    temperature: float = Field(0.7, gt=0)
    """They are sampled at."""
    max_tokens: int = Field(64, ge=1)
    """Of an answer, in training and in evaluation; longer ones are cut, and count as cut."""
    chunk: int = Field(16, ge=1)
    """Problems a chunk: sampled as one batch and committed whole."""


class Rule(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    """A key of `storage.rules.RULES`; its other keys are the rule's parameters."""


class CurateSection(Section):
    rules: tuple[Rule, ...] = (
        Rule(name="fidelity"),
        Rule(name="self_training"),
        Rule.model_validate({"name": "min_reward", "value": 1.0}),
        Rule(name="exact_duplicates"),
        Rule.model_validate({"name": "length", "max_tokens": 2048}),
        Rule.model_validate({"name": "per_problem", "keep": 1}),
    )
    """In this order, after the leakage check: docs/data.md says what each does. A list of your
    own replaces the whole default. With `dpo`, `kto`, `reward` and `process_reward` the default is
    `fidelity` (renderable too), `self_training`, `exact_duplicates`, `length`; with `recorded` the
    same, of token-exact answers; with `teacher` the usual ones, of text too."""
    near_duplicate: float = Field(0.7, gt=0, le=1)
    """Word-trigram Jaccard with a held-out problem's text from which a row is a leak."""
    min_rows: int = Field(8, ge=1)
    """Fewer rows than this: nothing to learn from, the turn is refused by the data gate."""
    sources: tuple[Literal["rollouts", "recorded"], ...] = ("rollouts",)
    """Where rows come from: the turn's own rollouts; recorded answers, production's and imported
    ones (of which the `fidelity` rule lets only token-exact ones through, unless it is told to).
    With `dpo`, `kto`, `reward` and `process_reward` the default is both; with `recorded`, recorded
    answers alone."""
    answers_of: str | None = None
    """Another project of this home: rows are made of its answers and of what was said of them, as a
    reward model's are. None = this project's own."""
    good: float = 1.0
    """Reward from which an answer counts as good, where answers are compared or labelled: with
    `dpo`, `kto`, `reward` and `process_reward`."""
    bad: float = 0.5
    """Reward up to which it counts as bad; between the two it is neither."""
    shuffle_rewards: int | None = None
    """A control: rewards are dealt out anew among the answers with this seed. The gate must refuse
    what such a turn trains."""

    @model_validator(mode="after")
    def _apart(self) -> "CurateSection":
        if self.bad >= self.good:
            raise ValueError(f"bad = {self.bad:g} must lie below good = {self.good:g}")
        return self


PREFERENCES = ("dpo", "kto", "reward", "process_reward")
"""Algorithms that learn from what is preferred: their rows have labels."""
_PREFERRED: dict[str, Any] = {
    "rules": (
        {"name": "fidelity", "accept": ("trainable", "renderable")},
        {"name": "self_training"},
        {"name": "exact_duplicates"},
        {"name": "length", "max_tokens": 2048},
    ),
    "sources": ("rollouts", "recorded"),
}
"""What [curate] says for these, where the project does not: bad answers are wanted too."""
_RECORDED: dict[str, Any] = {
    "rules": (
        {"name": "fidelity"},
        {"name": "self_training"},
        {"name": "exact_duplicates"},
        {"name": "length", "max_tokens": 2048},
    ),
    "sources": ("recorded",),
}
"""And with `recorded`, which learns from bad answers too, but from none without its tokens."""
_TAUGHT: dict[str, Any] = {
    "rules": (
        {"name": "fidelity", "accept": ("trainable", "renderable")},
        {"name": "self_training"},
        {"name": "min_reward", "value": 1.0},
        {"name": "exact_duplicates"},
        {"name": "length", "max_tokens": 2048},
        {"name": "per_problem", "keep": 1},
    ),
}
"""And with `teacher`, whose answers may come as text alone."""
CURATED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(PREFERENCES, _PREFERRED), "recorded": _RECORDED, "teacher": _TAUGHT,
}  # fmt: skip
