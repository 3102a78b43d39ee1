"""The report of one evaluation: one HTML file that holds all it needs and asks nothing of anybody.

Enter the summary, the rows and the log. Leaves the page. Invariants: text of models, tools and
problems reaches it escaped or as JSON data that our script puts into text nodes; the page's policy
lets no other script run, and nothing be loaded.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.durable import write
from flywheel.records import Problem
from tasks.eval_episode import conversation, rewards, shown
from tasks.eval_log import Graded, Played, read_at
from tasks.eval_plots import histogram, intervals, tries
from tasks.eval_row import Row

ROOM = 24_000_000
"""Bytes of conversations that one page holds; the lowest scores come first."""
LISTED = 20_000
"""Episodes that one page lists."""
_TITLE = 90
_GRADINGS = (("passed", "passed"), ("partly", "in part"), ("zero", "zero"), ("none", "not graded"),
             ("failed", "infrastructure failed"))  # fmt: skip


def write_report(
    folder: Path,
    about: Mapping[str, Any],
    summary: Mapping[str, Any],
    rows: Sequence[Row],
    problems: Mapping[str, Problem],
) -> Path:
    """
    Args:
        about: what was run: environment, model, options; shown as it is.
        problems: by id; one that is missing is shown by its id alone.
    """
    listed = episodes(folder / "results.jsonl", rows, problems)
    data = {"pass_mark": summary["pass_mark"], "episodes": listed}
    path = folder / "report.html"
    write(path, page(about, summary, rows, data).encode("utf-8", "backslashreplace"))
    return path


def episodes(
    log: Path, rows: Sequence[Row], problems: Mapping[str, Problem]
) -> list[dict[str, Any]]:
    """The list in the rows' order; where there is no room for all, the lowest scores stay."""
    order = sorted(range(len(rows)), key=lambda at: (rows[at].score is not None, rows[at].score))
    order = order[:LISTED]
    found: dict[int, dict[str, Any]] = {}
    left = ROOM
    for at in order:
        row = rows[at]
        problem = problems.get(row.problem)
        one = _listed(row, problem)
        if left > 0:
            told = _told(log, row, problem)
            left -= len(json.dumps(told))
            one |= told
        found[at] = one
    return [found[at] for at in sorted(found)]


def _listed(row: Row, problem: Problem | None) -> dict[str, Any]:
    title = shown((problem.text or "") if problem else "").strip().replace("\n", " ")
    return {
        "problem": row.problem,
        "title": title[:_TITLE] + ("\u2026" if len(title) > _TITLE else ""),
        "attempt": row.attempt,
        "slice": shown(row.slice)[:60],
        "score": row.score,
        "passing": row.passing,
        "why": shown(row.why) if row.why else None,
        "ended": shown(row.ended),
        "failed": row.failed is not None,
        "turns": row.turns,
        "output_tokens": row.output_tokens,
        "trace": "",
        "said": None,
    }


def _told(log: Path, row: Row, problem: Problem | None) -> dict[str, Any]:
    played = read_at(log, row.place)
    assert isinstance(played, Played)
    graded = read_at(log, row.graded_at) if row.graded_at else None
    grades = graded.grades if isinstance(graded, Graded) else played.grades
    answer = problem.answer if problem else None
    truth = answer if isinstance(answer, str) else json.dumps(answer, indent=1, default=str)
    return {
        "trace": played.trace.id,
        "rewards": rewards(grades),
        "said": conversation(played.trace, grades),
        "truth": shown(truth) if answer is not None else None,
    }


def page(
    about: Mapping[str, Any],
    summary: Mapping[str, Any],
    rows: Sequence[Row],
    data: Mapping[str, Any],
) -> str:
    style, script = (
        Path(__file__).with_name(f"eval_report.{kind}").read_text(encoding="utf-8")
        for kind in ("css", "js")
    )
    scores = [row.score for row in rows if row.score is not None]
    plots = "".join((histogram(scores), tries(summary["pass"]), intervals(summary["slices"])))
    title = _e(f"{Path(about['environment']).name} by {about['model']}")
    # Within a script element only "<" could end it; the rest keeps old readers of JSON content.
    held = json.dumps(data, separators=(",", ":"))
    for sign in "<>&":
        held = held.replace(sign, f"\\u{ord(sign):04x}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head><body><main><h1>{title}</h1>"
        f'<p class="soft">{_e(" · ".join(str(one) for one in about["told"]))}</p>'
        f"{_cards(summary)}{_notices(summary, len(rows))}"
        f'<div class="plots">{plots}</div>{_tables(summary)}<h2>Episodes</h2>{_filters()}'
        '<div class="browse"><div id="list"></div><div id="one"></div></div></main>'
        f'<script type="application/json" id="data">{held}</script><script>{script}</script>'
        "</body></html>\n"
    )


