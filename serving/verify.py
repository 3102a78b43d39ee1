"""The check after every load: does the engine serve the weights that were trained?

Enter: the trainer's logprobs on fixed prompts under the new weights and under the old (probe.json),
and what the engine says to the same tokens. Leaves: the evidence, or `Refused` with the numbers.
Invariant: nothing is deployed whose logprobs are not the trainer's.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from flywheel.errors import CorruptFile, MissingPart, Refused
from flywheel.home import Home
from flywheel.lineage import Deployment
from flywheel.serving_section import ServingSection
from serving.engines.client import EngineClient
from serving.engines.reach import Kind


class Bounds(NamedTuple):
    """What the check forgives, by the number format that the engine computes in."""

    largest: float
    """Difference of one token's logprob."""
    moved: float
    """Mean difference of new and old weights from which the engine must be seen to serve the new.
    """
    closer: float
    """How many times closer to the new than to the old it must then be."""


FLOAT32 = Bounds(largest=1e-3, moved=0.01, closer=20.0)
BFLOAT16 = Bounds(largest=0.75, moved=0.2, closer=2.0)
"""Measured: vLLM 0.32 on the CPU, SmolLM2-135M with three adapters of noise, 84 tokens each, beside
the trainer in float32. A token differs by at most 0.35, by 0.057 in the mean; adapters that move
the mean by 0.22 are told from the old weights with a ratio of 4.1, and one that moves it by 0.08
with 1.7, which says nothing. So bfloat16 cannot show small errors: deploy on float32 where you can.
"""


INT8 = Bounds(largest=2.0, moved=0.3, closer=1.5)
"""Of weights and activations in eight bits. Measured on SmolLM2-135M: a last bit that differs
rounds an activation to its neighbour, and some layers on nothing is rounded alike any more, so that
two right computations of the same weights are 0.11 apart in the mean and 0.58 at most. It is only
shown that nothing is broken, and that they are not other weights altogether.
"""


def bounds_of(serving: ServingSection, kind: Kind) -> Bounds:
    """The embedded engine computes in float32, whatever [serving] says of vLLM."""
    return BFLOAT16 if kind == "vllm" and serving.dtype == "bfloat16" else FLOAT32


class ProbeEntry(msgspec.Struct, frozen=True, kw_only=True):
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    new: tuple[float, ...]
    """Parallel to completion_ids, as is `old`."""
    old: tuple[float, ...]


class Probe(msgspec.Struct, frozen=True):
    entries: tuple[ProbeEntry, ...]
    format: str = ""
    """int8 = the weights are integers; "" = they are not."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the check saw; every difference is between logprobs of one token."""

    tokens: int
    tolerance: float
    largest: float
    """Engine and new weights."""
    mean: float
    """Engine and new weights."""
    mean_to_old: float
    """Engine and old weights."""
    moved: float
    """New and old weights, by the trainer: how far training went on these prompts."""
    ratio: float | None
    """mean_to_old over mean; None = the engine equals the new weights exactly."""


def read_probe(path: Path) -> Probe:
    """Raises:
    CorruptFile: not there, not a probe, or with nothing to compare.
    """
    try:
        probe = msgspec.json.decode(path.read_bytes(), type=Probe)
    except (OSError, msgspec.DecodeError) as error:
        raise CorruptFile(f"{path} is not a probe file: {error}") from error
    for entry in probe.entries:
        if not entry.prompt_ids or not (
            len(entry.completion_ids) == len(entry.new) == len(entry.old) > 0
        ):
            raise CorruptFile(f"{path}: an entry whose lists are empty or not parallel")
    if not probe.entries:
        raise CorruptFile(f"{path}: no entries, so nothing can be checked")
    return probe


def check_files(home: Home, deployment: Deployment) -> None:
    """Whether a deployment's files, its weights and an adapter's config, are the checkpoint that
    they are said to be.

    Raises:
        CorruptFile: they are not.
    """
    from trainer.models import digests_of

    if deployment.adapter is None or deployment.checkpoint_id is None:
        return
    folder = home.path(deployment.adapter)
    try:
        found = digests_of(folder)
    except (MissingPart, CorruptFile, OSError) as error:
        raise CorruptFile(f"the weights of {deployment.name} cannot be read: {error}") from error
    if deployment.checkpoint_id not in found:
        raise CorruptFile(
            f"the weights and the config in {folder} have the digest {found[0]}, and checkpoint "
            f"{deployment.checkpoint_id} was trained: they changed on disk"
        )


