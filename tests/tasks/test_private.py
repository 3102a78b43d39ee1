"""What is personal or secret reaches no dataset, and held-out problems are known all the same."""

import json
from pathlib import Path

import msgspec

from flywheel.home import Home
from flywheel.records import Choice, Problem, Trace, say
from storage.pool import Pool
from storage.privacy.scan import scan_path
from tasks.curate import heldout_of, rows_to_train, selected
from tasks.known import known
from tasks.turns import turn_to_come
from tests.app.calling import call
from tests.tasks.test_preview import asked, desk, graded, put, written

__all__ = ["desk"]
MAIL, KEY = "ann@example.com", "ghp_" + "aB3xY9" * 6


def told(name: str, question: str, answer: str, **changes: object) -> Trace:
    trace = asked(name)
    assert trace.spans[0].call
    call = msgspec.structs.replace(
        trace.spans[0].call,
        input=(say("user", question),),
        choices=(Choice(message=say("assistant", answer), finish_reason="stop"),),
    )
    span = msgspec.structs.replace(trace.spans[0], call=call)
    return msgspec.structs.replace(trace, spans=(span,), **changes)


def test_rows_hold_nothing_of_it_and_touch_no_held_out_problem(home: Home, desk: Path) -> None:
    written(desk, 'rules = [{name = "min_reward", value = 0.5}]\n[privacy]\nat = ["curation"]')
    question = f"Please write to {MAIL}, it is about the parcel that never came to us"
    put(
        home,
        told("one", f"My key is {KEY}", f"Revoke {KEY} at once", user=MAIL),
        told("leak", question, "Done"),
        *(graded(name, 1.0) for name in ("one", "leak")),
        Problem(environment="desk", messages=(say("user", question),), text=question,
                split="heldout"),
    )  # fmt: skip
    turn = turn_to_come(desk)
    beside = known(turn)
    with Pool() as pool:
        made = selected(turn, rows_to_train(turn, {}, beside), beside, pool, heldout_of(turn))
        (row,) = made.rows
    assert row.messages[0].text == "My key is [API_KEY_1]"
    assert row.completion.text == "Revoke [API_KEY_1] at once" and "redacted-" in str(row.user)
    privacy, leakage, *_ = made.counts
    assert (privacy.rule, privacy.rows_in, privacy.rows_out) == ("privacy", 2, 2)
    assert "api_key" in privacy.note and "in 2 rows" in privacy.note
    assert (leakage.rows_in, leakage.rows_out) == (2, 1)


def test_a_scan_tells_what_is_where_and_shows_none_of_it(home: Home, desk: Path) -> None:
    put(
        home,
        told("one", f"My key is {KEY}", "Revoke it"),
        told("two", f"I am {MAIL}", "Hello", raw="6a45016a11c59ea668f635d383ec274d#120208+2341"),
    )
    found = call("privacy", "scan", "desk", "--json", home=home.root).object()
    assert (found["project"], found["looked_at"], found["with_any"]) == ("desk", 2, 2)
    kinds = {one["kind"]: one for one in found["findings"]}
    assert set(kinds) == {"api_key", "email"} and kinds["email"]["source"] == "gateway"
    assert KEY not in json.dumps(found) and MAIL not in json.dumps(found)
    file = desk / "rows.jsonl"
    file.write_text(json.dumps({"messages": [{"content": f"I am {MAIL}"}]}) + "\n{not json\n")
    shown = scan_path(file)
    assert (shown.looked_at, shown.with_any) == (2, 1)
    assert [one.examples for one in shown.findings] == [("a**@*******.***",)]
    assert call("privacy", "scan", str(file), "--kind", "mail", home=home.root).code == 2
