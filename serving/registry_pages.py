"""What MLflow's pages of a registered model and its versions say: lineage and evidence, in words.

Enters the ledger as it is committed; leaves descriptions and tags, written only where they differ,
so that this may be called after whatever changed. A person's text reaches a page as text only.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flywheel.home import Home
from flywheel.lineage import Checkpoint, Dataset, Decision, Evaluation, Run, SliceResult
from flywheel.plain import in_markdown
from serving.registry import CHECKPOINT, RUN, Registry, versions_of
from serving.registry_versions import ANSWER, REASON, WISH
from serving.routing import ProjectRoute, read

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

OUTCOME, HELDOUT = "flywheel.outcome", "flywheel.heldout"
_SHOWN = 200
"""Versions whose pages are kept in line: the newest."""


class Ledger:
    """What the store knows of a project, read once for all pages."""

    def __init__(self, home: Home, project: str) -> None:
        from storage.queries import records

        def by_id(kind: str) -> dict[str, Any]:
            return {one.id: one for one in records(home, kind, project=project)}

        self.project = project
        self.runs: dict[str, Run] = by_id("run")
        self.datasets: dict[str, Dataset] = by_id("dataset")
        self.checkpoints: dict[str, Checkpoint] = by_id("checkpoint")
        self.evaluations: list[Evaluation] = records(home, "evaluation", project=project)
        said: list[Decision] = records(home, "decision", project=project)
        self.decisions = sorted(said, key=lambda one: (one.at, one.id))
        self.route = read(home).projects.get(project)

    def decided(self, name: str) -> list[Decision]:
        """About one deployment, in order; what it was replaced by is about it too."""
        return [
            one
            for one in self.decisions
            if one.deployment == name or (one.outcome == "rolled_back" and one.replaced == name)
        ]

    def evaluated(self, name: str) -> Evaluation | None:
        """Its last one."""
        return next((one for one in reversed(self.evaluations) if one.candidate == name), None)


def write_pages(home: Home, registry: Registry, project: str) -> int:
    """Brings the pages of the project's model in line; returns how many texts changed."""
    if not registry.begun:
        return 0
    ledger = Ledger(home, project)
    changed = 0
    with registry.writing() as client:
        found = client.search_registered_models(f"name = '{project}'")
        if not found:
            return 0
        versions = versions_of(client, project)[:_SHOWN]
        for one in versions:
            page, tags = version_page(ledger, one), version_tags(ledger, str(one.version))
            if (one.description or "") != page:
                client.update_model_version(project, str(one.version), page)
                changed += 1
            for key, value in tags.items():
                if one.tags.get(key) != value:
                    client.set_model_version_tag(project, str(one.version), key, value)
        page = model_page(ledger, versions)
        if (found[0].description or "") != page:
            client.update_registered_model(project, page)
            changed += 1
    return changed


def version_tags(ledger: Ledger, number: str) -> dict[str, str]:
    """What machines want to know of the version."""
    name = f"{ledger.project}-v{number}"
    tags, decided = {}, ledger.decided(name)
    if decided:
        tags[OUTCOME] = _standing(ledger.route, name) or decided[-1].outcome
    evaluation = ledger.evaluated(name)
    if evaluation is not None:
        whole = evaluation.overall
        tags[HELDOUT] = f"{_number(whole.champion)} -> {_number(whole.candidate)}"
    return tags


# --- the pages


def version_page(ledger: Ledger, version: "ModelVersion") -> str:
    name = f"{ledger.project}-v{version.version}"
    lines = [
        f"## {name}",
        "",
        _state(ledger, name, version.tags),
        "",
        "### Where it comes from",
        "",
    ]
    lines += _lineage(ledger, version.tags)
    evaluation = ledger.evaluated(name)
    if evaluation is not None:
        lines += ["", "### Held out", "", *_evaluation(evaluation)]
    decided = ledger.decided(name)
    lines += [*_serving(decided), *_decisions(decided)]
    lines += ["", f"The whole chain: `flywheel lineage {name}`."]
    return "\n".join(lines) + "\n"


def model_page(ledger: Ledger, versions: Sequence["ModelVersion"]) -> str:
    route, project = ledger.route, ledger.project
    lines = [f"## {project}", ""]
    if route is None:
        lines.append("Nothing serves it in this home.")
    else:
        lines.append(f"**{route.champion.name}** answers{_since(ledger, route.champion.name)}.")
        if route.previous is not None:
            lines.append(
                f"{route.previous.name} was before it: `flywheel rollback` puts it back at once."
            )
        if route.challenger is not None and route.share:
            lines.append(f"{route.challenger.name} answers {route.share:.1%} as a canary.")
        lines += ["", f"Base model: `{in_markdown(route.base_model)}`."]
    lines += [
        "",
        f"To ask for a version: tag it `{WISH}`, or move the alias `challenger` to it. It goes "
        "through the same gates as a turn's candidate; the answer is written on its page.",
        "",
        "| version | held out | outcome |",
        "|---|---|---|",
    ]
    for one in versions[:30]:
        tags = version_tags(ledger, str(one.version))
        link = f"[{one.version}](#/models/{project}/versions/{one.version})"
        lines.append(f"| {link} | {tags.get(HELDOUT, '')} | {tags.get(OUTCOME, '')} |")
    return "\n".join(lines) + "\n"


