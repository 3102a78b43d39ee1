"""A vLLM at a URL, with a stand-in that speaks its routes: what is missing there is said, and what
it lost is loaded again. With the real one: test_vllm.py."""

import contextlib
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flywheel.errors import EngineError, FlywheelError, Refused, UsageError
from flywheel.home import Home
from flywheel.serving_section import ServingSection
from serving.engines import bounded
from serving.engines.client import EngineClient
from serving.engines.remote import RemoteVllm
from serving.engines.rendering import Rendered

FOLDER = Path(__file__).resolve().parent


class StandIn:
    """Answers as vLLM would; a test changes what it says."""

    def __init__(self) -> None:
        self.owner, self.names = "vllm", ["base"]
        self.key: str | None = None
        self.ids, self.logprobs, self.raw, self.runtime = True, True, False, True
        self.says: Any = ...
        """To a chat; ... = as vLLM."""
        self.loaded: dict[str, str] = {}
        self.room: int | None = None
        """Largest rank that it takes and says; None = it sees no folder of ours."""
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    def start(self) -> None:
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                self._say(*stand_in.get(self.path, self.headers.get("authorization")))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self._say(*stand_in.post(self.path, body))

            def _say(self, status: int, content: Any) -> None:
                data = b"" if content is None else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._server, self.loaded = None, {}

    def get(self, path: str, authorization: str | None) -> tuple[int, Any]:
        if path == "/health":
            return 200, None
        if path != "/v1/models":
            return 404, {"detail": "Not Found"}
        if self.key and authorization != f"Bearer {self.key}":
            return 401, {"error": "Unauthorized"}
        cards = [{"id": name, "owned_by": self.owner, "root": "/base"} for name in self.names]
        adapters = [
            {"id": name, "owned_by": self.owner, "root": path} for name, path in self.loaded.items()
        ]
        return 200, {"data": cards + adapters}

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/chat/completions":
            return 200, self._answer(body) if self.says is ... else self.says
        if path == "/v1/load_lora_adapter" and self.runtime:
            if not body["lora_path"]:
                return 400, {"error": {"message": "both must be provided"}}
            if (why := self._too_large(body["lora_path"])) is not None:
                return 400, {"error": {"message": why}}
            self.loaded[body["lora_name"]] = body["lora_path"]
            return 200, None
        return 404, {"detail": "Not Found"}

    def _too_large(self, path: str) -> str | None:
        """In vLLM's words."""
        if self.room is None:
            return f"No adapter found for {path}" if path.endswith("asks-for-rank") else None
        rank = json.loads((Path(path) / "adapter_config.json").read_text())["r"]
        if rank <= self.room:
            return None
        return f"LoRA rank {rank} is greater than max_lora_rank {self.room}."

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        scale = 1.0 if self.raw else body["temperature"]
        top = [{"token": t, "logprob": lp / scale} for t, lp in (("a", -0.5), ("b", -1.7))]
        content = [{"token": "a", "logprob": math.log(0.6), "top_logprobs": top}]
        choice: dict[str, Any] = {"index": 0, "message": {"content": "a"}}
        choice["logprobs"] = {"content": content} if self.logprobs else None
        answer: dict[str, Any] = {"choices": [choice], "usage": {"completion_tokens": 1}}
        if self.ids:
            choice["token_ids"] = [5]
            answer["prompt_token_ids"] = [1, 2]
        return answer


@pytest.fixture
def there() -> Iterator[StandIn]:
    stand_in = StandIn()
    try:
        yield stand_in
    finally:
        stand_in.stop()


