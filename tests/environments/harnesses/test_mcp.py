"""MCP servers as tools: a scripted server of plain JSON, and servers of the official package."""

import asyncio
import json
import random
import shutil
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from environments.attempt import Finished
from environments.define import Environment
from environments.endpoint import connect
from environments.harnesses import mcp_pipes, mcp_tools
from environments.harnesses.contract import (
    Access,
    Budget,
    Episode,
    EpisodeFailed,
    Mcp,
    McpServer,
    Tool,
)
from environments.harnesses.mcp import McpHarness
from environments.harnesses.mcp_pipes import Served, piped
from environments.harnesses.mcp_tools import Server, connected, tools_of
from environments.harnesses.toolbox import WrongCall
from environments.harnesses.user import ScriptedUser, answer
from environments.harnesses.user_server import user_server
from environments.marks import setup
from environments.runtimes.contract import Limits, Runtime, RuntimeConfig, Sandbox, Trusted
from environments.runtimes.pool import Pool
from environments.runtimes.table import open_runtime
from flywheel.errors import EngineError
from flywheel.records import Problem, say
from tests.environments.harnesses import scripted_mcp
from tests.environments.playing import ended, play, says, spans

SCRIPT = Path(__file__).with_name("scripted_mcp.py")
COMMAND = (sys.executable, "-S", str(SCRIPT))
SCRIPTED = McpServer(name="scripted", command=COMMAND)


class Office(Environment):
    async def user(self, episode: Episode, said: str) -> str | None:
        memory = episode.state.setdefault("user", {})
        return await answer(ScriptedUser(turns=("Order A1, please.",)), said, memory, episode.spans)


def episode(*servers: McpServer, tool_s: float = 30.0) -> Episode:
    environment = Office()
    environment.harness = Mcp(servers=servers, budget=Budget(tool_s=tool_s, tool_output=1000))
    problem = Problem(environment="office", messages=(say("user", "Go."),))
    access = Access("http://127.0.0.1:9/v1", "key", "model")
    return Episode(environment, problem, access, random.Random(0))


def using(
    what: Callable[[dict[str, Tool], Episode], Awaitable[Any]],
    *servers: McpServer,
    tool_s: float = 30.0,
) -> Any:
    """What `what` makes of the servers' tools."""
    one = episode(*servers, tool_s=tool_s)

    async def run() -> Any:
        async with AsyncExitStack() as stack:
            opened: list[Server] = [
                await stack.enter_async_context(connected(one, server)) for server in servers
            ]
            return await what({tool.name: tool for tool in await tools_of(opened)}, one)

    return asyncio.run(run())


def test_tools_are_listed_over_all_pages_and_called() -> None:
    async def what(tools: dict[str, Tool], _: Episode) -> Any:
        assert tools["echo"].parameters["properties"] == {"text": {"type": "string"}}
        return list(tools), await tools["echo"].call(text="hello"), await tools["a_b_c"].call()

    names, said, other = using(what, SCRIPTED)
    assert names[:2] == ["echo", "fail"] and len(names) == 12
    assert names[-1] == "a_b_c"  # as the protocol takes it; the server is asked by its own name
    assert (said, other) == ("hello", "")


def test_all_kinds_of_content_are_told_in_text() -> None:
    async def what(tools: dict[str, Tool], _: Episode) -> Any:
        return await tools["kinds"].call(), await tools["structured"].call()

    kinds, structured = using(what, SCRIPTED)
    assert kinds.splitlines() == [
        "three things",
        "[image image/png, 33 bytes: not shown]",
        "[resource file:///a.txt]",
        "inside",
        "[resource file:///b.bin bytes, 3 bytes: not shown]",
        "[resource file:///c.txt c]",
    ]
    assert json.loads(structured) == {"sum": 3}


def test_errors_of_tools_and_of_the_protocol_are_told_the_model() -> None:
    async def what(tools: dict[str, Tool], _: Episode) -> Any:
        with pytest.raises(WrongCall, match="it went wrong"):
            await tools["fail"].call()
        with pytest.raises(WrongCall, match="not like this"):
            await tools["refuse"].call()
        return await tools["noisy"].call(text="still there")

    assert using(what, SCRIPTED) == "still there"


def test_a_call_that_is_not_answered_is_an_error_and_silence_is_infrastructure() -> None:
    async def what(tools: dict[str, Tool], _: Episode) -> None:
        for _again in range(mcp_tools.SILENT - 1):
            with pytest.raises(WrongCall, match="hang did not answer within"):
                await tools["hang"].call()
        with pytest.raises(EpisodeFailed, match="times in a row"):
            await tools["hang"].call()

    using(what, SCRIPTED, tool_s=0.3)


def test_a_server_that_dies_is_infrastructure() -> None:
    async def what(tools: dict[str, Tool], _: Episode) -> None:
        with pytest.raises(EpisodeFailed, match="scripted is gone"):
            await tools["die"].call()

    using(what, SCRIPTED)