def _state(ledger: Ledger, name: str, tags: Mapping[str, str]) -> str:
    standing, decided = _standing(ledger.route, name), ledger.decided(name)
    if standing is not None:
        share = f" ({ledger.route.share:.1%})" if standing == "canary" and ledger.route else ""
        return f"**{standing}{share}**{_since(ledger, name)}."
    if not decided:
        return "Not judged yet."
    last = decided[-1]
    if last.outcome == "waiting":
        return f"**Waits for a person**: {in_markdown(last.reason)}"
    if last.outcome == "rolled_back":
        return f"**Rolled back** by {in_markdown(last.by)}: {in_markdown(last.reason)}"
    answered = f" Asked for, and {in_markdown(tags[ANSWER])}." if REASON in tags else ""
    return f"**{last.outcome}** by the {last.gate} gate: {in_markdown(last.reason)}.{answered}"


def _standing(route: ProjectRoute | None, name: str) -> str | None:
    """What it is by the routing file; None = it answers nothing."""
    if route is None:
        return None
    if route.champion.name == name:
        return "champion"
    if route.challenger is not None and route.challenger.name == name and route.share:
        return "canary"
    if route.previous is not None and route.previous.name == name:
        return "previous"
    return None


def _since(ledger: Ledger, name: str) -> str:
    taken = ("promoted", "rolled_back", "reconciled", "canary")
    last = next(
        (one for one in reversed(ledger.decisions)
         if one.deployment == name and one.outcome in taken
         and (one.outcome, one.gate) != ("rolled_back", "canary")), None
    )  # fmt: skip
    return f" since {_time(last.at)} ({in_markdown(last.reason)})" if last else ""


def _lineage(ledger: Ledger, tags: Mapping[str, str]) -> Iterator[str]:
    run = ledger.runs.get(tags.get(RUN, ""))
    if run is None:
        yield "A person registered it here: no turn of this home trained it."
        if CHECKPOINT in tags:
            yield f"Weights: `{in_markdown(tags[CHECKPOINT])}`."
        return
    dataset = ledger.datasets.get(run.dataset_id or "")
    if dataset is not None:
        looked = dataset.rules[0].rows_in if dataset.rules else dataset.rows
        gate = "passed" if dataset.gate_passed else "did not pass"
        yield f"1. **Traces**: {looked} answers were looked at, {dataset.rows} were kept"
        report = f"; its report is `{dataset.gate_report}`" if dataset.gate_report else ""
        yield f"2. **Dataset** `{dataset.id}`: {dataset.rows} rows; the data gate {gate}{report}"
    seconds = f" in {run.seconds:.0f} s" if run.seconds is not None else ""
    yield f"3. **Run** `{run.id}`: {run.algorithm} from {run.champion}{seconds}"
    checkpoint = ledger.checkpoints.get(tags.get(CHECKPOINT, ""))
    if checkpoint is not None:
        yield f"4. **Checkpoint** `{checkpoint.id}`: {checkpoint.kind}, {checkpoint.steps} steps"


def _evaluation(evaluation: Evaluation) -> Iterator[str]:
    level = f"{evaluation.confidence:.0%}"
    yield f"| held out | problems | {evaluation.champion} | this | difference | {level} interval |"
    yield "|---|---|---|---|---|---|"
    for row in (evaluation.overall, *evaluation.slices):
        yield _row(row)
    tokens = evaluation.champion_tokens, evaluation.candidate_tokens
    if None not in tokens:
        yield ""
        yield f"Tokens an answer: {tokens[0]:.1f} before, {tokens[1]:.1f} now."


def _row(row: SliceResult) -> str:
    interval = f"{_signed(row.low)} … {_signed(row.high)}" if row.low is not None else "too few"
    return (
        f"| {in_markdown(row.name)} | {row.problems} | {_number(row.champion)} "
        f"| {_number(row.candidate)} | {_signed(row.difference)} | {interval} |"
    )


def _serving(decided: Sequence[Decision]) -> Iterator[str]:
    seen = next(
        (one.evidence["serving"] for one in reversed(decided)
         if isinstance(one.evidence.get("serving"), dict)), None
    )  # fmt: skip
    if seen and seen.get("largest") is not None:
        yield ""
        yield (
            f"**Serving gate**: the engine's logprobs differ from the trainer's by at most "
            f"{seen['largest']:.2g} over {seen.get('tokens', '?')} tokens "
            f"(allowed {seen.get('tolerance', 0):.2g})."
        )


def _decisions(decided: Sequence[Decision]) -> Iterator[str]:
    if decided:
        yield from (
            "",
            "### Decisions",
            "",
            "| when | outcome | gate | by | why |",
            "|---|---|---|---|---|",
        )
    for one in decided[-20:]:
        yield (
            f"| {_time(one.at)} | {one.outcome} | {in_markdown(one.gate)} | {in_markdown(one.by)} "
            f"| {in_markdown(one.reason)} |"
        )


def _time(at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at / 1e9))


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.3f}"
