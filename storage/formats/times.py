"""Times of every format as nanoseconds since the Unix epoch; what is no time is None."""

from datetime import UTC, datetime

_NANOSECONDS, _LATEST = 10**17, 1 << 63


def nanoseconds(value: object) -> int | None:
    """Numbers by their size (s, ms, µs, ns), digits as such a number, ISO 8601 (UTC if unsaid)."""
    if type(value) is int and _NANOSECONDS <= value < _LATEST:
        return value  # the commonest form
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        if value.isascii() and value.isdigit():
            return nanoseconds(int(value[:24]))
        return _iso(value)
    if not isinstance(value, int | float) or not 0 < value < _LATEST:
        return None
    for unit, ceiling in ((10**9, 10**11), (10**6, 10**14), (10**3, 10**17)):
        if value < ceiling:
            return int(value * unit) if isinstance(value, int) else round(value * unit)
    return int(value)


def _iso(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * 10**9 + moment.microsecond * 1000 if whole > 0 else None
