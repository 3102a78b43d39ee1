"""A project: one use case, one `flywheel.toml`, validated when it is loaded.

An unknown key is an error that names the nearest right one. `digest` is what a run's id takes of
it.
"""

import difflib
import re
import tomllib
from collections.abc import Set
from pathlib import Path
from typing import Any, Literal, Self, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from flywheel.errors import ProjectError, unfit
from flywheel.ids import digest
from flywheel.section import Section as Section
from flywheel.section import Url as Url
from flywheel.serving_section import (
    CaptureSection,
    LimitsSection,
    PriceSection,
    ProviderName,
    ProviderSection,
    ReleaseSection,
)
from flywheel.serving_section import ServingSection as ServingSection


class ModelSection(Section):
    base: str
    """A folder, relative to the project's, or the name of one under FLYWHEEL_MODELS."""


class EnvironmentSection(Section):
    path: str
    """`file.py:Class`, relative to the project's folder; `package.module:Class`; or the name of an
    installed environment."""
    config: dict[str, Any] = Field(default_factory=dict)
    """What the environment's own configuration takes."""


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
        Rule(name="confirmed"),
        Rule.model_validate({"name": "min_reward", "value": 1.0}),
        Rule(name="exact_duplicates"),
        Rule.model_validate({"name": "length", "max_tokens": 2048}),
        Rule.model_validate({"name": "per_problem", "keep": 1}),
    )
    """In this order, after the leakage check: docs/extending.md says what each does. A list of your
    own replaces the whole default. With `dpo`, `kto`, `reward` and `process_reward` the default is
    `fidelity` (renderable too), `confirmed`, `exact_duplicates`, `length`; with `recorded` the
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
        {"name": "confirmed"},
        {"name": "exact_duplicates"},
        {"name": "length", "max_tokens": 2048},
    ),
    "sources": ("rollouts", "recorded"),
}
"""What [curate] says for these, where the project does not: bad answers are wanted too."""
_RECORDED: dict[str, Any] = {
    "rules": (
        {"name": "fidelity"},
        {"name": "confirmed"},
        {"name": "exact_duplicates"},
        {"name": "length", "max_tokens": 2048},
    ),
    "sources": ("recorded",),
}
"""And with `recorded`, which learns from bad answers too, but from none without its tokens."""
_TAUGHT: dict[str, Any] = {
    "rules": (
        {"name": "fidelity", "accept": ("trainable", "renderable")},
        {"name": "confirmed"},
        {"name": "min_reward", "value": 1.0},
        {"name": "exact_duplicates"},
        {"name": "length", "max_tokens": 2048},
        {"name": "per_problem", "keep": 1},
    ),
}
"""And with `teacher`, whose answers may come as text alone."""
_CURATED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(PREFERENCES, _PREFERRED), "recorded": _RECORDED, "teacher": _TAUGHT,
}  # fmt: skip
Number = Literal["float32", "bfloat16"]


class RLSection(Section):
    """[train.rl]: of the algorithms that sample while they train, and of policy losses."""

    loss: Literal["dppo", "grpo", "dapo", "dr_grpo", "gspo", "cispo", "reinforce"] = "dppo"
    """`trainer.losses.policy` has each with its equation."""
    clip_low: float | None = Field(None, gt=0)
    """Of the loss's trust region, downwards; None = the loss's own default."""
    clip_high: float | None = Field(None, gt=0)
    """Upwards."""
    correction: Literal["none", "tis", "icepop", "sequence_mask"] = "none"
    """Of the mismatch between who sampled and who is trained."""
    correction_low: float | None = Field(None, ge=0, le=1)
    """Least importance ratio that it lets through; None = the correction's own default."""
    correction_high: float | None = Field(None, ge=1)
    """The largest. A ratio of 1, where nothing differs, is always let through."""
    old_logprobs: Literal["behaviour", "recomputed"] = "behaviour"
    """What ratios are taken to: what the engine said as it sampled, or the trainer's own numbers
    under the weights that a step starts from. Recomputed ones need a correction, unless the run
    samples while it trains and is synchronous."""
    kl: float = Field(0.0, ge=0)
    """Weight of the KL to the weights that the run started from."""
    baseline: Literal["mean", "std", "leave_one_out", "maxrl"] = "mean"
    """What an answer's reward is compared with, in its group."""
    length_penalty: float = Field(0.0, ge=0, lt=1)
    """Share of its reward that a right answer may lose for being longer than its group's right
    ones; 0 = none."""
    call_penalty: float = Field(0.0, ge=0, lt=1)
    """The same for taking more model calls; both together stay below 1."""
    echo: float = Field(0.1, ge=0)
    """Weight of the cross-entropy on the environment's tokens, with `echo`."""
    steps: int = Field(16, ge=1)
    """Optimizer steps of a run."""
    groups_per_step: int = Field(8, ge=1)
    """Problems whose groups make one step's batch."""
    group_size: int = Field(8, ge=1)
    """Answers a problem."""
    max_staleness: int = Field(8, ge=0)
    """Versions that any trained token may lag behind the weights being trained; 0 = synchronous."""
    overaged: Literal["wait", "mask", "stop"] = "wait"
    """Of a rollout that would become too old: the trainer waits for it; its too old tokens are
    masked; or it is ended at the limit. Whatever is lost is counted."""
    slots: int = Field(64, ge=1)
    """Rollouts under way together, at most; the engines' load may lower it."""
    engines: tuple[Url, ...] = ()
    """URLs of further engines that the run plays before, beside the home's own: vLLM or embedded
    ones of the same base model, which see the run's folder. They decide no run's identity."""
    temperature: float = Field(1.0, gt=0)
    """Rollouts are sampled at."""
    max_failed: int = Field(16, ge=1)
    """Rollouts that fail in a row before the run stops with the reason."""
    keep_versions: int = Field(2, ge=1)
    """Adapters of the newest versions that stay on disk, beside those in use."""


