"""Runs inside `.venv-verifiers`: an environment of the verifiers package, spoken to in JSON lines.

Requests come on standard input, answers go to what was standard output; whatever the package
prints goes to standard error. It knows the standard library and verifiers 0.4, nothing of ours, and
ends when its input does. Nothing leaves the machine by its doing: the model is whatever URL a
request names, programs run here or in a local container, nothing is pushed.

{"do": "open", "name", "config"}  -> {"version", "harness", "rewards": {name: weight}}
{"do": "problems", "limit"}       -> {"problem": {...}} each, then {"end": true}
{"do": "run", "id", "task", "url", "key", "model"}
                                  -> {"id", "rewards": {name: [score, weight] or null}, ...}
Any answer may be {"error": "..."} instead.
"""

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OFF = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OTEL_SDK_DISABLED": "true",
    "PRIME_DISABLE_VERSION_CHECK": "1",
}
_KEY = "EPISODE_{}_API_KEY"
"""Of one episode; programs that harnesses start do not inherit names like it."""


class Bridge:
    def __init__(self, out: Any) -> None:
        self._out = out
        self._env: Any = None
        self._tasks: dict[int, Any] = {}
        self._running: set[asyncio.Task[None]] = set()

    def say(self, **answer: Any) -> None:
        self._out.write(json.dumps(answer, default=str) + "\n")
        self._out.flush()

    async def serve(self) -> None:
        lines = await _lines()
        first = json.loads(await lines.readline() or b"null")
        if first is None:
            return
        try:
            self._open(first["name"], first["config"])
        except Exception as error:
            self.say(error=f"{type(error).__name__}: {error}", trace=traceback.format_exc()[-3000:])
            return
        self.say(**self._about())
        async with self._env.serving():
            while line := await lines.readline():
                asked = json.loads(line)
                if asked["do"] == "problems":
                    self._problems(asked["limit"])
                else:
                    task = asyncio.create_task(self._run(asked))
                    self._running.add(task)
                    task.add_done_callback(self._running.discard)
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _open(self, name: str, config: dict[str, Any]) -> None:
        """The package's own environment, with nothing of its cloud."""
        from verifiers.v1.utils.loaders import (
            default_harness_id,
            load_environment,
            resolve_env_config,
        )

        given = {**config, "taskset": {**config.get("taskset", {}), "id": name}}
        bundled = default_harness_id(name)
        harness = {"id": "null" if bundled == "bash" else bundled}
        agent = given.setdefault("agent", {})
        agent.setdefault("harness", harness)
        agent.setdefault("runtime", {"type": "subprocess"})
        _local_only(given)
        _without_downloads()
        resolved = resolve_env_config(given)
        self._env = load_environment(resolved)
        for harness in self._env._harnesses.values():
            runs = harness.EXECUTES_CODE and agent["runtime"]["type"] == "subprocess"
            if runs and not config.get("agent", {}).get("runtime"):
                raise ValueError(
                    f"harness {harness.config.id!r} runs the model's commands: say where with "
                    "--config agent.runtime.type=docker (or podman; subprocess has no walls)"
                )

    def _about(self) -> dict[str, Any]:
        from verifiers import __version__

        task = next(iter(self._env.taskset), None)
        rewards: dict[str, float] = {}
        if task is not None:
            rewards |= {one.__name__: one._vf_weight for one in task.hooks("reward")}
            rewards |= {one.reward_name: one.config.weight for one in task.plugged_judges()}
        harness = sorted(one.config.id for one in self._env._harnesses.values())
        return {"version": __version__, "harness": harness, "rewards": rewards}

    def _problems(self, limit: int | None) -> None:
        try:
            for number, task in enumerate(_bounded(self._env.taskset, limit)):
                self._tasks[number] = task
                data = task.data.model_dump(mode="json", exclude_none=True)
                self.say(problem={"task": number, "key": task.key, "data": data})
        except Exception as error:
            self.say(error=f"the task set failed: {type(error).__name__}: {error}")
            return
        self.say(end=True)

    async def _run(self, asked: dict[str, Any]) -> None:
        variable = _KEY.format(asked["id"])
        os.environ[variable] = asked["key"]
        try:
            episode = await self._env.run_episode(
                self._tasks[asked["task"]], _context(asked, variable)
            )
            self.say(id=asked["id"], **_told(episode))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            self.say(id=asked["id"], error=said, trace=traceback.format_exc()[-3000:])
        finally:
            os.environ.pop(variable, None)


