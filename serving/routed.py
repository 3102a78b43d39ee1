"""A client's request on its way to a deployment."""

import asyncio

from flywheel.lineage import Deployment
from flywheel.records import trace_id
from serving.admission import Turn
from serving.capture import Asked
from serving.dialects.contract import Dialect
from serving.routing import ProjectRoute

SOURCE = "gateway"


class Routed(Asked, kw_only=True):
    dialect: Dialect
    deployment: Deployment
    route: ProjectRoute | None
    """That chose it; None = the client named the deployment itself."""
    conversation: str | None
    """The caller's id. None = this call is a conversation of its own."""
    user: str | None
    admitted: Turn | None = None
    """Its turn at the engine; None = it needed none."""
    kept: bool = True
    """Whether it is recorded at all."""
    root: str | None = None
    """First response id of the conversation that its messages go on with; None = of none."""
    history: bytes | None = None
    """Key of all that was said up to it (`stitching`); None = nobody will ask."""
    storing: "asyncio.Future[str] | None" = None
    """Of its body as it came, where that says more than its messages do."""
    raw: str | None = None
    """Key of that body in the raw store, once it is there."""
    instead: Deployment | None = None
    """Of a challenger: the champion, who answers where the engine has not loaded it."""

    def fall_back(self, champion: Deployment) -> None:
        """While the challenger is away, all requests go to the champion."""
        self.notes["challenger_absent"] = self.deployment.name
        self.deployment, self.answers = champion, champion.name
        self.probability, self.instead = 1.0, None

    @property
    def external_id(self) -> str:
        return self.conversation or self.root or self.response_id

    @property
    def trace_id(self) -> str:
        return trace_id(self.deployment.project, SOURCE, self.external_id)
