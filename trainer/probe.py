"""The probe: the trainer's own logprobs on fixed prompts, under old weights and new ones.

It is what an engine that claims to serve the new weights is compared with. Each sequence is
computed alone, unpacked, at temperature 1 over the whole softmax, parallel to its completion.
"""

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.durable import write
from flywheel.errors import CorruptFile, FlywheelError, UsageError

if TYPE_CHECKING:
    from trainer.samples import Sample

PROBES = 8
"""Probe pairs of a run that names none."""


class ProbePair(msgspec.Struct, frozen=True):
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.prompt_ids or not self.completion_ids:
            raise UsageError("a probe pair needs a prompt and a completion of a token or more each")


class ProbeEntry(msgspec.Struct, frozen=True, kw_only=True):
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    new: tuple[float, ...]
    """Under the trained weights. Parallel to completion_ids."""
    old: tuple[float, ...]
    """Under the weights that the run started from."""


class Probe(msgspec.Struct, frozen=True):
    entries: tuple[ProbeEntry, ...]


def pairs_of(samples: "Sequence[Sample]") -> tuple[ProbePair, ...]:
    """Of the first few samples by their ids."""
    chosen = sorted(samples, key=lambda sample: (sample.row_id, sample.trace_id or ""))[:PROBES]
    return tuple(
        ProbePair(sample.token_ids[: sample.targets[0]], sample.token_ids[sample.targets[0] :])
        for sample in chosen
    )


def probe_logprobs(model: Any, pairs: Sequence[ProbePair]) -> list[tuple[float, ...]]:
    """One tuple a pair, parallel to its completion's ids, under the model's weights as they are."""
    import torch

    found = []
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        for pair in pairs:
            ids = torch.tensor([[*pair.prompt_ids, *pair.completion_ids]], device=device)
            first = len(pair.prompt_ids) - 1
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[0, first:-1]
            logits = model.lm_head(hidden)
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            logprobs = wide.log_softmax(-1)
            picked = logprobs.gather(1, ids[0, first + 1 :, None])[:, 0]
            found.append(tuple(picked.tolist()))
    return found


def write_probe(
    path: Path,
    pairs: Sequence[ProbePair],
    *,
    new: Sequence[tuple[float, ...]],
    old: Sequence[tuple[float, ...]],
) -> None:
    """
    Raises:
        FlywheelError: the new weights give no numbers.
    """
    if not all(map(math.isfinite, chain.from_iterable(new))):
        raise FlywheelError(
            "the trained weights give no numbers on the probe: training diverged. Lower "
            "train.learning_rate"
        )
    entries = tuple(
        ProbeEntry(
            prompt_ids=pair.prompt_ids, completion_ids=pair.completion_ids, new=after, old=before
        )
        for pair, after, before in zip(pairs, new, old, strict=True)
    )
    write(path, msgspec.json.encode(Probe(entries)))


def read_probe(path: Path) -> Probe:
    """What `write_probe` wrote.

    Raises:
        CorruptFile: it is not there or not such a file.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Probe)
    except (OSError, msgspec.DecodeError) as error:
        raise CorruptFile(f"{path} is not a probe file: {error}") from error
