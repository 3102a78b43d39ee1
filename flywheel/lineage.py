"""The nouns of lineage: what a dataset became, and what that became, each naming its predecessor.

dataset -> run -> checkpoint -> evaluation -> decision -> deployment. Beside it a calibration says
how far a judge agrees with people. All are written through the inbox like any record; ids are
content hashes except a decision's, which is a ULID (it is an event).
"""

from typing import Any, Literal

from msgspec import field

from flywheel.ids import digest
from flywheel.records import Record


class RuleCount(Record, frozen=True, kw_only=True):
    rule: str
    rows_in: int
    rows_out: int
    note: str = ""


Product = Literal["rows", "preferences", "problems", "calibration", "evaluation"]


class Dataset(Record, frozen=True, kw_only=True):
    id: str
    """Content hash of rows and rules; no time or ULID enters."""
    project: str
    path: str
    """Folder with manifest.json and rows.parquet, relative to the home."""
    rows: int
    parents: tuple[str, ...] = ()
    """The rollout run and, for rehearsal, earlier datasets."""
    rules: tuple[RuleCount, ...] = ()
    gate_passed: bool | None = None
    gate_report: str | None = None
    """HTML file, relative to the home."""
    product: Product = "rows"
    """What it is for: supervised rows, preference pairs, problems to sample on, people's verdicts
    that judges are calibrated by, problems to evaluate on."""
    retired: str | None = None
    """Why nothing may be trained on it any more; its successor, if it has one, names it as parent.
    None = it may."""


class Run(Record, frozen=True, kw_only=True):
    id: str
    """Hash of project, parents and configuration."""
    project: str
    algorithm: str
    base_model: str
    champion: str
    """Deployment name whose weights it started from."""
    snapshot: str
    """Digest of the production traces and feedback that it saw."""
    dataset_id: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    mlflow_run_id: str | None = None


class Checkpoint(Record, frozen=True, kw_only=True):
    id: str
    """Digest of the weight files."""
    run_id: str
    kind: Literal["adapter", "full"]
    path: str
    """Folder, relative to the home."""
    steps: int
    parent: str | None = None
    """The checkpoint that it continued from; None = the base model."""


class SliceResult(Record, frozen=True, kw_only=True):
    name: str
    problems: int
    champion: float | None
    candidate: float | None
    difference: float | None
    low: float | None
    """Lower end of the interval of the paired difference; None = too few problems."""
    high: float | None


class Evaluation(Record, frozen=True, kw_only=True):
    id: str
    project: str
    run_id: str
    champion: str
    candidate: str
    overall: SliceResult
    slices: tuple[SliceResult, ...] = ()
    confidence: float = 0.95
    champion_tokens: float | None = None
    """Mean completion tokens an answer: what an answer costs."""
    candidate_tokens: float | None = None
    champion_latency_s: float | None = None
    candidate_latency_s: float | None = None
    ungraded: int = 0
    """Answers that could not be graded, on either side; they enter no mean."""
    environment: str = ""
    """The grader's digest."""
    informing: dict[str, str] = field(default_factory=dict)
    """Judged rewards that moved no score, each with why its judge may only inform."""


class Calibration(Record, frozen=True, kw_only=True):
    """How far a judge agrees with people about the same answers."""

    id: str
    """Content hash of project, judge, reward and data."""
    project: str
    judge: str
    """Digest of model, settings and rubric: `Judged.digest`."""
    reward: str
    """The environment's method that asked the judge."""
    model: str
    data: str
    """Digest of what was judged, and of people's verdicts on it."""
    kind: Literal["reviews", "pairs"] = "reviews"
    labels: tuple[str, ...] = ("rejected", "accepted")
    """From worst to best."""
    confusion: tuple[tuple[int, ...], ...] = ()
    """One row a label of people's, one column a label of the judge's."""
    n: int = 0
    """Sum of `confusion`."""
    kappa: float | None = None
    """Cohen's; of three labels or more weighted by their distance. None = `reason` says why."""
    low: float | None = None
    high: float | None = None
    confidence: float = 0.95
    missing: int = 0
    """Reviewed answers that the judge gave no verdict on; they are not in `confusion`."""
    disputed: int = 0
    """Left out since as many people said one thing as the other."""
    cost_usd: float | None = None
    """Of the whole run that measured it. None = a price is not known."""
    reason: str | None = None
    at: int = 0
    """Of two with the same judge the later one stands."""


