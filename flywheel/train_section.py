"""The sections of flywheel.toml about how it is learnt: [train] and those inside of it.

What an algorithm cannot do with its settings is refused here, when the file is loaded.
"""

from collections.abc import Set
from typing import Literal

from pydantic import Field, model_validator

from flywheel.section import EnvironmentSection, Section, Url

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
