"""Who may use the gateway: keys, kept and compared only as hashes.

Those of FLYWHEEL_KEYS and of the keys file may do everything; those that `flywheel keys` issued are
read again whenever their file was replaced. With no keys at all anyone on this machine may, and
nobody else: then a browser's cross-site request or a name that was rebound to the loopback address
is turned away, and no wider address is listened on. A door that keys once closed stays closed.
"""

import ipaddress
import os
import time
from functools import lru_cache
from urllib.parse import urlsplit

from flywheel.errors import CorruptFile, UsageError
from flywheel.home import Home
from flywheel.records import Record
from flywheel.settings import Settings
from serving.key_file import SCOPES, Key, digest_of, read
from serving.key_file import Scope as Scope
from serving.refusal import ApiError

UNNAMED = "unnamed"
"""The account of all keys that were written down without a name."""


class Caller(Record, frozen=True, kw_only=True):
    """Who asks: what its key lets it do."""

    name: str = ""
    """Of the key, as records, metrics and accounts have it; "" = there are no keys."""
    scopes: frozenset[Scope] = SCOPES
    projects: frozenset[str] | None = None
    """None = all."""
    tenant: str | None = None
    """Whose data it sends; None = as each request says."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None

    def may(self, project: str) -> bool:
        return self.projects is None or project in self.projects


ANYBODY = Caller()
_Known = dict[bytes, tuple[Caller, int | None]]
"""By the secret's hash: who it is, and when it ends."""


class Keys:
    def __init__(self, hashes: tuple[bytes, ...] = (), home: Home | None = None) -> None:
        """`hashes`: of keys without a name. `home`: whose issued keys hold beside them.

        Raises:
            CorruptFile: the home's file holds no keys.
        """
        self._written: _Known = {one: (Caller(name=UNNAMED), None) for one in hashes}
        self._home, self._path = home, str(home.keys) if home else ""
        self._known = self._written
        self._closed = bool(hashes)
        self._mark: tuple[int, int, int] | None = None
        self.problem: str | None = None
        """Why the file that lies there now is not in force; None = it is."""
        self._refresh()
        if self.problem is not None:
            raise CorruptFile(self.problem)

    def __bool__(self) -> bool:
        """Whether a key is asked for."""
        self._refresh()
        return self._closed

    def admit(self, headers: dict[bytes, bytes], scope: Scope) -> Caller:
        """
        Raises:
            ApiError: 401: no key, or none of ours; 403: not from this machine's own programs, or a
                key that may do other things.
        """
        self._refresh()
        return self.admit_as_known(headers, scope)

    def admit_as_known(self, headers: dict[bytes, bytes], scope: Scope) -> Caller:
        """As `admit`, by the keys as they were last looked at."""
        if not self._closed:
            _own_program(headers)
            return ANYBODY
        # A hash that was found tells nothing of another one's secret, however long it took.
        caller, until = self._known.get(digest_of(shown(headers)), (None, None))
        if caller is None or (until is not None and time.time_ns() >= until):
            raise ApiError(
                401,
                "no valid key: send `Authorization: Bearer KEY` or `x-api-key: KEY`",
                code="invalid_api_key",
            )
        if scope not in caller.scopes:
            raise ApiError(
                403,
                f"the key {caller.name} may not do this: it needs the scope {scope}",
                code="insufficient_scope",
            )
        return caller

    def _refresh(self) -> None:
        if self._home is None:
            return
        mark = _look(self._path)
        if mark == self._mark:
            return
        self._mark = mark
        if mark is None:
            # Whoever had a key has none now; that must not let in who has none either.
            self._known, self.problem = self._written, f"{self._home.keys} is gone"
            return
        try:
            issued = read(self._home) or {}
        except CorruptFile as error:
            self.problem = str(error)
            return
        self._known = {**self._written, **_by_hash(issued)}
        self._closed, self.problem = True, None


def _by_hash(keys: dict[str, Key]) -> _Known:
    known: _Known = {}
    for key in keys.values():
        caller = Caller(
            name=key.name,
            scopes=key.scopes,
            projects=key.projects,
            tenant=key.tenant,
            requests_per_minute=key.requests_per_minute,
            tokens_per_minute=key.tokens_per_minute,
            concurrent=key.concurrent,
        )
        for one in key.issued:
            ends = [moment for moment in (one.until, key.until) if moment is not None]
            known[bytes.fromhex(one.digest)] = (caller, min(ends, default=None))
    return known


def _look(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def shown(headers: dict[bytes, bytes]) -> bytes:
    """The key as OpenAI's clients send it, or as Anthropic's do; b"" = none."""
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return b"" if scheme else headers.get(b"x-api-key", b"").strip()


def keys_of(settings: Settings) -> Keys:
    """The keys of FLYWHEEL_KEYS, of the keys file and of the home.

    Raises:
        UsageError: the file cannot be read, or names a hash that is none.
        CorruptFile: the home's file holds no keys.
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
    hashes = tuple(_hash(line) for line in written if line and not line.startswith("#"))
    if (settings.keys or settings.api_keys_file) and not hashes:
        # An empty file must not open the door that it was meant to close.
        raise UsageError("keys were asked for (FLYWHEEL_KEYS or a keys file) but none is there")
    return Keys(hashes, settings.at())


def check_host(host: str, keys: Keys) -> None:
    """
    Raises:
        UsageError: `host` is open to other machines and there are no keys.
    """
    if not keys and not _is_loopback(host):
        raise UsageError(
            f"will not listen on {host} without keys: anybody could use it. Issue one "
            "(`flywheel keys add NAME`), set FLYWHEEL_KEYS or FLYWHEEL_API_KEYS_FILE, or listen on "
            "127.0.0.1"
        )


def _hash(line: str) -> bytes:
    if not line.startswith("sha256:"):
        return digest_of(line.encode())
    try:
        digest = bytes.fromhex(line.removeprefix("sha256:"))
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise UsageError("a line of the keys file starts with sha256: but is no such hash")
    return digest


def from_here(client: str | None, headers: dict[bytes, bytes]) -> bool:
    """Whether a request comes from this machine itself, and no proxy here passes it on."""
    passed_on = b"x-forwarded-for" in headers or b"forwarded" in headers
    return not passed_on and (client is None or _is_loopback(client))


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
