"""The Review page: what is said is saved once, by one who may, and trains the next turn."""

import json
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.people import Person
from app.views.review_data import Saved, Taken, Vanished, compare, judge, offered, save, taken_back
from environments.define import Environment
from environments.load import load_environment
from environments.mining import mine
from flywheel import once
from flywheel.errors import Refused, UsageError
from flywheel.home import Home
from flywheel.project import load_project
from flywheel.records import Feedback, Grade
from flywheel.reviews import verdict_of
from storage import leases
from storage.committer import commit
from storage.inbox import Inbox
from storage.judgements import feedback_for, grades
from storage.queries import records, traces
from storage.reviews import Pair
from tests.app.calling import ROOT
from tests.app.conftest import SORTING
from tests.app.seeing import page, stored, words
from tests.storage.store_parts import spoken

ANN = Person("ann", "reviewer")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def answers(home: Home, count: int = 5) -> list[str]:
    each = [spoken(f"e{n}", question=f"q{n}", answer=f"answer {n}", start=n + 1)
            for n in range(count)]  # fmt: skip
    stored(home, each)
    return [one.id for one in each]


def button(shown: AppTest, name: str) -> Any:
    return next(one for one in shown.button if (one.key or "").startswith(f"review:{name}:"))


def said(home: Home, *ids: str) -> dict[str, list[Feedback]]:
    commit(home)
    (found,) = traces(home, ids=ids)
    return feedback_for(home, found)


def verdicts(home: Home, *ids: str) -> list[tuple[str | None, Any, str | None]]:
    return [(verdict_of(one), one.value, one.by) for some in said(home, *ids).values()
            for one in some if verdict_of(one)]  # fmt: skip


def at_hand(shown: AppTest, ids: list[str]) -> str:
    """The trace whose answer is shown."""
    link = next(one for one in shown.get("html") if "answer" in one.proto.body)
    return next(one for n, one in enumerate(ids) if f"answer {n}" in link.proto.body)


def test_an_empty_home_says_what_to_do_and_a_viewer_why_not(home: Home) -> None:
    home.root.mkdir()
    assert "flywheel serve" in words(page(home, "review", project=""))
    assert "Nothing to review" in words(page(home, "review"))
    told = words(page(home, "review", role="viewer"))
    assert "may look, not review" in told and not page(home, "review", role="viewer").button


def test_accept_reject_correct_and_undo_by_the_page(home: Home) -> None:
    ids = answers(home)
    shown = page(home, "review")
    assert "a verdict is worth most on" in words(shown)
    one = at_hand(shown, ids)
    button(shown, "accept").click().run()
    two = at_hand(shown, ids)
    button(shown, "reject").click().run()
    three = at_hand(shown, ids)
    button(shown, "edit").click().run()
    shown.text_area[0].set_value("as it should be")
    next(x for x in shown.button if x.label.startswith("Save correction")).click().run()
    assert len({one, two, three, at_hand(shown, ids)}) == 4
    assert dict(zip((one, two, three), [verdicts(home, x)[0] for x in (one, two, three)],
                    strict=True)) == {
        one: ("accepted", f"answer {ids.index(one)}", "ann"),
        two: ("rejected", False, "ann"),
        three: ("corrected", "as it should be", "ann"),
    }  # fmt: skip
    given = {(one.trace_id, one.value, one.kind, one.confirmed_by) for one in grades(home)}
    assert given == {(one, 1.0, "human", "human"), (two, 0.0, "human", "human"),
                     (three, 0.0, "human", "human")}  # fmt: skip
    button(shown, "undo").click().run()
    assert "Took back" in words(shown) and at_hand(shown, ids) == three
    assert verdicts(home, three)[0][0] == "withdrawn"
    assert [(g.value, g.weight) for g in grades(home, trace_ids=[three])] == [(None, 0.0)]
    shown.run()
    assert "2 of 5" in words(shown) or shown.metric[0].value == "2 of 5"
    lines = [json.loads(x) for x in (home.actions / "notes.jsonl").read_text().splitlines()]
    assert [one["by"] for one in lines] == ["ann"] * 4


