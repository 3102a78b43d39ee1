"""Whole journeys of people through the dashboard, in a real browser on a real home.

What they do is seen where it counts: in the store, and in who answers a request.
"""

import json

import pytest

from flywheel.lineage import Decision
from flywheel.records import Feedback, Trace, last_answer, model_spans
from storage.committer import commit
from storage.judgements import feedback_for, grades
from storage.queries import records, traces
from tests.browser.chromium import Browser, Page
from tests.browser.lived import Lived

pytestmark = pytest.mark.slow


def decisions(dashboard: Lived, outcome: str) -> list[Decision]:
    commit(dashboard.home)
    found: list[Decision] = records(dashboard.home, "decision", project="sorting")
    return [one for one in found if one.outcome == outcome]


def wrong(dashboard: Lived) -> list[tuple[Trace, str]]:
    """Recorded traces whose answer was graded 0, each with what was asked."""
    bad = {one.trace_id for one in grades(dashboard.home, project="sorting")
           if one.reward == "correct" and one.value == 0}  # fmt: skip
    found = [
        (trace, _asked(trace))
        for batch in traces(dashboard.home, ids=sorted(bad))
        for trace in batch
        if trace.origin == "production"
    ]
    asked = [text for _, text in found]
    return [(trace, text) for trace, text in found if asked.count(text) == 1 and len(text) > 8]


def _asked(trace: Trace) -> str:
    call = model_spans(trace)[0].call
    assert call
    return call.input[-1].text


def said(dashboard: Lived, trace_id: str, by: str) -> list[Feedback]:
    """What a reviewer's word on a trace is in the store now."""
    commit(dashboard.home)
    (found,) = next(iter(traces(dashboard.home, ids=[trace_id])))
    known = feedback_for(dashboard.home, [found])[trace_id]
    return [one for one in known if one.by == by]


def errors(page: Page) -> list[str]:
    """What was wrong in the console and was not Streamlit's own asking around at its start: it
    looks for its server below the page's own address first."""
    known = ("/_stcore/health", "/_stcore/host-config")
    return [one for one in page.errors if not any(words in one for words in known)]


def test_a_bad_trace_is_found_and_corrected(browser: Browser, dashboard: Lived) -> None:
    trace, asked = wrong(dashboard)[0]
    right = " ".join(sorted(asked.split()))
    with browser.page(dashboard.page("traces", "rita")) as page:
        page.wait_for(text="Choose a row to open it")
        page.settled()
        page.click("Filters")
        page.choose("0", css="input[aria-label='Reward']")
        page.settled()
        page.type(f'"{asked}"', css="input[aria-label='Search']")
        page.press("Enter")
        page.wait_for(text="1 to 1 of 1")
        page.settled()
        page.click(css="[data-testid=stDataFrame]", at=(15, 55))
        page.wait_for(text="Back to the list")
        page.wait_for(text=trace.id)
        page.settled()
        page.click("Review it")
        page.wait_for(text="Reject")
        page.settled()
        assert asked in page.text()
        page.click("Correct")
        page.type(right, css="textarea")
        page.click("Save correction")
        page.wait_for(text=f"corrected {trace.id[:12]}")
        page.settled()
        assert errors(page) == []
    (word,) = said(dashboard, trace.id, "rita")
    assert (word.kind, word.value) == ("demonstration", right)
    human = [one for one in grades(dashboard.home, trace_ids=[trace.id]) if one.kind == "human"]
    assert [(one.value, one.confirmed_by) for one in human] == [(0.0, "human")]
    (seen,) = next(iter(traces(dashboard.home, ids=[trace.id])))
    answer = last_answer(seen)
    assert answer and answer.message.text == asked, "what was recorded stays"


