"""Containers: the command line always; a real one where an engine answers and has the image."""

import asyncio
import itertools
import os
import stat
from pathlib import Path

import pytest

from environments.runtimes.container import USER, ContainerRuntime, engine, run_options
from environments.runtimes.contract import Container, Limits, Ran, RuntimeFailure
from flywheel.errors import MissingPart, ProjectError


def _pairs(options: list[str]) -> list[tuple[str, str]]:
    return list(itertools.pairwise(options))


def test_the_command_line_walls_the_program_off(tmp_path: Path) -> None:
    limits = Limits(memory=64 << 20, processes=9, cpu_s=3, file=1000)
    options = run_options("name", tmp_path, limits, {"A": "b c"}, "sub")
    pairs = _pairs(options)
    for pair in (
        *(("--name", "name"), ("--network", "none"), ("--cap-drop", "ALL"), ("--pull", "never")),
        *(("--security-opt", "no-new-privileges"), ("--pids-limit", "9"), ("--env", "A=b c")),
        *(("--memory", str(64 << 20)), ("--memory-swap", str(64 << 20))),
        *(("--ulimit", "cpu=4:5"), ("--ulimit", "fsize=1000"), ("--ulimit", "core=0")),
        *(("--volume", f"{tmp_path}:/workspace:rw"), ("--workdir", "/workspace/sub")),
    ):
        assert pair in pairs
    assert {"--read-only", "--init", "--interactive"} <= set(options)
    user = USER if os.geteuid() == 0 else os.geteuid()
    assert ("--user", f"{user}:{user}") in pairs and user != 0
    open_limits = limits.model_copy(update={"network": True})
    assert ("--network", "bridge") in _pairs(run_options("n", tmp_path, open_limits, {}, "."))


def _engine_of(folder: Path, script: str) -> str:
    """A program that answers as an engine does: the far side of our command line."""
    file = folder / "engine"
    file.write_text(f"#!/bin/bash\n{script}")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def _run(tmp_path: Path, script: str, **limits: float) -> Ran:
    async def main() -> Ran:
        runtime = ContainerRuntime.__new__(ContainerRuntime)
        config = Container(image="some", limits=Limits(**limits))  # type: ignore[arg-type]
        super(ContainerRuntime, runtime).__init__(tmp_path / "box", config.limits)
        runtime.config, runtime._names = config, set()
        runtime._engine = _engine_of(tmp_path, script)
        await runtime.start()
        try:
            return await runtime.exec(["program"])
        finally:
            await runtime.stop()

    return asyncio.run(main())


def test_how_a_container_ended_is_told_apart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f'echo "$1" >> {log}; [ "$1" = run ] && {{ echo out; exit %s; }}; echo %s'
    assert _run(tmp_path, script % (0, "false"))[:3] == ("ok", 0, "out\n")
    assert _run(tmp_path, script % (3, "false"))[:2] == ("error", 3)
    assert _run(tmp_path, script % (137, "false"))[:2] == ("killed", None)
    assert _run(tmp_path, script % (137, "true"))[:2] == ("memory", None)
    assert _run(tmp_path, script % (152, "false")).reason == "timeout"
    with pytest.raises(RuntimeFailure, match="ran nothing"):
        _run(tmp_path, script % (125, "false"))
    assert log.read_text().split().count("rm") == 6


def test_a_container_that_does_not_end_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("environments.runtimes.container._START_S", 0.0)
    assert _run(tmp_path, '[ "$1" = run ] && sleep 600; echo false', wall_s=0.3).reason == "timeout"


def test_without_an_engine_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.runtimes.container._ask", lambda *words: "")
    engine.cache_clear()
    with pytest.raises(MissingPart, match="podman, docker"):
        engine("auto")
    engine.cache_clear()


def test_a_real_container_runs(tmp_path: Path) -> None:
    try:
        runtime = ContainerRuntime(Container(image="debian:stable-slim"), tmp_path)
    except MissingPart as error:
        pytest.skip(str(error))

    async def main() -> None:
        await runtime.start()
        try:
            ran = await runtime.exec(["sh", "-c", "echo hi > made; id -u"])
        except RuntimeFailure as error:
            pytest.skip(str(error))
        assert ran.ok and ran.stdout.strip() != "0"
        assert await runtime.read("made") == b"hi\n"
        with pytest.raises(ProjectError, match="door"):
            await runtime.exec(["true"], door="http://127.0.0.1:1/v1")
        await runtime.stop()

    asyncio.run(main())
