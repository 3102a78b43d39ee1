"""Who learns in a run that samples: grades whole groups, keeps them, has batches of them trained.

Enter groups whose rollouts have ended; leave rollouts and grades in the store, samples in batches,
and the folder of each new version. Invariants: a group is graded once, however often the run was
killed; its records are in the inbox before it may be trained on; a batch that was put stays.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.errors import FlywheelError
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.records import last_answer
from serving.policies import version_of
from tasks.playing import graded
from tasks.rl_buffer import Answered, Buffer, Buffered
from tasks.rl_report import learnt, mean
from tasks.rl_trainer import TrainerProcess
from tasks.tracking_metrics import rows_of, words_of
from trainer.algorithms.contract import Group, Prepared, Rollout
from trainer.algorithms.groups import group_of
from trainer.orchestrator.contract import Complete, Facts, Kept, Played, Standing, Visit
from trainer.samples import Sample
from trainer.spool import Batch, put_batch, take_batch, version_folder, versions

if TYPE_CHECKING:
    from environments.define import Environment
    from environments.judges.contract import Judge

COMMIT_EVERY = 8
"""Steps between two commits of rollouts; until then they wait in the inbox."""
FAINT = 1e-20
"""Times its weight, a token moves nothing."""


class SpoolLearner:
    """Implements `trainer.orchestrator.contract.Learner` over the run's folder."""

    def __init__(
        self,
        home: Home,
        folder: Path,
        environments: "Mapping[str, Environment]",
        prepare: Callable[[Group], Prepared],
        trainer: TrainerProcess,
        *,
        judge: "Judge | None" = None,
        worth: Callable[[Visit, float], None] = lambda visit, reward: None,
        version_of: Callable[[str], int | None] = version_of,
    ) -> None:
        """
        Args:
            prepare: the algorithm, on one group.
            worth: is told the mean reward of each visit.
            version_of: of the name that a token's policy bears.
        """
        self.home, self.folder, self.environments = home, folder, environments
        self.buffer, self.trainer = Buffer(folder), trainer
        self._prepare, self._judge, self._worth = prepare, judge, worth
        self._version_of = version_of
        self._since: list[Buffered] = []
        """Groups that ended since the last step, for its report."""
        self._last = ""
        """What the last step said, for people."""

    async def standing(self) -> Standing:
        assigned, groups = self.buffer.assigned(), self.buffer.all()
        trained = max(versions(self.folder), default=0)
        taken = {visit for several in assigned.values() for visit in several}
        return Standing(
            trained=trained,
            folder=version_folder(self.folder, trained) if trained else None,
            pending=assigned.get(trained + 1, ()),
            kept=tuple(
                Kept(one.visit, one.number, tuple(_facts(each) for each in one.rollouts))
                for one in groups
                if one.refused is None and one.visit not in taken
            ),
            consumed=frozenset(one.visit for one in groups),
        )

    async def complete(self, group: Complete) -> str | None:
        kept = await asyncio.to_thread(self._keep, group)
        self._since.append(kept)
        reward = mean(one.reward for one in kept.rollouts)
        if reward is not None:
            self._worth(group.visit, reward)
        return kept.refused

    async def drop(self, visit: str, reason: str) -> None:
        group = msgspec.structs.replace(self._found(visit), refused=reason, samples=())
        await asyncio.to_thread(self.buffer.keep, group)

    async def train(self, step: int, groups: tuple[str, ...], report: dict[str, Any]) -> Path:
        if step > max(versions(self.folder), default=0):
            await asyncio.to_thread(self._put, step, groups, report)
        return await self.finish(step)

    async def finish(self, step: int) -> Path:
        """Waits until the batch of `step`, which was put, is trained."""
        await self.trainer.until(lambda: step <= max(versions(self.folder), default=0))
        await asyncio.to_thread(self._trained, step)
        self._last = await asyncio.to_thread(self._said, step)
        return version_folder(self.folder, step)

    def words(self) -> str:
        reward = mean(one.reward for group in self._since for one in group.rollouts)
        since = "" if reward is None else f"mean reward {reward:.3f}"
        return "; ".join(filter(None, (since, self._last)))

    def _said(self, step: int) -> str:
        rows = rows_of(self.folder / "metrics.jsonl")
        return next((f"step {step}: {words_of(row)}" for row in rows if row["step"] == step), "")

    # --- a group

    def _keep(self, group: Complete) -> Buffered:
        from storage.inbox import Inbox

        if before := self.buffer.find(group.visit.id):
            return before
        visit, done = group.visit, [one.finished for one in group.played]
        environment = self.environments[visit.environment]
        grades = graded(environment, done, {visit.problem.id: visit.problem}, self._judge)
        bare = [one._replace(grades=[]) for one in done]  # `graded` has those of the runtime too
        made = group_of(visit.id, visit.problem, visit.environment, bare, grades)
        prepared = self._prepare(made)
        traces = [one.trace for one in done]
        name = f"rollouts-{self.folder.name}-{visit.id}"
        Inbox(self.home).append([*traces, *(one for given in grades for one in given)], name=name)
        kept = Buffered(
            visit=visit.id,
            number=visit.number,
            environment=visit.environment,
            problem_id=visit.problem.id,
            slice=visit.problem.slice,
            rollouts=tuple(
                _answered(one, rollout)
                for one, rollout in zip(group.played, made.rollouts, strict=True)
            ),
            lost=len(group.lost),
            samples=prepared.samples,
            refused=None if prepared.samples else _why(made, prepared),
            counts=dict(prepared.counts),
        )
        self.buffer.keep(kept)
        return kept

    # --- a step

    def _put(self, step: int, groups: tuple[str, ...], report: dict[str, Any]) -> None:
        """What was put before stays: the trainer may have read it."""
        before = self.buffer.assigned().get(step, groups)
        if before != groups:
            raise FlywheelError(f"step {step} trains other groups already: {', '.join(before)}")
        if take_batch(self.folder, step) is not None:
            return
        chosen = [self._found(name) for name in groups]
        oldest = int(report.pop("mask_below", 0) or 0)
        samples = tuple(
            young
            for group in chosen
            for sample in group.samples
            if (young := masked(sample, oldest, self._version_of))
        )
        samples = samples or nothing(chosen)
        since, self._since = self._since, []
        told = {**report, **learnt(chosen, since)}
        self.buffer.assign(step, groups)
        failpoint("rl.before_batch")
        put_batch(self.folder, Batch(step=step, groups=groups, samples=samples, report=told))
        failpoint("rl.after_batch")

    def _found(self, visit: str) -> Buffered:
        group = self.buffer.find(visit)
        if group is None:
            raise FlywheelError(f"group {visit} is to be trained on and was never kept")
        return group

    def _trained(self, step: int) -> None:
        from storage.committer import commit

        for name in self.buffer.assigned().get(step, ()):
            self.buffer.trained(name)
        if step % COMMIT_EVERY == 0:
            commit(self.home)


