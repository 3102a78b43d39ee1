"""The engine's own thread: it owns the model, and gives live rows and gangs their turns on it.

Enter, from any thread: rows to answer, prompts to score, adapters to load. Leave: tokens through
each row's `deliver`, results through futures. Two lanes share the time evenly, whatever a step of
either costs, so a large gang never starves live traffic. Only this thread touches the model.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from flywheel.errors import Busy, CorruptFile, EngineError, UsageError
from serving.engines.embedded_batch import Row
from serving.engines.embedded_cache import Prefixes
from serving.engines.embedded_cohort import Bounds, Cohort, Turns, run_gang
from serving.engines.embedded_guess import Guessing, guessing_of
from serving.engines.embedded_model import BASE, Model
from serving.engines.embedded_score import Prompt, score
from serving.engines.embedded_steady import Steady

T = TypeVar("T")
GANG_QUEUE = 2048
"""Rows of gangs under way from which no further gang is taken."""
_log = logging.getLogger("flywheel.engine")


_Key = tuple[str, bool]
"""Adapter, and whether its rows are steady."""


@dataclass(eq=False)
class _Work:
    turns: Turns
    fail: Callable[[str], None]
    cohort: _Key | None = None
    """Whose live rows these are."""


@dataclass(frozen=True)
class Counts:
    running: int
    waiting: int
    prefix_tokens: int
    cache_use: float
    """Share of the memory for live rows' keys and values that is held."""