MarkCause = Literal["erased", "feedback", "label", "grader", "rules"]


class Mark(Record, frozen=True, kw_only=True):
    """Something that was made stands on what has changed since."""

    project: str
    target_kind: Literal["dataset", "checkpoint", "deployment"]
    target: str
    """Its id; a deployment's name."""
    cause: MarkCause
    """erased: traces of it are gone. feedback, label, grader: grades of it are others now. rules:
    the project's rules are."""
    reason: str
    """For people: what changed, and how much of it."""
    touched: int
    """Rows whose trace is gone, or whose grade is another."""
    of: int
    """Rows that it had."""
    retrain: bool | None = None
    """Whether training again would be from other rows; None = it was not looked at."""
    at: int = 0
    """Of two marks of one target and cause the later one stands."""
    settled: bool = False
    """True = nothing is different any more: what changed was changed back, or made anew."""

    @property
    def id(self) -> str:
        return digest(self.target_kind, self.target, self.cause)


class Erasure(Record, frozen=True, kw_only=True):
    """The receipt of an erasure: what went and how that was shown, without what it was."""

    id: str
    """ULID."""
    asked: str
    """"user", "tenant", "trace", "conversation" or "retention", and a keyed hash of which."""
    by: str
    reason: str
    at: int
    """When it began."""
    done: int | None = None
    """When the last search found nothing; None = it is under way, and goes on at the next try."""
    removed: dict[str, int] = field(default_factory=dict)
    """What went, by kind: traces, spans, raw bytes, grades, dataset rows, cached files …"""
    datasets: dict[str, str | None] = field(default_factory=dict)
    """Dataset -> its successor without the rows; None = it was retired."""
    flagged: tuple[str, ...] = ()
    """Checkpoints and deployments whose lineage had it."""
    searched: dict[str, int] = field(default_factory=dict)
    """Where it was looked for once more -> bytes looked through."""
    left: tuple[str, ...] = ()
    """Where it was still found, and why. () = nowhere."""


Outcome = Literal[
    "passed", "promoted", "refused", "waiting", "canary", "inconclusive", "rolled_back", "routed",
    "reconciled", "abandoned", "warned", "erased",
]  # fmt: skip
"""warned: a gate that only warns said no. erased: data went by `flywheel erase` or retention.
waiting: a person must say yes. canary: it answers a share of the requests. inconclusive: a
canary ended for want of evidence. routed: shadow or fallbacks were changed."""


class Decision(Record, frozen=True, kw_only=True):
    id: str
    """ULID."""
    project: str
    outcome: Outcome
    gate: str
    """data, leakage, learning, serving, person …"""
    reason: str
    by: str
    """Who or what decided."""
    at: int
    run_id: str | None = None
    evaluation_id: str | None = None
    deployment: str | None = None
    replaced: str | None = None
    """The deployment that it took the place of."""
    evidence: dict[str, Any] = field(default_factory=dict)


class Deployment(Record, frozen=True, kw_only=True):
    name: str
    """`project-vN`, never used twice."""
    project: str
    version: int
    """0 = the base model."""
    base_model: str
    """Path or name of the base model."""
    adapter: str | None = None
    """Folder of its weights relative to the home; None = the base model itself."""
    kind: Literal["adapter", "full", "external"] = "adapter"
    """What that folder holds: an adapter of the base model, or a whole model of its shape;
    external: there is none, a provider serves it."""
    provider: str | None = None
    """Of an external one: its name under the project's [providers]."""
    variant: dict[str, Any] = field(default_factory=dict)
    """Of one that answers faster: what it was made of and how. {} = it is no variant."""
    checkpoint_id: str | None = None
    run_id: str | None = None
    registry_version: str | None = None
