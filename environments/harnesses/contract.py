"""What a harness is: how a model acts on one problem, by way of an OpenAI-compatible URL.

Enter: an Episode. Leaves: nothing; what the model was asked and answered is recorded at that URL,
and what the harness did beside it (tools, sub-agents) by `Episode.spans`. Invariant: a harness
never sees a token and forces no sampling: both are the run's.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from flywheel.episodes import Access as Access
from flywheel.episodes import Forced as Forced
from flywheel.episodes import Ticket as Ticket
from flywheel.errors import FlywheelError
from flywheel.records import Problem, Span, Trace

if TYPE_CHECKING:
    from environments.define import Environment
    from environments.runtimes.contract import Runtime


class EpisodeFailed(FlywheelError):
    """Infrastructure's fault: the trace keeps the error and is graded null, never 0."""


class Recorder(Protocol):
    """The point of interception: gives each episode an address, and its trace in the end."""

    async def open(self, ticket: Ticket, forced: Forced) -> Access: ...

    async def close(
        self, access: Access, spans: Sequence[Span] = (), error: str | None = None
    ) -> Trace:
        """The episode's trace: its model calls as recorded, with the harness's own `spans` beside
        them. The address ends; `error` = why the episode has no end of its own."""
        ...


class Budget(BaseModel):
    """Where an episode ends at the latest. Reaching it is an outcome, written into the trace."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    turns: int = Field(16, ge=1)
    """Model calls."""
    wall_s: float = Field(600.0, gt=0)
    tokens: int | None = Field(None, ge=1)
    """Of all answers together, as the engine counts them. None = as many as the turns allow."""
    tool_s: float = Field(60.0, gt=0)
    """Of one tool, one check, one word of the user."""
    tool_output: int = Field(32_768, ge=256)
    """Characters of a tool's answer that the model gets; the rest is cut, and said to be."""
    loops: int = Field(4, ge=2)
    """The same answer so often in a row, to the same, ends the episode."""


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    budget: Budget = Budget()


class Single(_Config):
    """The problem's messages, one answer."""

    kind: Literal["single"] = "single"


class Tools(_Config):
    """A loop: the model calls the environment's tools (`Environment.tools`) until it answers."""

    kind: Literal["tools"] = "tools"
    parallel: bool = True


class Conversation(_Config):
    """The model and a user take turns (`Environment.user`); with the environment's tools."""

    kind: Literal["conversation"] = "conversation"


class Correcting(_Config):
    """Write, run, error, correct: what `Environment.check` says goes back until it passes."""

    kind: Literal["correcting"] = "correcting"
    attempts: int = Field(4, ge=1)


class Program(_Config):
    """Any program that speaks to an OpenAI-compatible URL; it runs in the runtime and gets
    OPENAI_BASE_URL, OPENAI_API_KEY and the model's name in its environment."""

    kind: Literal["program"] = "program"
    command: tuple[str, ...]
    """`{model}` and `{url}` are filled in, and a word `{prompt}` is the prompt's text; the problem
    lies in problem.json and prompt.txt too."""
    env: Mapping[str, str] = {}


class McpServer(BaseModel):
    """Tools behind the Model Context Protocol: a command (stdio) or a URL (streamable HTTP)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    command: tuple[str, ...] = ()
    url: str | None = None
    env: Mapping[str, str] = {}


class Mcp(_Config):
    """As `Tools`, with the tools of MCP servers; one of them may be the simulated user."""

    kind: Literal["mcp"] = "mcp"
    servers: tuple[McpServer, ...]


class Recursive(_Config):
    """The model calls itself on parts of an input longer than its window."""

    kind: Literal["recursive"] = "recursive"
    part: int = Field(2000, ge=64)
    """Characters of a part."""
    depth: int = Field(3, ge=1)


class Compacting(_Config):
    """As `Tools`; the history is summarised by the model whenever it passes a budget."""

    kind: Literal["compacting"] = "compacting"
    at: int = Field(8000, ge=256)
    """Characters of history from which it is summarised."""
    keep: int = Field(2, ge=0)
    """Latest messages that stay as they are."""


HarnessConfig = Annotated[
    Single | Tools | Conversation | Correcting | Program | Mcp | Recursive | Compacting,
    Field(discriminator="kind"),
]


class Tool(NamedTuple):
    """A function that the model may call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of its arguments."""
    call: Any
    """`call(**arguments)`; returns text or JSON. What it raises is told the model as its answer. A
    plain function runs in a thread; an async one must not block."""
    checks: bool = False
    """True = it checks its arguments itself. For schemas of others: to apply one may take for ever,
    by its patterns or by its references."""


@dataclass
class Episode:
    """One attempt at one problem, while it runs."""

    environment: "Environment"
    problem: Problem
    access: Access
    rng: random.Random
    """Seeded by (run, problem, attempt): all chance of a harness comes from it."""
    runtime: "Runtime | None" = None
    state: dict[str, Any] = field(default_factory=dict)
    """What set-up, tools, stops, clean-up and rewards of this episode share. What rewards need
    of it must be JSON and is kept in the trace (`attributes["state"]`)."""
    spans: list[Span] = field(default_factory=list)
    """Of the harness itself: tool calls, sub-agents. Parents are ids of the recorded calls."""
    calls: list[Span] = field(default_factory=list)
    """The model calls so far as the harness met them, without tokens: what stops are asked about.
    The trace in the end has the recorder's."""
    turns: int = 0
    """Model calls begun."""
    ended: str | None = None
    """Why it ended: "answered", "stopped: NAME", "budget: turns" …"""
    notes: dict[str, Any] = field(default_factory=dict)
    """What the trace's attributes say of it beside; JSON."""
    ticket: Ticket | None = None
    session: Any = None
    """The run's HTTP connections (`environments.harnesses.asking`)."""
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a plain function (not async) of this episode while it runs in its thread: those of
    one episode run one after the other, so that they may share `state`."""

    @property
    def budget(self) -> Budget:
        return self.environment.harness.budget


class Harness(Protocol):
    async def run(self, episode: Episode) -> None:
        """
        Raises:
            EpisodeFailed: infrastructure; anything else that it raises is the harness's own fault
                and is recorded as such.
        """
        ...
