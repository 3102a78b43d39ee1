"""Recipes: what a dataset was made of, so that it can be made again.

Enter a turn and what was chosen for it; leaves a record that lies in the dataset's manifest.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from flywheel.lineage import Product
from flywheel.project import Project
from tasks.rl_problems import is_online
from tasks.turns import Turn, environment_of, home, project_of

if TYPE_CHECKING:
    from storage.datasets import Recipe
    from storage.leakage import Heldout

SECTIONS = ("curate", "environment", "labels", "privacy", "problems", "retention", "train")
"""Of the project's file, those that decide which rows come and what is kept of them."""


def product_of(project: Project) -> Product:
    """What the project's own turns make."""
    from flywheel.curate_section import PREFERENCES

    if is_online(project):
        return "problems"
    return "preferences" if project.train.algorithm in PREFERENCES else "rows"


def recipe_of(
    turn: Turn, heldout: "Heldout | None" = None, problems: Sequence[str] = ()
) -> "Recipe":
    """
    Args:
        problems: ids of those that the turn samples on.
    """
    import polars as pl

    from storage.datasets import Recipe
    from storage.schema import newest
    from storage.snapshots import snapshot

    project = project_of(turn)
    return Recipe(
        turn=msgspec.to_builtins(turn),
        sequence=snapshot(home(), turn.project).sequence,
        sections=project.model_dump(mode="json", include=set(SECTIONS)),
        environment=environment_of(project).digest,
        problems=tuple(problems),
        heldout=tuple(sorted(heldout.problems)) if heldout else (),
        store=newest(),
        writer=f"polars {pl.__version__}",
    )
