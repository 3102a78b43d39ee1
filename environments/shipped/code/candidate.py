"""Runs in the sandbox as a process of its own: a model's program, which is asked for its function.

Enter, a line each: the program, then the arguments of calls. Leave, a line each: what came of it.
Invariant: it knows neither tests nor wanted results, so nothing that it writes is worth forging.
"""

import json
import linecache
import os
import sys
import traceback
from typing import Any

from plain import decode, encode

NAME = "<program>"
LARGEST = 4_000_000
TOLD = 1500
_DEEP = 3000


def told(error: BaseException) -> str:
    """The stack from the program's own first line on, its last part."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != NAME:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    return "".join(lines)[-TOLD:]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    questions = os.fdopen(os.dup(0), "r", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.setrecursionlimit(_DEEP)

    def answer(**said: Any) -> None:
        line = json.dumps(said)
        if len(line) > LARGEST:
            line = json.dumps({"error": "it returned too much"})
        answers.write(line + "\n")
        answers.flush()

    first = json.loads(questions.readline())
    source, entry = first["program"], first["entry"]
    linecache.cache[NAME] = (len(source), None, source.splitlines(True), NAME)
    space: dict[str, Any] = {"__name__": "program", "__builtins__": __builtins__}
    try:
        exec(compile(source, NAME, "exec"), space)
        function = space[entry]
        if not callable(function):
            raise TypeError(f"{entry} is no function")
        answer(value=None)
    except KeyError as error:
        answer(error=f"there is no function {entry}" if entry not in space else told(error))
    except BaseException as error:
        answer(error=told(error))
    for line in questions:
        try:
            arguments = decode(json.loads(line))
            answer(value=encode(function(*arguments)))
        except BaseException as error:
            answer(error=told(error))


if __name__ == "__main__":
    main()
