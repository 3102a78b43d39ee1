"""The sections of flywheel.toml about the data itself: who is in it, how long it is kept, when a
dataset is good enough, and how people label it."""

from typing import Literal

from pydantic import Field

from flywheel.section import Section

Strictness = Literal["off", "warn", "block"]
"""off: not looked at. warn: said, and the turn goes on. block: the turn is refused."""


Found = Literal[
    "email", "phone", "card", "iban", "national_id", "ip", "address", "birth_date", "name",
    "credential", "api_key", "private_key", "jwt", "password",
]  # fmt: skip
"""What personal data and secrets are called."""


class PrivacySection(Section):
    at: tuple[Literal["capture", "curation"], ...] = ()
    """Where personal data and secrets are found and replaced: before anything of a request is
    written; in the rows of a dataset. () = nowhere."""
    kinds: tuple[Found, ...] = ()
    """What is looked for; docs/data.md says what each is. () = everything."""
    allow: tuple[str, ...] = ()
    """Texts that are no secret: our own address, a test card; `@ours.example` = every address
    there."""


class RetentionSection(Section):
    days: float | None = Field(None, gt=0)
    """After which a recorded trace is erased with all that it is in, counted from its end. None =
    never, unless its sender said when."""
    rollout_days: float | None = Field(None, gt=0)
    """The same of rollouts and evaluations. None = never."""
    consent: Literal["not_denied", "granted"] = "not_denied"
    """Which traces may be learnt from: all but those whose sender said no, or only those whose
    sender said yes."""


class DataGateSection(Section):
    drift: Strictness = "warn"
    """Distributions of lengths, rewards, slices, languages and sources against the last accepted
    dataset."""
    drift_psi: float = Field(0.25, gt=0)
    """Population stability index from which a column has drifted."""
    balance: Strictness = "warn"
    """Whether good and bad answers are both there, where both are wanted, and no slice and no user
    is most of it."""
    balance_most: float = Field(0.9, gt=0, le=1)
    """Share of the rows that one slice, one user or one label may be."""
    window: Strictness = "block"
    """Rows that do not fit the model's context."""
    shrink: Strictness = "warn"
    """Far fewer rows than the last accepted dataset had."""
    shrink_to: float = Field(0.5, gt=0, le=1)
    """Share of its rows under which that is."""


class LabelsSection(Section):
    reviewers: int = Field(1, ge=1, le=20)
    """People who look at a trace before it counts as labelled."""
    gold: float = Field(0.0, ge=0, le=0.5)
    """Share of what is shown to review whose verdict is known, unseen by the reviewer."""
    agreement: float = Field(0.67, gt=0, le=1)
    """Krippendorff's alpha under which labels are not trusted."""
    adjudicate: bool = True
    """Whether a trace that reviewers disagree on waits for a third one's word, rather than counting
    as their mean."""
