"""The embedded engine: a small batched sampler on the CPU behind vLLM's OpenAI-compatible routes.

`python -m serving.engines.embedded --model DIR --port N` serves on 127.0.0.1 alone, to the gateway
and the turn. The port is taken before the model is loaded, so /health says what goes on from the
first moment; it is 200 only when the engine can generate. The process leaves with its parent.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from flywheel.children import follow_parent
from flywheel.errors import Busy, CorruptFile, FlywheelError, MissingPart, UsageError
from serving.engines.embedded_chat import chat
from serving.engines.embedded_cohort import Bounds
from serving.engines.embedded_completions import complete
from serving.engines.embedded_model import Model
from serving.engines.embedded_requests import DEPTH, LoadAsked, UnloadAsked, WeightsAsked
from serving.engines.embedded_sampler import Sampler
from serving.engines.embedded_service import ClientGone, Service
from serving.engines.load import Load, load_text
from serving.limits import decode
from serving.refusal import ApiError, invalid

BODY = 32 * 2**20
"""Bytes of a request, at most."""
IN_USE = 98
"""Exit code: the port is taken."""

_load = msgspec.json.Decoder(LoadAsked)
_unload = msgspec.json.Decoder(UnloadAsked)
_weights = msgspec.json.Decoder(WeightsAsked)
_log = logging.getLogger("flywheel.engine")
Endpoint = Callable[[Service, Request, bytes], Awaitable[Response]]


def application(loading: "asyncio.Future[Service]") -> Starlette:
    """The routes over a service that may still be loading."""

    def endpoint(handle: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                body = await _body(request)
                if not loading.done():
                    raise ApiError(503, "the engine is loading", code="loading", retry_after=2)
                return await handle(loading.result(), request, body)
            except ApiError as error:
                return _refused(error)
            except (ClientGone, ClientDisconnect):
                return Response(status_code=499)

        return answer

    async def health(request: Request) -> Response:
        if not loading.done():
            return _json({"status": "loading"}, 503)
        return _health(loading.result())

    return Starlette(
        routes=[
            Route("/v1/chat/completions", endpoint(chat), methods=["POST"]),
            Route("/v1/completions", endpoint(complete), methods=["POST"]),
            Route("/v1/embeddings", endpoint(_embeddings), methods=["POST"]),
            Route("/v1/load_lora_adapter", endpoint(_load_adapter), methods=["POST"]),
            Route("/v1/unload_lora_adapter", endpoint(_unload_adapter), methods=["POST"]),
            Route("/v1/load_weights", endpoint(_load_weights), methods=["POST"]),
            Route("/v1/drain", endpoint(_drain), methods=["POST"]),
            Route("/v1/models", endpoint(_models), methods=["GET"]),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", endpoint(_metrics), methods=["GET"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])],
        exception_handlers={404: _status, 405: _status, 500: _broken},
    )


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY:
            raise ApiError(413, f"the body is larger than {BODY} bytes")
    return bytes(body)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _refused(error: ApiError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return Response(error.body(), error.status, headers=headers)


async def _status(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return _refused(ApiError(status, f"{request.method} {request.url.path}: no such route"))


async def _broken(request: Request, error: Exception) -> Response:
    _log.error("%s failed", request.url.path, exc_info=error)
    return _refused(
        ApiError(500, f"the engine failed: {type(error).__name__}", code="engine_failed")
    )


def _health(service: Service) -> Response:
    sampler, counts = service.sampler, service.sampler.counts()
    good = sampler.alive and not sampler.draining
    said = {
        "status": "ok" if good else "draining" if sampler.alive else "failed",
        "model": str(service.model),
        "template_digest": service.rendering.template_digest,
        "tokenizer_digest": service.rendering.tokenizer_digest,
        "adapters": [name for name in service.names() if name != "base"],
        "running": counts.running,
        "waiting": counts.waiting + service.gangs.waiting,
        "prefix_tokens": counts.prefix_tokens,
    }
    return _json(said, 200 if good else 503)


async def _metrics(service: Service, request: Request, body: bytes) -> Response:
    counts = service.sampler.counts()
    waiting = counts.waiting + service.gangs.waiting
    text = load_text(Load(counts.running, waiting, counts.cache_use))
    return Response(text, media_type="text/plain; version=0.0.4")


async def _models(service: Service, request: Request, body: bytes) -> Response:
    base = {"object": "model", "created": 0, "owned_by": "flywheel"}
    context = service.bounds.context
    data = [
        {
            **base,
            "id": name,
            "root": str(service.sampler.adapters.get(name, service.model)),
            "parent": None if name == "base" else "base",
            "max_model_len": context,
        }
        for name in service.names()
    ]
    return _json({"object": "list", "data": data})


async def _embeddings(service: Service, request: Request, body: bytes) -> Response:
    raise ApiError(
        404,
        "the embedded engine makes no embeddings: a provider that does goes into [providers], or "
        'serve a model for them with vLLM ([serving] engine = "vllm")',
        code="no_embeddings",
    )


async def _load_adapter(service: Service, request: Request, body: bytes) -> Response:
    asked = decode(body, _load, DEPTH)
    folder = Path(asked.lora_path)
    if not folder.is_absolute():
        raise invalid(f"lora_path must be absolute, is {asked.lora_path!r}", "lora_path")
    try:
        await service.load(asked.lora_name, folder.resolve())
    except UsageError as error:
        raise invalid(str(error), "lora_name", "adapter_name") from error
    except (CorruptFile, MissingPart) as error:
        raise invalid(str(error), "lora_path", "adapter_corrupt") from error
    return Response(f"Success: LoRA adapter '{asked.lora_name}' added successfully.")


async def _unload_adapter(service: Service, request: Request, body: bytes) -> Response:
    asked = decode(body, _unload, DEPTH)
    try:
        await asyncio.wrap_future(service.sampler.unload(asked.lora_name))
    except UsageError as error:
        raise ApiError(404, str(error), param="lora_name", code="model_not_found") from error
    return Response(f"Success: LoRA adapter '{asked.lora_name}' removed successfully.")


async def _load_weights(service: Service, request: Request, body: bytes) -> Response:
    """Another base model in place of the old one, with the same tokens; adapters are gone."""
    folder = Path(decode(body, _weights, DEPTH).path)
    try:
        await service.replace(folder)
    except (CorruptFile, MissingPart, UsageError) as error:
        raise invalid(str(error), "path", "weights_refused") from error
    except Busy as error:
        raise ApiError(503, str(error), code="engine_busy", retry_after=1) from error
    return _json({"status": "replaced"})


async def _drain(service: Service, request: Request, body: bytes) -> Response:
    """Lets nothing new in and answers when all that was let in is finished."""
    service.sampler.draining = True
    service.gangs.refuse_all("the engine is draining")
    while (counts := service.sampler.counts()).running or counts.waiting:
        await asyncio.sleep(0.02)
    return _json({"status": "drained"})


def load_service(model: Path, bounds: Bounds, threads: int) -> Service:
    """Loads the model and starts its sampler; returns once it has generated a first token."""
    from trainer.models import load_base
    from trainer.render import renderer_for

    base = load_base(model, threads=threads)
    rendering = renderer_for(base.tokenizer)
    engine = Model(base)
    bounds = dataclasses.replace(bounds, context=min(bounds.context, engine.context))
    sampler = Sampler(engine, bounds, threads)
    sampler.start()
    sampler.score("base", [(0, 0)], 0).result()
    return Service(model, rendering, sampler, bounds)


def serve(listening: socket.socket, model: Path, bounds: Bounds, threads: int) -> int:
    """Serves until told to stop; returns the exit code."""
    failed: list[FlywheelError] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loading: asyncio.Future[Service] = loop.create_future()
        config = uvicorn.Config(
            application(loading),
            log_level="warning",
            access_log=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=5,
        )
        server = uvicorn.Server(config)

        async def load() -> None:
            try:
                service = await asyncio.to_thread(load_service, model, bounds, threads)
                loading.set_result(service)
                _log.warning("ready: %s on port %s", model, listening.getsockname()[1])
            except FlywheelError as error:
                failed.append(error)
                server.should_exit = True

        task = asyncio.create_task(load())
        await server.serve(sockets=[listening])
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
    for error in failed:
        print(error, file=sys.stderr)
    return failed[0].exit_code if failed else 0


def main(arguments: list[str] | None = None) -> int:
    follow_parent()
    parser = argparse.ArgumentParser(prog="serving.engines.embedded", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=Bounds().context)
    parser.add_argument("--rows", type=int, default=Bounds().rows)
    parser.add_argument("--queue", type=int, default=Bounds().queue)
    parser.add_argument("--memory-mb", type=int, default=Bounds().memory // 2**20)
    parser.add_argument("--gang-wait", type=float, default=Bounds().gang_wait_s)
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", given.port))
    except OSError as error:
        print(f"port {given.port} cannot be used: {error.strerror}", file=sys.stderr)
        return IN_USE
    bounds = Bounds(
        context=given.context,
        rows=given.rows,
        queue=given.queue,
        memory=given.memory_mb * 2**20,
        gang_wait_s=given.gang_wait,
    )
    return serve(listening, given.model, bounds, given.threads)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Not sys.exit: torch's threads need not be waited for, and nothing here is durable.
    os._exit(code)
