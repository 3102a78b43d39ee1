"""A project: one use case, one `flywheel.toml`, validated when it is loaded.

An unknown key is an error that names the nearest right one. `digest` is what a run's id takes of
it.
"""

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any, Literal, Self, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from flywheel.curate_section import CURATED, CurateSection, ProblemsSection, RolloutsSection
from flywheel.data_section import (
    DataGateSection,
    LabelsSection,
    PrivacySection,
    RetentionSection,
)
from flywheel.errors import ProjectError, unfit
from flywheel.ids import digest
from flywheel.judge_section import JudgeSection
from flywheel.section import EnvironmentSection, Section
from flywheel.serving_section import (
    CaptureSection,
    LimitsSection,
    PriceSection,
    ProviderName,
    ProviderSection,
    ReleaseSection,
    ServingSection,
)
from flywheel.train_section import TrainSection


class ModelSection(Section):
    base: str
    """A folder, relative to the project's, or the name of one under FLYWHEEL_MODELS."""


class GateSection(Section):
    accept: Literal["better", "not_worse_and_cheaper", "either"] = "either"
    """What passes: a candidate shown to be better, or one not worse by `margin` and cheaper."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """Of every interval."""
    margin: float = Field(0.02, ge=0)
    """How much worse `not_worse_and_cheaper` forgives, in reward."""
    cheaper: float = Field(0.1, ge=0)
    """Share of completion tokens that must be saved to count as cheaper."""
    min_problems: int = Field(16, ge=2)
    """Held-out problems answered and graded on both sides, at least."""
    samples: int = Field(1, ge=1)
    """Answers a held-out problem, from each model."""
    max_latency_ratio: float | None = Field(2.0, gt=0)
    """Refuse when the candidate's mean latency is more than this times the champion's."""
    slice_min_problems: int = Field(5, ge=2)
    """A slice with fewer is shown and vetoes nothing."""
    promotion: Literal["automatic", "asked"] = "automatic"
    """asked: a candidate that passed waits until a person promotes it."""


Every = int | str
"""A cron line in the project's time zone, seconds between two starts, or "off"."""


class ScheduleSection(Section):
    """When its flows run, once `flywheel deploy` was called and `flywheel prefect` runs."""

    ingest: Every = "0 * * * *"
    """Commits what waits in the inbox."""
    grade: Every = "10 * * * *"
    """Grades recorded traces, and looks whether a turn is due."""
    curate: Every = "30 2 * * *"
    """Samples, grades and selects: the next turn's dataset."""
    turn: Every = "0 4 * * 1"
    """One whole turn."""
    registry: Every = 60
    """How often it looks for what people asked for in MLflow."""
    retention: Every = "40 3 * * *"
    """Erases what may be kept no longer."""
    enough_graded: int | None = Field(500, ge=1)
    """Traces graded since the last turn that start one; None = never."""
    drift: float | None = Field(0.15, gt=0)
    """How far the champion's mean reward on recorded traffic may fall below what it was at the
    beginning before a turn starts; None = never."""
    drift_traces: int = Field(200, ge=10)
    """Graded traces that each of the two means is taken over."""

    @field_validator("ingest", "grade", "curate", "turn", "registry", "retention")
    @classmethod
    def _known_every(cls, value: Every) -> Every:
        if isinstance(value, int):
            if value < 1:
                raise ValueError("seconds between two starts must be at least 1")
        elif value != "off" and len(value.split()) != 5:
            raise ValueError('not a cron line of five fields, a number of seconds, or "off"')
        return value


_ELSEWHERE = ("serving", "capture", "limits", "release", "providers", "prices", "timezone",
              "schedule", "labels")  # fmt: skip
"""Sections that say where and for whom, not what a turn does."""