def test_comment_and_tags_go_with_it_and_alone(home: Home) -> None:
    (one,) = answers(home, 1)
    shown = page(home, "review")
    shown.text_input[0].set_value("too <b>short</b>")
    shown.multiselect[0].set_value(["tone"])
    button(shown, "remark").click().run()
    by_name = {x.name: x.value for x in said(home, one)[one]}
    assert by_name == {"tag:tone": True, "comment": "too <b>short</b>"}
    assert "not seen in this session" in words(shown)


def test_skipped_items_come_again_when_asked(home: Home) -> None:
    ids = answers(home, 2)
    shown = page(home, "review")
    first = at_hand(shown, ids)
    button(shown, "skip").click().run()
    assert at_hand(shown, ids) != first
    button(shown, "skip").click().run()
    next(x for x in shown.button if x.label.startswith("Show again")).click().run()
    assert at_hand(shown, ids) in ids


def test_a_link_brings_its_trace_first_and_an_unknown_one_is_told(home: Home) -> None:
    ids = answers(home)
    assert at_hand(page(home, "review", trace=ids[2], name="x"), ids) == ids[2]
    shown = page(home, "review", trace="gone", name="y")
    assert "not here any more" in words(shown) and at_hand(shown, ids) in ids


def test_two_reviewers_are_never_shown_the_same(home: Home) -> None:
    ids = answers(home, 3)
    ann, bob, zoe = (page(home, "review", name=name) for name in ("ann", "bob", "zoe"))
    assert sorted(at_hand(one, ids) for one in (ann, bob, zoe)) == sorted(ids)
    mine = at_hand(ann, ids)
    button(ann, "accept").click().run()
    eve = page(home, "review", name="eve")
    assert "Nothing to review here" in words(eve), "what ann saved is not offered before its commit"
    assert verdicts(home, mine) == [("accepted", f"answer {ids.index(mine)}", "ann")]


def test_one_token_saves_once_whoever_clicks(home: Home, tmp_path: Path) -> None:
    """Situation 32: many processes save under one token at once, one of them does."""
    (one,) = answers(home, 1)
    token, children = once.issue(), []
    for number in range(6):
        if (child := os.fork()) == 0:
            verdict: Any = "accepted" if number % 2 else "rejected"
            made = Saved(token, tuple(judge("shop", one, verdict, "x", by="ann", token=token)),
                         (one,), verdict)  # fmt: skip
            saved = save(home, "shop", ANN, made, local=True, holder="h")
            (tmp_path / f"saved-{number}").write_text("yes" if saved else "no")
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    assert sorted(x.read_text() for x in tmp_path.glob("saved-*")) == ["no"] * 5 + ["yes"]
    assert len(verdicts(home, one)) == 1 and len(records(home, "feedback", project="shop")) == 1


def test_a_review_for_an_erased_trace_is_told_and_not_saved(home: Home) -> None:
    ids = answers(home, 2)
    shown = page(home, "review")
    gone = at_hand(shown, ids)
    from storage.database import writing

    with writing(home, wait_s=5) as database:
        for table, key in (("traces", "id"), ("spans", "trace_id"), ("cards", "trace_id")):
            database.execute(f"DELETE FROM {table} WHERE {key} = ?", [gone])
    button(shown, "accept").click().run()
    told = words(shown)
    assert "nothing was saved" in told and "next one" in told
    assert Inbox(home).pending() == [] and at_hand(shown, ids) != gone
    made = Saved(once.issue(), tuple(judge("shop", gone, "rejected", None, by="a", token="t")),
                 (gone,), "")  # fmt: skip
    with pytest.raises(Vanished):
        save(home, "shop", ANN, made, local=True, holder="h")


