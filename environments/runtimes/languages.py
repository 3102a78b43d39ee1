"""Source text run in a runtime: one line a language.

Enter: the source. Leaves: how it ended; a compiler's refusal is an end as well. Invariant: the
source lies in the workspace under a name of its own, and is not what the shell reads.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from environments.runtimes.contract import Limits, Ran, Runtime
from flywheel.errors import ProjectError

Language = Literal["python", "javascript", "bash", "c", "cpp"]
_LEAST_MEMORY = 256 << 20


class _How(NamedTuple):
    file: str
    run: tuple[str, ...]
    compile: tuple[str, ...] = ()
    """Empty = it is not compiled."""
    package: str = ""
    """Debian's, that brings it."""


_PROGRAM = "./main"
LANGUAGES: dict[str, _How] = {
    "python": _How("main.py", ("python3", "main.py"), package="python3"),
    "javascript": _How("main.js", ("node", "main.js"), package="nodejs"),
    "bash": _How("main.sh", ("bash", "main.sh"), package="bash"),
    "c": _How(
        "main.c", (_PROGRAM,), ("gcc", "-O1", "-o", "main", "main.c", "-lm", "-pthread"), "gcc"
    ),
    "cpp": _How(
        "main.cpp", (_PROGRAM,), ("g++", "-O1", "-o", "main", "main.cpp", "-pthread"), "g++"
    ),
}


async def run_code(
    runtime: Runtime,
    language: str,
    source: str,
    *,
    stdin: str = "",
    files: Mapping[str, str | bytes] = {},
    limits: Limits | None = None,
) -> Ran:
    """`files`: written beside it. Names that the language itself takes: `LANGUAGES`.

    Raises:
        ProjectError: a language that is not known, or not installed where the code runs.
        RuntimeFailure: the machine's fault.
    """
    if language not in LANGUAGES:
        raise ProjectError(f"language {language!r} is not known: {', '.join(LANGUAGES)}")
    how = LANGUAGES[language]
    for name, content in files.items():
        await runtime.write(name, content)
    await runtime.write(how.file, source)
    if how.compile:
        built = await runtime.exec(how.compile, limits=_roomy(limits))
        if not built.ok:
            return _present(built, how)
    return _present(await runtime.exec(how.run, stdin=stdin, limits=limits), how)


def _roomy(limits: Limits | None) -> Limits | None:
    if limits is None:
        return None
    memory = max(limits.memory, _LEAST_MEMORY)
    return limits.model_copy(update={"memory": memory, "file": max(limits.file, 16 << 20)})


def _present(ran: Ran, how: _How) -> Ran:
    tool = (how.compile or how.run)[0]
    if ran.code == 127 and f"{tool}: command not found" in ran.stderr:
        raise ProjectError(
            f"{tool} is not installed where the code runs: apt install {how.package}"
        )
    return ran
