"""As the tool loop, with the tools of MCP servers beside the environment's own.

Enter: servers by command (stdio) or URL (streamable HTTP); one with neither is the environment's
simulated user, offered as a server of this process. Leave: tool spans, as in the tool loop. Whose
fault a failure is: see `mcp_tools.py`.
"""

import contextlib

from environments.harnesses.asking import how
from environments.harnesses.contract import Episode, EpisodeFailed, Mcp, McpServer
from environments.harnesses.mcp_tools import Server, connected, first_of, tools_of
from environments.harnesses.toolbox import Toolbox
from environments.harnesses.tools import until_answer
from environments.harnesses.user_server import user_server


class McpHarness:
    def __init__(self, config: Mcp) -> None:
        self.config = config

    async def run(self, episode: Episode) -> None:
        failure: Exception | None = None
        try:
            async with contextlib.AsyncExitStack() as stack:
                # Caught within: what leaves the clients' task groups would come as a group.
                try:
                    await self._meet(episode, stack)
                except Exception as error:
                    failure = error
        except ExceptionGroup as group:
            failure = failure or EpisodeFailed(f"an MCP server is gone: {first_of(group)}")
        if failure is not None:
            raise failure

    async def _meet(self, episode: Episode, stack: contextlib.AsyncExitStack) -> None:
        servers = [
            await stack.enter_async_context(_opened(episode, server))
            for server in self.config.servers
        ]
        own = episode.environment.tools(episode)
        box = Toolbox(episode, [*own, *await tools_of(servers, {tool.name for tool in own})])
        episode.ended = how(await until_answer(episode, list(episode.problem.messages), box))


def _opened(episode: Episode, server: McpServer) -> contextlib.AbstractAsyncContextManager[Server]:
    if server.command or server.url:
        return connected(episode, server)

    async def answers(said: str) -> str | None:
        return await episode.environment.user(episode, said)

    return connected(episode, server, user_server(answers))
