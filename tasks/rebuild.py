"""Rebuilding: a dataset made again from its manifest, and held against the one that was published.

Enter a dataset; leaves whether the same bytes came out and, where they did not, what is different
and why. Where the published file is gone or damaged, and the same bytes came out, it is put back.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel import durable
from flywheel.errors import Refused, UsageError
from flywheel.ids import digest_file
from flywheel.lineage import Dataset
from tasks.curate import held_apart
from tasks.products import choose_rows
from tasks.turns import Turn, environment_of, home, project_of

if TYPE_CHECKING:
    from storage.datasets import Manifest, Recipe, RowKey


def rebuild(dataset: Dataset) -> dict[str, Any]:
    """
    Raises:
        Refused: it was retired: what it was made of was erased.
        UsageError: its manifest does not say what it was made of.
    """
    from storage.datasets import manifest_of
    from storage.pool import Pool
    from storage.queries import problems
    from storage.scratch import scratch

    if dataset.retired:
        raise Refused(f"dataset {dataset.id} was retired: {dataset.retired}")
    manifest = manifest_of(home(), dataset)
    recipe = manifest.recipe
    if recipe is None:
        raise UsageError(
            f"dataset {dataset.id} does not say what it was made of: it is of an earlier version, "
            "or holds a run's own rollouts; `flywheel datasets make` makes one that does"
        )
    turn = turn_of(recipe)
    asked = problems(home(), ids=recipe.heldout) if recipe.heldout else []
    heldout = held_apart(turn, asked)
    with Pool(home().pools) as pool, scratch(home().pools) as place:
        chosen = choose_rows(turn, manifest.product, list(recipe.problems), pool, heldout)
        keys, file = chosen.made.keys(), place / "rows.parquet"
        chosen.made.write(file)
        content = digest_file(file)
        same = content == manifest.content
        restored = same and _restored(dataset, manifest, file)
    return {
        "id": dataset.id,
        "same": same,
        "content": manifest.content,
        "rebuilt": content,
        "restored": restored,
        **_apart(manifest.keys, keys),
        "why": [] if same else list(_reasons(turn, manifest, recipe, keys, len(asked))),
    }


def turn_of(recipe: "Recipe") -> Turn:
    """The turn as it was, under the sections that it had."""
    turn = msgspec.convert(recipe.turn, Turn)
    return msgspec.structs.replace(
        turn, looked=True, sections=recipe.sections, graded_until=recipe.sequence
    )


def _restored(dataset: Dataset, manifest: "Manifest", file: Path) -> bool:
    """Puts the file back where the published one is not what was published."""
    there = home().path(dataset.path) / "rows.parquet"
    if there.is_file() and digest_file(there) == manifest.content:
        return False
    durable.write(there, file.read_bytes())
    return True


def _apart(then: "Sequence[RowKey]", now: "Sequence[RowKey]") -> dict[str, int]:
    before, after = {one[0] for one in then}, {one[0] for one in now}
    changed = {one[0] for one in set(then) ^ set(now)} & before & after
    return {
        "rows": len(then),
        "missing": len(before - after),
        "added": len(after - before),
        "reweighted": len(changed),
    }


def _reasons(
    turn: Turn, manifest: "Manifest", recipe: "Recipe", keys: "Sequence[RowKey]", known: int
) -> list[str]:
    """Why other bytes came out, as far as it can be told."""
    import polars as pl

    from storage.schema import newest

    found, writer = [], f"polars {pl.__version__}"
    if sorted(manifest.keys) == sorted(keys):
        found.append(f"the same rows, rewards and weights, written by {writer} "
                     f"(then {recipe.writer}), or told more of")  # fmt: skip
    if environment_of(project_of(turn)).digest != recipe.environment:
        found.append("the environment's code is another one now")
    if newest() != recipe.store:
        found.append(f"the store's tables are of version {newest()}, then {recipe.store}")
    if lost := len(recipe.heldout) - known:
        found.append(f"{lost} problems that were held out then are not in the store any more")
    return found or ["traces or grades that it was made of were erased, merged or given anew since"]