def masked(sample: Sample, oldest: int, version_of: Callable[[str], int | None]) -> Sample | None:
    """Without the tokens that a version below `oldest` sampled; None = nothing is left."""
    if not oldest:
        return sample
    names = sample.policy_versions or (None,) * len(sample.token_ids)
    known = {name: version_of(name) for name in set(names) if name is not None}
    mask = tuple(
        kept and (name is None or (known[name] or 0) >= oldest)
        for kept, name in zip(sample.mask, names, strict=True)
    )
    weighed = any(
        kept and values[at] > 0
        for values in sample.weights.values()
        for at, kept in enumerate(mask)
    )
    return msgspec.structs.replace(sample, mask=mask) if weighed else None


def nothing(groups: Sequence[Buffered]) -> tuple[Sample, ...]:
    """Of groups all of whose samples are too old: the step is still taken, and learns nothing.

    Raises:
        FlywheelError: there is no sample at all.
    """
    for sample in (one for group in groups for one in group.samples):
        weights = {
            name: tuple(FAINT * one for one in values) for name, values in sample.weights.items()
        }
        return (msgspec.structs.replace(sample, weights=weights),)
    raise FlywheelError(f"no group has a sample: {', '.join(one.visit for one in groups)}")


def _facts(one: Answered) -> Facts:
    return Facts(one.versions, one.tokens, one.seconds, one.sampled)


def _answered(played: Played, rollout: Rollout) -> Answered:
    choice = last_answer(rollout.trace)
    return Answered(
        trace_id=rollout.trace.id,
        reward=rollout.reward,
        reason=rollout.reason,
        tokens=played.tokens,
        versions=played.versions,
        sampled=played.sampled,
        cut=choice is not None and choice.finish_reason == "length",
        seconds=played.ended - played.started,
    )


def _why(group: Group, prepared: Prepared) -> str:
    """Why nothing of the group is trained on: the first reason of each kind."""
    if prepared.refused:
        return "; ".join(dict.fromkeys(reason for _, reason in prepared.refused))
    if prepared.counts:
        return ", ".join(name.replace("_", " ") for name in prepared.counts)
    reasons = dict.fromkeys(one.reason for one in group.rollouts if one.reason)
    return "; ".join(reasons) or "nothing of it can be trained on"
