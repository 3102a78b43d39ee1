"""The keys that were issued in a home: who holds one, what it may do, and the hash of its secret.

Enters a name and what it is allowed; leaves a secret, which is shown once and kept nowhere. A
secret is 256 random bits, so that its plain SHA-256 tells nothing of it and no slow hash is needed.
Invariant: the file is replaced whole, under a lock; a name that was used stands for good, so that
accounts never mean two callers by it.
"""

import re
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Literal

import msgspec

from flywheel import durable
from flywheel.errors import CorruptFile, UsageError
from flywheel.home import Home
from flywheel.records import Record
from storage.locks import held

Scope = Literal["infer", "feedback", "ingest", "admin"]
SCOPES: frozenset[Scope] = frozenset(("infer", "feedback", "ingest", "admin"))
_PREFIX = "fw-"
"""By which programs that look for lost secrets know one of ours."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST_ISSUED = 8


class Issued(Record, frozen=True, kw_only=True):
    """One secret of a key; while it is rotated there are two."""

    digest: str
    """SHA-256, in hex."""
    at: int
    until: int | None = None
    """Nanoseconds since the epoch; None = as long as its key."""


class Key(Record, frozen=True, kw_only=True):
    name: str
    scopes: frozenset[Scope] = SCOPES
    projects: frozenset[str] | None = None
    """None = all."""
    tenant: str | None = None
    """Whose data it sends; None = as each request says."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    issued: tuple[Issued, ...] = ()
    at: int = 0
    by: str = ""
    """Who made it."""
    until: int | None = None
    """When it expires; None = never."""
    revoked: int | None = None
    """When; None = it is in force."""

    def state(self, now: int) -> Literal["valid", "expired", "revoked"]:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.until is not None and now >= self.until else "valid"


_decoder = msgspec.json.Decoder(dict[str, Key])


def digest_of(secret: bytes) -> bytes:
    return sha256(secret).digest()


def read(home: Home) -> dict[str, Key] | None:
    """None = none was ever issued here.

    Raises:
        CorruptFile: what lies there are no keys.
    """
    try:
        return _decoder.decode(home.keys.read_bytes())
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise CorruptFile(
            f"{home.keys} holds no keys ({error}): put a copy back; removing it opens the gateway "
            "to this machine's programs"
        ) from error


def add(home: Home, key: Key) -> str:
    """Issues a first secret for `key` and returns it.

    Raises:
        UsageError: its name was used before, or is none.
    """
    if not _NAME.fullmatch(key.name):
        raise UsageError(
            f"{key.name!r} is no name of a key: letters, digits, '.', '_' and '-', at most 64"
        )

    def change(keys: dict[str, Key], now: int) -> tuple[Key, str]:
        if key.name in keys:
            state = keys[key.name].state(now)
            raise UsageError(
                f"a key {key.name} is there already ({state}), and accounts go by that name: "
                "rotate it, or take another name"
            )
        secret, issued = _issue(now)
        return msgspec.structs.replace(key, at=now, issued=(issued,)), secret

    return _changed(home, change)


def rotate(home: Home, name: str, grace_ns: int) -> str:
    """A new secret of the same key; those before it end after `grace_ns`.

    Raises:
        UsageError: there is no such key in force.
    """

    def change(keys: dict[str, Key], now: int) -> tuple[Key, str]:
        key = _in_force(keys, name, now)
        secret, issued = _issue(now)
        left = [one for one in key.issued if one.until is None or one.until > now]
        ending = [
            msgspec.structs.replace(one, until=min(now + grace_ns, one.until or now + grace_ns))
            for one in left[-_MOST_ISSUED:]
        ]
        return msgspec.structs.replace(key, issued=(*ending, issued)), secret

    return _changed(home, change)


def revoke(home: Home, name: str) -> None:
    """From now on nobody comes in by it.

    Raises:
        UsageError: there is no such key in force.
    """

    def change(keys: dict[str, Key], now: int) -> tuple[Key, str]:
        key = _in_force(keys, name, now)
        return msgspec.structs.replace(key, issued=(), revoked=now), ""

    _changed(home, change)


def _issue(now: int) -> tuple[str, Issued]:
    secret = _PREFIX + secrets.token_urlsafe(32)
    return secret, Issued(digest=digest_of(secret.encode()).hex(), at=now)


def _in_force(keys: dict[str, Key], name: str, now: int) -> Key:
    key = keys.get(name)
    if key is None or key.state(now) != "valid":
        why = "was never issued" if key is None else f"is {key.state(now)}"
        valid = ", ".join(sorted(one.name for one in keys.values() if one.state(now) == "valid"))
        raise UsageError(f"the key {name} {why}; in force: {valid or 'none'}")
    return key


def _changed(home: Home, change: Callable[[dict[str, Key], int], tuple[Key, str]]) -> str:
    busy = f"another command changes {home.keys}: run again"
    with held(home.locks / "keys.lock", wait_s=10.0, busy=busy):
        keys = read(home) or {}
        key, secret = change(keys, time.time_ns())
        body = msgspec.json.encode({**keys, key.name: key}, order="deterministic")
        durable.write(home.keys, msgspec.json.format(body) + b"\n")
    return secret