def said_by(who: str, trace: str, project: str = "shop") -> Saved:
    token = once.issue()
    return Saved(token, tuple(judge(project, trace, "rejected", None, by=who, token=token)),
                 (trace,), f"rejected by {who}")  # fmt: skip


def run_out(home: Home, item: str) -> None:
    """As if its holder had looked at it for over ten minutes."""
    path = home.leases / "shop.json"
    held = json.loads(path.read_bytes())
    held[item]["until"] = 0.0
    path.write_text(json.dumps(held))


def test_one_whose_lease_ran_out_does_not_save_over_who_took_the_item(home: Home) -> None:
    (one,) = answers(home, 1)
    bob = Person("bob", "reviewer")
    assert leases.take(home, "shop", [one], by="ann", holder="a") == one
    run_out(home, one)
    assert leases.take(home, "shop", [one], by="bob", holder="b") == one
    late = said_by("ann", one)
    with pytest.raises(Taken, match="bob took this item"):
        save(home, "shop", ANN, late, local=True, holder="a")
    assert Inbox(home).pending() == [] and not once.spent(home, late.token)
    assert save(home, "shop", bob, said_by("bob", one), local=True, holder="b") is not None
    with pytest.raises(Taken, match="bob"):
        save(home, "shop", ANN, late, local=True, holder="a")
    assert verdicts(home, one) == [("rejected", False, "bob")]


def test_one_whose_lease_ran_out_saves_where_nobody_took_the_item(home: Home) -> None:
    (one,) = answers(home, 1)
    assert leases.take(home, "shop", [one], by="ann", holder="a") == one
    run_out(home, one)
    assert save(home, "shop", ANN, said_by("ann", one), local=True, holder="a") is not None
    other = said_by("ann", one)
    assert save(home, "shop", ANN, other, local=True, holder="a2") is not None, "her own word"
    assert save(home, "shop", ANN, other, local=True, holder="a2") is None


def test_the_page_says_that_somebody_else_took_the_item_and_shows_the_next(home: Home) -> None:
    ids = answers(home, 2)
    shown = page(home, "review")
    one = at_hand(shown, ids)
    run_out(home, one)
    assert leases.take(home, "shop", [one], by="bob", holder="b") == one
    button(shown, "reject").click().run()
    told = words(shown)
    assert "bob took this item" in told and "nothing was saved" in told
    assert at_hand(shown, ids) != one and Inbox(home).pending() == []


def test_undo_takes_back_ones_own_word_and_leaves_the_item_to_who_has_it(home: Home) -> None:
    ids = answers(home, 2)
    shown = page(home, "review")
    one = at_hand(shown, ids)
    button(shown, "reject").click().run()
    run_out(home, one)
    assert leases.take(home, "shop", [one], by="bob", holder="b") == one
    button(shown, "undo").click().run()
    assert "Took back" in words(shown) and at_hand(shown, ids) != one
    assert verdicts(home, one)[0][0] == "withdrawn"
    assert leases.leased(home, "shop")[one].by == "bob"


def test_a_review_is_not_saved_of_another_projects_trace(home: Home) -> None:
    (one,) = answers(home, 1)
    with pytest.raises(UsageError, match="is of project shop, not of hotel"):
        save(home, "hotel", ANN, said_by("ann", one, "hotel"), local=True, holder="a")
    with pytest.raises(UsageError, match="not all of project hotel"):
        save(home, "hotel", ANN, said_by("ann", one), local=True, holder="a")
    assert Inbox(home).pending() == [] and leases.leased(home, "hotel") == {}


def test_a_role_that_was_taken_away_saves_nothing_though_the_button_is_there(home: Home) -> None:
    ids = answers(home, 1)
    shown = page(home, "review", role="reviewer")
    (home.root / "people.toml").write_text('default = "viewer"\n')
    button(shown, "accept").click().run()
    assert "needs a reviewer" in words(shown) and Inbox(home).pending() == []
    with pytest.raises(Refused):
        save(home, "shop", ANN, Saved(once.issue(), (), (ids[0],), ""), local=True, holder="h")