class TeacherSection(Section):
    """[train.teacher]: whose answers or log-probabilities are learnt from."""

    url: str | None = Field(None, pattern=r"^https?://")
    """An engine of vLLM's routes, without /v1; None = the project's own engine."""
    model: str | None = None
    """As that engine knows it; None = `base`."""
    key_env: str | None = None
    """The environment variable that its key stands in."""
    hint: str = ""
    """With `self_distill`: what the teacher reads before the problem. {answer} and {NAME} of the
    problem's own fields are filled in."""


class MixtureEntry(Section):
    """[[train.mixture]]: one environment among several, in one run."""

    environment: EnvironmentSection
    """`environment.path` and, where it takes any, `environment.config`, as in the project's own."""
    weight: float = Field(1.0, gt=0)
    """Share of the groups, beside the others' weights."""
    algorithm: str | None = None
    """None = the run's."""


class CurriculumSection(Section):
    """[train.curriculum]: problems are picked by how often they are solved."""

    low: float = Field(0.0, ge=0, le=1)
    """Pass rate, so far, below which a problem waits: it is too hard yet."""
    high: float = Field(1.0, ge=0, le=1)
    """And above which it waits, as learnt."""
    revisit: float = Field(0.1, ge=0, le=1)
    """Share of picks from outside, so that what was too hard or too easy is seen again."""

    @model_validator(mode="after")
    def _ordered(self) -> "CurriculumSection":
        if self.low > self.high:
            raise ValueError(f"train.curriculum: no pass rate lies from {self.low} to {self.high}")
        return self


class MachineSection(Section):
    """[train.machine]: where a run's trainer computes. It decides no run's identity."""

    engine: Literal["here", "torchrun", "verl", "prime-rl"] = "here"
    """here: one process; torchrun: several of ours; verl and prime-rl: the run is handed to them
    (docs/gpu.md). What `flywheel train` is told as its engine goes before it."""
    nodes: int = Field(1, ge=1)
    """Machines."""
    processes: int = Field(1, ge=1)
    """Of each node; on GPUs one a GPU."""
    address: str | None = None
    """torchrun: host:port of the first node's rendezvous; verl: the Ray cluster's, to submit to.
    None = this machine alone."""


ONLINE = frozenset(("grpo", "echo", "distill", "self_distill"))
"""Algorithms that sample while they train."""
POLICY = frozenset(("grpo", "echo", "recorded"))
"""Algorithms whose loss is `train.rl.loss`."""


def _unweighed(rl: RLSection, algorithms: Set[str | None]) -> str | None:
    """Why what an older policy sampled would be trained as if the newest had."""
    if not rl.max_staleness and "recorded" not in algorithms:
        return None
    ways = 'a correction ("tis", "icepop" or "sequence_mask")'
    if "recorded" not in algorithms:
        ways += ", or max_staleness = 0"
    if rl.old_logprobs == "recomputed" and rl.correction == "none":
        return (
            "recomputed old logprobs hide how far the sampler's weights lay behind: asynchronous "
            f'training would be wrong without saying so. Take old_logprobs = "behaviour", {ways}'
        )
    if rl.loss == "reinforce" and rl.correction == "none" and algorithms & POLICY:
        return (
            'loss = "reinforce" has no ratio to who sampled: answers of older weights would be '
            f"trained as the newest's own. Take another loss, {ways}"
        )
    return None


def _ungrouped(rl: RLSection, algorithms: Set[str | None]) -> str | None:
    """Why nothing could be trained, or not as it was asked for."""
    if rl.group_size < 2 and algorithms & {"grpo", "echo"}:
        return "group_size = 1: an answer alone has nothing to be better than; it takes two"
    if rl.correction == "none" and (rl.correction_low, rl.correction_high) != (None, None):
        return "correction_low and correction_high are bounds of a correction, and there is none"
    return None


