"""The serving gate: does the engine serve what was trained, and put prompts as the trainer does?

Enters a loaded deployment; leaves the evidence, or `Refused` with the numbers. Promotion, canary
and the trial of a version all stand behind it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flywheel.lineage import Deployment
from flywheel.records import Problem
from tasks.turns import Turn, home, project_of, run_folder

if TYPE_CHECKING:
    from serving.engines.client import EngineClient
    from serving.smoke import Prompt


def serving_check(
    turn: Turn, client: "EngineClient", deployment: Deployment, smoke_ids: list[str]
) -> dict[str, Any]:
    """The files and what the engine serves are what was trained; its prompts are the trainer's, and
    it answers real ones.

    Raises:
        Refused: it is not, or it does not; the reason has the numbers.
    """
    from serving.smoke import smoke
    from serving.verify import INT8, bounds_of, check_files, check_logprobs, read_probe
    from storage.queries import problems

    # The engine may hold good weights whose files, which the next start reads, are bad by now.
    check_files(home(), deployment)
    probe = read_probe(run_folder(turn) / "probe.json")
    bounds = bounds_of(project_of(turn).serving, client.access.kind)
    if probe.format == "int8":
        bounds = INT8
    prompts = prompts_of(problems(home(), ids=smoke_ids), Path(deployment.base_model))
    return {
        **check_logprobs(client, deployment.name, probe, bounds=bounds),
        "smoke": smoke(client, deployment.name, prompts, tolerance=bounds.largest),
    }


def prompts_of(problems: Sequence[Problem], base: Path) -> "list[Prompt]":
    """Each problem as a client would send it, with the ids that the trainer makes of it."""
    from flywheel.chat import to_chat
    from serving.smoke import Prompt
    from trainer.models import load_tokenizer
    from trainer.render import renderer_for

    rendering = renderer_for(load_tokenizer(base))
    return [
        Prompt(
            messages=tuple(to_chat(one.messages)),
            tools=tuple(one.tools),
            ids=tuple(rendering.render_prompt(one.messages, one.tools)),
        )
        for one in problems
    ]
