"""What a run starts from, and what cannot be trained or deployed: told before anything is sampled.

An adapter stands on the project's base model, so a champion that is a whole model is gone on from
with all weights. Whole models are served by the engine that holds several of them.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from flywheel.errors import Refused
from flywheel.lineage import Deployment
from flywheel.project import Project
from tasks.turns import Turn, engine, home, project_of

if TYPE_CHECKING:
    from serving.engines.reach import Access


class Start(NamedTuple):
    """The weights of a deployment, as a run takes them."""

    model: Path
    adapter: Path | None
    """None = the model as it is."""


def trained(deployment: Deployment) -> Deployment:
    """What training goes on from: of a variant, what it was made of."""
    if not deployment.variant:
        return deployment
    made_of = deployment.variant["of"]
    return msgspec.structs.replace(
        deployment,
        adapter=made_of["adapter"],
        kind=made_of["kind"],
        checkpoint_id=made_of["checkpoint_id"],
        variant={},
    )


def start_of(deployment: Deployment) -> Start:
    deployment = trained(deployment)
    folder = home().path(deployment.adapter) if deployment.adapter else None
    if folder is not None and deployment.kind == "full":
        return Start(folder, None)
    return Start(Path(deployment.base_model), folder)


def trainable(project: Project, champion: Deployment) -> None:
    """
    Raises:
        Refused: an adapter would have to stand on a whole model, or what would be learnt from has
            no tokens.
    """
    if champion.kind == "external" and _by_tokens(project):
        raise Refused(
            f"{champion.name} is a provider's model, whose answers have no tokens, and [train] "
            f'algorithm = "{project.train.algorithm}" learns from those: '
            'algorithm = "teacher" learns from its words, with [curate] sources = ["rollouts", '
            '"recorded"] also from what it answered in production'
        )
    if trained(champion).kind == "full" and project.train.method == "lora":
        raise Refused(
            f"{champion.name} is a whole model, and an adapter stands on the base model: go on "
            'with [train] method = "full", or roll back to an adapter, or give a project of its '
            f"own a copy of {champion.adapter} as [model] base"
        )


def _by_tokens(project: Project) -> bool:
    """Whether it learns from tokens that the champion sampled, and from nothing else."""
    algorithm, sources = project.train.algorithm, project.curate.sources
    return algorithm == "recorded" or (algorithm == "rejection" and sources == ("rollouts",))


def deployable(turn: Turn) -> None:
    """
    Raises:
        Refused: what the turn would train cannot be trained, or this engine cannot serve it.
    """
    project = project_of(turn)
    trainable(project, turn.start)
    if project.train.method == "full":
        served_whole(engine().access.kind)
    else:
        has_room(engine().access, project.train.rank)


def has_room(access: "Access", rank: int) -> None:
    """
    Raises:
        Refused: the engine has no room for adapters of `rank`.
    """
    if access.max_rank is not None and rank > access.max_rank:
        raise Refused(
            f"[train] rank is {rank} and the engine makes room for {access.max_rank}: "
            "lower it, or raise max_rank in [serving] and start the server again "
            "(--max-lora-rank, where somebody else runs the vLLM). `flywheel train` trains it all "
            "the same"
        )


def served_whole(kind: str) -> None:
    """
    Raises:
        Refused: an engine of this kind serves no whole model beside the base model.
    """
    from serving.engines.fitting import ONE_MODEL

    if kind == "vllm":
        raise Refused(
            f'[train] method = "full" makes a model that this engine cannot try: {ONE_MODEL}. '
            "`flywheel train` trains it all the same"
        )