def test_answers_are_reviewed_by_keys_alone(browser: Browser, dashboard: Lived) -> None:
    with browser.page(dashboard.page("review", "ada")) as page:
        page.wait_for(text="Accept")
        page.settled()
        first = page.text(".st-emotion-cache, [data-testid=stHtml]")
        page.press("s")
        page.wait_until(f"!document.body.innerText.includes({json.dumps(first)})")
        page.settled()
        page.press("x")
        page.wait_for(text="Last: rejected ")
        page.settled()
        rejected = page.text().partition("Last: rejected ")[2][:12]
        page.press("u")
        page.wait_for(text=f"Took back: rejected {rejected}")
        page.settled()
        page.press("e")
        page.wait_until("document.activeElement.tagName === 'TEXTAREA'")
        page.press("Control+a")
        page.type("1 2 3")
        page.press("Control+Enter")
        page.wait_for(text=f"Last: corrected {rejected}")
        page.settled()
        assert errors(page) == []
    commit(dashboard.home)
    there = [one for batch in traces(dashboard.home, project="sorting", origin="production")
             for one in batch if one.id.startswith(rejected)]  # fmt: skip
    (word,) = said(dashboard, there[0].id, "ada")
    assert (word.kind, word.value) == ("demonstration", "1 2 3")


def test_a_deployment_is_rolled_back_once_however_often_it_is_clicked(
    browser: Browser, dashboard: Lived
) -> None:
    dashboard.made_champion("sorting-v1")
    before = len(decisions(dashboard, "rolled_back"))
    with browser.page(dashboard.page("deployments")) as page:
        page.wait_for(text="Roll back to sorting-v0")
        page.settled()
        page.type("slower than it was", css="input[aria-label='Why roll back?']")
        page.press("Enter")
        page.settled()
        page.click("Roll back to sorting-v0")
        page.wait_for(text="sorting-v0 answers the next request instead of sorting-v1")
        page.settled()
        page.click("Yes, roll back to sorting-v0", times=2)
        page.wait_for(css="button", text="Roll back to sorting-v1", timeout_s=90)
        page.settled()
        assert "done" in page.text()
        assert errors(page) == []
    assert dashboard.answered_by() == "sorting-v0"
    made = decisions(dashboard, "rolled_back")
    assert len(made) == before + 1
    last = max(made, key=lambda one: one.at)
    assert (last.by, last.reason) == ("ada", "slower than it was")


def test_a_candidate_is_compared_with_the_champion_and_promoted(
    browser: Browser, dashboard: Lived
) -> None:
    dashboard.made_champion("sorting-v0")
    before = len(decisions(dashboard, "promoted"))
    with browser.page(dashboard.page("deployments")) as page:
        page.wait_for(text="Promote sorting-v1")
        page.settled()
        assert "difference" in page.text()
        page.click("See its answers beside sorting-v0's")
        page.wait_for(text="Held out", timeout_s=60)
        page.settled()
        assert "/runs" in page.run("location.pathname")
        page.run("history.back()")
        page.wait_for(text="Promote sorting-v1")
        page.settled()
        page.press("p")
        page.wait_for(text="goes through the learning gate and the serving gate")
        page.settled()
        page.click("Yes, promote sorting-v1")
        page.wait_for(css="button", text="Roll back to sorting-v0", timeout_s=150)
        assert errors(page) == []
    assert dashboard.answered_by() == "sorting-v1"
    made = decisions(dashboard, "promoted")
    assert len(made) == before + 1
    assert max(made, key=lambda one: one.at).by == "ada"


def test_who_only_looks_cannot_act(browser: Browser, dashboard: Lived) -> None:
    with browser.page(dashboard.page("deployments", "vera")) as page:
        page.wait_for(text="Role: viewer")
        page.settled()
        asks = "[...document.querySelectorAll('button')].filter(b => /Roll back to|Promote/.test"
        assert page.run(f"{asks}(b.innerText)).length") >= 1
        assert page.run(f"{asks}(b.innerText)).every(b => b.disabled)")
        page.press("b")
        page.press("p")
        page.settled()
        assert "Yes, " not in page.text()
