"""The log of server and gateway: lines for people, or one JSON object a line for programs.

No text of a request or an answer and no key is ever in it.
"""

import logging
import sys
import time
from typing import Literal

import msgspec

from serving.observing import Seen

_requests = logging.getLogger("flywheel.requests")
_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonLines(logging.Formatter):
    """Keys: time (RFC 3339, UTC), level, logger, message, and what the record was given as
    `extra={"fields": {…}}`."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class RequestLog:
    """A line for each request that ended: as JSON of all, as text of those that went wrong."""

    def __init__(self, form: Literal["text", "json"]) -> None:
        self._all = form == "json"

    def hear(self, seen: Seen) -> None:
        wrong = seen.end in ("failed", "cut", "fell_back")
        if wrong or self._all:
            fields = {
                name: value
                for name, value in msgspec.structs.asdict(seen).items()
                if value is not None and value != ""
            }
            code = f" ({seen.code})" if seen.code else ""
            _requests.log(
                logging.WARNING if wrong else logging.INFO,
                "%s: %s%s, request %s",
                seen.deployment,
                seen.end,
                code,
                seen.request_id,
                extra={"fields": fields},
            )


def log_to(form: Literal["text", "json"]) -> None:
    """Sends this process's log to standard error in that form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(_FORMAT))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("flywheel").setLevel(logging.INFO)
