"""New weights of a run under way, from their folder to every engine that plays its episodes.

Enter: a version and its folder (`adapter/` or `model/`, and probe.json), written whole before.
Leaves: the version answers each call that begins from then on. The order: load under a name of its
own, compare logprobs with the trainer's, and only when every engine has confirmed, switch. What
fails before that changes nothing. Of several engines one that is away is left behind, and plays
nothing until it confirmed too. An engine of the run's own that holds one model alone has its model
replaced between two calls. Invariants: a name never gets other weights; weights are unloaded only
when they answer no call.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from flywheel.errors import EngineError, Refused
from serving.engines.client import EngineClient
from serving.engines.loading import load_checked
from serving.policies import Policies, Policy, name_of
from serving.verify import FLOAT32, Bounds, check_logprobs, read_probe

ADAPTER, MODEL, PROBE = "adapter", "model", "probe.json"
"""What a version's folder holds: one of the first two, and the third."""
_DIGITS = 12
"""Of the weights' digest, in the engine's name of them."""
LOOK_S, MISSED = 5.0, 3
"""Between two looks at an engine that is given weights, and looks in a row that find nobody until
it is away; where it is the only one it is waited for."""
PARTING_S = 20.0
"""For what is being loaded as the run ends, so that it does not stay in an engine."""
_log = logging.getLogger("flywheel.rl")
T = TypeVar("T")


class Seat(NamedTuple):
    """One engine, and what says which weights answer the calls that are made at it."""

    client: EngineClient
    policies: Policies
    replace: Callable[[Path], None] | None = None
    """Serves other base weights from now on (`Engine.load_weights`), for an engine that this run
    alone uses and that holds one model. None = whole models too are loaded by name."""
    bounds: Bounds = FLOAT32
    start: Path | None = None
    """The weights that `policies` begins with, to be loaded again where the engine lost them; None
    = they are the base model."""


class WeightPublisher:
    """Implements `trainer.orchestrator.contract.Publisher`, for the time of an `async with` block.
    One publishes for a run at a time."""

    def __init__(self, run: str, seats: Sequence[Seat]) -> None:
        """
        Args:
            run: whose weights they are: a name without a dot, of one run alone.
        """
        self.run, self.seats = run, tuple(seats)
        self._first = [seat.policies.now for seat in self.seats]
        self.evidence: Mapping[str, Any] = {}
        """What the last check saw, of the engine that was furthest from the trainer."""
        self._folders: dict[str, Path] = {}
        self._one = asyncio.Lock()
        self._behind: set[int] = set()
        """Places of seats whose engine has not confirmed what answers now."""
        self._work: set[asyncio.Task[Any]] = set()
        """What threads do at engines; it ends also where nobody waits for it any more."""

    async def __aenter__(self) -> Self:
        """What a process that was killed left of this run goes."""
        await self.clear()
        return self

    async def __aexit__(self, *error: object) -> None:
        """What the run started from answers again, and no adapter of it stays in an engine."""
        for seat, first in zip(self.seats, self._first, strict=True):
            seat.policies.switch(first)
        if self._work:
            await asyncio.wait(self._work, timeout=PARTING_S)
        with contextlib.suppress(EngineError):
            await self.clear()

    async def publish(self, version: int, folder: Path) -> None:
        """Returns when every engine serves and confirmed the version. Again is no error.

        Raises:
            Refused: an engine does not serve what was trained; the version before answers on.
            EngineError: it could not be asked.
            CorruptFile, MissingPart: the folder holds no version.
        """
        async with self._one:
            if (folder / MODEL).is_dir() and any(seat.replace for seat in self.seats):
                await self._replace(version, folder)
            else:
                await self._add(version, folder)

    async def revive(self, seat: Seat) -> bool:
        """Brings back what answers now where the engine lost it, as one does that was started anew,
        or was away as it was published. False = it is not there yet.

        Raises:
            Refused, EngineError: it does not serve it.
        """
        policy, place = seat.policies.now, self.seats.index(seat)
        folder = self._folders.get(policy.model)
        if self._one.locked():  # it is being given new ones
            return place not in self._behind
        async with self._one:
            again = place in self._behind
            await asyncio.shield(self._begun(_revived, seat, policy, folder, again))
            self._behind.discard(place)
        return True

    async def clear(self) -> None:
        """Unloads what of this run answers no call any more."""
        work = [asyncio.shield(self._begun(_swept, self.run, seat)) for seat in self._there()]
        found = await asyncio.gather(*work, return_exceptions=True)
        if failed := [one for one in found if isinstance(one, BaseException)]:
            raise _graver(failed)

    async def _add(self, version: int, folder: Path) -> None:
        from trainer.models import digest_of

        digest = await asyncio.to_thread(digest_of, _weights(folder))
        name = name_of(self.run, version)
        policy = Policy(version, f"{name}-{digest[:_DIGITS]}", name)
        work = [self._confirmed(seat, policy, folder) for seat in self.seats]
        found = await asyncio.gather(*work, return_exceptions=True)
        evidence = [one for one in found if isinstance(one, dict)]
        failed = {at: one for at, one in enumerate(found) if isinstance(one, BaseException)}
        if not evidence or not all(isinstance(one, Away) for one in failed.values()):
            await self._clear_if_there()
            raise _graver(list(failed.values()))
        for error in failed.values():
            _log.warning("%s is served without an engine that is away: %s", name, error)
        self._behind = set(failed)
        self._switch(policy, evidence)
        self._folders = {policy.model: folder}
        await self._clear_if_there()

    async def _confirmed(self, seat: Seat, policy: Policy, folder: Path) -> dict[str, Any]:
        """
        Raises:
            Away: another engine may go on without this one.
        """
        work, missed = self._begun(_loaded, seat, policy, folder), 0
        while not work.done():
            await asyncio.wait({work}, timeout=LOOK_S)
            if len(self.seats) > 1 and not work.done():
                missed = 0 if await asyncio.to_thread(seat.client.ready) else missed + 1
            if missed >= MISSED:
                raise Away(f"the engine at {seat.client.url} gives no sign of life")
        try:
            return work.result()
        except EngineError as error:
            if len(self.seats) > 1 and not await asyncio.to_thread(seat.client.ready):
                raise Away(str(error)) from error
            raise

    async def _replace(self, version: int, folder: Path) -> None:
        """Whole models where there is room for one, so that no call may be under way."""
        policy = Policy(version, "base", name_of(self.run, version))
        found = []
        for seat in self.seats:
            async with seat.policies.halted():
                found.append(await asyncio.to_thread(_replaced, seat, policy, folder))
                seat.policies.switch(policy)
        self._switch(policy, found)

    def _switch(self, policy: Policy, found: Sequence[dict[str, Any]]) -> None:
        for seat in self.seats:
            seat.policies.switch(policy)
        self.evidence = max(found, key=lambda one: float(one["largest"]), default={})

    def _there(self) -> list[Seat]:
        return [seat for at, seat in enumerate(self.seats) if at not in self._behind]

    async def _clear_if_there(self) -> None:
        """One that is away has nothing to unload, and is no reason against what was published."""
        with contextlib.suppress(EngineError):
            await self.clear()

    def _begun(self, work: Callable[..., T], *args: Any) -> "asyncio.Task[T]":
        """In a thread, which no cancelling ends: so it is known until it ends by itself."""
        task = asyncio.create_task(asyncio.to_thread(work, *args))
        self._work.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._work.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where nobody waits for it


