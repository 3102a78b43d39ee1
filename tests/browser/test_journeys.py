"""Whole journeys of people through the dashboard, in a real browser on a real home.

What they do is seen where it counts: in the store, and in who answers a request.
"""

import pytest

from flywheel.lineage import Decision
from storage.committer import commit
from storage.queries import records
from tests.browser.chromium import Browser, Page
from tests.browser.lived import Lived

pytestmark = pytest.mark.slow


def decisions(dashboard: Lived, outcome: str) -> list[Decision]:
    commit(dashboard.home)
    found: list[Decision] = records(dashboard.home, "decision", project="sorting")
    return [one for one in found if one.outcome == outcome]


def errors(page: Page) -> list[str]:
    """What was wrong in the console and was not Streamlit's own asking around at its start: it
    looks for its server below the page's own address first."""
    known = ("/_stcore/health", "/_stcore/host-config")
    return [one for one in page.errors if not any(words in one for words in known)]


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
        page.wait_for(text="Roll back to sorting-v1", timeout_s=90)
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
        page.wait_for(text="Roll back to sorting-v0", timeout_s=150)
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
