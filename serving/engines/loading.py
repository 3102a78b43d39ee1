"""What an engine must serve, loaded and compared with what was trained, each time that it starts.

Enter: what says which weights must be served, each in its run's folder beside its probe.json.
Leave: the names that do not serve, and why. Invariant: weights whose logprobs are not the trainer's
are unloaded again; whatever is wrong with one, the base and the others serve.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from flywheel.errors import EngineError, FlywheelError, Refused
from flywheel.serving_section import ServingSection
from serving.engines.client import EngineClient
from serving.engines.reach import Access
from serving.verify import FLOAT32, Bounds, bounds_of, check_logprobs, read_probe

DEATHS = 3
"""Starts in a row in which an engine ended over the same weights, after which one goes without."""
MEND_S = 30.0
"""Between two tries to load what could not be: a disk that was full may have room by now."""
_PROBE = "probe.json"
_log = logging.getLogger("flywheel.engine")

Adapters = Callable[[], Mapping[str, Path]]


class Loading:
    def __init__(self, adapters: Adapters, bounds: Bounds = FLOAT32) -> None:
        """`adapters` is asked each time for what must be served: names and folders."""
        self._adapters, self._bounds = adapters, bounds
        self._begun: Counter[str] = Counter()
        """Times in a row that loading them did not come to an end."""
        self.lacking: dict[str, str] = {}
        """What is not served since the last time, and why."""

    @property
    def under_way(self) -> bool:
        """Whether the engine ended over what was being loaded."""
        return self._begun.total() > 0

    def words(self) -> str | None:
        """What is lacking and why; None = nothing is."""
        return "; ".join(f"{name}: {why}" for name, why in self.lacking.items()) or None

    def missing(self, known: Collection[str]) -> bool:
        """Whether something must be served that is not among `known`."""
        return bool(set(self._adapters()) - set(known))

    def load(self, client: EngineClient, known: Collection[str] = ()) -> None:
        """All of it but what is `known` to be served.

        Raises:
            EngineError: the engine does not answer any more.
        """
        lacking: dict[str, str] = {}
        for name, folder in self._adapters().items():
            if name in known:
                continue
            why = self._one(client, name, folder)
            if why is not None:
                lacking[name] = why
            if why is not None and why != self.lacking.get(name):
                _log.error("%s is not served: %s", name, why)
        self.lacking = lacking

    def _one(self, client: EngineClient, name: str, folder: Path) -> str | None:
        if self._begun[name] >= DEATHS:
            self._begun[name] = 0  # the next start tries it again
            return f"the engine ended {DEATHS} times in a row while it was loaded"
        self._begun[name] += 1
        try:
            load_checked(client, name, folder, self._bounds)
        except (FlywheelError, OSError) as error:
            if isinstance(error, EngineError) and not client.ready():
                raise
            self._begun[name] = 0
            with contextlib.suppress(EngineError):
                client.unload_adapter(name)
            return str(error)
        self._begun[name] = 0
        return None


def load_checked(
    client: EngineClient, name: str, folder: Path, bounds: Bounds = FLOAT32
) -> dict[str, Any] | None:
    """Loads the weights in `folder` and asks the engine for their logprobs; returns the evidence,
    or None where their run left no probe to compare with.

    Raises:
        Refused: they cannot be served, or the engine serves something else by that name.
        CorruptFile: their probe cannot be read.
        EngineError: the engine failed.
    """
    client.load_adapter(name, folder)
    probe = folder.parent / _PROBE
    if not probe.is_file():
        _log.warning("%s is served unchecked: there is no %s", name, probe)
        return None
    return check_logprobs(client, name, read_probe(probe), bounds=bounds)


def checked_host(url: str, access: Access, serving: ServingSection) -> "CheckedHost":
    """Of the engine at `url`, of a project with that [serving]."""
    return CheckedHost(EngineClient(url, access=access), bounds_of(serving, access.kind))


class CheckedHost:
    """An engine for whoever changes what serves (`serving.reconcile.AdapterHost`): what it has not
    yet is compared with the trainer before it is said to be loaded."""

    def __init__(self, client: EngineClient, bounds: Bounds) -> None:
        self._client, self._bounds = client, bounds

    def load_adapter(self, name: str, folder: Path) -> None:
        if name in self._client.models():
            self._client.load_adapter(name, folder)  # says whether they are the same weights
            return
        try:
            load_checked(self._client, name, folder, self._bounds)
        except Refused:
            self._client.unload_adapter(name)
            raise

    def unload_adapter(self, name: str) -> None:
        self._client.unload_adapter(name)
