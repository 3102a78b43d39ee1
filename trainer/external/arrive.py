"""Weights that another engine trained become a run's result, as if trained here.

They are loaded once, so that what does not fit is refused now; the probe that every deployment is
checked with is computed by our own forward pass; adapter or whole model is written anew in the form
that all our engines read. Run again it returns the result that is there.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.durable import write
from flywheel.errors import UsageError
from flywheel.ids import digest
from flywheel.records import Problem, say
from trainer.external.contract import Handoff
from trainer.job import JobResult
from trainer.models import digest_of, is_whole
from trainer.probe import PROBES, ProbePair, probe_logprobs, write_probe
from trainer.render import Rendering
from trainer.weights import ADAPTER

if TYPE_CHECKING:
    from trainer.models import Base


def arrive(handoff: Handoff, weights: Path, out: Path, *, seconds: float) -> JobResult:
    """Publishes `out`/adapter or `out`/model, probe.json and result.json.

    Raises:
        UsageError: a whole model came where an adapter was asked for, or an adapter for a model.
        CorruptFile, MissingPart: the weights are not of the base model.
    """
    path = out / "result.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=JobResult)
    whole = handoff.train.method == "full"
    if is_whole(weights) != whole:
        raise UsageError(f"{weights} is not what method = {handoff.train.method!r} leaves")
    kept, digest_old = _adopt(handoff, weights, out)
    digest_new = digest_of(kept)
    last = _last_loss(out)
    result = JobResult(
        job=digest(handoff.run_id, handoff.train.model_dump(mode="json"), digest_new),
        checkpoint_id=digest_new,
        adapter=str(kept),
        old_digest=digest_old,
        steps=handoff.train.rl.steps,
        first_loss=None,
        last_loss=last,
        tokens=None,
        seconds=seconds,
        rows=len(handoff.problems),
        kind="full" if whole else "adapter",
    )
    write(path, msgspec.json.encode(result))
    return result


def _adopt(handoff: Handoff, weights: Path, out: Path) -> tuple[Path, str | None]:
    """The folder of what arrived, and the digest of the adapter that it started from."""
    from trainer.models import add_adapter, load_base, use_adapter
    from trainer.render import renderer_for

    base = load_base(handoff.model)
    pairs = _pairs(handoff.problems, renderer_for(base.tokenizer))
    before = None
    if handoff.adapter is not None:
        add_adapter(base.model, "before", handoff.adapter)
        use_adapter(base.model, before := "before")
    old = probe_logprobs(base.model, pairs)
    model, kept = (_kept_model if is_whole(weights) else _kept_adapter)(base, weights, out)
    write_probe(out / "probe.json", pairs, new=probe_logprobs(model, pairs), old=old)
    return kept, digest_of(handoff.adapter) if before and handoff.adapter else None


def _kept_adapter(base: "Base", weights: Path, out: Path) -> tuple[Any, Path]:
    from trainer.models import add_adapter, save_adapter, use_adapter

    add_adapter(base.model, ADAPTER, weights)
    use_adapter(base.model, ADAPTER)
    adapter = out / "adapter"
    shutil.rmtree(adapter, ignore_errors=True)
    save_adapter(base.model, ADAPTER, adapter)
    return base.model, adapter


def _kept_model(base: "Base", weights: Path, out: Path) -> tuple[Any, Path]:
    """Untied, in float32, with the base model's own tokenizer and template beside it."""
    from trainer.full import save_model
    from trainer.models import load_base

    model, kept = load_base(weights).model, out / "model"
    shutil.rmtree(kept, ignore_errors=True)
    save_model(model, model.state_dict(), base.folder, kept)
    return model, kept


def _pairs(problems: tuple[Problem, ...], rendering: Rendering) -> tuple[ProbePair, ...]:
    """The first problems' prompts, each answered with its truth where that is text, else with its
    own words: any tokens tell two models apart."""
    chosen = sorted(problems, key=lambda one: one.id)[:PROBES]
    pairs = []
    for problem in chosen:
        said = problem.answer if isinstance(problem.answer, str) and problem.answer else None
        ids, mask = rendering.render_sample(
            problem.messages, say("assistant", said or problem.text or "yes"), problem.tools
        )
        first = mask.index(True)
        pairs.append(ProbePair(tuple(ids[:first]), tuple(ids[first:])))
    return tuple(pairs)


def _last_loss(out: Path) -> float | None:
    """As the engine said it last; None = it did not."""
    path = out / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    losses = [line.get("loss") for line in map(msgspec.json.decode, lines)]
    return losses[-1] if losses else None
