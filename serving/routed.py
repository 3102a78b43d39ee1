"""A client's request on its way to a deployment."""

import asyncio
from hashlib import blake2b

from flywheel.lineage import Deployment
from flywheel.records import trace_id
from serving.admission import Turn
from serving.capture import Asked
from serving.dialects.contract import Dialect
from serving.prices import Price, price_of
from serving.routing import ProjectRoute
from serving.terms import ProjectTerms
from storage.belonging import NOBODY, Belonging

SOURCE = "gateway"
NOT_LOADED = "not_loaded"
"""Code of a failure: the engine runs without this one model."""


class Routed(Asked, kw_only=True):
    dialect: Dialect
    deployment: Deployment
    route: ProjectRoute | None
    """That chose it; None = the client named the deployment itself."""
    conversation: str | None
    """The caller's id. None = this call is a conversation of its own."""
    user: str | None
    whose: Belonging = NOBODY
    """The tenant, and what may be done with it."""
    terms: ProjectTerms = ProjectTerms()
    """What the project's file said as it was let in."""
    admitted: Turn | None = None
    """Its turn at the engine; None = it needed none."""
    traceparent: str | None = None
    """The caller's own span (W3C Trace Context); None = it sent none."""
    kept: bool = True
    """Whether it is recorded at all."""
    root: str | None = None
    """First response id of the conversation that its messages go on with; None = of none."""
    history: blake2b | None = None
    """Hash of all that was said up to it (`history`); None = nobody will ask."""
    storing: "asyncio.Future[str] | None" = None
    """Of its body as it came, where that says more than its messages do."""
    raw: str | None = None
    """Key of that body in the raw store, once it is there."""

    def answered_by(self, other: Deployment, failed: list[dict[str, str]]) -> None:
        """Another deployment than the chosen one answers, because those before it `failed`. No draw
        led to it, unless an engine has no challenger: then all requests go to the champion."""
        absent = [one["deployment"] for one in failed if one["code"] == NOT_LOADED]
        if self.route and other == self.route.champion and absent == [self.deployment.name]:
            self.notes["challenger_absent"] = self.deployment.name
            self.probability = 1.0
        else:
            self.probability = None
        self.deployment, self.answers = other, other.name
        if failed:
            self.notes["failed"] = failed
        if other.kind != "external":
            self.notes.pop("provider", None)

    def not_ours(self) -> None:
        """What answers is a provider's: its template and its tokens are not known."""
        self.no_tokens = f"{self.answers} is a provider's model"
        self.template_digest = self.tokenizer_digest = None

    @property
    def price(self) -> Price | str | None:
        return price_of(self.deployment, self.terms)

    @property
    def project(self) -> str:
        return self.deployment.project

    @property
    def external_id(self) -> str:
        return self.conversation or self.root or self.response_id

    @property
    def trace_id(self) -> str:
        return trace_id(self.deployment.project, SOURCE, self.external_id)
