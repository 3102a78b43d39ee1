"""A vLLM that somebody else runs, given as a URL.

Enter: its URL and what says which adapters it must serve. It is never started or stopped here, but
followed: when it was away, or came back without its adapters, they are loaded again. Its paths are
of its machine: adapters lie where both see them under the same name. Invariant: a vLLM that could
not carry a turn is refused at the start, in words that say how to start it.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flywheel.errors import EngineError, FlywheelError, Refused
from flywheel.home import Home
from flywheel.serving_section import ServingSection
from serving.engines.client import EngineClient
from serving.engines.loading import MEND_S, Loading
from serving.engines.reach import Access
from serving.engines.remote_check import check, room, takes_adapters
from serving.engines.rendering import Rendered, rendered
from serving.engines.supervised import Adapters
from serving.engines.through_client import ThroughClient
from serving.engines.vllm_rendering import differs
from serving.verify import bounds_of

_LOOK_S = 2.0
_MEET_S = 60.0
"""For each question of the first meeting, from its first byte to its last."""
_TOLD_S = 0.5
"""In which whoever sends has seen that it is not settled."""
_MISSED = 3
"""Looks in a row that found nobody, after which it is away."""
_log = logging.getLogger("flywheel.engine")


class RemoteVllm(ThroughClient):
    """Implements `contract.Engine`."""

    def __init__(
        self,
        home: Home,
        model: Path,
        serving: ServingSection,
        *,
        adapters: Adapters = dict,
        key: str | None = None,
        look_s: float = _LOOK_S,
    ) -> None:
        assert serving.engine_url is not None
        self.home, self.model, self._serving = home, model.resolve(), serving
        self._url = serving.engine_url.rstrip("/").removesuffix("/v1")
        self.loading = Loading(adapters, bounds_of(serving, "vllm"))
        self._key, self._look_s = key, look_s
        self._rendered = Rendered(why="not compared yet")
        self._rank = serving.max_rank
        self._stopping = threading.Event()
        self._follower: threading.Thread | None = None
        self._asking: EngineClient | None = None
        self._again = 0.0
        """When what it does not take is tried again."""
        self.alive = self.settled = False
        self.restarts = 0
        self.last_error: str | None = None

    @property
    def url(self) -> str:
        return self._url

    @property
    def access(self) -> Access:
        return Access(
            kind="vllm",
            key=self._key,
            model=str(self.model),
            max_rank=self._rank,
            template_digest=self._rendered.template_digest,
            tokenizer_digest=self._rendered.tokenizer_digest,
        )

    @property
    def lacking(self) -> Mapping[str, str]:
        """What it must serve and does not, and why."""
        return self.loading.lacking

    def client(self, *, timeout_s: float = 600.0) -> EngineClient:
        return EngineClient(self._url, timeout_s=timeout_s, access=self.access)

    def start(self) -> None:
        """
        Raises:
            EngineError: nobody answers there.
            UsageError: it is no vLLM, or not started as a turn needs it; says how.
        """
        if self._follower is not None:
            return
        self._stopping.clear()
        self._meet()
        self._follower = threading.Thread(target=self._follow, name="engine-follow", daemon=True)
        self._follower.start()

    def load_weights(self, folder: Path) -> None:
        raise Refused(
            f"the vLLM at {self._url} is run by somebody else: start it on {folder} there, then "
            "start this server again"
        )

    def revive(self) -> None:
        """Starting it again is not ours."""

    def stop(self) -> None:
        """It goes on; we cease to follow it, whatever we are waiting for."""
        self._stopping.set()
        if (asking := self._asking) is not None:
            asking.cut()
        if self._follower is not None:
            self._follower.join()
        self._follower, self.alive, self.settled = None, False, False

    @contextlib.contextmanager
    def _cuttable(self, timeout_s: float) -> Iterator[EngineClient]:
        """A client that `stop` cuts off: whoever follows or starts waits for nobody then."""
        with self.client(timeout_s=timeout_s) as client:
            self._asking = client
            if self._stopping.is_set():
                client.cut()
            try:
                yield client
            finally:
                self._asking = None

    def _meet(self) -> None:
        """All that must hold before it serves, and the adapters."""
        with self._cuttable(_MEET_S) as client:
            check(client)
            if not takes_adapters(client):
                _log.warning(
                    "the vLLM at %s takes no adapters while it runs: the base model is served, and "
                    "no turn can deploy. Start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and "
                    "--enable-lora",
                    self._url,
                )
            elif (said := room(client, self.home.engine / "asks-for-rank")) is not None:
                self._rank = said
                client.access = self.access
            self._rendered = self._compared(client)
            self._load(client, client.models())
        self.alive = True

    def _compared(self, client: EngineClient) -> Rendered:
        found = rendered(self.home, self.model)
        why = found.why or differs(client, found)
        if why is not None:
            _log.warning("no template digest is recorded: %s", why)
        return Rendered(why=why) if why else found

    def _load(self, client: EngineClient, known: Sequence[str]) -> None:
        self.loading.load(client, known)
        self.last_error = self.loading.words()
        self.settled = True

    def _follow(self) -> None:
        missed = 0
        while not self._stopping.wait(self._look_s):
            try:
                if self.alive:
                    self._look()
                else:
                    self._meet()
                    self.restarts += 1
                    _log.info("the vLLM at %s is back", self._url)
                missed = 0
            except (FlywheelError, OSError) as error:
                missed += 1
                if missed >= _MISSED or not self.alive:
                    if self.alive:
                        _log.error("the vLLM at %s is away: %s", self._url, error)
                    self.alive, self.settled, self.last_error = False, False, str(error)

    def _look(self) -> None:
        """One that was started again meanwhile has none of its adapters."""
        with self._cuttable(5.0) as client:
            if not client.ready():
                raise EngineError(f"the vLLM at {self._url} is not ready")
            known = client.models()
            if not self.loading.missing(known):
                return
            before, lost = self.last_error, self.loading.missing([*known, *self.lacking])
            if not lost and time.monotonic() < self._again:
                return
            self._again = time.monotonic() + MEND_S
            if lost:
                # What it lost is loaded before it is checked: nobody may be answered by it then.
                self.settled = False
                self._stopping.wait(_TOLD_S)
            self._load(client, known)
            if self.last_error != before:
                self.restarts += 1