class Sampler:
    def __init__(self, model: Model, bounds: Bounds, threads: int) -> None:
        self.model, self.bounds, self.threads = model, bounds, threads
        self.adapters: dict[str, Path] = {}
        self._digests: dict[str, str] = {}
        self._guessing: dict[str, Guessing | None] = {}
        self._leaving: set[str] = set()
        budget = bounds.memory // 8 // model.shape.bytes_per_token
        self._prefixes = Prefixes(budget)
        self._cohorts: dict[_Key, Cohort | Steady] = {}
        self._live: deque[_Work] = deque()
        self._gangs: deque[_Work] = deque()
        self._gang_rows: list[Row] = []
        self._spent = {"live": 0.0, "gang": 0.0}
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._arriving = 0
        self._stopped = False
        self.draining = False
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join()

    # --- from any thread ---

    def answer(self, rows: Sequence[Row]) -> None:
        """Decodes rows of one adapter among the live ones.

        Raises:
            Busy: too many wait already, or the engine is draining.
        """
        waiting = self.counts().waiting
        if self.draining:
            raise Busy("the engine is draining")
        if waiting + len(rows) > self.bounds.queue:
            raise Busy(f"{waiting} answers wait already; {self.bounds.queue} may")
        with self._wake:
            self._arriving += len(rows)
        self._tell(lambda: self._enter(rows))

    def answer_gang(self, rows: Sequence[Row]) -> None:
        """Decodes rows of one adapter as a gang.

        Raises:
            Busy: as `answer`.
        """
        if self.draining:
            raise Busy("the engine is draining")
        if len(self._gang_rows) > GANG_QUEUE:
            raise Busy(f"{len(self._gang_rows)} answers of gangs are under way already")
        self._tell(lambda: self._enter_gang(rows))

    def score(
        self, adapter: str, prompts: Sequence[tuple[int, ...]], top: int
    ) -> "Future[list[Prompt]]":
        """The model's own logprobs of each prompt's tokens."""
        future: Future[list[Prompt]] = Future()

        def turns() -> Turns:
            scored = yield from score(self.model.of(adapter), adapter, prompts, top)
            future.set_result(scored)

        def fail(reason: str) -> None:
            future.set_exception(EngineError(reason))

        self._tell(lambda: self._live.append(_Work(turns(), fail)))
        return future

    def load(
        self, name: str, folder: Path, digest: str, whole: Model | None = None
    ) -> "Future[None]":
        """
        Args:
            digest: of the weights in `folder`.
            whole: the model that they are; None = an adapter.
        """
        return self._ask(lambda: self._load(name, folder, digest, whole))

    def unload(self, name: str) -> "Future[None]":
        return self._ask(lambda: self._unload(name))

    def replace(self, model: Model) -> "Future[None]":
        """Another base model in place of the old one and its adapters."""
        return self._ask(lambda: self._replace(model))

    def serves(self, name: str) -> bool:
        return name == BASE or (name in self.adapters and name not in self._leaving)

    def counts(self) -> Counts:
        cohorts = list(self._cohorts.values())
        running = sum(len(cohort.rows) for cohort in cohorts)
        waiting = self._arriving + sum(len(cohort.waiting) for cohort in cohorts)
        budget = self.bounds.memory * 3 // 8 // self.model.shape.bytes_per_token
        use = min(sum(cohort.held for cohort in cohorts) / budget, 1.0)
        return Counts(running + len(self._gang_rows), waiting, self._prefixes.tokens, use)

    def _tell(self, what: Callable[[], None]) -> None:
        with self._wake:
            if self._stopped:
                raise EngineError("the engine has stopped")
            self._inbox.append(what)
            self._wake.notify()

    def _ask(self, what: Callable[[], T]) -> "Future[T]":
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(what())
            except BaseException as error:
                future.set_exception(error)

        self._tell(run)
        return future

    # --- on the sampler's thread ---

    def _run(self) -> None:
        torch.set_num_threads(self.threads)
        try:
            with torch.inference_mode():
                while self._listen():
                    self._turn()
        except BaseException:
            # Without its sampler the process is of no use; whoever supervises it starts another.
            _log.critical("the sampler died", exc_info=True)
            os._exit(70)

    def _listen(self) -> bool:
        """Does what was asked meanwhile; sleeps while there is no work. False = stop."""
        with self._wake:
            while not (self._inbox or self._live or self._gangs or self._stopped):
                self._wake.wait()
            asked = list(self._inbox)
            self._inbox.clear()
        for what in asked:
            what()
        return not self._stopped

    def _turn(self) -> None:
        """One forward pass of the lane that has had less time."""
        if not (self._live and self._gangs):
            self._spent = {"live": 0.0, "gang": 0.0}
        gang = bool(self._gangs) and not (self._live and self._spent["live"] <= self._spent["gang"])
        lane = self._gangs if gang else self._live
        if not lane:
            return
        started = time.perf_counter()
        work = lane[0]
        try:
            next(work.turns)
        except StopIteration:
            self._end(lane.popleft())
        except Exception as error:
            _log.exception("a batch failed")
            work.fail(f"the engine failed: {type(error).__name__}: {error}")
            self._end(lane.popleft())
        else:
            if not gang:
                lane.rotate(-1)
        self._spent["gang" if gang else "live"] += time.perf_counter() - started

    def _enter(self, rows: Sequence[Row]) -> None:
        with self._wake:
            self._arriving -= len(rows)
        adapter = rows[0].adapter
        if not self.serves(adapter):
            return _fail(rows, f"{adapter} was unloaded")
        key = adapter, rows[0].steady
        cohort = self._cohorts.get(key)
        if cohort is None:
            cohort = self._cohorts[key] = self._cohort(*key)
            self._live.append(_Work(cohort.run(), cohort.fail, key))
        cohort.waiting.extend(rows)
        return None

    def _cohort(self, adapter: str, steady: bool) -> Cohort | Steady:
        key, model = (adapter, steady), self.model.of(adapter)

        def beside() -> int:
            return sum(one.held for other, one in self._cohorts.items() if other != key)

        if steady:
            return Steady(model, adapter, self.bounds, beside)
        guessing = self._guessing.get(adapter)
        return Cohort(model, adapter, self._prefixes, self.bounds, beside, guessing)

    def _enter_gang(self, rows: Sequence[Row]) -> None:
        adapter = rows[0].adapter

        def turns() -> Turns:
            try:
                if not self.serves(adapter):
                    return _fail(rows, f"{adapter} was unloaded")
                model = self.model.of(adapter)
                yield from run_gang(model, adapter, rows, self._prefixes, self.bounds)
            finally:
                self._gang_rows = [row for row in self._gang_rows if row not in rows]

        self._gang_rows = [*self._gang_rows, *rows]
        self._gangs.append(_Work(turns(), lambda reason: _fail(rows, reason)))

    def _end(self, work: _Work) -> None:
        """Forgets what has ended, and frees adapters that nobody uses any more."""
        if work.cohort is not None:
            del self._cohorts[work.cohort]
        for name in list(self._leaving):
            if not self._in_use(name):
                self._free(name)

    def _in_use(self, name: str) -> bool:
        live = any(adapter == name for adapter, _ in self._cohorts)
        return live or any(row.adapter == name for row in self._gang_rows)

    def _load(self, name: str, folder: Path, digest: str, whole: Model | None) -> None:
        known = self.adapters.get(name)
        if name in self._leaving:
            raise UsageError(f"{name} is being unloaded: load it under a new name")
        if known is not None and self._digests[name] == digest:
            return
        if known is not None or name == BASE:
            raise UsageError(
                f"{name} is loaded already, from {known or 'the base model'}: a new adapter needs "
                "a new name"
            )
        if len(name) > 200 or "." in name or not name.isprintable() or not name:
            raise UsageError(f"adapter name {name!r}: printable, no dots, at most 200 characters")
        try:
            guessing = guessing_of(folder)
            if whole is not None:
                self.model.add(whole)
            else:
                self.model.load(name, folder)
        except CorruptFile:
            _log.warning("%s was not loaded from %s", name, folder)
            raise
        self.adapters[name], self._digests[name] = folder, digest
        self._guessing[name] = guessing

    def _unload(self, name: str) -> None:
        if not self.serves(name) or name == BASE:
            raise UsageError(f"{name} is not a loaded adapter")
        self._leaving.add(name)
        if not self._in_use(name):
            self._free(name)

    def _replace(self, model: Model) -> None:
        if self._live or self._gangs:
            raise Busy("answers are under way: a base model is replaced between them")
        self.model = model
        self.adapters.clear()
        self._digests.clear()
        self._guessing.clear()
        self._prefixes = Prefixes(self._prefixes.budget)

    def _free(self, name: str) -> None:
        self._leaving.discard(name)
        self._prefixes.forget(name)
        del self.adapters[name]
        self._guessing.pop(name, None)
        self.model.unload(name)


def _fail(rows: Sequence[Row], reason: str) -> None:
    for row in rows:
        row.deliver(None, reason)