def check_logprobs(
    client: EngineClient, model: str, probe: Probe, *, bounds: Bounds = FLOAT32
) -> dict[str, Any]:
    """Compares the engine's `model` with the probe, in each of several equal engines; returns the
    evidence, of the one that is furthest from it.

    Raises:
        Refused: it does not serve the new weights.
        EngineError: it could not be asked.
    """
    if probe.format == "int8":
        bounds = INT8
    with client.each() as engines:
        found = [_checked(engine, model, probe, bounds) for engine in engines]
    evidence = max(found, key=lambda one: one.largest)
    return msgspec.to_builtins(evidence)  # type: ignore[no-any-return]


def _checked(client: EngineClient, model: str, probe: Probe, bounds: Bounds) -> Evidence:
    pairs = [(entry.prompt_ids, entry.completion_ids) for entry in probe.entries]
    evidence = compare(probe, client.logprobs_of(model, pairs), bounds=bounds)
    why = complaint(evidence, bounds)
    if why is not None:
        where = f" at {client.url}" if client.access.replicas else ""
        raise Refused(f"{model}{where} is not what was trained: {why}")
    return evidence


def compare(
    probe: Probe, served: Sequence[Sequence[float]], *, bounds: Bounds = FLOAT32
) -> Evidence:
    to_new = [
        abs(got - new)
        for entry, row in zip(probe.entries, served, strict=True)
        for got, new in zip(row, entry.new, strict=True)
    ]
    to_old = [
        abs(got - old)
        for entry, row in zip(probe.entries, served, strict=True)
        for got, old in zip(row, entry.old, strict=True)
    ]
    moved = [
        abs(new - old)
        for entry in probe.entries
        for new, old in zip(entry.new, entry.old, strict=True)
    ]
    mean, mean_to_old = math.fsum(to_new) / len(to_new), math.fsum(to_old) / len(to_old)
    return Evidence(
        tokens=len(to_new),
        tolerance=bounds.largest,
        largest=_largest(to_new),
        mean=mean,
        mean_to_old=mean_to_old,
        moved=math.fsum(moved) / len(moved),
        ratio=mean_to_old / mean if mean > 0 else None,
    )


def complaint(evidence: Evidence, bounds: Bounds = FLOAT32) -> str | None:
    """What is wrong with it; None = nothing. Not a number is always wrong."""
    if not evidence.largest <= evidence.tolerance:
        return (
            f"a logprob differs from the trainer's by {evidence.largest:.3g}, allowed are "
            f"{evidence.tolerance:.3g} (mean {evidence.mean:.3g}, {evidence.tokens} tokens)"
        )
    if not math.isfinite(evidence.moved):
        return "the probe holds numbers that are not finite"
    ratio = math.inf if evidence.ratio is None else evidence.ratio
    if evidence.moved > bounds.moved and ratio < bounds.closer:
        return (
            f"its logprobs are only {ratio:.1f} times closer to the new weights than to "
            f"the old (mean {evidence.mean:.3g} and {evidence.mean_to_old:.3g}); "
            f"{bounds.closer:g} times are needed where training moved them by {evidence.moved:.3g}"
        )
    return None


def complaint_of_place(theirs: Sequence[int], ours: Sequence[int]) -> str | None:
    """Where two prompts part; None = they are the same."""
    if list(theirs) == list(ours):
        return None
    pairs = enumerate(zip(theirs, ours, strict=False))
    place = next((at for at, (one, other) in pairs if one != other), min(len(theirs), len(ours)))
    return (
        f"{len(theirs)} tokens against {len(ours)}, apart from token {place + 1} on; its chat "
        "template is another one"
    )


def _largest(values: Sequence[float]) -> float:
    """NaN where one is NaN: `max` would hide it."""
    return math.nan if any(map(math.isnan, values)) else max(values)