def _policy(style: str, script: str) -> str:
    """Only our own script and style, known by their hashes; pictures only from the page itself."""

    def known(text: str) -> str:
        found = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        return f"'sha256-{found}'"

    return (
        f"default-src 'none'; script-src {known(script)}; style-src {known(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _cards(summary: Mapping[str, Any]) -> str:
    reward, episodes, tokens = summary["reward"], summary["episodes"], summary["tokens"]
    cost = summary["cost"]["usd"]
    cards = [
        (_n(reward["mean"]), f"mean reward, 95% {_range(reward)}, {reward['problems']} problems"),
        (f"{episodes['done']}/{episodes['planned']}", "episodes done"),
        *((_n(one["any"]), f"pass@{one['k']}") for one in _few(summary["pass"])),
        *((_n(one["all"]), f"pass^{one['k']}") for one in _few(summary["pass"])[1:]),
        (_count(tokens["output"]), f"tokens answered, {_count(tokens['input'])} read"),
        ("unknown" if cost is None else f"${cost:.4f}", summary["cost"]["reason"] or "cost"),
    ]
    told = (f'<div class="card"><b>{_e(big)}</b><span>{_e(small)}</span></div>'
            for big, small in cards)  # fmt: skip
    return f'<div class="cards">{"".join(told)}</div>'


def _notices(summary: Mapping[str, Any], rows: int) -> str:
    episodes, found = summary["episodes"], []
    if episodes["infrastructure"]:
        found.append(f"{episodes['infrastructure']} episodes have no end: infrastructure failed. "
                     "They enter no number; --resume makes them again.")  # fmt: skip
    if episodes["not_graded"]:
        found.append(f"{episodes['not_graded']} episodes could not be graded; they enter no mean.")
    if summary["unreadable_problems"]:
        found.append(f"{summary['unreadable_problems']} rows of the task set could not be read: "
                     + "; ".join(summary["unreadable"]))  # fmt: skip
    found += [f"{name} moves no score: {why}" for name, why in summary["informing"].items()]
    if rows > LISTED:
        found.append(f"Of {rows} episodes the {LISTED} with the lowest scores are listed; "
                     "results.jsonl has all.")  # fmt: skip
    return "".join(f'<p class="notice">{_e(one)}</p>' for one in found)


def _tables(summary: Mapping[str, Any]) -> str:
    rewards = [(one["name"], _weight(one), _n(one["mean"]), _range(one), one["problems"])
               for one in summary["rewards"]]  # fmt: skip
    slices = [(one["name"], _n(one["mean"]), _range(one), one["problems"])
              for one in summary["slices"]]  # fmt: skip
    parts = (
        ("By reward", ("reward", "weight", "mean", "95%", "problems"), rewards),
        ("By slice", ("slice", "mean", "95%", "problems"), slices),
        ("How episodes ended", ("ended", "episodes"), list(summary["ended"].items())),
        ("Why not graded", ("reason", "episodes"), list(summary["not_graded"].items())),
    )
    told = "".join(f"<section><h2>{_e(name)}</h2>{_table(head, rows)}</section>"
                   for name, head, rows in parts if rows)  # fmt: skip
    return f'<div class="tables">{told}</div>'


def _weight(one: Mapping[str, Any]) -> str:
    if one["kind"] == "metric":
        return "metric"
    return _n(one["weight"]) + (" a step" if one["kind"] == "step" else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def line(tag: str, cells: Sequence[Any]) -> str:
        told = (f"<{tag}{' class=number' if at else ''}>{_e(cell)}</{tag}>"
                for at, cell in enumerate(cells))  # fmt: skip
        return f"<tr>{''.join(told)}</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"


def _filters() -> str:
    gradings = "".join(f'<option value="{value}">{name}</option>' for value, name in _GRADINGS)
    return (
        '<div class="filters"><label>slice<select id="slice"><option value="">all</option></select>'
        f'</label><label>score<select id="score"><option value="">all</option>{gradings}</select>'
        '</label><label>ended<select id="ended"><option value="">all</option></select></label>'
        '<label>words<input id="words" type="search"></label><span id="count"></span></div>'
    )


def _few(passed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first and the last k: the plot has those between."""
    return list(passed) if len(passed) < 2 else [passed[0], passed[-1]]


def _e(value: Any) -> str:
    return html.escape(shown(str(value)))


def _n(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _range(found: Mapping[str, Any]) -> str:
    if found["low"] is None:
        return "interval unknown"
    return f"{found['low']:.3f} to {found['high']:.3f}"
