"""A probe for weights that no run of ours trained: `python -m trainer.probing ORDER.json`.

Enter base model, weights (an adapter, or a whole model), those that they are compared with, and
token pairs; leaves a probe file as a run writes one. So whether an adapter fits the base is found
here, by the code that trains.
"""

import sys
from pathlib import Path
from typing import Any

import msgspec

from trainer.ordered import carry_out
from trainer.probe import ProbePair, probe_logprobs, write_probe


class Order(msgspec.Struct, frozen=True, kw_only=True):
    base_model: str
    adapter: str
    """Folder of the weights that the engine must serve."""
    old: str | None
    """Folder of the weights that they are told apart from; None = the base model alone."""
    pairs: tuple[ProbePair, ...]
    out: str
    threads: int = 1


def probe(order: Order) -> None:
    """
    Raises:
        MissingPart, CorruptFile: a model or adapter that cannot be used, or does not fit.
    """
    new, old = (
        probe_logprobs(_model(order, Path(folder) if folder else None), order.pairs)
        for folder in (order.adapter, order.old)
    )
    write_probe(Path(order.out), order.pairs, new=new, old=old)


def _model(order: Order, folder: Path | None) -> Any:
    from trainer.models import add_adapter, is_whole, load_base

    if folder is not None and is_whole(folder):
        return load_base(folder, threads=order.threads).model
    model = load_base(Path(order.base_model), threads=order.threads).model
    if folder is not None:
        add_adapter(model, "probed", folder)
    return model


if __name__ == "__main__":
    sys.exit(carry_out(sys.argv[1:], Order, probe))
