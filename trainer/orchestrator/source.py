"""The source: which problem of which environment is visited next, over and over.

Enter: each environment's problems and weight, and what visits were worth. Leave: Visits. No problem
of an environment comes twice in one round (`rounds.py`), and the environment that is most behind
its weight's share comes next. Invariant: a source made anew with the same journal gives the same
Visits from number 0 on, whatever has been learnt of them since: a run that was killed asks again
and skips what it has.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from flywheel.durable import no_space, write
from flywheel.errors import UsageError
from flywheel.ids import digest
from flywheel.records import Problem
from flywheel.train_section import CurriculumSection
from trainer.orchestrator.contract import Visit
from trainer.orchestrator.rounds import Rounds


class Pool(NamedTuple):
    """One environment of a run."""

    environment: str
    problems: Sequence[Problem]
    weight: float = 1.0
    """Share of the visits, beside the others' weights."""
    rates: Mapping[str, float] = {}
    """Problem id -> pass rate before the run. Read where no journal is there yet."""


class _Learnt(msgspec.Struct, frozen=True):
    """A line of the journal."""

    after: int
    """Visits that had been given by then: the next one knows of it."""
    environment: str
    problem: str
    rate: float
    visit: str = ""
    """"" = known before the run."""


class _Head(msgspec.Struct, frozen=True):
    made_for: str


class Source(Iterator[Visit]):
    """Endless. `learnt` matters to a curriculum alone, and so does the journal."""

    def __init__(
        self,
        run_id: str,
        pools: Sequence[Pool],
        *,
        seed: int,
        curriculum: CurriculumSection | None = None,
        journal: Path | None = None,
        given: int = 0,
    ) -> None:
        """
        Args:
            given: visits that the run was given before it was killed, as far as is known: what is
                learnt from now on changes none of them.

        Raises:
            UsageError: an environment has no problems, two bear one name, or the journal was
                written for other problems.
        """
        _check(pools)
        self._run_id, self._curriculum = run_id, curriculum
        self._weights = {pool.environment: pool.weight for pool in pools}
        self._rounds = {
            pool.environment: Rounds(pool.problems, seed=seed, curriculum=curriculum)
            for pool in pools
        }
        self._given = dict.fromkeys(self._weights, 0)
        self._number, self._before = 0, given
        self._journal = journal if curriculum else None
        made_for = digest(
            run_id, seed, curriculum and curriculum.model_dump(), self._weights,
            {name: sorted(rounds.problems) for name, rounds in self._rounds.items()},
        )  # fmt: skip
        self._learnt = self._opened(made_for, pools)
        self._told = {one.visit for one in self._learnt}
        self._applied = 0

    def __next__(self) -> Visit:
        self._apply()
        environment = max(self._weights, key=self._due)
        rounds = self._rounds[environment]
        problem = rounds.pick()
        name = digest(self._run_id, environment, problem.id, rounds.met[problem.id] - 1)
        visit = Visit(name, problem, environment, self._number)
        self._given[environment] += 1
        self._number += 1
        return visit

    def learnt(self, visit: Visit, rate: float) -> None:
        """What the visit was worth: the mean reward, or share of right answers, of its rollouts.
        Told twice, it counts once."""
        if self._curriculum is None or visit.id in self._told:
            return
        known = self._learnt[-1].after if self._learnt else 0
        after = max(self._number, self._before, known)
        line = _Learnt(after, visit.environment, visit.problem.id, rate, visit.id)
        if self._journal:
            _append(self._journal, line)
        self._learnt.append(line)
        self._told.add(visit.id)

    def _due(self, environment: str) -> float:
        """How far its visits lie behind its weight's share, were the next one its own."""
        share = self._weights[environment] / sum(self._weights.values())
        return share * (self._number + 1) - self._given[environment]

    def _apply(self) -> None:
        while self._applied < len(self._learnt):
            line = self._learnt[self._applied]
            if line.after > self._number:
                return
            self._rounds[line.environment].learnt(line.problem, line.rate)
            self._applied += 1

    def _opened(self, made_for: str, pools: Sequence[Pool]) -> list[_Learnt]:
        before = [
            _Learnt(0, pool.environment, id, rate)
            for pool in pools
            for id, rate in sorted(pool.rates.items())
            if id in self._rounds[pool.environment].problems
        ]
        if self._journal is None:
            return before
        if not self._journal.exists():
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            write(self._journal, b"".join(_line(one) for one in (_Head(made_for), *before)))
            return before
        return _read(self._journal, made_for)


def _check(pools: Sequence[Pool]) -> None:
    names = [pool.environment for pool in pools]
    if not pools or len(set(names)) < len(names):
        raise UsageError(f"a run's environments need names of their own: {names}")
    for pool in pools:
        if not pool.problems:
            raise UsageError(f"environment {pool.environment} has no problems to train on")


def _line(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _append(journal: Path, line: _Learnt) -> None:
    with no_space(journal), journal.open("ab") as file:
        file.write(_line(line))
        file.flush()
        os.fsync(file.fileno())


def _read(journal: Path, made_for: str) -> list[_Learnt]:
    """All whole lines; a torn last one was never acted on, and goes."""
    whole, torn = journal.read_bytes().rpartition(b"\n")[::2]
    try:
        head, *rest = whole.split(b"\n")
        known = msgspec.json.decode(head, type=_Head).made_for
        lines = [msgspec.json.decode(one, type=_Learnt) for one in rest]
    except msgspec.DecodeError as error:
        raise UsageError(f"{journal} is not a source's journal: {error}") from error
    if known != made_for:
        raise UsageError(
            f"{journal} was written for other problems, weights or another seed: a run goes on "
            "with what it began with; start a new run"
        )
    if torn:
        write(journal, whole + b"\n")
    return lines
