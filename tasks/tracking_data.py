"""Datasets as inputs of an MLflow run: name, id as digest, folder as source, columns, counts.

Enter a run and a dataset's id; leaves the input, the same however often it is logged.
"""

from pathlib import Path
from typing import Any

from flywheel.lineage import Dataset
from tasks.tracking_page import log_dataset
from tasks.turns import home

_TYPES = {"String": "string", "Float64": "double", "Int64": "long", "Int32": "integer",
          "Boolean": "boolean", "Binary": "binary"}  # fmt: skip
"""polars' name of a type -> MLflow's."""
_NEVER_NULL = ("id", "trace_id", "messages", "completion", "origin", "weight")


def log_made(client: Any, run_id: str, dataset_id: str, *, rollouts: bool = False) -> None:
    """
    Args:
        rollouts: it is what a run sampled while it trained, rather than what it was given.
    """
    from storage.dataset_records import found

    made = found(home(), dataset_id)
    folder = home().path(made.path)
    log_dataset(
        client,
        run_id,
        name=f"{made.project}-rollouts" if rollouts else made.project,
        digest=made.id,
        folder=folder,
        context="training",
        profile=profile_of(made),
        columns=columns_of(folder / "rows.parquet"),
    )


def profile_of(made: Dataset) -> dict[str, Any]:
    """What a person wants to know of it: what it is for, how much there is, and of what it is."""
    from storage.datasets import manifest_of

    manifest = manifest_of(home(), made)
    return {
        "num_rows": made.rows,
        "product": made.product,
        "content": manifest.content,
        "parents": list(made.parents),
        "sequence": manifest.recipe.sequence if manifest.recipe else None,
        **{f"after {one.rule}": one.rows_out for one in made.rules},
    }


def columns_of(file: Path) -> list[dict[str, Any]]:
    """The file's columns, as MLflow's schemas name them."""
    import polars as pl

    return [
        {"name": name, "required": name in _NEVER_NULL, **_type(kind)}
        for name, kind in pl.read_parquet_schema(file).items()
    ]


def _type(kind: Any) -> dict[str, Any]:
    inner = getattr(kind, "inner", None)
    if inner is not None:
        return {"type": "array", "items": _type(inner)}
    return {"type": _TYPES.get(str(kind), "string")}
