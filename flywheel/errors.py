"""Every error of ours. Each message says what failed, with which id, and what to do.

FlywheelError
├── UsageError          wrong input from the person at the keyboard: exit 2
│   ├── ProjectError        a flywheel.toml that cannot be used
│   └── MissingPart         a model, package or program that is not here; names what brings it
├── BadRecord           one row that cannot be understood; quarantined, the rest goes on
├── Refused             a gate said no: a normal outcome, exit 3
├── Busy                another process holds what is needed (a turn, the committer, a port)
├── EngineError         the serving engine failed or is gone; retried, then reported
├── CorruptFile         a file whose digest, size or shape is wrong
└── Full                no space left where something had to be written
"""

from typing import Any


class FlywheelError(Exception):
    """Base of all errors that Flywheel raises on purpose."""

    exit_code = 1


class UsageError(FlywheelError):
    exit_code = 2


class ProjectError(UsageError):
    pass


class MissingPart(UsageError):
    pass


class BadRecord(FlywheelError):
    """One input row that cannot be understood.

    `path`, `line` and `field` locate it where they are known.
    """

    def __init__(
        self,
        reason: str,
        *,
        path: str | None = None,
        line: int | None = None,
        field: str | None = None,
    ) -> None:
        self.reason, self.path, self.line, self.field = reason, path, line, field
        where = ":".join(str(part) for part in (path, line) if part is not None)
        super().__init__(": ".join(part for part in (where, field, reason) if part))


class Refused(FlywheelError):
    exit_code = 3


class Busy(FlywheelError):
    pass


class EngineError(FlywheelError):
    pass


class CorruptFile(FlywheelError):
    pass


class Full(FlywheelError):
    pass


def unfit(item: Any) -> str:
    """The reason in one of pydantic's errors, without its own first words."""
    return str(item["msg"]).removeprefix("Value error, ")
