"""What a run handed to another engine is: our side of the file contract.

Enter a Handoff: the base model, the problems, the environment that grades, the settings. An engine
writes its job's files into a folder and says which command runs it there. Later it reads, from the
same folder, the metrics as they come and the weights that came out. Nothing of the engine is
imported: it lives in an environment of its own, perhaps on other machines that share the folder.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from environments.define import Environment
from environments.rollouts import is_one_call
from environments.scoring import Spec
from flywheel.durable import write
from flywheel.errors import UsageError
from flywheel.records import Problem
from flywheel.section import EnvironmentSection
from flywheel.train_section import TrainSection


class Handoff(NamedTuple):
    run_id: str
    project: str
    model: Path
    """Folder of the base model, in Hugging Face's format."""
    adapter: Path | None
    """The champion's, to go on from; None = a new one."""
    train: TrainSection
    max_tokens: int
    """Of an answer."""
    context: int
    """Of prompt and answer together."""
    environment: EnvironmentSection
    folder: Path
    """The project's."""
    problems: tuple[Problem, ...]
    out: Path
    """The job's folder; on several machines a shared one."""
    nodes: int = 1
    gpus: int = 1
    """Of each node."""


class Written(NamedTuple):
    command: tuple[str, ...]
    """Runs the job, in its folder; the first word is a program of the engine's environment."""
    environment: Mapping[str, str]
    """Environment variables that it needs."""
    files: tuple[Path, ...]
    collect: tuple[str, ...] = ()
    """Run after it: makes weights in Hugging Face's format of what it left. () = they are so."""


class Engine(Protocol):
    def write(self, handoff: Handoff) -> Written:
        """
        Raises:
            UsageError: the engine cannot do what the settings ask for; says what to change.
        """

    def metrics(self, out: Path) -> Iterator[tuple[int, dict[str, float]]]:
        """(step, numbers by our names where there is one), as far as the job is."""

    def weights(self, out: Path) -> Path:
        """The folder of the adapter, or of the whole model, that came out.

        Raises:
            CorruptFile: there is none.
        """


def only_answers(engine: str, environment: Environment) -> None:
    """
    Raises:
        UsageError: an attempt is more than one call of the model.
    """
    if not is_one_call(environment):
        raise UsageError(
            f"{engine} plays one answer a problem and hands it to the reward: environment "
            f"{environment.name} needs several calls or a runtime around them. Take --engine "
            "torchrun, whose rollouts are played here"
        )


def only_theirs(engine: str, train: TrainSection) -> None:
    """
    Raises:
        UsageError: a setting that every run here heeds has no equal there.
    """
    rl = train.rl
    unheard = {
        "train.ema": train.ema is not None,
        "train.rl.length_penalty": rl.length_penalty > 0,
        "train.rl.call_penalty": rl.call_penalty > 0,
        "train.mixture": bool(train.mixture),
        "train.curriculum": train.curriculum is not None,
    }
    if named := [name for name, set_ in unheard.items() if set_]:
        raise UsageError(
            f"{engine} has no equal of {', '.join(named)}: leave it out, or train here"
        )


def write_spec(handoff: Handoff) -> Path:
    """What `environments.scoring` is started with, in the job's folder."""
    section = handoff.environment
    spec = Spec(
        path=section.path,
        folder=str(handoff.folder),
        config=section.config,
        problems=handoff.problems,
    )
    path = handoff.out / "scoring.json"
    write(path, msgspec.json.encode(spec))
    return path


def write_client(handoff: Handoff, spec: Path) -> Path:
    """The standard library's way to the scoring child, for the engine's own interpreter."""
    source = Path(__file__).with_name("reward_client.py").read_text(encoding="utf-8")
    root = Path(__file__).resolve().parents[2]
    told = {"python": sys.executable, "root": str(root), "spec": str(spec)}
    path = handoff.out / "flywheel_reward.py"
    write(path, source.replace('"@TOLD@"', json.dumps(json.dumps(told))).encode())
    return path


def chat(problem: Problem) -> list[dict[str, Any]]:
    """The prompt as Hugging Face's chat templates take it."""
    from flywheel.chat import to_chat

    return to_chat(problem.messages)
