"""Training in another engine: the job is written, run or submitted, followed, and brought back.

The engine's metrics become the run's own metrics.jsonl, so that MLflow and the dashboard show them
as they show ours; its weights become the run's adapter, probe and result, so that every gate after
it is the same.
"""

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from flywheel import durable
from flywheel.errors import Busy, FlywheelError, MissingPart
from flywheel.project import Project, load_project
from flywheel.records import Problem
from flywheel.train_section import MachineSection
from tasks.starting import start_of
from tasks.turns import Turn, project_of, run_folder, settings

if TYPE_CHECKING:
    from trainer.external.contract import Handoff

PROGRAM = {"verl": "python", "prime-rl": "rl"}
"""What is started of the engine's environment on this machine; `ray` where it is submitted."""
MISSING = {
    "verl": "{}: `make install-verl` brings verl's environment",
    "prime-rl": "{}: check prime-rl out and set FLYWHEEL_PRIME_RL to its .venv (docs/gpu.md)",
}
TAIL = 12
"""Lines of the engine's log that a failure shows."""


def is_elsewhere(project: Project) -> bool:
    """Whether the project's runs are handed to another engine."""
    return machine_of(project).engine in ("verl", "prime-rl")


def machine_of(project: Project) -> MachineSection:
    """Where it trains: what the command line said goes before the project's file."""
    own, said = project.train.machine, settings().train_engine
    return own if said is None else own.model_copy(update={"engine": said})


def engine_there(*folders: str) -> None:
    """Asked before anything is sampled for these projects.

    Raises:
        MissingPart: a run would be handed to an engine whose environment is not on this machine.
    """
    for project in (load_project(Path(folder)) for folder in folders):
        if is_elsewhere(project):
            _there(machine_of(project))


def _there(how: MachineSection) -> None:
    program = _place(how.engine) / "bin" / (PROGRAM[how.engine] if how.address is None else "ray")
    if not program.is_file():
        raise MissingPart(MISSING[how.engine].format(f"{program} is not there"))


def train_elsewhere(
    turn: Turn, problems: Sequence[Problem], follow: Callable[[], None]
) -> dict[str, Any]:
    """Runs the job to its end and returns what `trainer.job` would have.

    Raises:
        MissingPart: the engine's environment is not there.
        FlywheelError: it failed; its log's last lines say why.
    """
    from trainer.external.arrive import arrive
    from trainer.external.table import ENGINES

    how = machine_of(project_of(turn))
    handoff, out = _handoff(turn, problems, how), run_folder(turn)
    engine = ENGINES[how.engine]()
    written = engine.write(handoff)
    started = time.monotonic()
    run = _command(written.command, how, handoff.out, written.environment)
    if not (out / "result.json").exists():
        _there(how)
        for _ in _running(run, handoff.out, written.environment):
            _publish(out, engine.metrics(handoff.out))
            follow()
        if written.collect:
            collect = _program(written.collect, how)
            for _ in _running(collect, handoff.out, written.environment):
                pass
    seconds = time.monotonic() - started
    result = arrive(handoff, engine.weights(handoff.out), out, seconds=seconds)
    return msgspec.to_builtins(result)  # type: ignore[no-any-return]


def _handoff(turn: Turn, problems: Sequence[Problem], how: MachineSection) -> "Handoff":
    from trainer.external.contract import Handoff

    project, start = project_of(turn), start_of(turn.start)
    return Handoff(
        run_id=turn.run_id,
        project=turn.project,
        model=start.model,
        adapter=start.adapter,
        train=project.train,
        max_tokens=project.rollouts.max_tokens,
        context=project.serving.context,
        environment=project.environment,
        folder=project.folder,
        problems=tuple(problems),
        out=run_folder(turn) / how.engine,
        nodes=how.nodes,
        gpus=how.processes,
    )


def _command(
    command: tuple[str, ...], how: MachineSection, out: Path, environment: Mapping[str, str]
) -> tuple[str, ...]:
    if how.address is None:
        return _program(command, how)
    given = msgspec.json.encode({"env_vars": dict(environment)}).decode()
    ray = _program(("ray", "job", "submit", "--address", how.address), how)
    # Of the cluster's own interpreter: its machines share the folder, not this environment.
    return (*ray, "--working-dir", str(out), "--runtime-env-json", given, "--", *command)


def _program(command: tuple[str, ...], how: MachineSection) -> tuple[str, ...]:
    """The command with its first word as a program of the engine's environment."""
    return (str(_place(how.engine) / "bin" / command[0]), *command[1:])


def _place(engine: str) -> Path:
    """The engine's environment.

    Raises:
        MissingPart: nobody said where it is.
    """
    place = {"verl": settings().verl, "prime-rl": settings().prime_rl}[engine]
    if place is None:
        raise MissingPart(MISSING[engine].format("prime-rl has no environment here"))
    return place


def _running(
    command: tuple[str, ...], folder: Path, environment: Mapping[str, str]
) -> Iterator[None]:
    """Yields every second until it ended, and once after."""
    log = folder / "engine.log"
    with log.open("ab") as output, (folder / "engine.lock").open("ab") as held:
        _take(held, folder)
        child = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, **environment}, start_new_session=True,
            pass_fds=(held.fileno(),),
        )  # fmt: skip
    try:
        while child.poll() is None:
            yield
            time.sleep(1.0)
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()
    yield
    if child.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL:])
        raise FlywheelError(f"{Path(command[0]).name} ended with {child.returncode}:\n{tail}")


def _take(held: IO[bytes], folder: Path) -> None:
    """The child inherits the lock: it holds as long as the engine runs, whoever is gone.

    Raises:
        Busy: an engine that an earlier attempt started still runs there.
    """
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Busy(
            f"the engine that an earlier attempt started still trains in {folder}: wait for it, or "
            "end it"
        ) from error


def _publish(out: Path, metrics: Iterator[tuple[int, dict[str, float]]]) -> None:
    """The engine's steps as the run's own metrics, whole each time."""
    lines = [msgspec.json.encode({"step": step, **numbers}) for step, numbers in metrics]
    durable.write(out / "metrics.jsonl", b"".join(line + b"\n" for line in lines))
