"""A judge's endpoint whose verdicts a test writes: the far edge of the network, not our judge."""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Headers = dict[str, str]
Said = Any
"""A verdict's value (the endpoint makes the object that was asked for), a reply's text (str), or
(status, body, headers)."""


class Endpoint:
    """`asked` are the bodies it got; `verdict` says what it answers to one."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.verdict: Callable[[dict[str, Any]], Said] = lambda body: 3
        self.usage: dict[str, int] | None = {"prompt_tokens": 100, "completion_tokens": 10}
        self.released = threading.Event()
        self.url = ""

    def answer(self, body: dict[str, Any]) -> tuple[int, Any, Headers]:
        said = self.verdict(body)
        if isinstance(said, tuple):
            return said
        text = said if isinstance(said, str) and said not in CHOICES else fitting(body, said)
        return 200, completion(text, self.usage), {}


CHOICES = ("first", "second", "neither")


def prompt(body: dict[str, Any]) -> str:
    """All that the judge reads, as one text."""
    parts = []
    for message in body["messages"]:
        content = message["content"]
        for part in content if isinstance(content, list) else [{"text": content}]:
            parts.append(part.get("text", ""))
    return "\n".join(parts)


def check(body: dict[str, Any]) -> str:
    """The check word that our own words ask for, which stand last."""
    return re.findall(r'"check"(?:, which is|:) "([0-9a-f]{8})"', prompt(body))[-1]


def fitting(body: dict[str, Any], value: Any) -> str:
    key = "better" if value in CHOICES else "score"
    return json.dumps({"check": check(body), "reason": "because", key: value})


def quoted(body: dict[str, Any], name: str) -> str:
    """The text of a block, as a judge would find it: by the code that our words name."""
    (code,) = re.findall(r"blocks of the code (\w+)\.", prompt(body))
    found = re.search(rf"<<<{name} {code}\n(.*?)\n{name} {code}>>>", prompt(body), re.DOTALL)
    assert found
    return found[1]


def completion(text: Any, usage: dict[str, int] | None, **over: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop"}
    choice["message"] = {"role": "assistant", "content": text} | over.pop("message", {})
    return {"id": "j", "object": "chat.completion", "choices": [choice | over], "usage": usage}


@contextlib.contextmanager
def scripted_judge() -> Iterator[Endpoint]:
    made = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append(body)
            made.keys.append(self.headers["Authorization"])
            status, reply, headers = made.answer(body)
            data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            with contextlib.suppress(ConnectionError):
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *parts: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
