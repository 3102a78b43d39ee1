"""Routed experts as engines send them: base64 of an .npy array beside an answer's tokens.

Enters vLLM's `routed_experts` (with `--enable-return-routed-experts`), [tokens, layers, top_k] for
all tokens but the last, which was sampled and not yet computed. Leaves the record that is kept
with the tokens.
"""

import base64
import binascii
import io

from flywheel.records import UNKNOWN_EXPERT, Experts


def experts_of(sent: str | None, tokens: int) -> Experts | None:
    """`tokens` counts prompt and completion; those at the end that nothing was sent of are not
    known. None = nothing was sent, or what was sent is no such array."""
    if not sent:
        return None
    import numpy as np

    try:
        found = np.load(io.BytesIO(base64.b64decode(sent, validate=True)), allow_pickle=False)
    except (ValueError, EOFError, OSError, binascii.Error):
        return None
    if found.ndim != 3 or found.dtype.kind not in "ui" or not 0 < len(found) <= tokens:
        return None
    if found.size and not (found.min() >= 0 and found.max() < UNKNOWN_EXPERT):
        return None
    whole = np.full((tokens, *found.shape[1:]), UNKNOWN_EXPERT, dtype="<u2")
    whole[: len(found)] = found
    return Experts(layers=found.shape[1], top_k=found.shape[2], data=whole.tobytes())


def joined(parts: list[tuple[Experts | None, int, int]]) -> Experts | None:
    """One record of several's slices, each (whose, from token, to token), in order: None = not
    known there. None if none is known, or they are not of one model."""
    shapes = {(one.layers, one.top_k) for one, _, _ in parts if one is not None}
    if len(shapes) != 1:
        return None
    layers, top_k = shapes.pop()
    size = 2 * layers * top_k
    data = b"".join(
        b"\xff" * size * (end - start) if one is None else one.data[size * start : size * end]
        for one, start, end in parts
    )
    return Experts(layers=layers, top_k=top_k, data=data)
