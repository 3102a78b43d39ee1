"""The gateway as an ASGI application: the parts that requests share, and the paths to them.

Enter requests to a model in the dialects' forms, feedback, OTLP, questions about models and health,
each through the door. Leave answers, those of a model recorded as a part of a trace. The routing
file alone says which deployment answers.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope

from flywheel.home import Home
from flywheel.project import Project
from serving.admission import Admission
from serving.allowance import Allowance
from serving.backends import Backends
from serving.board import Board, Known, OwnBoard
from serving.control import Heard
from serving.dialects import DIALECTS, dialects
from serving.dialects.models import list_of, model_of
from serving.dialects.responses import again, forgotten
from serving.door import Door, Endpoint, fault, no_route
from serving.embeddings import Embeddings
from serving.feedback_taken import FeedbackTaken
from serving.following import Following
from serving.inference import Inference
from serving.intake import Intake
from serving.keeping import Keeping
from serving.keys import Keys, from_here
from serving.limits import Limits, limits_of
from serving.metrics import Metrics
from serving.observing import Observers, Seen
from serving.openapi import document
from serving.otlp import PATHS as OTLP_PATHS
from serving.otlp import Otlp
from serving.recording import Recording
from serving.refusal import ApiError
from serving.shadow import Shadows
from serving.state import EngineState
from serving.terms import Terms
from serving.upstream import Upstream
from storage.remembered import Remembered


class Gateway:
    """The parts that requests share. `application` is what a server runs."""

    def __init__(
        self,
        home: Home,
        projects: frozenset[str],
        *,
        limits: Limits,
        keys: Keys,
        engine: EngineState,
        terms: Terms | None = None,
    ) -> None:
        """`terms`: what the projects' files say; None = every default."""
        self.projects, self.limits, self.keys, self.engine = projects, limits, keys, engine
        self.terms = terms or Terms()
        self._own = OwnBoard(Board(Metrics()), self.stands)
        self.board: Known = self._own
        """Of all gateway processes; of one that is alone, its own."""
        self.following = Following(home, projects)
        self.upstream = Upstream(limits)
        self.recording = Recording(home, limits)
        self.keeping = Keeping(home, self.recording, self.terms)
        self.admission = Admission(limits, self.terms, Allowance(home.admission))
        self.observers = Observers()
        self.observers.add(self._own.hear)
        self.backends = Backends(
            self.upstream,
            self.recording.counts,
            engine=engine,
            terms=self.terms,
            limits=limits,
            observers=self.observers,
        )
        self.remembered = Remembered(home.responses)
        self.shadows = Shadows(
            self.backends,
            self.recording,
            self.observers,
            lambda: self.admission.waiting > 0,
        )
        self.inference = Inference(
            limits,
            self.following,
            self.admission,
            self.backends,
            self.shadows,
            self.recording,
            self.keeping,
            engine,
            self.observers,
            dialects(self.remembered),
        )
        self.feedback = FeedbackTaken(home, self.recording, self.keeping, projects)
        self.intake = Intake(home, self.recording.counts)
        self.otlp = Otlp(self.intake, self.recording, self.keeping, projects, limits)

    @property
    def application(self) -> ASGIApp:
        routes = [
            *(Route(path, self.inference, methods=["POST"]) for path in DIALECTS),
            Route("/v1/responses/{id}", Endpoint(self.response), methods=["GET", "DELETE"]),
            Route("/v1/embeddings", Embeddings(self.inference), methods=["POST"]),
            Route("/v1/feedback", Endpoint(self.take_feedback), methods=["POST"]),
            *(Route(path, self.otlp, methods=["POST"]) for path in OTLP_PATHS),
            Route("/v1/models", Endpoint(self.models), methods=["GET"]),
            Route("/v1/models/{name:path}", Endpoint(self.model), methods=["GET"]),
            Route("/metrics", Endpoint(self.metrics), methods=["GET"]),
            Route("/openapi.json", Endpoint(self.openapi), methods=["GET"]),
            Route("/health", Endpoint(self.health), methods=["GET"]),
            Route("/ready", Endpoint(self.ready), methods=["GET"]),
        ]
        starlette = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: no_route, Exception: fault},
        )
        return Door(starlette, self)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.shadows.close()
            await self.backends.close()
            await self.intake.close()
            self.feedback.close()
            self.recording.close()
            self.remembered.close()
            self.admission.allowance.close()
            self.keeping.close()

    async def take_feedback(self, scope: Scope, receive: Receive) -> tuple[int, Any]:
        return await self.feedback.take(scope, receive, self.limits)

    async def models(self, scope: Scope, receive: Receive) -> tuple[int, Any]:
        names = self.following.names(scope["flywheel.caller"])
        return 200, list_of(sorted(names))

    async def model(self, scope: Scope, receive: Receive) -> tuple[int, Any]:
        name = scope["path_params"]["name"]
        self.following.resolve(name, scope["flywheel.caller"])
        return 200, model_of(name)

    async def response(self, scope: Scope, receive: Receive) -> tuple[int, Any]:
        of = (scope["path_params"]["id"], scope["flywheel.caller"].name)
        if scope["method"] == "DELETE":
            return 200, forgotten(self.remembered, *of)
        return 200, again(self.remembered, *of)

    def adopt(self, projects: Sequence[Project], workers: int) -> None:
        """The projects' files as they are now, for requests that come from now on.

        Args:
            workers: how many gateway processes there are, whatever the files say now.
        """
        self.terms.replace(projects)
        limits = limits_of(projects[0].serving, workers)
        self.limits = self.inference.limits = self.admission.limits = self.recording.limits = limits

    def report_to(self, board: Known) -> None:
        """There are others: somebody else knows of all."""
        self.observers.remove(self._own.hear)
        self.board = board

    def stands(self, seen: tuple[Seen, ...] = ()) -> Heard:
        """How this process stands, with what ended since it was last asked."""
        return Heard(
            seen=seen,
            counts=dict(self.recording.counts),
            running=self.admission.running,
            waiting=self.admission.waiting,
            lag_s=self.recording.behind_s,
            problem=self.recording.problem,
        )

    async def metrics(self, scope: Scope, receive: Receive) -> tuple[int, Any]:
        return 200, await self.board.metrics()

    async def openapi(self, scope: Scope, receive: Receive) -> tuple[int, Any]:
        return 200, document(tuple(DIALECTS), OTLP_PATHS, _version())

    async def health(self, scope: Scope, receive: Receive) -> tuple[int, Any]:
        ready = self._why_not_ready() is None
        said = {"status": "ok" if ready else "degraded", "version": _version()}
        if self._stranger(scope):
            return 200, said
        routes = self.following.routes()
        return 200, {
            **said,
            "engine": {
                "state": self.engine.phase,
                "restarts": self.engine.restarts,
                "reason": self.engine.reason,
                "lacking": self.engine.lacking,
            },
            "deployments": {route.project: route.champion.name for route in routes},
            "canaries": {
                route.project: {"deployment": route.challenger.name, "share": route.share}
                for route in routes
                if route.challenger is not None and route.share
            },
            "routing": {
                "version": self.following.routing.version,
                "problem": self.following.problem,
            },
            **await self.board.health(),
        }

    async def ready(self, scope: Scope, receive: Receive) -> tuple[int, Any]:
        reason = self._why_not_ready()
        if reason is not None:
            told = "not ready" if self._stranger(scope) else reason
            raise ApiError(503, told, code="not_ready", retry_after=2)
        return 200, {"status": "ready"}

    def _stranger(self, scope: Scope) -> bool:
        """Whoever comes from elsewhere, where keys are needed, learns of no project by name."""
        client: tuple[str, int] | None = scope.get("client")
        headers: dict[bytes, bytes] = scope["flywheel.headers"]
        return bool(self.keys) and not from_here(client[0] if client else None, headers)

    def _why_not_ready(self) -> str | None:
        if not self.engine.answers:
            return self.engine.refusal().message
        if self.recording.problem and self.limits.unrecorded == "refuse":
            return self.recording.problem
        served = {route.project for route in self.following.routes()}
        missing = self.projects - served
        return f"no deployment yet for {sorted(missing)}" if missing else None


def _version() -> str:
    try:
        return version("flywheel")
    except PackageNotFoundError:
        return "unknown"
