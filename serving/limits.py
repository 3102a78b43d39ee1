"""The bounds within which the gateway works, and the checks of a body against them.

`decode` turns untrusted bytes into a value of a declared type, or into a 400 that names the field:
never a 500, whatever the bytes are.
"""

import re
from typing import Any, Literal, TypeVar

import msgspec

from flywheel.records import Record
from flywheel.serving_section import ServingSection
from serving.refusal import invalid

T = TypeVar("T")


class Limits(Record, frozen=True, kw_only=True):
    body: int = 32 * 2**20
    """Bytes of a request's body."""
    messages: int = 10_000
    """Of one request: each is an object of its own in the record."""
    answer: int = 256 * 2**20
    """Bytes of one answer of the engine, whole or streamed."""
    header: int = 32 * 2**10
    """Bytes of all header names and values together."""
    depth: int = 64
    """Levels of JSON below the top."""
    identifier: int = 256
    """Characters of a conversation, user or request id."""
    batch: int = 1000
    """Feedback items in one request."""
    inline_image: int = 64 * 2**10
    """Characters of a data URL that stays in the record; a longer one goes to the raw store."""
    text: int = 2**20
    """Bytes of one text that stay in the record; the raw store has a longer one whole."""
    max_tokens: int = 512
    max_choices: int = 8
    concurrent: int = 64
    """Requests in work at one time in one gateway process; one more waits for its turn."""
    connect_s: float = 5.0
    silence_s: float = 300.0
    """Until the engine's first byte, and between two of them."""
    total_s: float = 900.0
    """The whole of one answer."""
    read_s: float = 30.0
    """Until the client has sent its whole body, and until it takes more of a stream."""
    unrecorded: Literal["refuse", "serve"] = "refuse"
    """What becomes of a request that cannot be recorded."""


def limits_of(serving: ServingSection, workers: int) -> Limits:
    """Of one of `workers` gateway processes."""
    return Limits(
        max_tokens=serving.max_tokens,
        max_choices=serving.max_choices,
        concurrent=-(-serving.max_concurrent // workers),
        unrecorded=serving.unrecorded,
    )


def decode(body: bytes, decoder: msgspec.json.Decoder[T], depth: int) -> T:
    """`body` as the decoder's type.

    Raises:
        ApiError: 400: not JSON, another type, too deep, or holding a NUL character.
    """
    try:
        brackets = body.count(b"[") + body.count(b"{")
        if brackets > depth and _depth(msgspec.json.decode(body)) > depth:
            raise invalid(f"the JSON is nested deeper than {depth} levels")
        if b"\\u0000" in body and _has_nul(msgspec.json.decode(body)):
            raise invalid("a text holds the NUL character (\\u0000): remove it")
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        message, param = _located(str(error))
        raise invalid(message, param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not valid JSON in UTF-8: {error}") from error
    except RecursionError as error:
        raise invalid(f"the JSON is nested deeper than {depth} levels") from error


def identifier(value: Any, param: str, limit: int) -> str:
    """A caller's id, checked: short, printable, not empty."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise invalid(f"{param} must be a printable, non-empty string", param)
    if len(value) > limit:
        raise invalid(f"{param} is longer than {limit} characters", param)
    return value


def _located(message: str) -> tuple[str, str | None]:
    """msgspec's "Expected `int`, got `str` - at `$.n`" with its path as OpenAI's `param`."""
    match = re.search(r" - at `\$\.?([^`]*)`", message)
    missing = re.search(r"missing required field `([^`]+)`|unknown field `([^`]+)`", message)
    path = match.group(1) if match else ""
    if missing:
        path = ".".join(part for part in (path, missing.group(1) or missing.group(2)) if part)
    text = message[: match.start()] if match else message
    return (f"{path}: {text}" if path else text), path or None


def _depth(value: Any) -> int:
    """Levels of containers in `value`; walks level by level, so depth costs no stack."""
    level, depth = [value], 0
    while level:
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        depth += any(isinstance(item, dict | list) for item in level)
        level = inner
    return depth


def _has_nul(value: Any) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str) and "\0" in item:
            return True
        if isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return False
