"""How an engine is reached: what a client must know beside its URL.

The server writes it into its record, so that whoever finds the server finds the engine (the turn, a
rollback, the doctor), and into a file of the home's for what it starts itself before there is one.
"""

from typing import Literal

import msgspec

from flywheel import durable
from flywheel.home import Home
from flywheel.records import Record

Kind = Literal["embedded", "vllm"]


class Replica(Record, frozen=True, kw_only=True):
    """One of several equal engines."""

    url: str
    copies: str | None = None
    """As `Access.copies`: each has its own."""


class Access(Record, frozen=True, kw_only=True):
    kind: Kind = "embedded"
    key: str | None = None
    """Is sent with every request as a bearer token; None = the engine wants none."""
    model: str | None = None
    """Folder of the base model, where adapters are compared with it before they are sent."""
    copies: str | None = None
    """Folder of ours where adapters are copied to, each named by its content, before vLLM, which
    keeps the path that it was given, loads them; None = they are sent by their own path."""
    max_rank: int | None = None
    """Largest rank of an adapter; None = any."""
    template_digest: str | None = None
    """Of the chat template, where the engine itself does not say; None = not known."""
    tokenizer_digest: str | None = None
    replicas: tuple[Replica, ...] = ()
    """All of several equal engines, this one too: what is loaded must be loaded into each."""


def write_access(home: Home, access: Access) -> None:
    """Readable by this user alone, as every file that is written so."""
    durable.write(home.engine / "access.json", msgspec.json.encode(access))


def read_access(home: Home) -> Access:
    try:
        return msgspec.json.decode((home.engine / "access.json").read_bytes(), type=Access)
    except (OSError, msgspec.DecodeError):
        return Access()