class Project(Section):
    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,40}$")
    """Of the project, and of the model that clients ask for: a-z, 0-9 and -, a letter first."""
    timezone: str = "UTC"
    """Of the schedule, as the tz database names it."""
    model: ModelSection
    environment: EnvironmentSection
    serving: ServingSection = ServingSection()
    capture: CaptureSection = CaptureSection()
    limits: LimitsSection = LimitsSection()
    release: ReleaseSection = ReleaseSection()
    providers: dict[ProviderName, ProviderSection] = Field(default_factory=dict)
    """Models that somebody else serves, by a name of your own."""
    prices: dict[str, PriceSection] = Field(default_factory=dict)
    """What tokens cost, by the model's name."""
    problems: ProblemsSection = ProblemsSection()
    rollouts: RolloutsSection = RolloutsSection()
    curate: CurateSection = CurateSection()
    train: TrainSection = TrainSection()
    data_gate: DataGateSection = DataGateSection()
    privacy: PrivacySection = PrivacySection()
    retention: RetentionSection = RetentionSection()
    labels: LabelsSection = LabelsSection()
    gate: GateSection = GateSection()
    schedule: ScheduleSection = ScheduleSection()
    judge: JudgeSection | None = None
    """None = no judge."""
    folder: Path = Field(Path(), exclude=True)
    """Where the flywheel.toml lies."""

    @model_validator(mode="before")
    @classmethod
    def _curated_for_its_algorithm(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        train, curate = given.get("train"), given.get("curate", {})
        algorithm = train.get("algorithm") if isinstance(train, dict) else None
        if algorithm in CURATED and isinstance(curate, dict):
            return {**given, "curate": {**CURATED[algorithm], **curate}}
        return given

    @model_validator(mode="after")
    def _provided(self) -> Self:
        known = {*self.providers}
        for name in known:
            if re.fullmatch(r"v\d.*|base|previous", name):
                raise ValueError(f"providers.{name}: deployments are called so; take another name")
        for field, names, also in (
            ("first", filter(None, [self.serving.first]), set[str]()),
            ("fallbacks", self.serving.fallbacks, {"previous", "base"}),
        ):
            for name in names:
                if name not in known | also:
                    there = ", ".join(sorted(known | also)) or "none; add [providers.NAME]"
                    raise ValueError(f"serving.{field}: {name!r} is no provider; there is {there}")
        return self

    @property
    def judges(self) -> bool:
        """Whether its model judges answers rather than gives them."""
        return self.train.algorithm in ("reward", "process_reward")

    @property
    def traffic(self) -> str:
        """The project whose answers, and what was said of them, this one learns from."""
        return self.curate.answers_of or self.name

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"no time zone {value!r}; for example Europe/Berlin") from error
        return value

    def digest(self) -> str:
        """Of all that decides what a turn does; not of the folder, the port or the machines."""
        here: Any = {"machine": True, "rl": {"engines"}}
        left: Any = {name: True for name in _ELSEWHERE} | {"train": here}
        return digest(self.model_dump(mode="json", exclude=left))


def load_project(path: Path, sections: dict[str, Any] | None = None) -> Project:
    """Reads a project from its folder or its flywheel.toml.

    Args:
        sections: what stands in place of the file's sections of these names.

    Raises:
        ProjectError: no file, no TOML, or keys and values that do not fit; names each one.
    """
    file = path / "flywheel.toml" if path.is_dir() else path
    if not file.is_file():
        where = path.resolve() if path.is_dir() else path
        raise ProjectError(f"no flywheel.toml at {where}: `flywheel init {path}` writes one")
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProjectError(f"{file}: not valid TOML: {error}") from error
    content |= sections or {}
    try:
        return Project.model_validate({**content, "folder": file.parent.resolve()})
    except ValidationError as error:
        raise ProjectError(f"{file}:\n" + "\n".join(_explain(error))) from error


def _explain(error: ValidationError) -> list[str]:
    lines = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"])
        message = unfit(item)
        if item["type"] == "extra_forbidden":
            known = _fields_at(item["loc"][:-1])
            near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
            message = (
                f"unknown key; did you mean {near[0]!r}?"
                if near
                else f"unknown key; known: {known}"
            )
        named = message.startswith((f"{where}.", f"{where}: "))
        lines.append(f"  {message}" if named else f"  {where}: {message}")
    return lines


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Project
    for part in location:
        field = model.model_fields.get(str(part))
        kinds = get_args(field.annotation) or (field.annotation,) if field else ()
        inner = [one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return sorted(set(model.model_fields) - {"folder"})


def base_folder(project: Project, models: Path) -> Path:
    """The base model's folder: the project's own, or the one of that name under `models`."""
    own = project.folder / project.model.base
    return own if own.is_dir() else models / project.model.base
