"""Variants: what serves, made faster, and let in where it is not worse and cheaper.

Enters a deployment and how it shall become faster; leaves a version with files of its own, an
evaluation against the champion, the seconds a token of both side by side, and the gate's verdict.
Invariant: the weights that a variant was made of stay known: training goes on from those.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from flywheel import durable
from flywheel.errors import Refused, UsageError
from flywheel.ids import digest
from flywheel.lineage import Checkpoint, Deployment, Run
from flywheel.progress import report
from flywheel.project import Project, load_project
from flywheel.records import last_answer
from tasks.ordered import carried_out
from tasks.probing import trained_probe
from tasks.trial import Trial, fetch_version
from tasks.turns import champion_of, engine, home, settings

INT8, GUESS = "int8", "ngram"
_PAIRS = 8
_MINUTES = 30


def origin_of(folder: str, version: str | None) -> Deployment:
    """What is made faster: the champion, or the version that was named.

    Raises:
        UsageError: there is no such version, or it is a variant itself.
        Refused: it has no weights here.
    """
    project = load_project(Path(folder))
    asked = Trial(folder=folder, version=version or "", promote=False, by="")
    found = msgspec.convert(fetch_version(asked), Deployment) if version else champion_of(project)
    if found.kind == "external":
        raise Refused(f"{found.name} is a provider's model: there are no weights to make faster")
    if found.variant:
        raise UsageError(
            f"{found.name} is a variant of {found.variant['of']['name']}: name that with --version"
        )
    return found


def made_variant(folder: str, origin: Deployment, how: str) -> Deployment:
    """The variant, registered; what a killed run has made of it is used again.

    Args:
        how: int8 or ngram.
    """
    from serving.registry import Registry
    from serving.registry_versions import VARIANT
    from trainer.models import digest_of

    project = load_project(Path(folder))
    id = f"variant-{digest('variant', origin.name, origin.checkpoint_id, origin.base_model, how)}"
    place = home().runs / id
    place.mkdir(parents=True, exist_ok=True)
    pairs = pairs_of(project, origin)
    whole = how == INT8 or origin.adapter is None or origin.kind == "full"
    weights = place / ("model" if whole else "adapter")
    report(f"making {how}", 0, 2)
    if not weights.is_dir():
        _quantise(origin, weights, pairs) if how == INT8 else _guessing(origin, weights)
    report(f"making {how}", 1, 2)
    if not (place / "probe.json").is_file():
        _probe(origin, weights, pairs, place / "probe.json", how)
    report(f"making {how}", 2, 2)
    checkpoint = digest_of(weights)
    said = {"how": how, "of": _named(origin)}
    _written_down(project, origin, id, weights, checkpoint, whole, said)
    made = Registry(home()).register_candidate(
        project=project.name,
        base_model=origin.base_model,
        adapter=weights,
        kind="full" if whole else "adapter",
        checkpoint_id=checkpoint,
        run_id=id,
        tags={VARIANT: json.dumps(said)},
    )
    return msgspec.structs.replace(made, variant=said)


def _named(origin: Deployment) -> dict[str, Any]:
    """What training needs to go on from it."""
    return {name: getattr(origin, name) for name in ("name", "adapter", "kind", "checkpoint_id")}


def servable(how: str) -> None:
    """
    Raises:
        Refused: the engine that runs cannot hold it beside the champion.
    """
    if engine().access.kind != "vllm":
        return
    if how == GUESS:
        raise Refused(
            "vLLM guesses for all that it serves, or for nothing: `speculate = true` in [serving] "
            "does it, and changes no answer"
        )
    raise Refused(
        "vLLM serves one base model and adapters of it, and this would be another: the embedded "
        'engine tries it ([serving] engine = "embedded"), and the folder that it leaves under '
        "runs/ is one that vLLM reads as [model] base"
    )


# --- its files ----------------------------------------------------------------------------------


def pairs_of(project: Project, origin: Deployment) -> list[dict[str, Any]]:
    """Prompts and answers as tokens: its own probe's, else recorded ones.

    Raises:
        Refused: there are none, so that nothing could be checked.
    """
    from serving.verify import read_probe
    from storage.queries import traces
    from storage.served import recent

    probe = trained_probe(origin)
    if probe is not None:
        return [
            {"prompt_ids": one.prompt_ids, "completion_ids": one.completion_ids}
            for one in read_probe(probe).entries
        ]
    found: list[dict[str, Any]] = []
    for batch in traces(home(), ids=recent(home(), project.traffic, limit=500)):
        for trace in batch:
            choice = last_answer(trace)
            tokens = choice.tokens if choice else None
            if tokens and tokens.prompt_ids and tokens.completion_ids and len(found) < _PAIRS:
                found.append(
                    {"prompt_ids": tokens.prompt_ids, "completion_ids": tokens.completion_ids}
                )
    if not found:
        raise Refused(
            f"nothing to check a variant of {origin.name} with: no run of ours trained it, and no "
            "recorded answer of this project has token ids; let it answer some requests first"
        )
    return found


def _folder(origin: Deployment) -> Path | None:
    return home().path(origin.adapter) if origin.adapter else None


def _quantise(origin: Deployment, out: Path, pairs: list[dict[str, Any]]) -> None:
    folder = _folder(origin)
    order = {
        "base_model": origin.base_model,
        "adapter": str(folder) if folder else None,
        "out": str(out),
        "prompts": [[*one["prompt_ids"], *one["completion_ids"]] for one in pairs],
        "threads": settings().threads,
    }
    _carried_out("trainer.quantised", order, out.parent, origin)


def _guessing(origin: Deployment, out: Path) -> None:
    """The same files under a name of their own, with what says that guesses are made."""
    from serving.engines.speculative import FILE, GUESSING

    source = _folder(origin) or Path(origin.base_model)
    made = out.with_name(f".{out.name}.making")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file():
            _linked(file.resolve(), made / file.name)
    (made / FILE).write_text(json.dumps(GUESSING, indent=2) + "\n")
    durable.publish(made, out)


def _linked(file: Path, to: Path) -> None:
    """A second name of the file where the disk lets it, so that memory is shared too."""
    try:
        os.link(file, to)
    except OSError:
        shutil.copyfile(file, to)


def _probe(
    origin: Deployment, weights: Path, pairs: list[dict[str, Any]], out: Path, how: str
) -> None:
    """What the variant's own weights say of the pairs: it is compared with that, and not with what
    it was made of. Says in which numbers it is computed."""
    folder = _folder(origin)
    made = out.with_name("probe.made.json")
    order = {
        "base_model": origin.base_model,
        "adapter": str(weights),
        "old": str(folder) if folder else None,
        "pairs": pairs,
        "out": str(made),
        "threads": settings().threads,
    }
    _carried_out("trainer.probing", order, out.parent, origin)
    said = json.loads(made.read_bytes())
    durable.write(out, json.dumps({**said, "format": INT8 if how == INT8 else ""}).encode())


def _carried_out(module: str, order: dict[str, Any], place: Path, origin: Deployment) -> None:
    failed = f"no variant of {origin.name} could be made"
    carried_out(module, order, place, minutes=_MINUTES, failed=failed)


def _written_down(
    project: Project, origin: Deployment, id: str, weights: Path, checkpoint: str, whole: bool,
    said: dict[str, Any],
) -> None:  # fmt: skip
    """Its lineage: a run that trained nothing, from the deployment that it was made of."""
    from storage.committer import commit
    from storage.inbox import Inbox

    run = Run(
        id=id,
        project=project.name,
        algorithm=f"variant {said['how']}",
        base_model=origin.base_model,
        champion=origin.name,
        snapshot="",
        config={"variant": said},
    )
    made = Checkpoint(
        id=checkpoint,
        run_id=id,
        kind="full" if whole else "adapter",
        path=home().relative(weights),
        steps=0,
        parent=origin.checkpoint_id,
    )
    Inbox(home()).append([run, made], name=f"lineage-{id}")
    commit(home())
