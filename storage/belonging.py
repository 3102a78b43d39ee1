"""Whose data a trace is, as its sender said it in names of its own: user, tenant, consent, expiry.

Enter traces that a format read; leave them with the fields set that attributes say and no field
said: under `flywheel.*`, or under the usual names, also inside metadata. What an import was told on
the command line counts where the sender said nothing; a refused consent always.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from flywheel.errors import UsageError
from flywheel.records import Consent, Trace

_LONGEST = 512
_NAMES = {
    "user": ("user", "user_id", "userid", "end_user", "enduser.id", "user.id"),
    "tenant": ("tenant", "tenant_id", "tenantid", "tenant.id", "organization_id", "organization.id",
               "organisation_id", "org_id"),
    "consent": ("consent", "training_consent", "consent.training", "data_consent"),
    "expires": ("expires", "expires_at", "expiry", "delete_after", "retain_until"),
}  # fmt: skip
_FIELD = {name: field for field, names in _NAMES.items() for name in names}
_INSIDE = ("metadata", "tags", "labels", "trace_metadata", "requester_metadata")
_YES = ("granted", "true", "yes", "1", "given", "opt_in", "opt-in", "allowed")
_NO = ("denied", "false", "no", "0", "withdrawn", "refused", "opt_out", "opt-out", "forbidden")


class Belonging(NamedTuple):
    """What an import's traces are told to be."""

    tenant: str | None = None
    consent: Consent | None = None
    expires: int | None = None


NOBODY = Belonging()


def owned(trace: Trace, told: Belonging = NOBODY) -> Trace:
    """`trace` with whose it is."""
    said: dict[str, Any] = {}
    for attributes in (trace.attributes, *(span.attributes for span in trace.spans)):
        if attributes:
            for field, value in _said(attributes):
                _take(said, field, value)
    changes: dict[str, Any] = {
        name: said[name]
        for name in ("user", "tenant")
        if name in said and getattr(trace, name) is None
    }
    if told.tenant and trace.tenant is None and "tenant" not in said:
        changes["tenant"] = told.tenant
    consents = {trace.consent, said.get("consent"), told.consent} - {None}
    consent = "denied" if "denied" in consents else next(iter(consents), None)
    if consent != trace.consent:
        changes["consent"] = consent
    ends = [one for one in (trace.expires, said.get("expires"), told.expires) if one is not None]
    if ends and min(ends) != trace.expires:
        changes["expires"] = min(ends)
    return msgspec.structs.replace(trace, **changes) if changes else trace


def held_keys(trace: Trace, paths: Iterable[str]) -> list[str]:
    """Those of `paths` whose value, an attribute of the trace or of a span, one of its fields has:
    each as often as it does."""
    told = [(path, field) for path in paths if (field := _role(path)) in _NAMES]
    if not told:
        return []
    held = []
    for attributes in (trace.attributes, *(span.attributes for span in trace.spans)):
        for path, field in told:
            said: dict[str, Any] = {}
            if path in attributes:
                _take(said, field, attributes[path])
            if field in said and said[field] == getattr(trace, field):
                held.append(path)
    return held


def expiry(text: str) -> int:
    """A moment as people write it, in nanoseconds: `2027-01-31`, with a time, or a number.

    Raises:
        UsageError: it is none.
    """
    moment = moment_of(text)
    if moment is None:
        raise UsageError(f"{text!r} is no date: write it as 2027-01-31 or 2027-01-31T12:00:00Z")
    return moment


def said_in(metadata: dict[str, Any]) -> dict[str, Any]:
    """tenant, consent and expires, as far as a caller's metadata says them."""
    said: dict[str, Any] = {}
    for field, value in _said(metadata):
        _take(said, field, value)
    return said


def _said(attributes: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in attributes.items():
        role = _role(key)
        if role == "inside":
            if isinstance(value, dict):
                for name, one in value.items():
                    if (inner := _role(str(name))) in _NAMES:
                        yield inner, one
        elif role is not None:
            yield role, value


@lru_cache(maxsize=4096)
def _role(key: str) -> str | None:
    """Which field a key of attributes says; "inside" = its value may. None = neither."""
    name = key.lower()
    if name.rpartition(".")[2] in _INSIDE:
        return "inside"
    for known, field in _FIELD.items():
        if name in (known, f"flywheel.{known}") or name.endswith(f"metadata.{known}"):
            return field
    return None


def _take(said: dict[str, Any], field: str, value: Any) -> None:
    if field in ("user", "tenant"):
        if isinstance(value, str | int) and not isinstance(value, bool):
            text = str(value).strip()
            if 0 < len(text) <= _LONGEST:
                said.setdefault(field, text)
    elif field == "consent":
        if (consent := consent_of(value)) is not None and said.get("consent") != "denied":
            said["consent"] = consent
    elif (moment := moment_of(value)) is not None:
        said["expires"] = min(moment, said.get("expires", moment))


def consent_of(value: Any) -> Consent | None:
    """None = it says neither."""
    if isinstance(value, dict):
        value = value.get("training", value.get("status"))
    text = str(value).strip().lower()
    if text in _NO:
        return "denied"
    return "granted" if text in _YES else None


def moment_of(value: Any) -> int | None:
    """Nanoseconds, of a date or of a number of any usual unit; None = it is no moment."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            try:
                found = datetime.fromisoformat(value.strip())
            except ValueError:
                return None
            found = found if found.tzinfo else found.replace(tzinfo=UTC)
            return int(found.timestamp()) * 10**9
    if not isinstance(value, int | float) or not 0 < value < 1 << 62:
        return None
    for limit, scale in ((1e11, 10**9), (1e14, 10**6), (1e17, 10**3)):
        if value < limit:
            return int(value * scale) if isinstance(value, float) else value * scale
    return int(value)