class Dripping:
    """Accepts, sends what a test gives it, and from then on a byte now and then."""

    def __init__(self, begin: bytes) -> None:
        self._begin, self._socket = begin, socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.asked = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        lines: list[socket.socket] = []
        while not self._over.is_set():
            self._socket.settimeout(0.02)
            with contextlib.suppress(OSError):
                lines.append(self._socket.accept()[0])
                lines[-1].sendall(self._begin)
                self.asked.set()
            for line in lines:
                with contextlib.suppress(OSError):
                    line.send(b"x")
        for line in [*lines, self._socket]:
            line.close()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture(
    params=[b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: "],
    ids=["body", "headers"],
)
def dripping(request: pytest.FixtureRequest) -> Iterator[Dripping]:
    server = Dripping(request.param)
    try:
        yield server
    finally:
        server.stop()


def test_an_answer_that_never_ends_is_waited_for_no_longer_than_said(dripping: Dripping) -> None:
    with EngineClient(f"http://127.0.0.1:{dripping.port}", timeout_s=0.3) as client:
        with pytest.raises(EngineError, match=r"/v1/models: .* not whole after 0.3 s"):
            client.cards()
        with pytest.raises(EngineError, match="not whole after"):
            client.models()


def test_whoever_stops_it_while_it_meets_ends_the_waiting(
    dripping: Dripping, tmp_path: Path
) -> None:
    serving = ServingSection(engine="vllm", engine_url=f"http://127.0.0.1:{dripping.port}")
    remote = Remote(Home(tmp_path), FOLDER, serving)
    raised: list[Exception] = []

    def start() -> None:
        try:
            remote.start()
        except EngineError as error:
            raised.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    assert dripping.asked.wait(30)
    remote.stop()
    starting.join(5)  # the first question alone may take ten
    assert not starting.is_alive() and "was stopped" in str(raised[0])


def test_an_answer_that_is_too_large_is_not_kept(
    there: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "LARGEST", 10)
    with (
        EngineClient(f"http://127.0.0.1:{there.port}") as client,
        pytest.raises(EngineError, match="larger than"),
    ):
        client.models()


class Remote(RemoteVllm):
    """The trainer's rendering costs an import of its library; it is tried with the real vLLM."""

    def _compared(self, *_: Any) -> Rendered:
        return Rendered(why="not in this test")


def remote_of(there: StandIn, home: Path, adapters: dict[str, Path] | None = None) -> Remote:
    serving = ServingSection(engine="vllm", engine_url=f"http://127.0.0.1:{there.port}/v1")
    return Remote(
        Home(home), FOLDER, serving, adapters=lambda: adapters or {}, key=there.key, look_s=0.05
    )


def _no_vllm(there: StandIn) -> None:
    there.owner = "somebody"


def _other_name(there: StandIn) -> None:
    there.names = ["meta/llama"]


def _no_ids(there: StandIn) -> None:
    there.ids = False


def _no_logprobs(there: StandIn) -> None:
    there.logprobs = False


def _raw(there: StandIn) -> None:
    there.raw = True


OTHER_SHAPES: list[Any] = [
    [], "text", 7, None, {}, {"choices": []}, {"choices": [None]}, {"choices": {"0": 1}},
    {"choices": [{"token_ids": [1], "logprobs": 3}], "prompt_token_ids": [1]},
    {"choices": [{"token_ids": [1], "logprobs": {"content": [1]}}], "prompt_token_ids": [1]},
]  # fmt: skip


def _says(answer: Any) -> Callable[[StandIn], None]:
    def change(there: StandIn) -> None:
        there.says = answer

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_no_vllm, "is no vLLM"),
        (_other_name, "serves meta/llama: start it with --served-model-name base"),
        (_no_ids, "gives no token ids"),
        (_no_logprobs, "gives no logprobs"),
        (_raw, "--logprobs-mode processed_logprobs"),
        *((_says(answer), "is no vLLM|refuses what a turn asks") for answer in OTHER_SHAPES),
    ],
)
def test_one_that_could_not_carry_a_turn_is_refused_in_words(
    there: StandIn, tmp_path: Path, change: Callable[[StandIn], None], why: str
) -> None:
    change(there)
    with pytest.raises(UsageError, match=why):
        remote_of(there, tmp_path).start()


