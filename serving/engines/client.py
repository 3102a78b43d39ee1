"""An engine's routes as calls, the same for the embedded engine and for vLLM.

Synchronous: it loads, checks and probes; requests of clients go through the gateway, which speaks
to the engine itself.

Every failure is an `EngineError` that names the engine and what to look at; what an engine rightly
refuses is `Refused`.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from flywheel.errors import EngineError, Refused
from flywheel.progress import report
from serving.engines.contract import Generated

BATCH = 64
"""Sequences scored in one request, at most."""
_TRIES = 10
"""How often an engine that is too busy is asked again."""


class EngineClient:
    def __init__(self, url: str, *, timeout_s: float = 600.0) -> None:
        self.url = url.rstrip("/")
        timeout = httpx.Timeout(timeout_s, connect=5.0)
        self._http = httpx.Client(base_url=self.url, timeout=timeout, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def ready(self) -> bool:
        """Whether it can generate now."""
        try:
            return self._http.get("/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def health(self) -> dict[str, Any]:
        """What /health says; empty where an engine says nothing there, as vLLM.

        Raises:
            EngineError: no answer.
        """
        answer = self._send("GET", "/health", timeout=5.0)
        return self._json(answer) if answer.content else {}

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
        return [model["id"] for model in self._call("GET", "/v1/models")["data"]]

    def load_adapter(self, name: str, folder: Path) -> None:
        """Loading what is loaded already is no error.

        Raises:
            Refused: the adapter cannot be served, or the name has other weights.
            EngineError: the engine failed.
        """
        body = {"lora_name": name, "lora_path": str(folder.resolve())}
        answer = self._send("POST", "/v1/load_lora_adapter", body)
        if answer.status_code in (400, 404):
            raise Refused(f"adapter {name} was not loaded: {_words(answer)}")
        self._check(answer)

    def unload_adapter(self, name: str) -> None:
        """Unloading what is not there is no error."""
        answer = self._send("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        if answer.status_code not in (400, 404):
            self._check(answer)

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
        answer: dict[str, Any] = self._call("POST", "/v1/chat/completions", body)
        return answer

    def drain(self) -> None:
        self._call("POST", "/v1/drain", {})

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self._send(method, path, body)
        self._check(answer)
        return self._json(answer)

    def _send(
        self, method: str, path: str, body: dict[str, Any] | None = None, **how: Any
    ) -> httpx.Response:
        try:
            answer = self._http.request(method, path, json=body, **how)
            for _ in range(_TRIES):
                if answer.status_code != 429:
                    break
                time.sleep(min(float(answer.headers.get("retry-after", 1)), 5.0))
                answer = self._http.request(method, path, json=body, **how)
            return answer
        except httpx.HTTPError as error:
            raise EngineError(
                f"the engine at {self.url} did not answer {path}: {error or type(error).__name__}"
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


def _words(answer: httpx.Response) -> str:
    try:
        content = answer.json()
    except ValueError:
        return answer.text[:500]
    error = content.get("error", content) if isinstance(content, dict) else content
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:2000]
