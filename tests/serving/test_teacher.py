"""A teacher that fails for a moment, or says what is no logprob."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flywheel.errors import Refused
from serving.engines.client import EngineClient
from serving.teacher import Teacher

PAIRS = [((1, 2), (3, 4))]


@contextmanager
def saying(*answers: float | None) -> Iterator[EngineClient]:
    """An engine that gives one logprob for every token, answer by answer; None = it fails."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            logprob = left.pop(0)
            row = [None, *({str(token): {"logprob": logprob}} for token in (2, 3, 4))]
            body = json.dumps({"choices": [{"index": 0, "prompt_logprobs": row}]}).encode()
            self.send_response(500 if logprob is None else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with EngineClient(f"http://127.0.0.1:{server.server_port}", timeout_s=30) as client:
            yield client
        server.shutdown()


def test_a_teacher_that_fails_for_a_moment_is_asked_again() -> None:
    with saying(None, -0.5) as client:
        assert Teacher(client, lambda: "base")(PAIRS) == [[-0.5, -0.5]]


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf"), 0.5])
def test_what_is_no_logprob_is_never_learnt_from(odd: float) -> None:
    with saying(odd) as client, pytest.raises(Refused, match="says a logprob of"):
        Teacher(client, lambda: "base")(PAIRS)