def test_a_full_disk_leaves_the_token_good(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    import storage.inbox

    (one,) = answers(home, 1)
    token = once.issue()
    made = Saved(token, tuple(judge("shop", one, "rejected", None, by="ann", token=token)),
                 (one,), "")  # fmt: skip

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(storage.inbox.os, "fsync", full)
        with pytest.raises(Exception, match="no space"):
            save(home, "shop", ANN, made, local=True, holder="h")
    assert save(home, "shop", ANN, made, local=True, holder="h") is not None
    assert len(verdicts(home, one)) == 1


def test_what_is_said_later_supersedes_whatever_the_clock_shows(home: Home) -> None:
    (one,) = answers(home, 1)
    far = 4_000_000_000_000_000_000
    first = judge("shop", one, "accepted", "x", by="ann", token="t", after=far)
    later = judge("shop", one, "rejected", None, by="ann", token="u", after=first[0].at)
    Inbox(home).append(later)
    Inbox(home).append(first)
    assert verdicts(home, one) == [("rejected", False, "ann")]
    assert [g.value for g in grades(home, trace_ids=[one])] == [0.0]


def test_comparing_is_blind_and_says_which_was_better_of_both(home: Home) -> None:
    stored(home, [spoken("a", answer="answer 0", start=1), spoken("b", answer="answer 1", start=2)])
    ids = [spoken("a").id, spoken("b").id]
    shown = page(home, "review")
    shown.segmented_control[0].set_value("Compare two answers").run()
    told = words(shown)
    assert "answer 0" in told and "answer 1" in told and "shop-v" not in told
    button(shown, "1").click().run()
    found = {x.name.partition(":")[0]: x.value for some in said(home, *ids).values() for x in some}
    assert set(found) == {"compared"}
    values = sorted(x.value for some in said(home, *ids).values() for x in some)
    assert values == ["better", "worse"]
    button(shown, "undo").click().run()
    values = [x.value for some in said(home, *ids).values() for x in some]
    assert values == ["withdrawn", "withdrawn"]


def test_what_is_taken_back_supersedes_all_of_it(home: Home) -> None:
    token = once.issue()
    some = judge("shop", "t1", "corrected", "x", by="ann", token=token, tags=("a", "a", " "))
    both = compare("shop", Pair("t1", "t2", "p"), None, by="ann", token=token)
    back = taken_back(Saved(token, tuple(some + both), ("t1",), ""), once.issue())
    later = {(x.target, x.name): x for x in back.records if isinstance(x, Feedback)}
    for one in (*some, *both):
        if isinstance(one, Feedback):
            assert later[one.target, one.name].at > one.at
    assert sum(isinstance(x, Grade) for x in back.records) == 1


# --- what the environment makes of it -----------------------------------------------------------


def test_an_answer_is_offered_in_the_form_that_the_environment_reads() -> None:
    plain = Environment()
    assert offered(plain, ["a", "b"], "1 2").truth == "1 2"
    assert offered(plain, ["a", "b"], '{"a": 1}').value == '{"a": 1}'
    assert offered(plain, [{"a": 2}], '{"a": 1}').truth == {"a": 1}
    assert offered(plain, [], "[").truth == "["
    support = load_environment("support", ROOT)
    right = '{"queue": "refund", "order": null}'
    assert offered(support, [], right).truth == {"queue": "refund", "order": None}
    assert offered(support, [{"queue": "x"}], right).truth == json.loads(right)
    wrong = offered(support, [], "refund, I think")
    assert wrong.truth is None and "grade only" in wrong.note
    unknown = offered(None, [], right)
    assert unknown.truth is None and "not known here" in unknown.note

    class Odd(Environment):
        def corrected(self, feedback: Feedback) -> Any:
            raise KeyError(feedback.value)

    assert "cannot read it: KeyError" in offered(Odd(), [], "x").note


def test_a_reviewers_answer_stands_before_what_others_said(traffic: ModuleType) -> None:
    environment = load_environment("environment.py:Sorting", SORTING)
    (trace,) = traffic.recorded("sorting", traffic.asks(1), "sorting-v0")
    told = Feedback(project="sorting", target=trace.id, value="9 9", kind="demonstration", by="c")
    mine: Any = judge("sorting", trace.id, "corrected", "1 2 3", by="ann", token="t")[0]
    problem = environment.problem_of(trace, [told, mine])
    assert problem is not None
    assert (problem.answer, problem.truth_from) == ("1 2 3", "human")
    other: Any = judge("sorting", trace.id, "corrected", "1 2 4", by="bob", token="u")[0]
    split = environment.problem_of(trace, [told, mine, other])
    assert split is not None and split.answer is None and "conflicting" in str(split.attributes)
    back: Any = judge("sorting", trace.id, "withdrawn", None, by="ann", token="v")[0]
    again = environment.problem_of(trace, [told, back])
    assert again is not None and (again.answer, again.truth_from) == ("9 9", "feedback")
    rejected: Any = judge("sorting", trace.id, "rejected", None, by="ann", token="w")[0]
    still = environment.problem_of(trace, [told, rejected])
    assert still is not None and still.answer == "9 9"


def test_a_correction_on_the_page_becomes_a_problems_truth(
    home: Home, tmp_path: Path, traffic: ModuleType
) -> None:
    """An answer that nobody said anything of: once corrected it poses a problem with its truth."""
    folder = tmp_path / "sorting"
    shutil.copytree(SORTING, folder, ignore=shutil.ignore_patterns("base"))
    asks = traffic.asks(30)
    stored(home, list(traffic.recorded("sorting", asks, "sorting-v0")))
    project = load_project(folder)
    environment = load_environment(project.environment.path, folder, {})

    def known() -> dict[str | None, Any]:
        commit(home)
        (found,) = traces(home, project="sorting")
        mined = mine(environment, found, feedback_for(home, found), project.problems)
        return {one.trace_id: (one.answer, one.truth_from) for one in mined if one.answer}

    assert known() == {}
    shown = page(home, "review", project="sorting", folder=folder)
    button(shown, "edit").click().run()
    asked = shown.text_area[0].value
    right = " ".join(sorted(asked.split()))
    shown.text_area[0].set_value(right)
    next(x for x in shown.button if x.label.startswith("Save correction")).click().run()
    assert "Accepting makes this answer its problem" in words(shown)
    assert list(known().values()) == [(right, "human")]


@pytest.mark.slow
@pytest.mark.soak
def test_corrections_train_the_next_turn(tmp_path: Path, traffic: ModuleType) -> None:
    """Recorded answers, reviewers' corrections and nothing else: the turn's dataset is made of
    rollouts on exactly those problems, confirmed by people."""
    from tests.app.calling import call

    project, home = tmp_path / "sorting", Home(tmp_path / "home")
    shutil.copytree(SORTING, project)
    with (project / "flywheel.toml").open("a") as file:
        file.write("\n[problems]\nmax_train = 24\n")
    home.root.mkdir()
    asks = traffic.asks(60)
    recorded = list(traffic.recorded("sorting", asks, "sorting-v0"))
    stored(home, recorded)
    for trace, ask in zip(recorded, asks, strict=True):
        token = once.issue()
        made = judge("sorting", trace.id, "corrected", ask.answer, by="ann", token=token)
        Inbox(home).append(made, name=f"review-{token}")
    done = call("curate", project, "--json", home=home.root)
    assert done.code == 0, done
    from storage.datasets import read_dataset

    (dataset,) = records(home, "dataset", project="sorting")
    rows = read_dataset(home, dataset)
    assert len(rows) >= 8 and {row.confirmed_by for row in rows} == {"human"}
    truth = {" ".join(ask.messages[-1].text.split()): ask.answer for ask in asks}
    assert all(row.completion.text.strip() == truth[row.text] for row in rows)
