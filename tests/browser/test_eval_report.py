"""The page of an evaluation in a real browser: it works, and nothing that a model wrote runs."""

from pathlib import Path

import pytest

from tests.browser.chromium import Browser
from tests.tasks.test_eval_report import HOSTILE, hostile_page


@pytest.mark.slow
def test_hostile_answers_are_text_and_the_page_filters(browser: Browser, tmp_path: Path) -> None:
    path = hostile_page(tmp_path)
    with browser.page(path.as_uri()) as page:
        page.wait_for(css="#list button")
        assert page.count(css="#list button") == len(HOSTILE)
        for number in range(len(HOSTILE)):
            page.run(f"document.querySelectorAll('#list button')[{number}].click()")
            page.wait_for(css="#one .turn.assistant .said")
        assert page.run("window.hacked") is None
        assert (
            page.run("document.querySelectorAll('#one script, #one img, #one style').length") == 0
        )
        assert page.errors == []
        page.type("U+202E", css="#words")
        page.wait_for(text=f"1 of {len(HOSTILE)} episodes")
        page.click(css="#list button")
        page.wait_for(text="step reward polite: 0.5")
        # A script that some flaw let in would still not run.
        page.run(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"hacked=3\">')"
        )
        page.wait_until("document.querySelector('img') !== null")
        assert page.run("window.hacked") is None
