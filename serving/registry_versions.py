"""The registry's versions as people work with them: found, fetched into the home, asked for, told.

Enters a project's registered model as it stands; leaves versions, deployments whose weight files
are what their digest says, and what waits for an answer. Invariant: an ask that was noticed is not
lost and not answered twice.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flywheel import durable
from flywheel.errors import CorruptFile, MissingPart, Refused, UsageError
from flywheel.failpoints import failpoint
from flywheel.lineage import Deployment
from flywheel.records import Record
from serving import registry_asked as asked
from serving.intents import aliases_of
from serving.registry import (
    ADAPTER,
    BASE,
    CHECKPOINT,
    DEPLOYMENT,
    KIND,
    RUN,
    WHOLE,
    Registry,
    telling,
    tracking_uri,
    versions_of,
)
from serving.registry_asked import Ask
from serving.routing import read

ANSWER, REASON = "flywheel.answer", "flywheel.answer_reason"
VARIANT = "flywheel.variant"
"""Of one that was made to answer faster: JSON, `Deployment.variant`."""
WISH = "promote"
"""The tag by which a person asks for a version."""
_NO = frozenset(("false", "no", "0", "off"))
_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"
_READ = (".json", ".jinja", ".txt", ".model", ".safetensors")
"""Endings of a whole model's files that anything reads."""
_LONGEST = 4000
"""Characters of a tag's value, at most."""


class Version(Record, frozen=True, kw_only=True):
    project: str
    number: str
    tags: dict[str, str]
    source: str
    mlflow_run: str | None = None


def version_of(registry: Registry, project: str, number: str) -> Version:
    """
    Args:
        number: as MLflow has it, or in a deployment's name.

    Raises:
        UsageError: there is none of that number.
    """
    known = {one.number: one for one in versions(registry, project)}
    wanted = number.strip().removeprefix(f"{project}-").removeprefix("v")
    if wanted in known:
        return known[wanted]
    there = ", ".join(sorted(known, key=int)) or "none"
    raise UsageError(f"MLflow has no version {number} of {project}; there are: {there}")


def versions(registry: Registry, project: str) -> list[Version]:
    """Newest first; [] for a project that MLflow does not know."""
    if not registry.begun:
        return []
    with telling(registry.home):
        return [
            Version(
                project=project,
                number=str(one.version),
                tags=dict(one.tags),
                source=str(one.source),
                mlflow_run=one.run_id or None,
            )
            for one in versions_of(registry.client(), project)
        ]


# --- what people asked for


def asks(registry: Registry, project: str) -> list[Ask]:
    """What waits for an answer, in the order it was noticed: aliases that a person moved, and
    versions tagged `promote`. They are noted from now on, until `answer`."""
    if not registry.begun:
        return []
    home = registry.home
    with registry.writing() as client:
        before = asked.kept(home, project)
        now = registry.noticed(client, project, registry.read_aliases(client, project))
        there = versions_of(client, project)
        for one in reversed(there):
            wish = one.tags.get(WISH)
            if wish is not None and wish.strip().lower() not in _NO:
                now = asked.with_asked(home, now, str(one.version), asked.TAG, wish.strip())
        for gone in set(now.asked) - {str(one.version) for one in there}:
            now = asked.without(now, gone)
        if now != before:
            asked.keep(home, project, now)
    return sorted(now.asked.values(), key=lambda ask: ask.at)


def newcomers(registry: Registry, project: str) -> list[str]:
    """Versions that a person registered and nobody has looked at, oldest first."""
    found = versions(registry, project)
    return [one.number for one in reversed(found) if RUN not in one.tags and ANSWER not in one.tags]


def answer(registry: Registry, project: str, number: str, outcome: str, reason: str) -> None:
    """Tells on the version what became of the ask, takes the tag away, puts aliases back to what
    serves, and only then forgets the ask."""
    home, told = registry.home, {ANSWER: outcome, REASON: reason[:_LONGEST]}
    with registry.writing() as client:
        there = {str(one.version): one for one in versions_of(client, project)}
        if number in there:
            for key, value in told.items():
                client.set_model_version_tag(project, number, key, value)
            if WISH in there[number].tags:
                client.delete_model_version_tag(project, number, WISH)
    failpoint("registry.answer_told")
    put_back(registry, project, number)
    failpoint("registry.put_back")
    now = asked.kept(home, project)
    if now is not None and number in now.asked:
        asked.keep(home, project, asked.without(now, number))


def put_back(registry: Registry, project: str, number: str) -> None:
    """Aliases as the routing file has them; `challenger` only where `number` bears it."""
    route = read(registry.home).projects.get(project)
    if route is None:
        return
    wanted = aliases_of(route)
    if registry.aliases(project).get("challenger") == number:
        wanted.setdefault("challenger", None)
    registry.set_aliases(project, wanted)


# --- its files


