"""What a runtime is: a workspace of its own and programs that run in it, bounded.

Enter: a configuration and a folder. Leave: what programs wrote and how they ended. Invariant: what
a program does wrong (an error, too long, too much) is a `Ran`; what the machine does wrong is a
`RuntimeFailure`, which is tried again and is never anyone's reward.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from flywheel.errors import BadRecord, FlywheelError

MIB = 2**20
Reason = Literal["ok", "error", "timeout", "memory", "output", "killed"]
_WORD, _WORDS = 128 * 1024 - 1, MIB
"""Bytes that the kernel takes as one word of a command line, and about what it takes of all."""


class RuntimeFailure(FlywheelError):
    """The machine's fault, not the program's: no sandbox could be started, the disk is full."""


class Limits(BaseModel):
    """Of one program; of the whole tree of its processes where that can be measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    wall_s: float = Field(30.0, gt=0)
    cpu_s: float = Field(20.0, gt=0)
    memory: int = Field(512 * MIB, ge=MIB)
    """Bytes."""
    processes: int = Field(64, ge=1)
    output: int = Field(MIB, ge=1)
    """Bytes kept of stdout and of stderr, each; who writes ten times as much is ended."""
    file: int = Field(64 * MIB, ge=1)
    """Bytes of the largest file."""
    workspace: int = Field(256 * MIB, ge=1)
    """Bytes of all files together."""
    network: bool = False


class Ran(NamedTuple):
    """How a program ended."""

    reason: Reason
    code: int | None
    """Its exit code; None = it was ended by a signal."""
    stdout: str
    stderr: str
    seconds: float
    cpu_s: float | None
    """User and system, of the tree. None = not measured here."""
    peak_memory: int | None
    """Bytes, of the tree. None = not measured here."""
    cut: bool = False
    """True = stdout or stderr is not whole."""

    @property
    def ok(self) -> bool:
        return self.reason == "ok"


class Sandbox(BaseModel):
    """bubblewrap: no network unless asked, a read-only system, a workspace and /tmp of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["sandbox"] = "sandbox"
    limits: Limits = Limits()
    readable: tuple[Path, ...] = ()
    """Further folders that programs may read (an environment of packages)."""


class Container(BaseModel):
    """docker or podman, where an engine answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["container"] = "container"
    image: str
    engine: Literal["auto", "docker", "podman"] = "auto"
    limits: Limits = Limits()


class Trusted(BaseModel):
    """A plain child process in a folder: for code that one would run oneself. Nothing is walled
    off; times and output are bounded all the same, and what stays in its group ends with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["trusted"] = "trusted"
    limits: Limits = Limits()


RuntimeConfig = Annotated[Sandbox | Container | Trusted, Field(discriminator="kind")]


class Runtime(Protocol):
    """One workspace. Paths are relative to it and never lead out of it.

    All that it holds lies in a folder, so that a forked child may use it too, and `restore` works
    in a new process. Every method may raise `RuntimeFailure`.
    """

    folder: Path

    async def start(self) -> None: ...

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        cwd: str = ".",
        door: str | None = None,
    ) -> Ran:
        """`limits`: instead of the configuration's. `door`: a URL on a loopback address of the
        host that the program reaches under that very URL, though it has no network else."""
        ...

    async def read(self, path: str, *, limit: int = 16 * MIB) -> bytes:
        """
        Raises:
            BadRecord: there is none, it leads out of the workspace, or it is larger than `limit`.
        """
        ...

    async def write(self, path: str, data: str | bytes) -> None: ...

    async def snapshot(self) -> Path:
        """The workspace as one archive, beside it."""
        ...

    async def restore(self, archive: Path) -> None: ...

    async def stop(self) -> None:
        """Ends what still runs and removes the workspace."""
        ...


def sayable(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Checks what a program is started with: a problem's text may be a word of it.

    Raises:
        BadRecord: it holds a NUL, which would end the word and begin another, or no UTF-8, or it
            is longer than the kernel takes.
    """
    whole = 0
    for word in (*command, *(f"{name}={value}" for name, value in env.items())):
        try:
            size = len(word.encode())
        except UnicodeEncodeError as error:
            raise BadRecord(f"a program cannot be given what is no UTF-8: {error}") from error
        if "\0" in word:
            raise BadRecord("a program cannot be given a NUL character", path=word[:80])
        whole += size + 1
        if size > _WORD or whole > _WORDS:
            raise BadRecord(
                f"a program cannot be given so long a word, or so many: at most {_WORD} bytes in "
                f"one and {_WORDS} in all; put it into a file",
                path=word[:80],
            )