class TrainSection(Section):
    algorithm: Literal[
        "rejection", "sft", "grpo", "echo", "distill", "self_distill",
        "recorded", "teacher", "dpo", "kto", "reward", "process_reward",
    ] = "rejection"  # fmt: skip
    """`trainer.algorithms.ALGORITHMS` has each; docs/training.md says when to take which."""
    method: Literal["lora", "full"] = "lora"
    """What learns: an adapter, or all weights."""
    rank: int = Field(8, ge=1)
    """Of the LoRA adapter. A run goes on from the champion's, so its rank and alpha stay."""
    alpha: int = Field(16, ge=1)
    """The adapter's output is scaled by alpha over rank."""
    learning_rate: float = Field(1e-3, gt=0, le=10)
    """Of AdamW, at its highest."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """After the warm-up."""
    warmup_steps: int = Field(3, ge=0)
    """Linear, before the schedule."""
    epochs: int = Field(3, ge=1)
    """Times that each row is seen."""
    batch: int = Field(8, ge=1)
    """Samples an optimizer step."""
    micro_tokens: int = Field(2048, ge=16)
    """Tokens a packed micro-batch, at most."""
    clip: float = Field(1.0, gt=0)
    """Largest norm of the gradient."""
    weight_decay: float = Field(0.0, ge=0)
    """Of AdamW."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Decay of a moving average of what learns, which is what is kept in the end; None = none."""
    compute: Number | None = None
    """Number format of the forward pass; None = bfloat16 on a GPU, float32 on a CPU."""
    checkpoint_every: int = Field(8, ge=1)
    """Optimizer steps."""
    seed: int = 0
    """Of the order of rows and the adapter's first weights."""
    beta: float = Field(0.1, gt=0)
    """Of DPO and KTO: how strongly the trained model is held to the one it started from."""
    chosen_ce: float = Field(1.0, ge=0)
    """Of DPO: weight of the cross-entropy on the chosen answers, beside the comparison, which alone
    may make both of a pair unlikely; 0 = DPO alone."""
    rl: RLSection = RLSection()
    teacher: TeacherSection | None = None
    machine: MachineSection = MachineSection()
    mixture: tuple[MixtureEntry, ...] = ()
    """() = the project's environment alone."""
    curriculum: CurriculumSection | None = None
    """None = no curriculum: problems in turn, in an order of the seed."""

    @model_validator(mode="after")
    def _sound(self) -> "TrainSection":
        rl = self.rl
        algorithms = {self.algorithm, *(one.algorithm for one in self.mixture)}
        if reason := _unweighed(rl, algorithms) or _ungrouped(rl, algorithms):
            raise ValueError(f"train.rl: {reason}")
        if (self.mixture or self.curriculum) and self.algorithm not in ONLINE:
            raise ValueError(
                f"train.algorithm {self.algorithm} learns from a dataset's rows: mixture and "
                "curriculum would do nothing; leave them out"
            )
        if rl.length_penalty + rl.call_penalty >= 1:
            raise ValueError(
                "train.rl: length_penalty and call_penalty together must stay below 1, so that a "
                "long right answer earns more than a wrong one"
            )
        if "self_distill" in algorithms and not (self.teacher and self.teacher.hint):
            raise ValueError("self_distill needs train.teacher.hint: what the teacher reads first")
        if algorithms & {"distill", "self_distill"} and rl.temperature != 1:
            raise ValueError(
                "a teacher's log-probabilities are of temperature 1: set train.rl.temperature = 1"
            )
        return self


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
    enough_graded: int | None = Field(500, ge=1)
    """Traces graded since the last turn that start one; None = never."""
    drift: float | None = Field(0.15, gt=0)
    """How far the champion's mean reward on recorded traffic may fall below what it was at the
    beginning before a turn starts; None = never."""
    drift_traces: int = Field(200, ge=10)
    """Graded traces that each of the two means is taken over."""

    @field_validator("ingest", "grade", "curate", "turn", "registry")
    @classmethod
    def _known_every(cls, value: Every) -> Every:
        if isinstance(value, int):
            if value < 1:
                raise ValueError("seconds between two starts must be at least 1")
        elif value != "off" and len(value.split()) != 5:
            raise ValueError('not a cron line of five fields, a number of seconds, or "off"')
        return value


_ELSEWHERE = ("serving", "capture", "limits", "release", "providers", "prices", "timezone",
              "schedule")  # fmt: skip
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
        if algorithm in _CURATED and isinstance(curate, dict):
            return {**given, "curate": {**_CURATED[algorithm], **curate}}
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


def load_project(path: Path) -> Project:
    """Reads a project from its folder or its flywheel.toml.

    Raises:
        ProjectError: no file, no TOML, or keys and values that do not fit; names each one.
    """
    file = path / "flywheel.toml" if path.is_dir() else path
    if not file.is_file():
        raise ProjectError(f"no flywheel.toml at {file}: `flywheel init {path}` writes one")
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProjectError(f"{file}: not valid TOML: {error}") from error
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
