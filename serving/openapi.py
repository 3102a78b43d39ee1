"""The gateway's routes as an OpenAPI document, at /openapi.json.

Enters which paths there are; leaves the document, made of the types that requests are read by. What
a protocol's vendor documents (answers, fields that pass through) is not repeated here.
"""

from functools import cache
from typing import Any

import msgspec

from serving.chat import ChatRequest
from serving.dialects.completions import CompletionRequest
from serving.dialects.messages_request import MessagesRequest
from serving.dialects.responses_request import ResponsesRequest
from serving.embeddings import EmbeddingsRequest
from serving.feedback import Batch, Said

_REFERENCE = "#/components/schemas/{name}"
_REQUESTS: dict[str, type] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/embeddings": EmbeddingsRequest,
}
"""Types of the bodies in which a model is asked; of another path only `model` is said."""
_ASKED = {"type": "object", "required": ["model"], "properties": {"model": {"type": "string"}}}
_OPEN: list[dict[str, list[str]]] = [{}]
_WHY = {
    400: "The request is not of its form; the message names the field.",
    401: "No valid key.",
    403: "The key may not do this, or the caller is not of this machine.",
    404: "There is no such model, project or path.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body's type or packing is not understood.",
    429: "Over a limit, or too much at one time: come again after Retry-After seconds.",
    431: "The headers are too large.",
    500: "A fault in the gateway.",
    502: "The engine failed.",
    503: "Not now: come again after Retry-After seconds.",
    504: "The engine did not answer in time.",
}
_SHAPES: dict[str, Any] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    },
    "Status": {
        "type": "object",
        "required": ["code", "message"],
        "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
    },
    "Kept": {
        "type": "object",
        "required": ["id", "repeated"],
        "properties": {"id": {"type": "string"}, "repeated": {"type": "boolean"}},
    },
    "Model": {
        "type": "object",
        "required": ["id", "object"],
        "properties": {"id": {"type": "string"}, "object": {"const": "model"}},
    },
}


@cache
def document(asked: tuple[str, ...], sent: tuple[str, ...], version: str) -> dict[str, Any]:
    """
    Args:
        asked, sent: paths at which a model is asked, and OTLP is taken.
    """
    types = [Said, Batch, *_REQUESTS.values()]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    said, batch, *requests = schemas
    typed = dict(zip(_REQUESTS, requests, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Flywheel gateway", "version": version},
        "security": [{"bearer": []}, {"x-api-key": []}, {}],
        "paths": {
            **{path: {"post": _inference(path, typed.get(path, _ASKED))} for path in asked},
            "/v1/embeddings": {"post": _inference("/v1/embeddings", typed["/v1/embeddings"])},
            **{path: {"post": _otlp(path)} for path in sent},
            "/v1/feedback": {"post": _feedback(said, batch)},
            "/v1/responses/{id}": {"get": _response("Reads"), "delete": _response("Forgets")},
            "/v1/models": {"get": _get("The models that are served.", {"type": "object"})},
            "/v1/models/{name}": {"get": _model()},
            "/metrics": {"get": _metrics()},
            "/health": {"get": _open("How the server stands.", ())},
            "/ready": {"get": _open("Whether requests are answered now.", (503,))},
            "/openapi.json": {"get": _open("This document.", ())},
        },
        "components": {
            "schemas": {**components, **_SHAPES},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _inference(path: str, request: dict[str, Any]) -> dict[str, Any]:
    whole = {"schema": {"type": "object"}}
    events = {"schema": {"type": "string"}}
    return {
        "summary": f"Asks a model, in the words of {path.removeprefix('/v1/')}.",
        "requestBody": _body({"application/json": {"schema": request}}),
        "responses": {
            "200": {
                "description": "The answer, whole or as a stream of events.",
                "content": {"application/json": whole, "text/event-stream": events},
            },
            **_refusals(*_WHY),
        },
    }


def _otlp(path: str) -> dict[str, Any]:
    signal = "resourceSpans" if path == "/v1/traces" else "resourceLogs"
    groups = {"type": "array", "items": {"type": "object"}}
    request = {"type": "object", "properties": {signal: groups}}
    binary = {"schema": {"type": "string", "format": "binary"}}
    partial = {"type": "object", "properties": {"partialSuccess": {"type": "object"}}}
    refused = {"schema": {"anyOf": [_of("Status"), _of("Error")]}}
    return {
        "summary": f"Takes an OTLP export request, of {signal}.",
        "parameters": [
            {
                "name": "x-flywheel-project",
                "in": "header",
                "schema": {"type": "string"},
                "description": "Whose they are, where the server or the key has several projects.",
            }
        ],
        "requestBody": _body(
            {"application/json": {"schema": request}, "application/x-protobuf": binary}
        ),
        "responses": {
            "200": {
                "description": "All of it is on the disk, but for what is said to be rejected.",
                "content": {
                    "application/json": {"schema": partial},
                    "application/x-protobuf": binary,
                },
            },
            **_refusals(
                *(400, 401, 403, 404, 408, 413, 415, 429, 431, 500, 503),
                content={"application/json": refused, "application/x-protobuf": binary},
            ),
        },
    }


def _feedback(said: dict[str, Any], batch: dict[str, Any]) -> dict[str, Any]:
    many = {"type": "array", "items": said}
    kept = {"type": "object", "properties": {"feedback": {"type": "array", "items": _of("Kept")}}}
    return {
        "summary": "Takes what somebody says of an answer, or of several.",
        "requestBody": _body({"application/json": {"schema": {"anyOf": [said, many, batch]}}}),
        "responses": {
            "202": {
                "description": "It is kept; or it was already, and `repeated` says so.",
                "content": {"application/json": {"schema": {"anyOf": [_of("Kept"), kept]}}},
            },
            **_refusals(400, 401, 403, 408, 413, 415, 429, 431, 500, 503),
        },
    }


def _get(summary: str, schema: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": {kind: {"schema": schema}}},
            **_refusals(400, 401, 403, 404, 431, 500, 503),
        },
    }


def _model() -> dict[str, Any]:
    return {**_get("One of them.", _of("Model")), "parameters": [_in_path("name")]}


def _response(does: str) -> dict[str, Any]:
    found = _get(f"{does} a response that was stored.", {"type": "object"})
    return {**found, "parameters": [_in_path("id")]}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _metrics() -> dict[str, Any]:
    return _get("Metrics in Prometheus's text form.", {"type": "string"}, "text/plain")


def _open(summary: str, refused: tuple[int, ...]) -> dict[str, Any]:
    """Of a path that needs no key."""
    found = {"content": {"application/json": {"schema": {"type": "object"}}}}
    return {
        "summary": summary,
        "security": _OPEN,
        "responses": {"200": {"description": summary, **found}, **_refusals(431, 500, *refused)},
    }


def _refusals(*statuses: int, content: dict[str, Any] | None = None) -> dict[str, Any]:
    shape = content or {"application/json": {"schema": _of("Error")}}
    return {str(one): {"description": _WHY[one], "content": shape} for one in statuses}


def _body(content: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": content}


def _of(name: str) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=name)}