def test_a_key_is_sent_and_missed(there: StandIn, tmp_path: Path) -> None:
    there.key = "secret"
    remote = remote_of(there, tmp_path)
    remote.start()
    remote.stop()
    remote._key = None
    with pytest.raises(UsageError, match="FLYWHEEL_ENGINE_KEY"):
        remote.start()


def test_nobody_there_is_an_engine_error_with_its_url(there: StandIn, tmp_path: Path) -> None:
    there.stop()
    with pytest.raises(EngineError, match=f"127.0.0.1:{there.port} did not answer"):
        remote_of(there, tmp_path).start()


def test_one_that_takes_no_adapters_serves_and_says_so_at_each(
    there: StandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture, adapter: Path
) -> None:
    there.runtime = False
    remote = remote_of(there, tmp_path)
    remote.start()
    try:
        assert remote.alive and "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in caplog.text
        with pytest.raises(Refused, match="takes no adapters while it runs"):
            remote.load_adapter("shop-v1", adapter)
        with pytest.raises(Refused, match="run by somebody else"):
            remote.load_weights(tmp_path)
    finally:
        remote.stop()


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Small enough to be written by hand; the stand-in does not look at it."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 1, "peft_type": "LORA"}')
    name = "base_model.model.model.layers.0.q_proj.lora_A.weight"
    header = json.dumps({name: {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}).encode()
    (folder / "adapter_model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(4)
    )
    return folder


def wait_for(what: Callable[[], Any], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_what_it_lost_is_loaded_again_and_its_absence_is_seen(
    there: StandIn, tmp_path: Path, adapter: Path
) -> None:
    remote = remote_of(there, tmp_path, {"shop-v1": adapter})
    remote.start()
    try:
        assert there.loaded == {"shop-v1": str(adapter.resolve())}
        there.loaded.clear()
        wait_for(lambda: "shop-v1" in there.loaded)
        there.stop()
        wait_for(lambda: not remote.alive)
        assert remote.last_error and str(there.port) in remote.last_error
        restarts = remote.restarts
        there.start()
        wait_for(lambda: remote.alive and "shop-v1" in there.loaded)
        assert remote.restarts == restarts + 1 and remote.last_error is None
    finally:
        remote.stop()


def test_while_it_is_away_calls_are_errors_of_ours(there: StandIn, tmp_path: Path) -> None:
    remote = remote_of(there, tmp_path)
    remote.start()
    there.stop()
    try:
        assert not remote.ready()
        with pytest.raises(FlywheelError):
            remote.generate("base", [1], max_tokens=1)
    finally:
        remote.stop()


@pytest.mark.parametrize("answer", [[], {"data": [{}]}, {"data": 3}, {"data": [None]}])
def test_an_answer_of_another_shape_is_an_error_of_ours(
    there: StandIn, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(there, "get", lambda *_: (200, answer))
    monkeypatch.setattr(there, "post", lambda *_: (200, answer))
    with EngineClient(f"http://127.0.0.1:{there.port}") as client:
        for ask in (
            client.models,
            lambda: client.logprobs("base", [1], [2]),
            lambda: client.generate("base", [1], max_tokens=1),
            lambda: client.tokenized("base", []),
        ):
            with pytest.raises(EngineError, match="another shape"):
                ask()


@pytest.mark.parametrize(("room", "known"), [(None, 16), (0, 0), (8, 8), (64, 64)])
def test_the_room_that_it_has_for_adapters_is_asked_for(
    there: StandIn, tmp_path: Path, adapter: Path, room: int | None, known: int
) -> None:
    """[serving] max_rank, 16 here, is believed only where it does not say."""
    there.room = room
    remote = remote_of(there, tmp_path)
    remote.start()
    try:
        assert remote.access.max_rank == known
        if room == 0:
            with pytest.raises(Refused, match="rank 1 and the engine makes room for 0"):
                remote.load_adapter("shop-v1", adapter)
        else:
            remote.load_adapter("shop-v1", adapter)
    finally:
        remote.stop()
