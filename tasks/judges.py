"""A project's judge, ready to be handed into grading, and which recorded traces it is asked about.

Enter a project and a home; leaves a judge that knows how far it was shown to agree with people, or
None where the project has none: rewards that name it are then null.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.project import Project
from flywheel.records import Grade, Trace

if TYPE_CHECKING:
    from environments.define import Environment
    from environments.grading import Item
    from environments.judges.judge import ModelJudge
    from environments.marks import Method

OUTSIDE = "not asked: outside of the judge's sample"


def judge_of(project: Project, home: Home) -> "ModelJudge | None":
    """
    Raises:
        MissingPart: its key is not where the project's file says.
    """
    if project.judge is None:
        return None
    from environments.judges.judge import open_judge
    from storage.raw import RawStore

    judge = open_judge(
        project.judge,
        home.root,
        project=project.name,
        folder=project.folder,
        standings=standings_of(project, home),
        bytes_of=RawStore(home).get,
    )
    return at_home(home, judge) if project.judge.url == "home" else judge


def at_home(home: Home, judge: "ModelJudge") -> "ModelJudge":
    """A verifier that a project of this home trains: its champion, at the engine that runs here,
    whichever project that serves. Without a server it gives no verdicts.

    Raises:
        UsageError: there is no such project, or it stands on another base model.
        Refused: the engine does not take its adapter.
    """
    from dataclasses import replace

    from environments.judges.learned import LearnedJudge
    from serving.engines.client import EngineClient
    from serving.presence import running
    from serving.routing import is_external, read, served_as

    assert isinstance(judge, LearnedJudge)
    routes, server, name = read(home).projects, running(home), judge.section.model
    if name not in routes:
        raise UsageError(f"[judge]: no project {name!r} was ever served or turned in this home")
    champion = routes[name].champion
    if is_external(champion):
        raise UsageError(
            f"[judge]: {name} is answered by a provider's model, which has no verdicts"
        )
    section = judge.section.model_copy(update={"model": served_as(champion)})
    judge = replace(judge, section=section)
    if server is None:
        return judge
    bases = {routes[one].base_model for one in server.projects if one in routes}
    if not bases <= {champion.base_model}:
        raise UsageError(
            f"[judge]: {name} stands on {champion.base_model}, the server that runs on "
            f"{', '.join(sorted(bases))}: serve it elsewhere, and give its url"
        )
    if champion.adapter is not None:
        with EngineClient(server.engine_url, access=server.access) as client:
            client.load_adapter(champion.name, home.path(champion.adapter))
    return replace(judge, key=server.access.key, address=server.engine_url + "/v1")


def standings_of(project: Project, home: Home) -> dict[str, str]:
    """What judges were shown to be, by digest: see `environments.judges.standing`."""
    if project.judge is None:
        return {}
    from environments.judges.standing import standings
    from storage.queries import records

    known = records(home, "calibration", project=project.name)
    if project.judge.url == "home":  # what its own turns found out
        known += records(home, "calibration", project=project.judge.model)
    return standings(known, project.judge)


def judged_methods(environment: "Environment") -> list["Method"]:
    """The rewards that a judge has a part in."""
    from environments.asked import GRADED

    return [
        one for one in environment.methods if "judge" in one.arguments and one.mark.kind in GRADED
    ]


def informing(environment: "Environment", grades: Iterable[Grade]) -> dict[str, str]:
    """Rewards whose judge may only inform, by what their grades say; metrics apart."""
    from environments.judges.standing import INFORMS

    weighing = {one.name for one in judged_methods(environment) if one.mark.weight > 0}
    found: dict[str, str] = {}
    for grade in grades:
        _, told, why = (grade.reason or "").rpartition(INFORMS)
        if told and grade.reward in weighing and grade.weight == 0:
            found.setdefault(grade.reward, why.removesuffix(")"))
    return found


def sampled(items: Sequence["Item"], project: Project, judge: "ModelJudge | None") -> list["Item"]:
    """The items with a judge each, in the order in which its budget is to be spent; those outside
    of the project's share get one that is not asked."""
    if judge is None:
        return list(items)
    from environments.judges.sampling import Candidate, chosen
    from environments.judges.unasked import Unasked

    share = judge.section.share
    candidates = (
        Candidate(one.trace.id, one.problem.slice if one.problem else "", day_of(one.trace))
        for one in items
    )
    order = {trace_id: number for number, trace_id in enumerate(chosen(candidates, share))}
    silent = Unasked(judge, f"{OUTSIDE} ([judge] share = {share:g})")
    given = [one._replace(judge=judge if one.trace.id in order else silent) for one in items]
    return sorted(given, key=lambda one: order.get(one.trace.id, len(order)))


def day_of(trace: Trace) -> str:
    """When it began, in UTC; "" = not known."""
    starts = [span.start for span in trace.spans if span.start is not None]
    if not starts:
        return ""
    try:
        return datetime.fromtimestamp(min(starts) / 1e9, UTC).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return ""  # a sender's clock may say anything


class Heard:
    """What a judge said of many traces, counted, and what that cost."""

    def __init__(self, judge: "ModelJudge | None") -> None:
        self.judge = judge
        self.ledger = judge.ledger if judge else None
        self.before = self.ledger.spent(judge.project) if judge and self.ledger else None
        self.traces = self.informing = 0
        self.reasons: Counter[str] = Counter()

    def add(self, grades: Iterable[Grade]) -> None:
        """The grades of one trace."""
        from environments.judges.standing import INFORMS

        said = [one for one in grades if one.kind == "judge"]
        given = [one for one in said if one.value is not None]
        self.traces += bool(given)
        self.informing += bool(given) and not any(one.weight for one in given)
        if said and not given:
            reason = said[0].reason or "no verdict"
            self.reasons[reason.split(f" ({INFORMS}")[0].split("\n")[0][:120]] += 1

    def told(self) -> dict[str, Any] | None:
        """None = no reward asks a judge."""
        if not self.traces and not self.reasons:
            return None
        cost: float | None = None
        if self.judge and self.ledger and self.before:
            after = self.ledger.spent(self.judge.project)
            same_day = after.calls >= self.before.calls
            if same_day and after.unknown == self.before.unknown:
                cost = after.usd - self.before.usd
        return {
            "traces": self.traces,
            "informing": self.informing,
            "cost_usd": cost,
            "no_verdict": dict(self.reasons.most_common(10)),
        }
