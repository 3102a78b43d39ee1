"""An MCP server that does what its tools' names say, in JSON lines: the far edge of a pipe."""

import json
import os
import sys
import time
from pathlib import Path

PIXEL = "iVBORw0KGgo" * 4
TOOLS = (
    "echo",
    "fail",
    "refuse",
    "hang",
    "die",
    "huge",
    "kinds",
    "structured",
    "where",
    "read",
    "noisy",
    "a.b c",
)
TRAP = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}
"""A schema that takes longer than the universe for forty letters."""
KINDS = [
    {"type": "text", "text": "three things"},
    {"type": "image", "data": PIXEL, "mimeType": "image/png"},
    {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "inside"}},
    {"type": "resource", "resource": {"uri": "file:///b.bin", "blob": "AAAA"}},
    {"type": "resource_link", "uri": "file:///c.txt", "name": "c"},
]


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "scripted", "version": "1"},
        }
    if method == "tools/list":
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        page = int(params.get("cursor") or 0)
        if "endless" in sys.argv:
            tools = [{"name": f"t{page}-{n}", "inputSchema": schema} for n in range(100)]
            return {"tools": tools, "nextCursor": str(page + 1)}
        if "traps" in sys.argv:
            return {"tools": [{"name": "trap", "inputSchema": TRAP, "outputSchema": TRAP}]}
        tools = [{"name": name, "inputSchema": schema} for name in TOOLS[page * 4 : page * 4 + 4]]
        more = {"nextCursor": str(page + 1)} if (page + 1) * 4 < len(TOOLS) else {}
        return {"tools": tools, **more}
    if method == "tools/call":
        return call(params["name"], params.get("arguments") or {})
    raise LookupError(f"no method {method}")


def call(name: str, arguments: dict) -> dict:
    text = arguments.get("text", "")
    if name == "die":
        print("the disk is on fire", file=sys.stderr, flush=True)
        os._exit(7)
    if name == "refuse":
        raise LookupError("not like this")
    if name == "storm":
        while True:
            print('{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}')
    if name == "trap":
        return {"content": [], "structuredContent": {"text": text}}
    if name == "noisy":
        print("not JSON at all", flush=True)
    if name == "read":
        text = Path(text).read_text()
    if name == "structured":
        return {"content": [], "structuredContent": {"sum": 3}}
    if name == "kinds":
        return {"content": KINDS}
    said = {"fail": "it went wrong", "huge": "x" * 20_000_000, "where": os.getcwd()}.get(name, text)
    return {"content": [{"type": "text", "text": said}], "isError": name == "fail"}


def reply(asked: dict) -> dict | None:
    """None = to what wants no answer."""
    if "id" not in asked:
        return None
    came = {"jsonrpc": "2.0", "id": asked["id"]}
    try:
        return {**came, "result": answer(asked["method"], asked.get("params") or {})}
    except LookupError as error:
        code = -32601 if asked["method"] != "tools/call" else -32602
        return {**came, "error": {"code": code, "message": str(error.args[0])}}


def main() -> None:
    mute = "mute" in sys.argv
    for line in sys.stdin:
        asked = json.loads(line)
        hang = (asked.get("params") or {}).get("name") == "hang"
        if not (mute or hang) and (said := reply(asked)):
            print(json.dumps(said), flush=True)
    time.sleep(60 if mute else 0)


if __name__ == "__main__":
    main()
