"""Whose answers are evaluated: any server at a URL, or a deployment of a project of ours.

Enter what the person named. Leaves where the interception passes calls on to, for the time of a
block. Invariant: a key is read from the environment variable that was named, sent to that server
alone, and never shown or kept.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flywheel.errors import EngineError, UsageError
from flywheel.home import Home
from flywheel.lineage import Deployment
from flywheel.masking import why_no_key
from flywheel.progress import report
from flywheel.project import Project, base_folder
from flywheel.settings import Settings, secret
from tasks.providing import provided

if TYPE_CHECKING:
    import httpx

    from serving.engines.client import EngineClient
    from serving.interception import Served

LIST_S = 60.0
"""A server's list of models may take."""
LONGEST_LIST = 8 << 20
"""Bytes of it."""


def is_url(model: str) -> bool:
    return model.startswith(("http://", "https://"))


def key_of(variable: str | None) -> str | None:
    """
    Raises:
        UsageError: the variable is not set, or holds no key.
    """
    if variable is None:
        return None
    value = (secret(variable) or "").strip()
    where = f"the environment variable {variable} that --key-env names"
    if not value:
        raise UsageError(f"{where} is not set")
    if why := why_no_key(value):
        raise UsageError(f"{where} holds no key: {why}")
    return value


def at_url(url: str, name: str | None, key: str | None, *, tokens: bool) -> "Served":
    """A server that somebody runs, asked once whether it is there and which models it has.

    Raises:
        UsageError: the URL holds a password, or the model must be named.
        EngineError: it does not answer, or not to this key.
    """
    from serving.interception import Served

    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"--model {url!r} is no URL: {error}") from error
    if parts.username or parts.password:
        raise UsageError("the URL holds a name or password: put the key into --key-env VARIABLE")
    base = url.rstrip("/").removesuffix("/v1")
    known = _models(base, key)
    if name is None:
        if len(known) != 1:
            some = ", ".join(known[:8]) or "it lists none"
            raise UsageError(f"{url} serves {len(known)} models ({some}): --model-name says which")
        name = known[0]
    return Served(base, name, key=key, tokens=tokens)


def _models(base: str, key: str | None) -> list[str]:
    """Names of the models that a server lists; none where it has no such list."""
    import httpx

    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        with (
            httpx.Client(trust_env=False, timeout=30.0, headers=headers) as client,
            client.stream("GET", f"{base}/v1/models") as answer,
        ):
            status, said = answer.status_code, _read(answer)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise EngineError(f"no model answers at {base}: {error or type(error).__name__}") from error
    if status in (401, 403):
        raise EngineError(f"{base} refuses the key (HTTP {status}): --key-env names it")
    try:
        return [str(one["id"]) for one in json.loads(said)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _read(answer: "httpx.Response") -> bytes:
    """
    Raises:
        EngineError: it does not come to an end.
    """
    until, said = time.monotonic() + LIST_S, bytearray()
    for piece in answer.iter_bytes():
        said += piece
        if len(said) > LONGEST_LIST or time.monotonic() > until:
            raise EngineError(f"{answer.url} lists models without an end: is it a model's server?")
    return bytes(said)


@contextlib.contextmanager
def deployed(name: str, home: Home, project: Project, settings: Settings) -> Iterator["Served"]:
    """A deployment of the project: by its running server, else one for the time of the block.

    Args:
        name: `base`, `champion`, or a deployment's own name.

    Raises:
        UsageError: the project has no such deployment.
        EngineError: no server could be started.
    """
    from serving.engines.client import EngineClient
    from serving.interception import Served
    from serving.routing import is_external, served_as
    from serving.server import ensure, running

    deployment = deployment_of(name, home, project, settings)
    if is_external(deployment):
        with provided(project, deployment) as at:
            yield Served(at.url, at.model, key=at.key, deployment=deployment.name, tokens=at.tokens)
        return
    if running(home) is None:
        report("engine", 0, None, f"starting for {deployment.name}")
    with ensure(home, project, settings) as server:
        client = EngineClient(server.engine_url, access=server.access)
        with client, _loaded(client, deployment, home):
            said = client.health()
            report("engine", 1, 1, f"{deployment.name} answers")
            yield Served(
                client.url,
                served_as(deployment),
                key=server.access.key,
                deployment=deployment.name,
                template_digest=said.get("template_digest"),
                tokenizer_digest=said.get("tokenizer_digest"),
                base=deployment.base_model,
            )


def deployment_of(name: str, home: Home, project: Project, settings: Settings) -> Deployment:
    from serving.routing import base_deployment, read
    from storage.queries import records

    base = base_deployment(project.name, str(base_folder(project, settings.models)))
    route = read(home).projects.get(project.name)
    known: dict[str, Deployment] = {
        one.name: one for one in records(home, "deployment", project=project.name)
    }
    known |= {"base": base, base.name: base, "champion": route.champion if route else base}
    if name not in known:
        raise UsageError(
            f"{project.name} has no deployment {name!r}; known: {', '.join(sorted(known))} "
            "(NAME-vN, the champion, and base, the model that they stand on). "
            "A server elsewhere is named by its URL"
        )
    return known[name]


@contextlib.contextmanager
def _loaded(client: "EngineClient", deployment: Deployment, home: Home) -> Iterator[None]:
    """With the deployment's adapter in the engine; one that was not there goes again."""
    if deployment.adapter is None or deployment.name in client.models():
        yield
        return
    client.load_adapter(deployment.name, home.path(deployment.adapter))
    try:
        yield
    finally:
        with contextlib.suppress(EngineError):
            client.unload_adapter(deployment.name)
