"""What people look at of a judge: how far to trust it, what it cost, what it says of a trace.

Enter a project and a home; leave plain data, and lines of text made of the same data.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.judge_section import JudgeSection
from flywheel.lineage import Calibration
from flywheel.progress import report
from flywheel.project import Project
from flywheel.records import Trace, last_answer, model_spans
from tasks.judges import judge_of, judged_methods
from tasks.turns import environment_of


def shown(project: Project, home: Home) -> dict[str, Any]:
    """The judge of a project, what it spent today, and its calibrations, latest first."""
    from environments.judges.ledger import Ledger
    from storage.queries import records

    section = judge_section(project)
    spent = Ledger(home.judge).spent(project.name)
    latest: dict[tuple[str, str], Calibration] = {}
    for one in sorted(records(home, "calibration", project=project.name), key=lambda one: one.at):
        latest[one.judge, one.reward] = one
    return {
        "project": project.name,
        "model": section.model,
        "url": section.url,
        "share": section.share,
        "bar": section.bar,
        "rewards": [one.name for one in judged_methods(environment_of(project))],
        "price_known": section.price_in is not None and section.price_out is not None,
        "budget": {
            "usd": section.budget_usd,
            "tokens": section.budget_tokens,
            "calls": section.budget_calls,
        },
        "today": spent._asdict(),
        "calibrations": [described(one, section) for one in reversed(latest.values())],
    }


def judge_section(project: Project) -> JudgeSection:
    if project.judge is None:
        raise UsageError(f"no [judge] in {project.folder / 'flywheel.toml'}: see docs/operating.md")
    return project.judge


def described(one: Calibration, section: JudgeSection) -> dict[str, Any]:
    from environments.judges.standing import short_of

    short = short_of(one, section)
    found: dict[str, Any] = msgspec.to_builtins(one)
    shown = {name: getattr(one, name) for name in one.__struct_fields__} | found
    return {**shown, "confusion": [list(row) for row in one.confusion],
            "labels": list(one.labels), "gates": not short, "why": short or None}  # fmt: skip


def tried(project: Project, home: Home, trace_id: str) -> dict[str, Any]:
    """What the judge says of one trace: by the rewards that ask it, else by the project's rubric.

    Raises:
        UsageError: there is no such trace in the project, or it has no answer.
    """
    import asyncio

    from environments.asked import posed
    from environments.grading import grade_all
    from storage.judgements import feedback_for
    from storage.queries import traces

    section = judge_section(project)
    judge, environment = judge_of(project, home), environment_of(project)
    assert judge is not None
    found = [one for batch in traces(home, ids=[trace_id]) for one in batch]
    if not found or found[0].project != project.name:
        raise UsageError(f"no trace {trace_id} in project {project.name}: `flywheel dashboard`")
    trace = found[0]
    methods = judged_methods(environment)
    report("asking the judge", 0, note=f"{section.model} at {section.url}")
    if not methods:
        said = asyncio.run(judge.score("", _answer(trace), context=_asked(trace)))
        return {"trace": trace_id, "verdicts": [{"reward": None, **said._asdict()}]}
    item = posed(environment, trace, feedback_for(home, found).get(trace.id, ()))
    (grades,) = grade_all(environment, [item._replace(judge=judge)], methods=methods)
    return {"trace": trace_id, "verdicts": [msgspec.to_builtins(one) for one in grades]}


def withheld(found: dict[str, Any]) -> bool:
    """Whether what `tried` found is no verdict at all, since the endpoint or the budget gave
    none."""
    from environments.judges.asking import NO_VERDICT

    reasons = [one.get("reason") or "" for one in found["verdicts"] if one.get("value") is None]
    none = len(reasons) == len(found["verdicts"])
    return none and any(NO_VERDICT in one for one in reasons)


def _answer(trace: Trace) -> str:
    choice = last_answer(trace)
    if choice is None:
        raise UsageError(f"trace {trace.id} has no answer to be judged")
    return choice.message.text


def _asked(trace: Trace) -> str:
    calls = model_spans(trace)
    messages = calls[-1].call.input if calls and calls[-1].call else ()
    return "\n\n".join(f"{one.role}: {one.text}" for one in messages)


# --- as text ------------------------------------------------------------------------------------


def lines_of(found: dict[str, Any]) -> Iterator[str]:
    """`shown` for a person."""
    today, budget = found["today"], found["budget"]
    yield f"{found['model']} at {found['url']}, asked about {found['share']:.0%} of recorded traces"
    yield f"rewards that ask it: {', '.join(found['rewards']) or 'none'}"
    cost = f"{today['usd']:.4f} dollars" if found["price_known"] else "cost not known (no price)"
    bounds = ", ".join(f"{most:g} {name}" for name, most in budget.items() if most is not None)
    yield (
        f"today: {today['calls']} calls, {today['tokens']} tokens, {cost}; "
        f"{today['held']} under way; at most {bounds or 'without bound'}"
    )
    if today["unknown"] and found["price_known"]:
        yield f"  of {today['unknown']} calls the cost is not known; it counts as was reserved"
    if not found["calibrations"]:
        yield "never calibrated: its grades inform only (`flywheel judge calibrate`)"
    for one in found["calibrations"]:
        yield ""
        yield from lines_of_calibration(one)


def lines_of_calibration(one: dict[str, Any]) -> Iterator[str]:
    """The confusion table, kappa with its interval, and what follows."""
    yield f"{one['reward']}, judge {one['judge'][:12]} ({one['model']}), by {one['kind']}:"
    labels, width = one["labels"], max(map(len, one["labels"])) + 2
    yield f"  {'people':<{width}}" + "".join(f"{label:>{width}}" for label in labels) + "  (judge)"
    for label, row in zip(labels, one["confusion"], strict=True):
        yield f"  {label:<{width}}" + "".join(f"{count:>{width}}" for count in row)
    beside = [f"{one[name]} {name}" for name in ("missing", "disputed") if one[name]]
    yield f"  kappa {_kappa(one)}, {one['n']} answers" + "".join(f", {said}" for said in beside)
    yield "  it gates and trains" if one["gates"] else f"  it informs only: {one['why']}"


def _kappa(one: dict[str, Any]) -> str:
    if one["kappa"] is None:
        return f"not known ({one['reason']})"
    if one["low"] is None:
        return f"{one['kappa']:.2f} (too few answers for an interval)"
    interval = f"{one['confidence']:.0%} interval {one['low']:.2f} to {one['high']:.2f}"
    return f"{one['kappa']:.2f}, {interval}"


def lines_of_verdicts(found: dict[str, Any]) -> Iterator[str]:
    for one in found["verdicts"]:
        value = "null" if one.get("value") is None else f"{one['value']:.2f}"
        by = one["reward"] or "by the project's rubric"
        yield f"{by}: {value}  {one.get('reason') or ''}"
        if one.get("suspect"):
            yield f"  suspect: {one['suspect']}"
