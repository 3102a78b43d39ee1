"""Stretches of time and moments as people write them: 90d, 24h, 30m, 45s; 2026-11-30."""

import re
import time
from datetime import UTC, datetime
from typing import Any

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SECOND = 10**9


class Duration(click.ParamType[int]):
    """Nanoseconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,6})([smhdw])", value)
        if found is None:
            self.fail(f"{value!r} is no stretch of time such as 90d, 24h or 30m", param, context)
        return int(found[1]) * _UNITS[found[2]] * _SECOND


class Moment(click.ParamType[int]):
    """Nanoseconds since the epoch: a day or time (UTC where it names no zone), or how long ago."""

    name = "moment"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        if re.fullmatch(r"\d{1,6}[smhdw]", value):
            return time.time_ns() - DURATION.convert(value, param, context)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is neither 7d (ago) nor a day such as 2026-11-30", param, context)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(moment.timestamp()) * _SECOND


DURATION, MOMENT = Duration(), Moment()
