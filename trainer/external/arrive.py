"""Weights that another engine trained become a run's result, as if trained here.

They are loaded once, so that what does not fit is refused now; the probe that every deployment is
checked with is computed by our own forward pass; the adapter is written anew in the form that all
our engines read. Run again it returns the result that is there.
"""

import shutil
from pathlib import Path

import msgspec

from flywheel.durable import write
from flywheel.errors import UsageError
from flywheel.ids import digest
from flywheel.records import Problem, say
from trainer.external.contract import Handoff
from trainer.job import JobResult
from trainer.probe import PROBES, ProbePair, probe_logprobs, write_probe
from trainer.render import Rendering
from trainer.weights import ADAPTER


def arrive(handoff: Handoff, weights: Path, out: Path, *, seconds: float) -> JobResult:
    """Publishes `out`/adapter, probe.json and result.json.

    Raises:
        UsageError: a whole model came, where an adapter was asked for.
        CorruptFile, MissingPart: the weights are not an adapter of the base model.
    """
    path = out / "result.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=JobResult)
    if not (weights / "adapter_config.json").is_file():
        raise UsageError(f"{weights} holds no adapter: only method = 'lora' comes back")
    digest_new, digest_old = _adopt(handoff, weights, out)
    last = _last_loss(out)
    result = JobResult(
        job=digest(handoff.run_id, handoff.train.model_dump(mode="json"), digest_new),
        checkpoint_id=digest_new,
        adapter=str(out / "adapter"),
        old_digest=digest_old,
        steps=handoff.train.rl.steps,
        first_loss=None,
        last_loss=last,
        tokens=None,
        seconds=seconds,
        rows=len(handoff.problems),
    )
    write(path, msgspec.json.encode(result))
    return result


def _adopt(handoff: Handoff, weights: Path, out: Path) -> tuple[str, str | None]:
    """Digests of the new adapter and of the one that it started from."""
    from trainer.models import add_adapter, digest_of, load_base, save_adapter, use_adapter
    from trainer.render import renderer_for

    base = load_base(handoff.model)
    pairs = _pairs(handoff.problems, renderer_for(base.tokenizer))
    before = None
    if handoff.adapter is not None:
        add_adapter(base.model, "before", handoff.adapter)
        use_adapter(base.model, before := "before")
    old = probe_logprobs(base.model, pairs)
    add_adapter(base.model, ADAPTER, weights)
    use_adapter(base.model, ADAPTER)
    adapter = out / "adapter"
    shutil.rmtree(adapter, ignore_errors=True)
    save_adapter(base.model, ADAPTER, adapter)
    write_probe(out / "probe.json", pairs, new=probe_logprobs(base.model, pairs), old=old)
    return digest_of(adapter), digest_of(handoff.adapter) if before and handoff.adapter else None


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
