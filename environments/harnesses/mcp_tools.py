"""MCP servers as tools: connected, listed, called, and what they answer as text.

Enter: the servers of a harness. Leave: tools as the tool loop takes them. What counts as whose
fault: an error that a server answers (also of the protocol: unknown tool, wrong arguments), and a
call that it does not answer in time, are told the model, as any tool's error; a server that cannot
be reached, dies, or has not answered `SILENT` times in a row is infrastructure (EpisodeFailed).
"""

import asyncio
import base64
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Set
from typing import IO, TYPE_CHECKING, Any

from environments.endpoint import is_local
from environments.harnesses.contract import Episode, EpisodeFailed, McpServer, Tool
from environments.harnesses.mcp_pipes import Served, piped
from environments.harnesses.toolbox import WrongCall

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

CONNECT_S = 60.0
SILENT = 3
PAGES, TOOLS, TOLD = 100, 1000, 4 << 20
"""Of one server's list: pages, tools, and bytes of their names, descriptions and schemas."""
_CLOSED, _TIMEOUT = -32000, -32001
_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST = 64
"""Characters of a tool's name that OpenAI's protocol takes."""


class ToolFailed(WrongCall):
    """What the model is told as the tool's error, without a traceback."""


class Server:
    """One connected server."""

    def __init__(self, name: str, client: "Client", served: Served, call_s: float) -> None:
        self.name, self.client, self.served, self.call_s = name, client, served, call_s
        self.silent = 0
        """Calls in a row that it did not answer."""

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """
        Raises:
            ToolFailed: the server says that it went wrong, or did not answer in time.
            EpisodeFailed: the server is gone.
        """
        from mcp import MCPError

        try:
            result = await self.client.call_tool(tool, arguments, read_timeout_seconds=self.call_s)
        except MCPError as error:
            if error.code == _TIMEOUT:
                raise self._unanswered(tool) from error
            if error.code == _CLOSED:
                raise gone(self.name, self.served, error) from error
            raise ToolFailed(error.message) from error
        except (RuntimeError, ValueError) as error:  # a result that does not fit the protocol
            raise ToolFailed(f"{type(error).__name__}: {error}") from error
        self.silent = 0
        said = text_of(result)
        if result.is_error:
            raise ToolFailed(said or "the tool failed and said nothing")
        return said

    def _unanswered(self, tool: str) -> Exception:
        self.silent += 1
        message = f"{tool} did not answer within {self.call_s:g} s"
        if self.silent < SILENT:
            return ToolFailed(message)
        return EpisodeFailed(f"MCP server {self.name}: {message}, {SILENT} times in a row")


def gone(name: str, served: Served, error: BaseException) -> EpisodeFailed:
    """How the server ended, in words."""
    how = served.fault or str(error) or type(error).__name__
    if served.ran is not None:
        ran = served.ran
        how = f"it ended ({ran.reason}, exit code {ran.code}): {ran.stderr[-1000:]}"
    return EpisodeFailed(f"MCP server {name} is gone: {how}")


@contextlib.asynccontextmanager
async def connected(
    episode: Episode, server: McpServer, offered: Any = None
) -> AsyncIterator[Server]:
    """The server, until the block ends. `offered`: a server of this process, instead.

    Raises:
        EpisodeFailed: it cannot be started or reached, or does not answer as an MCP server does.
    """
    from mcp import Client, MCPError

    served = Served(server.name)
    budget = episode.budget
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        async with contextlib.AsyncExitStack() as stack:
            try:
                # not anyio's: its scopes must close in order, and the client's stays open
                async with asyncio.timeout(min(CONNECT_S, budget.wall_s)):
                    where = offered or _transport(episode, server, served, said)
                    client = await stack.enter_async_context(Client(where, cache=None))
                    client.session.validate_tool_result = _as_it_is  # type: ignore[method-assign]
            except TimeoutError as error:
                message = f"MCP server {server.name} did not answer within {CONNECT_S:g} s"
                raise EpisodeFailed(message) from error
            except (MCPError, OSError, ValueError, RuntimeError, ExceptionGroup) as error:
                said.seek(0)
                served.fault = served.fault or f"{first_of(error)} {said.read()[-1000:]}".strip()
                raise gone(server.name, served, error) from error
            # Sooner than the tool loop gives up, so that silence is counted.
            yield Server(server.name, client, served, 0.9 * budget.tool_s)