def test_a_server_that_cannot_start_or_says_nothing_is_infrastructure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(tools: dict[str, Tool], _: Episode) -> None: ...

    with pytest.raises(EpisodeFailed, match=r"none is gone: .*no-such-program"):
        using(nothing, McpServer(name="none", command=("no-such-program",)))
    with pytest.raises(EpisodeFailed, match="neither a command nor a URL"):
        using(nothing, McpServer(name="none"))
    monkeypatch.setattr(mcp_tools, "CONNECT_S", 0.5)
    with pytest.raises(EpisodeFailed, match="mute did not answer within"):
        using(nothing, McpServer(name="mute", command=(*COMMAND, "mute")))


def test_a_list_of_tools_without_end_is_infrastructure(engine: Any) -> None:
    with pytest.raises(EpisodeFailed, match="it lists more than 1000 tools"):
        acted(engine, [], McpServer(name="many", command=(*COMMAND, "endless")))


def test_a_servers_schemas_are_not_applied_in_the_loop_that_all_share(engine: Any) -> None:
    long = "a" * 40 + "!"
    one = acted(
        engine, [("trap", {"text": long})], McpServer(name="t", command=(*COMMAND, "traps"))
    )
    (span,) = (span for span in one.spans if span.kind == "tool")
    assert span.result is not None and json.loads(span.result.content) == {"text": long}


@pytest.mark.slow
def test_a_server_that_never_stops_telling_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_pipes, "UNASKED", 300)

    async def storm() -> None:
        one = episode(SCRIPTED)
        one.environment.runtime = Trusted()
        one.runtime = open_runtime(Trusted(), tmp_path / "box")
        await one.runtime.start()
        try:
            async with connected(one, SCRIPTED) as server:
                with pytest.raises(EpisodeFailed, match="messages that answer nothing"):
                    await server.call("storm", {})
        finally:
            await one.runtime.stop()

    asyncio.run(storm())


def test_names_that_clash_are_told_apart_by_their_servers() -> None:
    async def what(tools: dict[str, Tool], _: Episode) -> Any:
        return set(tools), await tools["second__echo"].call(text="2")

    names, said = using(what, SCRIPTED, McpServer(name="second", command=COMMAND))
    assert {"scripted__echo", "second__echo"} < names and "echo" not in names
    assert said == "2"


def acted(engine: Any, calls: list[tuple[str, dict[str, Any]]], *servers: McpServer) -> Episode:
    """A model that makes these calls, one a turn, and then answers."""
    left = list(calls)

    def reply(asked: dict[str, Any]) -> tuple[int, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "done"}
        if left:
            name, arguments = left.pop(0)
            function = {"name": name, "arguments": json.dumps(arguments)}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": function}],
            }
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return 200, {"model": "m", "choices": [choice]}

    engine.reply = reply
    one = episode(*servers)
    one.access = Access(f"{engine.url}/v1", "key", "model")

    async def run() -> None:
        async with connect(30) as session:
            one.session = session
            await McpHarness(one.environment.harness).run(one)  # type: ignore[arg-type]

    asyncio.run(run())
    return one


def test_the_model_meets_the_environments_user_as_a_server(engine: Any) -> None:
    calls = [
        ("talk_to_user", {"message": "How can I help?"}),
        ("talk_to_user", {"message": "Done."}),
    ]
    one = acted(engine, calls, McpServer(name="user"))
    said = [span.result.content for span in one.spans if span.result]
    assert said == ["Order A1, please.", "[The user has left the conversation.]"]
    assert one.state["user"]["ended"] == "satisfied"
    assert one.ended == "answered"
    offered = engine.asked[0]["tools"][0]["function"]
    assert offered["name"] == "talk_to_user"
    assert offered["parameters"]["required"] == ["message"]


# --- servers inside a runtime -------------------------------------------------------------------

WALLED = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
KINDS = [Trusted(), pytest.param(Sandbox(), marks=WALLED)]
INSIDE = McpServer(name="inside", command=("python3", "server.py"), env={"WHO": "me"})


class Inside(Environment):
    @setup
    async def lay(self, runtime: Runtime) -> None:
        await runtime.write("server.py", SCRIPT.read_bytes())
        await runtime.write("note.txt", "written by set-up")


def inside(
    engine: Any,
    folder: Path,
    kind: RuntimeConfig,
    *calls: tuple[str, dict[str, Any]],
    turns: int = 16,
) -> Finished:
    """One episode of a model that makes these calls of a server in the runtime."""
    environment = Inside()
    environment.runtime = kind
    environment.harness = Mcp(servers=(INSIDE,), budget=Budget(turns=turns, tool_output=1000))
    left = list(calls)
    engine.reply = says(lambda messages: [left.pop(0)] if left else "done")
    (done,) = play(environment, engine.url, pool=lambda: Pool(kind, folder), tries=1)
    return done


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_server_runs_in_the_runtime_and_sees_its_workspace(
    engine: Any, tmp_path: Path, kind: RuntimeConfig
) -> None:
    calls = (("noisy", {"text": "ä" * 100_000}), ("read", {"text": "note.txt"}), ("where", {}))
    done = inside(engine, tmp_path, kind, *calls)
    said = [span.result.content for span in spans(done, "tool") if span.result]
    assert ended(done) == "answered", done.trace.attributes
    assert said[0].startswith("äää") and said[1] == "written by set-up"
    assert said[2] == "/workspace" or kind.kind == "trusted"
    assert not list(tmp_path.iterdir())  # no pipe, no folder, no server is left


