"""Who may use the gateway: keys, kept and compared only as hashes.

With no keys at all anyone on this machine may, and nobody else: then a browser's cross-site request
or a name that was rebound to the loopback address is turned away, and no wider address is listened
on.
"""

import hashlib
import hmac
import ipaddress
from functools import lru_cache
from typing import Literal
from urllib.parse import urlsplit

from flywheel.errors import UsageError
from flywheel.records import Record
from flywheel.settings import Settings
from serving.refusal import ApiError

Scope = Literal["infer", "feedback", "ingest", "admin"]
SCOPES: frozenset[Scope] = frozenset(("infer", "feedback", "ingest", "admin"))


class Caller(Record, frozen=True, kw_only=True):
    """Who asks: what its key lets it do."""

    name: str = ""
    """Of the key, as records, metrics and accounts have it; "" = there are no keys."""
    scopes: frozenset[Scope] = SCOPES
    projects: frozenset[str] | None = None
    """None = all."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None


ANYBODY = Caller()


class Keys:
    def __init__(self, hashes: tuple[bytes, ...]) -> None:
        self._hashes = hashes

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def admit(self, headers: dict[bytes, bytes], scope: Scope) -> Caller:
        """
        Raises:
            ApiError: 401: no key, or none of ours; 403: not from this machine's own programs, or a
                key that may do other things.
        """
        if not self._hashes:
            _own_program(headers)
            return ANYBODY
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        shown = hashlib.sha256(key.strip()).digest()
        # Every key is compared, so that the time taken tells nothing.
        found = [hmac.compare_digest(shown, known) for known in self._hashes]
        if scheme.lower() != b"bearer" or not any(found):
            raise ApiError(
                401, "no valid key: send `Authorization: Bearer KEY`", code="invalid_api_key"
            )
        return ANYBODY


def keys_of(settings: Settings) -> Keys:
    """The keys of FLYWHEEL_KEYS and of the keys file.

    Raises:
        UsageError: the file cannot be read, or names a hash that is none.
    """
    lines = settings.keys.get_secret_value().split(",") if settings.keys else []
    if settings.api_keys_file:
        try:
            lines += settings.api_keys_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"cannot read the keys file {settings.api_keys_file}: {error}"
            ) from error
    written = [line.strip() for line in lines]
    keys = Keys(tuple(_hash(line) for line in written if line and not line.startswith("#")))
    if (settings.keys or settings.api_keys_file) and not keys:
        # An empty file must not open the door that it was meant to close.
        raise UsageError("keys were asked for (FLYWHEEL_KEYS or a keys file) but none is there")
    return keys


def check_host(host: str, keys: Keys) -> None:
    """
    Raises:
        UsageError: `host` is open to other machines and there are no keys.
    """
    if not keys and not _is_loopback(host):
        raise UsageError(
            f"will not listen on {host} without keys: anybody could use it. Set FLYWHEEL_KEYS or "
            "FLYWHEEL_API_KEYS_FILE, or listen on 127.0.0.1"
        )


def _hash(line: str) -> bytes:
    if not line.startswith("sha256:"):
        return hashlib.sha256(line.encode()).digest()
    try:
        digest = bytes.fromhex(line.removeprefix("sha256:"))
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise UsageError("a line of the keys file starts with sha256: but is no such hash")
    return digest


def _own_program(headers: dict[bytes, bytes]) -> None:
    origin = headers.get(b"origin")
    hosts = [_host(b"//" + headers.get(b"host", b"localhost"))]
    if origin is not None:
        hosts.append(_host(origin))
    if not all(map(_is_loopback, hosts)):
        raise ApiError(403, "this server has no keys and answers only programs of its own machine")


@lru_cache(maxsize=256)
def _host(url: bytes) -> str:
    try:
        return urlsplit(url.decode("latin-1")).hostname or ""
    except ValueError:
        return ""


@lru_cache(maxsize=256)
def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
