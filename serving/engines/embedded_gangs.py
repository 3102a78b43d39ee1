"""Gangs while they gather: requests that come one by one and are decoded as one fixed batch.

Enter: each request's rows with the gang's id and size. Leave: all rows at once, when the last
request has come. A gang that is not whole within the wait fails, all of it, and says how many came.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flywheel.errors import FlywheelError
from serving.engines.embedded_batch import Row
from serving.engines.embedded_requests import GangId
from serving.refusal import invalid


@dataclass
class _Gathering:
    size: int
    adapter: str
    members: list[Sequence[Row]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None


class Gangs:
    """Used from the event loop alone."""

    def __init__(self, wait_s: float, dispatch: Callable[[Sequence[Row]], None]) -> None:
        self._wait_s, self._dispatch = wait_s, dispatch
        self._gathering: dict[str, _Gathering] = {}

    @property
    def waiting(self) -> int:
        return sum(len(rows) for gang in self._gathering.values() for rows in gang.members)

    def join(self, gang: GangId, rows: Sequence[Row]) -> None:
        """
        Raises:
            ApiError: 400: it contradicts what others of the gang said.
        """
        adapter = rows[0].adapter
        found = self._gathering.setdefault(gang.id, _Gathering(gang.size, adapter))
        if (found.size, found.adapter) != (gang.size, adapter):
            raise invalid(
                f"gang {gang.id} has {found.size} requests for {found.adapter}, not {gang.size} "
                f"for {adapter}",
                "flywheel_gang",
            )
        if found.timer is not None:
            found.timer.cancel()
        found.members.append(rows)
        if len(found.members) == found.size:
            del self._gathering[gang.id]
            whole = [row for member in found.members for row in member]
            try:
                self._dispatch(whole)
            except FlywheelError as error:
                _fail(found, str(error))
            return
        loop = asyncio.get_running_loop()
        found.timer = loop.call_later(self._wait_s, self._expire, gang.id)

    def leave(self, gang: GangId, rows: Sequence[Row]) -> None:
        """A client hung up before the gang was whole: its place is free again."""
        found = self._gathering.get(gang.id)
        if found is not None and rows in found.members:
            found.members.remove(rows)

    def _expire(self, gang_id: str) -> None:
        found = self._gathering.pop(gang_id)
        came = len(found.members)
        _fail(found, f"gang {gang_id}: {came} of {found.size} came within {self._wait_s:g} s")

    def refuse_all(self, reason: str) -> None:
        """No more requests come: what is not whole never will be."""
        for found in self._gathering.values():
            if found.timer is not None:
                found.timer.cancel()
            _fail(found, reason)
        self._gathering.clear()


def _fail(gang: _Gathering, reason: str) -> None:
    for rows in gang.members:
        for row in rows:
            row.deliver(None, reason)
