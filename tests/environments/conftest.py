"""A small engine that speaks the protocol, for tests of those who only know an engine by HTTP."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Reply = Callable[[dict[str, Any]], tuple[int, Any]]


class Engine:
    """Records what it was asked; `reply` decides what it answers."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.reply: Reply = lambda asked: (200, answer(asked))
        self.url = ""


def answer(asked: dict[str, Any], **over: Any) -> dict[str, Any]:
    """A chat completion whose text and ids show the seed that was asked for."""
    ids = [asked["seed"] % 251, 2]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": f"seed {asked['seed']}"},
        "finish_reason": "stop",
        "token_ids": ids,
        "logprobs": {"content": [
            {"token": "x", "logprob": -0.5, "top_logprobs": [], "bytes": None} for _ in ids
        ]},
    }  # fmt: skip
    return {
        "id": "c", "object": "chat.completion", "created": 0, "model": asked["model"],
        "choices": [choice | over], "prompt_token_ids": [1, 5, 6],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }  # fmt: skip


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append({**body, "path": self.path, "key": self.headers["Authorization"]})
            status, reply = made.reply(body)
            data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            with contextlib.suppress(ConnectionError):
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *parts: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join()