def test_20_mb_of_a_result_are_cut_before_the_model_sees_them(engine: Any, tmp_path: Path) -> None:
    (span,) = spans(inside(engine, tmp_path, Trusted(), ("huge", {})), "tool")
    assert span.result is not None and len(span.result.content) < 1100
    assert span.result.content.endswith("[cut: the first 1000 of 20000000 characters]")


def test_a_server_that_dies_in_the_runtime_says_how_it_ended(engine: Any, tmp_path: Path) -> None:
    how = r"inside is gone: it ended \(error, exit code 7\): the disk is on fire"
    with pytest.raises(EngineError, match=how):  # infrastructure, at every try
        inside(engine, tmp_path, Trusted(), ("die", {}))


def test_a_budget_ends_an_episode_with_servers_as_any_other(engine: Any, tmp_path: Path) -> None:
    calls = [("echo", {"text": str(number)}) for number in range(9)]
    done = inside(engine, tmp_path, Trusted(), *calls, turns=3)
    assert ended(done) == "budget: turns" and "failed" not in done.trace.attributes


def test_a_workspace_that_a_program_made_hostile_is_not_followed(tmp_path: Path) -> None:
    """The pipes lie in a folder of a new name, and a workspace that is a link is refused."""
    kept = tmp_path / "kept"
    kept.mkdir()

    async def run() -> None:
        runtime = open_runtime(Trusted(), tmp_path / "runtime")
        await runtime.start()
        (runtime.folder / "work").rmdir()
        (runtime.folder / "work").symlink_to(kept)
        with pytest.raises(OSError):
            async with piped(runtime, ("true",), {}, Limits(), Served("x")):
                pass

    asyncio.run(run())
    assert not list(kept.iterdir())


@pytest.fixture
def over_http() -> Iterator[str]:
    """A server of the official package behind streamable HTTP, in a thread of the test."""
    import uvicorn

    async def answers(said: str) -> str | None:
        return f"heard {said}"

    app = user_server(answers).streamable_http_app()
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=lambda: server.run(sockets=[port]))
        thread.start()
        yield f"http://127.0.0.1:{port.getsockname()[1]}/mcp"
        server.should_exit = True
        thread.join(30)


def test_streamable_http(over_http: str) -> None:
    async def what(tools: dict[str, Tool], _: Episode) -> Any:
        return await tools["talk_to_user"].call(message="hi")

    assert using(what, McpServer(name="user", url=over_http)) == "heard hi"


@pytest.fixture
def fragile() -> Iterator[str]:
    """The scripted server behind streamable HTTP; it hangs up where its tool dies."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if (asked.get("params") or {}).get("name") == "die":
                return
            reply = scripted_mcp.reply(asked)
            data = json.dumps(reply).encode() if reply else b""
            self.send_response(200 if reply else 202)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *parts: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/mcp"
    server.shutdown()
    server.server_close()


def test_a_server_that_hangs_up_is_infrastructure(engine: Any, fragile: str) -> None:
    with pytest.raises(EpisodeFailed, match="MCP server is gone: RemoteProtocolError"):
        acted(engine, [("echo", {"text": "hi"}), ("die", {})], McpServer(name="h", url=fragile))
    assert engine.asked[-1]["messages"][-1]["content"] == "hi"


def test_a_url_where_nobody_is_is_infrastructure() -> None:
    async def nothing(tools: dict[str, Tool], _: Episode) -> None: ...

    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{port.getsockname()[1]}/mcp"
        with pytest.raises(EpisodeFailed, match="http is gone"):
            using(nothing, McpServer(name="http", url=url))


def test_the_simulated_user_runs_as_a_program_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "user.json").write_text(json.dumps({"kind": "scripted", "turns": ["Hello."]}))
    memory = tmp_path / "memory.json"
    command = (sys.executable, "-m", "environments.harnesses.user_server",
               str(tmp_path / "user.json"), "--memory", str(memory))  # fmt: skip

    async def what(tools: dict[str, Tool], _: Episode) -> Any:
        return [await tools["talk_to_user"].call(message=text) for text in ("Hi", "Bye")]

    root = str(Path(__file__).resolve().parents[3])
    server = McpServer(name="user", command=command, env={"PYTHONPATH": root})
    assert using(what, server) == ["Hello.", "[The user has left the conversation.]"]
    assert json.loads(memory.read_text())["ended"] == "satisfied"
