"""The gateways that benchmarks/gateway.py puts beside each other: how each starts, what it wrote.

Each is started as its own documents say, recording what it records, in front of one scripted
upstream; it is up once it answered a chat. Invariant: all that is started here is ended here.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
LITELLM = ROOT / ".venv-litellm" / "bin"
_START_S = 240
_LOOK_S = 0.25


@dataclass
class Target:
    name: str
    url: str
    process: "subprocess.Popen[bytes]"
    log: Path
    """File or folder that it records into."""
    options: dict[str, str] = field(default_factory=dict)
    """What the harness must know: key, model."""

    def spec(self) -> str:
        """As the harness takes it."""
        said = {"log": str(self.log), "pid": str(self.process.pid), **self.options}
        return f"{self.name}={self.url}#" + "&".join(f"{key}={said[key]}" for key in said)

    def recorded(self) -> bytes:
        """All that it wrote until now."""
        if self.log.is_dir():
            paths = sorted(path for path in self.log.rglob("*") if path.is_file())
        else:
            paths = sorted(self.log.parent.glob(f"{self.log.name}*"))
        return b"\n".join(path.read_bytes() for path in paths)

    def ask(self, text: str, **more: Any) -> bytes:
        """One chat; its answer's bytes."""
        messages = [{"role": "user", "content": text}]
        body = {"model": self.options.get("model", "bench"), "messages": messages, **more}
        headers = {"content-type": "application/json"}
        headers["authorization"] = f"Bearer {self.options.get('key', 'none')}"
        path = self.url if self.url.endswith("/completions") else self.url + "/v1/chat/completions"
        request = urllib.request.Request(path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            data: bytes = answer.read()
        return data

    def kill(self) -> None:
        """All of its processes, at once and without a word."""
        with contextlib.suppress(psutil.Error):
            first = psutil.Process(self.process.pid)
            everyone = [first, *first.children(recursive=True)]
            for one in everyone:
                with contextlib.suppress(psutil.Error):
                    one.send_signal(signal.SIGKILL)
            psutil.wait_procs(everyone, timeout=20)
        self.process.wait()


class Start:
    """Starts targets in `folder`, each with what it writes in a folder of its own."""

    def __init__(self, folder: Path, harness: Path, upstream: int) -> None:
        self.folder, self.harness, self.upstream = folder, harness, upstream
        self._number = 0

    def ours(self, name: str = "flywheel", *more: str) -> Target:
        own, port = self._own(name), free_port()
        engine = f"http://127.0.0.1:{self.upstream}"
        command = [sys.executable, str(ROOT / "benchmarks" / "gateway_ours.py"), str(own), engine]
        return self._up(name, own / "journal", port, [*command, str(port), *more])

    def strict(self) -> Target:
        return self.ours("flywheel strict", "--strict")

    def aiohttp(self) -> Target:
        own, port = self._own("aiohttp"), free_port()
        log = own / "log.jsonl"
        command = [sys.executable, str(self.harness), "floor", "aiohttp", "--port", str(port)]
        command += ["--upstream", f"http://127.0.0.1:{self.upstream}", "--jsonl", str(log)]
        return self._up("aiohttp", log, port, command)

    def litellm(self) -> Target:
        own, port, key = self._own("litellm"), free_port(), f"sk-{secrets.token_hex(24)}"
        peers, log = self.harness.parent / "peers", own / "log.jsonl"
        config = own / "litellm.yaml"
        said = (peers / "litellm_log.yaml").read_text()
        config.write_text(said.replace("127.0.0.1:9100", f"127.0.0.1:{self.upstream}"))
        (own / "bench_logger.py").write_bytes((peers / "bench_logger.py").read_bytes())
        environment = {
            "LITELLM_MASTER_KEY": key,
            "LITELLM_TELEMETRY": "False",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": "ERROR",
            "PYTHONPATH": str(own),
            "BENCH_JSONL": str(log),
            "PATH": f"{LITELLM}:{os.environ['PATH']}",
        }
        command = [str(LITELLM / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
        command += ["--port", str(port), "--num_workers", "1"]
        return self._up("litellm", log, port, command, environment, {"key": key})

    def mlflow(self) -> Target:
        own, port = self._own("mlflow"), free_port()
        environment = {
            "MLFLOW_GATEWAY_API_BASE_ALLOW_PRIVATE_IPS": "true",
            "MLFLOW_GATEWAY_API_BASE_ALLOWED_SCHEMES": "http,https",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_CRYPTO_KEK_PASSPHRASE": secrets.token_hex(16),
        }
        command = [str(Path(sys.executable).with_name("mlflow")), "server", "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{own}/m.db", "--host", "127.0.0.1"]
        command += ["--default-artifact-root", str(own / "artifacts"), "--port", str(port)]

        def set_up() -> None:
            script = (self.harness.parent / "peers" / "mlflow_setup.py").read_text()
            own_script = own / "set_up.py"
            own_script.write_text(script.replace("127.0.0.1:9100", f"127.0.0.1:{self.upstream}"))
            subprocess.run(
                [sys.executable, str(own_script), f"http://127.0.0.1:{port}"],
                env={**os.environ, **environment},
                check=True,
                capture_output=True,
            )

        url = f"http://127.0.0.1:{port}/gateway/mlflow/v1/chat/completions"
        without = {"usage": "0", "done": "0"}  # its streams have neither
        return self._up(
            "mlflow", own / "m.db", port, command, environment, without, url=url, then=set_up
        )

    def _own(self, name: str) -> Path:
        self._number += 1
        own = self.folder / f"{self._number}-{name.replace(' ', '-')}"
        own.mkdir()
        return own

    def _up(
        self,
        name: str,
        log: Path,
        port: int,
        command: Sequence[str],
        environment: dict[str, str] | None = None,
        options: dict[str, str] | None = None,
        *,
        url: str | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> Target:
        """
        Raises:
            RuntimeError: it does not come up; says what it wrote last.
        """
        said = self.folder / f"{self._number}.out"
        with said.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
        target = Target(name, url or f"http://127.0.0.1:{port}", process, log, options or {})
        try:
            _wait(lambda: _listens(port) or process.poll() is not None)
            then()
            _wait(lambda: _answers(target) or process.poll() is not None)
            if process.poll() is not None:
                raise RuntimeError(f"it ended with {process.returncode}")
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            target.kill()
            words = said.read_bytes()[-2000:].decode("utf-8", "replace")
            raise RuntimeError(f"{name} does not start: {error}\n{words}") from error
        return target


@contextlib.contextmanager
def upstream(harness: Path) -> Iterator[int]:
    """The scripted engine; yields its port."""
    port = free_port()
    script = ROOT / "benchmarks" / "gateway_upstream.py"
    command = [sys.executable, str(script), str(harness), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait(lambda: _listens(port))
        yield port
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _answers(target: Target) -> bool:
    try:
        return b"choices" in target.ask("are you there?")
    except (OSError, urllib.error.URLError):
        return False


def _wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"not within {_START_S} s")
        time.sleep(_LOOK_S)
