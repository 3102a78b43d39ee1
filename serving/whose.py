"""Whose data a request is, whether it may be learnt from, and until when it may be kept.

Enter its headers, its metadata and its key; leave what the record says. The key's tenant stands
above what the caller says, so that nobody records under another's name; a refused consent stands
above a given one, and the earliest end counts.
"""

from typing import Any

from flywheel.records import Consent
from serving.keys import Caller
from serving.limits import identifier
from serving.refusal import invalid
from storage.belonging import NOBODY, Belonging, consent_of, moment_of, said_in

TENANT, CONSENT, EXPIRES = b"x-flywheel-tenant", b"x-flywheel-consent", b"x-flywheel-expires"


def whose(
    headers: dict[bytes, bytes], metadata: dict[str, Any] | None, caller: Caller, longest: int
) -> Belonging:
    """
    Args:
        longest: characters that an identifier may have.

    Raises:
        ApiError: 400: a header says something that is none of what it may.
    """
    said = said_in(metadata) if metadata else {}
    tenant = caller.tenant or _text(headers, TENANT) or said.get("tenant")
    consents = {_consent(headers), said.get("consent")} - {None}
    ends = [one for one in (_expires(headers), said.get("expires")) if one is not None]
    if not tenant and not consents and not ends:
        return NOBODY
    return Belonging(
        None if tenant is None else identifier(tenant, TENANT.decode(), longest),
        "denied" if "denied" in consents else next(iter(consents), None),
        min(ends, default=None),
    )


def _text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1").strip()


def _consent(headers: dict[bytes, bytes]) -> Consent | None:
    text = _text(headers, CONSENT)
    if text is None:
        return None
    if (consent := consent_of(text)) is None:
        raise invalid(f"{CONSENT.decode()} must be granted or denied")
    return consent


def _expires(headers: dict[bytes, bytes]) -> int | None:
    text = _text(headers, EXPIRES)
    if text is None:
        return None
    if (moment := moment_of(text)) is None:
        raise invalid(f"{EXPIRES.decode()} must be a date such as 2027-01-31")
    return moment
