"""A probe for an adapter that no run of ours trained: `python -m trainer.probing ORDER.json`.

Enter base model, adapter, the one it is compared with, and token pairs; leaves a probe file as a
run writes one. So whether the adapter fits the base is found here, by the code that trains.
"""

import sys
from pathlib import Path

import msgspec

from flywheel.children import follow_parent
from flywheel.errors import CorruptFile, FlywheelError, Refused, UsageError
from flywheel.settings import load, quiet_dependencies
from trainer.probe import ProbePair, probe_logprobs, write_probe


class Order(msgspec.Struct, frozen=True, kw_only=True):
    base_model: str
    adapter: str
    """Folder of the weights that the engine must serve."""
    old: str | None
    """Folder of the adapter that they are told apart from; None = the base model alone."""
    pairs: tuple[ProbePair, ...]
    out: str
    threads: int = 1


def probe(order: Order) -> None:
    """
    Raises:
        MissingPart, CorruptFile: a model or adapter that cannot be used, or does not fit.
    """
    from trainer.models import add_adapter, load_base, use_adapter

    model = load_base(Path(order.base_model), threads=order.threads).model
    add_adapter(model, "new", Path(order.adapter))
    if order.old is not None:
        add_adapter(model, "old", Path(order.old))
    found = {}
    for side, name in (("new", "new"), ("old", "old" if order.old else None)):
        use_adapter(model, name)
        found[side] = probe_logprobs(model, order.pairs)
    write_probe(Path(order.out), order.pairs, new=found["new"], old=found["old"])


def main(arguments: list[str]) -> int:
    """Exit code 3: the adapter is none, or not one of this base model."""
    follow_parent()
    quiet_dependencies(load().at())
    try:
        if len(arguments) != 1:
            raise UsageError("usage: python -m trainer.probing ORDER.json")
        probe(msgspec.json.decode(Path(arguments[0]).read_bytes(), type=Order))
    except FlywheelError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return Refused.exit_code if isinstance(error, CorruptFile) else error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
