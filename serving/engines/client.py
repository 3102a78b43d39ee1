"""An engine's routes as calls, the same for the embedded engine and for vLLM.

Synchronous: it loads, checks and probes; requests of clients go through the gateway, which speaks
to the engine itself.

Every failure is an `EngineError` that names the engine and what to look at; what an engine rightly
refuses is `Refused`.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import httpx
from msgspec.structs import replace

from flywheel.errors import EngineError, Refused
from flywheel.progress import report
from serving.engines.adapter_files import forget_copy
from serving.engines.bounded import Bounded
from serving.engines.contract import Generated
from serving.engines.fitting import path_for
from serving.engines.load import Load, read_load
from serving.engines.reach import Access

BATCH = 64
"""Sequences scored in one request, at most."""
_TRIES = 10
"""How often an engine that is too busy is asked again."""
_NOT_AT_RUN_TIME = (
    "adapter {name} was not loaded: the vLLM at {url} takes no adapters while it runs. Start it "
    "with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora"
)


class EngineClient:
    """`access`: what must be known beside the URL; a server's record has it."""

    def __init__(self, url: str, *, timeout_s: float = 600.0, access: Access | None = None) -> None:
        self.url, self.access = url.rstrip("/"), access or Access()
        key = self.access.key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = Bounded(self.url, timeout_s=timeout_s, headers=headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def cut(self) -> None:
        """Ends what another thread waits for, and all that comes later, with an EngineError."""
        self._http.cut()

    @contextlib.contextmanager
    def each(self) -> Iterator["list[EngineClient]"]:
        """A client of every equal engine that answers, this one first; alone, it is this one."""
        others = [one for one in self.access.replicas if one.url != self.url]
        with contextlib.ExitStack() as stack:
            found: list[EngineClient] = [self]
            for one in others:
                access = replace(self.access, copies=one.copies, replicas=())
                client = stack.enter_context(EngineClient(one.url, access=access))
                if client.ready():
                    found.append(client)
            yield found

    def ready(self) -> bool:
        """Whether it can generate now."""
        try:
            return self._http.request("GET", "/health", timeout_s=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def health(self) -> dict[str, Any]:
        """What /health says, and the digests that we know where it says nothing, as vLLM.

        Raises:
            EngineError: no answer.
        """
        answer = self._send("GET", "/health", timeout_s=5.0)
        said: dict[str, Any] = {}
        if self.access.kind == "vllm" and answer.status_code == 503:
            said = {"status": "failed"}
        elif answer.content:
            found = self._json(answer)
            said = found if isinstance(found, dict) else {}
        known = {
            "template_digest": self.access.template_digest,
            "tokenizer_digest": self.access.tokenizer_digest,
        }
        return {**{name: value for name, value in known.items() if value}, **said}

    def wait_ready(
        self, timeout_s: float = 180.0, *, alive: Callable[[], str | None] = lambda: None
    ) -> None:
        """Waits until it can generate.

        `alive` is asked between tries: text = the engine is gone, and why.

        Raises:
            EngineError: it was not ready in time, or is gone.
        """
        begun = time.monotonic()
        while not self.ready():
            waited = time.monotonic() - begun
            if why := alive():
                raise EngineError(f"the engine at {self.url} ended while starting: {why}")
            if waited > timeout_s:
                raise EngineError(f"the engine at {self.url} was not ready within {timeout_s:g} s")
            report("engine", int(waited), None, "starting")
            time.sleep(0.1)

    def models(self) -> list[str]:
        """
        Raises:
            EngineError: no answer, or one that is none of an engine's.
        """
        with self._understood("/v1/models"):
            return [str(model["id"]) for model in self._call("GET", "/v1/models")["data"]]

    def status(self, path: str) -> int:
        """The status with which a path answers."""
        return self._send("GET", path, timeout_s=10.0).status_code

    def cards(self) -> tuple[int, list[dict[str, Any]]]:
        """The status of /v1/models, and what it says of each model."""
        answer = self._send("GET", "/v1/models")
        try:
            data = answer.json()["data"]
        except (ValueError, KeyError, TypeError):
            data = []
        return answer.status_code, [card for card in data if isinstance(card, dict)]

    def has_route(self, path: str, body: dict[str, Any]) -> bool:
        """Whether a POST of `body`, which is refused, is refused by more than an unknown path."""
        answer = self._send("POST", path, body)
        return not (answer.status_code in (404, 405) and "error" not in answer.text)

    def refusal(self, path: str, body: dict[str, Any]) -> str:
        """What it says to a POST of `body` that it cannot but refuse; "" = it did not."""
        answer = self._send("POST", path, body)
        return "" if answer.status_code == 200 else answer.text[:2000]

    def load_adapter(self, name: str, folder: Path) -> None:
        """Loading what is loaded already is no error. Of several equal engines each gets it; one
        that is away loads it as it comes back.

        Raises:
            Refused: the weights cannot be served, or the name has other weights.
            EngineError: the engine failed.
        """
        with self.each() as engines:
            for engine in engines:
                engine._load(name, folder)

    def _load(self, name: str, folder: Path) -> None:
        path = path_for(self.access, name, folder)
        body = {"lora_name": name, "lora_path": path}
        answer = self._send("POST", "/v1/load_lora_adapter", body)
        if answer.status_code == 400 and "already been loaded" in answer.text:
            if self._loaded_from(name) != path:
                raise Refused(
                    f"adapter {name} was not loaded: the name has other weights; other weights "
                    "need a new name"
                )
        elif answer.status_code == 404 and "error" not in answer.text:
            raise Refused(_NOT_AT_RUN_TIME.format(url=self.url, name=name))
        elif answer.status_code in (400, 404) or (answer.status_code == 500 and self.ready()):
            # vLLM says 500 to an adapter that it cannot take, and serves on.
            raise Refused(f"adapter {name} was not loaded: {_words(answer)}")
        else:
            self._check(answer)

    def _loaded_from(self, name: str) -> str | None:
        with self._understood("/v1/models"):
            cards = self._call("GET", "/v1/models")["data"]
            return next((card.get("root") for card in cards if card["id"] == name), None)

    def unload_adapter(self, name: str) -> None:
        """Unloading what is not there is no error. A copy that was made for it goes too."""
        with self.each() as engines:
            for engine in engines:
                engine._unload(name)

    def _unload(self, name: str) -> None:
        copies = self.access.copies
        root = self._loaded_from(name) if copies is not None else None
        answer = self._send("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        if answer.status_code not in (400, 404):
            self._check(answer)
        if copies is not None and root is not None and Path(root).parent == Path(copies):
            forget_copy(Path(root), {card.get("root") for card in self.cards()[1]})

    def load_weights(self, folder: Path) -> None:
        """The embedded engine's base model, replaced while it runs and answers nothing.

        Raises:
            Refused: it cannot be served; the old one serves on.
        """
        answer = self._send("POST", "/v1/load_weights", {"path": str(folder.resolve())})
        if answer.status_code == 400:
            raise Refused(f"the weights in {folder} were not loaded: {_words(answer)}")
        self._check(answer)

    def reload_weights(self, folder: Path) -> None:
        """vLLM's base model, replaced while it runs and answers nothing; by its routes for
        development. Adapters stay. What was cached of the old weights is forgotten."""
        how = {"method": "reload_weights", "kwargs": {"weights_path": str(folder.resolve())}}
        self._check(self._send("POST", "/collective_rpc", how))
        answer = self._send("POST", "/reset_prefix_cache")
        self._check(answer)
        with self._understood("/reset_prefix_cache"):
            if answer.content and not answer.json().get("success", True):
                raise EngineError(f"the engine at {self.url} keeps prefixes of its old weights")

    def logprobs(
        self, model: str, prompt_ids: Sequence[int], completion_ids: Sequence[int]
    ) -> list[float]:
        """The model's logprob of each completion token, at temperature 1."""
        return self.logprobs_of(model, [(prompt_ids, completion_ids)])[0]

    def logprobs_of(
        self, model: str, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> list[list[float]]:
        """`logprobs` of many (prompt, completion) pairs, in as few requests as may be."""
        found: list[list[float]] = []
        for start in range(0, len(pairs), BATCH):
            some = pairs[start : start + BATCH]
            body = {
                "model": model,
                "prompt": [[*prompt, *completion] for prompt, completion in some],
                "max_tokens": 1,
                "temperature": 0.0,
                "prompt_logprobs": 0,
            }
            with self._understood("/v1/completions"):
                choices = self._call("POST", "/v1/completions", body)["choices"]
                choices.sort(key=lambda choice: choice["index"])
                for (prompt, completion), choice in zip(some, choices, strict=True):
                    scored = choice["prompt_logprobs"][len(prompt) :]
                    found.append(
                        [
                            float(entry[str(token)]["logprob"])
                            for token, entry in zip(completion, scored, strict=True)
                        ]
                    )
        return found

    def generate(
        self, model: str, prompt_ids: Sequence[int], *, max_tokens: int, **sampling: Any
    ) -> list[Generated]:
        """`sampling`: n, temperature, top_p, top_k, seed, stop, as the routes have them."""
        body = {
            "model": model,
            "prompt": list(prompt_ids),
            "max_tokens": max_tokens,
            "logprobs": 0,
            "return_token_ids": True,
            **sampling,
        }
        with self._understood("/v1/completions"):
            return [
                Generated(
                    text=choice["text"],
                    token_ids=tuple(choice["token_ids"]),
                    logprobs=tuple(choice["logprobs"]["token_logprobs"]),
                    finish_reason=choice["finish_reason"],
                )
                for choice in self._call("POST", "/v1/completions", body)["choices"]
            ]

    def chat(self, model: str, messages: Sequence[dict[str, Any]], **asked: Any) -> dict[str, Any]:
        """The answer as the route gives it."""
        body = {"model": model, "messages": list(messages), **asked}
        answer = self._call("POST", "/v1/chat/completions", body)
        if not isinstance(answer, dict):
            raise EngineError(f"the engine at {self.url} answered a chat with no object")
        return answer

    def tokenized(
        self, model: str, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """The prompt that vLLM makes of a chat; the embedded engine has no such route."""
        body = {
            "model": model,
            "messages": list(messages),
            **({"tools": list(tools)} if tools else {}),
        }
        with self._understood("/tokenize"):
            found = self._call("POST", "/tokenize", body)["tokens"]
            return [int(token) for token in found]

    def token_ids(self, model: str, text: str) -> list[int]:
        """What vLLM's tokenizer makes of a text; the embedded engine has no such route."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        with self._understood("/tokenize"):
            return [int(token) for token in self._call("POST", "/tokenize", body)["tokens"]]

    def drain(self) -> None:
        """vLLM lets in whatever comes: there, whoever sends must have ceased, and this waits for
        what is under way."""
        if self.access.kind == "embedded":
            self._call("POST", "/v1/drain", {})
            return
        while (load := self.load()) is not None and load.running + load.waiting:
            time.sleep(0.05)

    def load(self) -> Load | None:
        """How busy it is; None = it does not say.

        Raises:
            EngineError: no answer.
        """
        answer = self._send("GET", "/metrics", timeout_s=10.0)
        if answer.status_code == 404:
            return None
        self._check(answer)
        with self._understood("/metrics"):
            return read_load(answer.text)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self._send(method, path, body)
        self._check(answer)
        return self._json(answer)

    def _send(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> httpx.Response:
        try:
            answer = self._http.request(method, path, body, timeout_s=timeout_s)
            for _ in range(_TRIES):
                if answer.status_code != 429 or self._http.ended.wait(_pause(answer)):
                    break
                answer = self._http.request(method, path, body, timeout_s=timeout_s)
            return answer
        except httpx.HTTPError as error:
            raise EngineError(
                f"the engine at {self.url} did not answer {path}: {error or type(error).__name__}"
            ) from error

    @contextlib.contextmanager
    def _understood(self, path: str) -> Iterator[None]:
        """Around the reading of an answer whose shape is the engine's to keep."""
        try:
            yield
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise EngineError(
                f"{path} of the engine at {self.url} answered in another shape than vLLM's "
                f"({type(error).__name__}: {error})"
            ) from error

    def _check(self, answer: httpx.Response) -> None:
        if answer.status_code != 200:
            where = f"{answer.request.url.path} of the engine at {self.url}"
            raise EngineError(f"{where} answered {answer.status_code}: {_words(answer)}")

    def _json(self, answer: httpx.Response) -> Any:
        try:
            return answer.json()
        except ValueError as error:
            raise EngineError(f"the engine at {self.url} answered no JSON") from error


def _pause(answer: httpx.Response) -> float:
    """Seconds until one that is too busy is asked again; it may say a date, or anything."""
    try:
        return min(max(float(answer.headers.get("retry-after", 1)), 0.0), 5.0)
    except ValueError:
        return 1.0


def _words(answer: httpx.Response) -> str:
    try:
        content = answer.json()
    except ValueError:
        return answer.text[:500]
    error = content.get("error", content) if isinstance(content, dict) else content
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:2000]