async def _as_it_is(name: str, result: "CallToolResult") -> None:
    """Instead of the client's check by the server's schema: that may take for ever, in the loop
    that all episodes share."""


def _transport(episode: Episode, server: McpServer, served: Served, said: IO[str]) -> Any:
    """stdio runs in the runtime where there is one, else as a plain child of this process."""
    if server.url:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        local = is_local(server.url)
        client = httpx2.AsyncClient(trust_env=not local, timeout=httpx2.Timeout(30, read=None))
        return streamable_http_client(server.url, http_client=client)
    if not server.command:
        raise EpisodeFailed(f"MCP server {server.name} has neither a command nor a URL")
    if episode.runtime is not None and episode.environment.runtime is not None:
        wall = {"wall_s": episode.budget.wall_s}
        limits = episode.environment.runtime.limits.model_copy(update=wall)
        return piped(episode.runtime, server.command, server.env, limits, served)
    from mcp import StdioServerParameters, stdio_client

    command, *arguments = server.command
    parameters = StdioServerParameters(command=command, args=arguments, env=dict(server.env))
    return stdio_client(parameters, errlog=said)  # type: ignore[arg-type]


def first_of(error: BaseException) -> str:
    """The first error of a group, in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


async def tools_of(servers: Iterable[Server], taken: Set[str] = frozenset()) -> list[Tool]:
    """All tools, in the order of servers and of their lists. A name that is `taken`, or that two of
    them have, is written SERVER__NAME; characters that OpenAI's protocol does not take are `_`.

    Raises:
        EpisodeFailed: a server does not list its tools, or two names cannot be told apart.
    """
    listed = [(server, tool) for server in servers for tool in await _listed(server)]
    counts: dict[str, int] = {}
    for _, tool in listed:
        counts[_clean(tool.name)] = counts.get(_clean(tool.name), 0) + 1
    named: dict[str, Tool] = {}
    for server, tool in listed:
        plain = _clean(tool.name)
        alone = counts[plain] == 1 and plain not in taken
        name = plain if alone else _clean(f"{server.name}__{tool.name}")
        if name in named or name in taken:
            raise EpisodeFailed(f"MCP server {server.name}: two tools would be named {name!r}")
        call = _caller(server, tool.name)
        named[name] = Tool(name, tool.description or "", _schema(tool), call, checks=True)
    return list(named.values())


def _clean(name: str) -> str:
    return _NAME.sub("_", name)[:_LONGEST]


def _schema(tool: Any) -> dict[str, Any]:
    schema: Mapping[str, Any] = tool.input_schema or {}
    return {"type": "object", "properties": {}, **schema}


def _caller(server: Server, name: str) -> Any:
    async def call(**arguments: Any) -> str:
        return await server.call(name, arguments)

    return call


async def _listed(server: Server) -> list[Any]:
    import anyio
    from mcp import MCPError

    found: list[Any] = []
    told, cursor = 0, None
    try:
        with anyio.fail_after(CONNECT_S):
            for _ in range(PAGES):
                page = await server.client.list_tools(cursor=cursor)
                found += page.tools
                told += sum(len(tool.model_dump_json()) for tool in page.tools)
                if len(found) > TOOLS or told > TOLD:
                    raise ValueError(f"it lists more than {TOOLS} tools or {TOLD} bytes of them")
                cursor = page.next_cursor
                if not cursor:
                    break
    except (MCPError, TimeoutError, ValueError) as error:
        raise gone(server.name, server.served, error) from error
    return found


def text_of(result: "CallToolResult") -> str:
    """Texts and text resources as they are; of pictures, sound and other bytes what and how large
    they are; the structured result only where there is nothing else."""
    import json

    parts = [_said(part) for part in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _said(part: Any) -> str:
    if part.type == "text":
        return str(part.text)
    if part.type in ("image", "audio"):
        return f"[{part.type} {part.mime_type}, {_size(part.data)} bytes: not shown]"
    if part.type == "resource_link":
        return f"[resource {part.uri} {part.name}]"
    held = part.resource
    if hasattr(held, "text"):
        return f"[resource {held.uri}]\n{held.text}"
    return f"[resource {held.uri} {held.mime_type or 'bytes'}, {_size(held.blob)} bytes: not shown]"


def _size(data: str) -> int:
    with contextlib.suppress(ValueError):
        return len(base64.b64decode(data))
    return len(data)