def _context(asked: dict[str, Any], variable: str) -> Any:
    """Sampling is forced at the address, whatever is asked for there."""
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import EvalClientConfig

    client = EvalClientConfig(base_url=asked["url"], api_key_var=variable)
    return ModelContext(client=client, model=asked["model"])


def _told(episode: Any) -> dict[str, Any]:
    """What the package made of an episode; of several agents each name is put before its own."""
    rewards: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    errors = [f"{one.type}: {one.message}" for one in episode.errors]
    for trace in episode.traces:
        before = f"{trace.agent.name}." if len(episode.traces) > 1 else ""
        for name, found in trace.rewards.items():
            rewards[before + name] = None if found is None else [found.score, found.weight]
        metrics |= {before + name: value for name, value in trace.metrics.items()}
        errors += [f"{one.type}: {one.message}" for one in trace.errors]
    stops = [trace.stop_condition for trace in episode.traces if trace.stop_condition]
    provider = any(
        one.type in _INFRASTRUCTURE for trace in episode.traces for one in trace.errors
    ) or any(one.type in _INFRASTRUCTURE for one in episode.errors)
    return {
        "ok": episode.ok,
        "rewards": rewards,
        "metrics": metrics,
        "errors": errors,
        "infrastructure": provider and not episode.ok,
        "ended": stops[-1] if stops else None,
    }


_INFRASTRUCTURE = {"ProviderError", "SandboxError", "InterceptionError", "TunnelError"}


def _bounded(taskset: Any, limit: int | None) -> Iterator[Any]:
    if limit is not None:
        taskset = taskset.take(limit)
    elif not taskset.bounded:
        raise ValueError("it goes on for ever: bound it with --limit")
    return iter(taskset)


def _local_only(config: dict[str, Any]) -> None:
    """Refuses runtimes elsewhere, for every seat that the configuration names."""
    for seat in config.values():
        kind = (seat.get("runtime") or {}).get("type") if isinstance(seat, dict) else None
        if kind not in (None, "subprocess", "docker", "podman", "apptainer"):
            raise ValueError(f"runtime {kind!r} is not on this machine: docker, podman, subprocess")


def _without_downloads() -> None:
    """The package's chat program is run by this very environment, which holds what it declares;
    the package itself would fetch it from an index for every rollout's home."""
    from verifiers.v1.harnesses.utils import launch
    from verifiers.v1.runtimes.subprocess import SubprocessRuntime

    original = SubprocessRuntime.prepare_uv_script

    async def prepared(
        self: Any, script: str | bytes, env: Any = None, *, activate: bool = True
    ) -> list[str]:
        text = script if isinstance(script, str) else script.decode()
        if text != launch.CHAT_PROGRAM_SOURCE:
            found: list[str] = await original(self, script, env, activate=activate)
            return found
        path = Path(sys.prefix) / "chat-program.py"
        if not path.exists() or path.read_text() != text:
            own = path.with_suffix(f".{os.getpid()}")
            own.write_text(text)
            os.replace(own, path)
        return [sys.executable, str(path)]

    SubprocessRuntime.prepare_uv_script = prepared


async def _lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=2**26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def main() -> None:
    os.environ.update(_OFF)
    for name in [name for name in os.environ if name.startswith("PRIME_") and name not in _OFF]:
        del os.environ[name]
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asyncio.run(Bridge(out).serve())


if __name__ == "__main__":
    main()