class Away(EngineError):
    """An engine among several that answers nobody."""


def _weights(folder: Path) -> Path:
    whole = folder / MODEL
    return whole if whole.is_dir() else folder / ADAPTER


def _loaded(seat: Seat, policy: Policy, folder: Path) -> dict[str, Any]:
    probe = read_probe(folder / PROBE)
    seat.client.load_adapter(policy.model, _weights(folder))
    return check_logprobs(seat.client, policy.model, probe, bounds=seat.bounds)


def _revived(seat: Seat, policy: Policy, folder: Path | None, again: bool) -> None:
    """
    Args:
        folder: of the version; None = what the run starts from.
        again: also where it has the weights, which it has not confirmed.
    """
    if not again and policy.model in seat.client.models():
        return
    if folder is not None:
        _loaded(seat, policy, folder)
    elif seat.start is not None:
        load_checked(seat.client, policy.model, seat.start, seat.bounds)


def _swept(run: str, seat: Seat) -> None:
    """Also what it has of a killed process is named by the run."""
    if not seat.client.ready():
        raise EngineError(f"the engine at {seat.client.url} is not ready")
    for model in seat.client.models():
        ours = model.startswith(f"{run}-v")
        if ours and model != seat.policies.now.model and not seat.policies.in_use(model):
            seat.client.unload_adapter(model)


def _replaced(seat: Seat, policy: Policy, folder: Path) -> dict[str, Any]:
    if seat.replace is None:
        raise Refused(
            f"{policy.name} replaces all weights of one engine and not of another: give the run "
            "engines of one kind"
        )
    probe = read_probe(folder / PROBE)
    before = seat.client.health().get("model") or seat.client.access.model
    seat.replace(folder / MODEL)
    try:
        return check_logprobs(seat.client, policy.model, probe, bounds=seat.bounds)
    except Refused:
        if before is not None:
            seat.replace(Path(str(before)))
        raise


def _graver(failed: Sequence[BaseException]) -> BaseException:
    """What is told of several failures: a refusal is certain, the rest may pass."""
    told = (Refused, EngineError, BaseException)
    return next(one for kind in told for one in failed if isinstance(one, kind))
