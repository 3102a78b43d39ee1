"""One order in a file, carried out by a process of its own: what `python -m trainer.probing` and
`python -m trainer.quantised` do with their arguments.

Enters the arguments; leaves the exit code. What went wrong is the last thing said, after "error: ".
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from flywheel.children import follow_parent
from flywheel.errors import CorruptFile, FlywheelError, Refused, UsageError
from flywheel.settings import load, quiet_dependencies

Order = TypeVar("Order", bound=msgspec.Struct)


def carry_out(arguments: Sequence[str], kind: type[Order], does: Callable[[Order], object]) -> int:
    """Exit code 3: the weights are none that can be read, or do not fit."""
    follow_parent()
    quiet_dependencies(load().at())
    try:
        if len(arguments) != 1:
            raise UsageError("one argument is wanted: ORDER.json")
        does(msgspec.json.decode(Path(arguments[0]).read_bytes(), type=kind))
    except FlywheelError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return Refused.exit_code if isinstance(error, CorruptFile) else error.exit_code
    return 0