def deployment_of(registry: Registry, version: Version, base_model: str) -> Deployment:
    """The version as a deployment whose weights lie in the home, as their digest says: those that
    the run left, or MLflow's copy of them; of a version that a person registered, MLflow's.

    Raises:
        Refused: it has no files any more, they are no adapter (no whole model, where it is tagged
            as one), or not those that were registered.
    """
    home, tags = registry.home, version.tags
    run_id = _run_of(version)
    whole = tags.get(KIND) == WHOLE
    usual = f"runs/{run_id}/{'model' if whole else 'adapter'}" if run_id else None
    place = tags.get(ADAPTER) or usual
    checkpoint = tags.get(CHECKPOINT)
    if not (place and checkpoint and _is(home.path(place), checkpoint, within=home.runs)):
        folder, found = _fetched(registry, version, whole)
        if checkpoint and checkpoint not in found:
            raise Refused(
                f"MLflow's files of {_name(version)} have the digest {found[0]}, and checkpoint "
                f"{checkpoint} was registered: they changed"
            )
        # One that a run of an older home trained keeps the name by which the ledger knows it.
        place, checkpoint = home.relative(folder), checkpoint if run_id and checkpoint else found[0]
    deployment = Deployment(
        name=f"{version.project}-v{version.number}",
        project=version.project,
        version=int(version.number),
        base_model=tags.get(BASE, base_model),
        adapter=place,
        kind="full" if whole else "adapter",
        checkpoint_id=checkpoint,
        run_id=run_id,
        registry_version=version.number,
        variant=_variant_of(tags.get(VARIANT)),
    )
    known: Mapping[str, str] = {
        DEPLOYMENT: deployment.name,
        CHECKPOINT: checkpoint,
        **({} if place == usual else {ADAPTER: place}),
        **({} if RUN in tags else {BASE: deployment.base_model}),
    }
    registry.tag(deployment, {key: one for key, one in known.items() if tags.get(key) != one})
    return deployment


def _variant_of(said: str | None) -> dict[str, Any]:
    """A tag is a person's to write: what is none of ours says nothing."""
    try:
        found = json.loads(said or "{}")
    except ValueError:
        return {}
    whole = isinstance(found, dict) and isinstance(found.get("of"), dict)
    return found if whole and {"name", "adapter", "kind"} <= found["of"].keys() else {}


def _is(folder: Path, checkpoint: str, *, within: Path) -> bool:
    """Whether the checkpoint is there. A tag is a person's to write: it must not lead elsewhere."""
    try:
        inside = folder.resolve().is_relative_to(within.resolve())
    except (OSError, ValueError, RuntimeError):  # no path at all, or links in a circle
        return False
    return inside and checkpoint in _digests(folder)


def _run_of(version: Version) -> str | None:
    """The run that made it. A tag that is no folder's name names no run."""
    run_id = version.tags.get(RUN, "")
    plain = run_id.isprintable() and run_id == Path(run_id).name and run_id != ".."
    return run_id if run_id and plain else None


def _digests(folder: Path) -> tuple[str, ...]:
    """By which files of weights are known; () = they are none."""
    from trainer.models import digests_of

    try:
        return digests_of(folder)
    except (MissingPart, CorruptFile, OSError):
        return ()


def _fetched(registry: Registry, version: Version, whole: bool) -> tuple[Path, tuple[str, ...]]:
    """MLflow's files of the version, published under the runs by their digest."""
    runs = registry.home.runs
    runs.mkdir(parents=True, exist_ok=True)
    name = "model" if whole else "adapter"
    place = Path(tempfile.mkdtemp(dir=runs, prefix=".fetching."))
    try:
        files = (_whole_model if whole else _only_adapter)(
            _downloaded(registry, version, place), version
        )
        made = place / "made" / name
        made.mkdir(parents=True)
        for file in files:
            shutil.copyfile(file, made / file.name)
        digests = _digests(made)
        if not digests:
            raise Refused(f"the weights or the config of {_name(version)} cannot be read")
        final = runs / f"registered-{digests[0]}"
        if _digests(final / name) != digests:
            shutil.rmtree(final, ignore_errors=True)
            durable.publish(made.parent, final)
        return final / name, digests
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _downloaded(registry: Registry, version: Version, into: Path) -> Path:
    import mlflow
    from mlflow.exceptions import MlflowException

    uri = tracking_uri(registry.home)
    # Models are looked up by the process-wide address, not by a client's.
    mlflow.set_tracking_uri(uri)
    try:
        return Path(
            mlflow.artifacts.download_artifacts(
                artifact_uri=f"models:/{version.project}/{version.number}",
                dst_path=str(into),
                tracking_uri=uri,
            )
        )
    except (MlflowException, OSError) as error:
        raise _gone(version, str(error).partition("\n")[0]) from error


def _only_adapter(folder: Path, version: Version) -> list[Path]:
    found = [
        path.parent
        for path in sorted(folder.rglob(_CONFIG))
        if (path.parent / _WEIGHTS).is_file() and not path.is_symlink()
    ]
    there = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    if not there:  # MLflow makes an empty folder out of a place that is not there
        raise _gone(version, "nothing is there")
    if len(found) != 1:
        raise Refused(
            f"{_name(version)} is no LoRA adapter: one folder with {_CONFIG} and {_WEIGHTS} is "
            f"needed, there are {len(found)} (its files: {', '.join(there[:5])}). A whole model "
            f"bears the tag {KIND} = {WHOLE}"
        )
    return [found[0] / _CONFIG, found[0] / _WEIGHTS]


def _whole_model(folder: Path, version: Version) -> list[Path]:
    configs = sorted(folder.rglob("config.json"))
    if not any(folder.rglob("*")):
        raise _gone(version, "nothing is there")
    if len(configs) != 1 or not list(configs[0].parent.glob("*.safetensors")):
        raise Refused(
            f"{_name(version)} is no whole model: one folder with config.json and *.safetensors is "
            f"needed, there are {len(configs)} with a config.json"
        )
    beside = configs[0].parent.iterdir()
    return [
        file for file in beside if file.suffix in _READ and file.is_file() and not file.is_symlink()
    ]


def _gone(version: Version, why: str) -> Refused:
    return Refused(
        f"the files of {_name(version)} are gone: neither the home nor {version.source} has them "
        f"({why})"
    )


def _name(version: Version) -> str:
    return f"version {version.number} of {version.project}"
