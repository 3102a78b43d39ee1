"""Filters combine, pages follow one another, one trace comes with all that is known of it."""

from flywheel.home import Home
from flywheel.records import Feedback, Grade, Problem, say
from storage import browse
from storage.browse import Filters, detail, page, stamp
from storage.committer import commit
from storage.inbox import Inbox
from tests.storage.store_parts import everything, spoken


def filled(home: Home) -> None:
    records = []
    for number in range(30):
        one = spoken(
            f"e{number}", question=f"question {number}", answer=f"answer {number}",
            start=1_000 * (number + 1), user=f"u{number % 3}",
            origin="import" if number % 5 == 0 else "production",
        )  # fmt: skip
        value = None if number % 4 == 3 else float(number % 2)
        records += [one, Grade(trace_id=one.id, reward="r", value=value)]
        if number % 6 == 0:
            records.append(Feedback(project="shop", target=one.external_id, value=number > 10,
                                    kind="boolean"))  # fmt: skip
    first = spoken("e1").id
    records += [
        everything(), spoken("other", project="else"),
        Problem(environment="e", messages=(say("user", "question 1"),), slice="hard",
                trace_id=first),
    ]  # fmt: skip
    Inbox(home).append(records)
    commit(home)


def names(home: Home, filters: Filters) -> list[str]:
    by_id = {spoken(f"e{number}").id: f"e{number}" for number in range(30)}
    return [by_id.get(one.trace_id, "other") for one in page(home, "shop", filters).cards]


def test_an_empty_home_has_an_empty_page(home: Home) -> None:
    assert page(home, "shop").total == 0
    assert detail(home, "x") is None and browse.choices(home, "shop") == {} and stamp(home) == ""


def test_filters_narrow_together(home: Home) -> None:
    filled(home)
    assert page(home, "shop").total == 31
    assert names(home, Filters(reward=(0.0, 0.0), user="u1")) == ["e28", "e22", "e16", "e10", "e4"]
    assert names(home, Filters(ungraded=True, origins=("import",))) == ["e15", "other"]
    assert names(home, Filters(feedback=True, liked=False)) == ["e6", "e0"]
    assert names(home, Filters(since=3_000, until=5_000)) == ["e3", "e2"]
    assert names(home, Filters(slices=("hard",))) == ["e1"]
    assert names(home, Filters(failed=True)) == ["other"]
    assert names(home, Filters(ids=(spoken("e2").id, "nobody"))) == ["e2"]
    assert names(home, Filters(ids=())) == []
    assert names(home, Filters(user="' OR 1=1 --", conversation="\x00")) == []
    assert page(home, "shop", Filters(finish=("stop",), models=("unknown",))).total == 0


def test_pages_hold_each_trace_once_newest_first(home: Home) -> None:
    filled(home)
    seen = [one.trace_id for number in range(4) for one in
            page(home, "shop", limit=10, offset=10 * number).cards]  # fmt: skip
    assert len(seen) == len(set(seen)) == 31
    assert seen[0] == spoken("e29").id
    assert page(home, "shop", offset=-5).cards and not page(home, "shop", offset=10**12).cards


def test_choices_are_what_there_is(home: Home) -> None:
    filled(home)
    known = browse.choices(home, "shop")
    assert known["origins"] == ["production", "import"] and known["slices"] == ["hard"]


def test_one_trace_comes_whole_with_grades_feedback_and_copies(home: Home) -> None:
    filled(home)
    one = spoken("e6", question="question 6", answer="answer 6", start=7_000, user="u0")
    copy = spoken("e6", question="question 6", answer="answer 6", start=7_000, source="import:y",
                  origin="import")  # fmt: skip
    Inbox(home).append([copy, Grade(trace_id=one.id, reward="r", value=0.25, at=5)])
    commit(home)
    found = detail(home, one.id)
    assert found is not None and found.copies == [copy.id] and found.copy_of is None
    assert [grade.value for grade in found.grades] == [0.25]
    assert [said.value for said in found.feedback] == [False]
    assert found.trace.spans[0].call is not None
    assert found.trace.spans[0].call.input[1].text == "question 6"
    other = detail(home, copy.id)
    assert other is not None and other.copy_of == one.id
    whole = detail(home, everything().id)
    assert whole is not None and len(whole.trace.spans) == 5


def test_a_stamp_moves_with_each_commit_only(home: Home) -> None:
    filled(home)
    before = stamp(home)
    page(home, "shop")
    assert stamp(home) == before
    Inbox(home).append([spoken("new")])
    commit(home)
    assert stamp(home) != before
