"""The simulated user as an MCP server: the model meets it behind one tool, `talk_to_user`.

Enter: how the user answers. Leaves: a server, for a harness of this process, or by itself:

    python -m environments.harnesses.user_server USER.json [--memory FILE] [--port N]

USER.json is a UserConfig; the memory (what was heard and said, and how it ended) is written after
each answer. stdio, or streamable HTTP on a loopback port. Invariant: a user that is gone answers
that it is gone.
"""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from environments.harnesses.contract import Tool

GONE = "[The user has left the conversation.]"
NAME = "talk_to_user"
_ABOUT = (
    "Says something to the user and returns what the user answers. The user sees nothing else of "
    "what you write or do."
)
Answers = Callable[[str], Awaitable[str | None]]


def user_tool(answers: Answers) -> "Tool":
    """The same tool without a server between."""
    from environments.harnesses.contract import Tool

    async def talk_to_user(message: str) -> str:
        said = await answers(message)
        return GONE if said is None else said

    schema = {
        "type": "object",
        "properties": {"message": {"type": "string", "description": "What you say to the user."}},
        "required": ["message"],
        "additionalProperties": False,
    }
    return Tool(NAME, _ABOUT, schema, talk_to_user)


def user_server(answers: Answers) -> "MCPServer":
    from mcp.server.mcpserver import MCPServer

    tool = user_tool(answers)
    server = MCPServer("user", log_level="ERROR")
    server.add_tool(tool.call, name=tool.name, description=tool.description)
    return server


@click.command()
@click.argument("user", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--memory", type=click.Path(path_type=Path), help="Where the talk is kept.")
@click.option("--port", type=int, help="Streamable HTTP on this loopback port instead of stdio.")
def main(user: Path, memory: Path | None, port: int | None) -> None:
    """A simulated user that any MCP client can meet."""
    from pydantic import TypeAdapter

    from environments.harnesses.user import UserConfig, answer

    config: Any = TypeAdapter(UserConfig).validate_json(user.read_bytes())
    talk: dict[str, Any] = {}

    async def answers(said: str) -> str | None:
        words = await answer(config, said, talk, [])
        if memory is not None:
            memory.write_text(json.dumps(talk), encoding="utf-8")
        return words

    server = user_server(answers)
    if port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=port)


if __name__ == "__main__":
    main()
