"""The driver itself: what it finds, presses and types is what a person would."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.browser.chromium import Browser, Unseen, program

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
HTML = """
<title>t</title>
<style>@media (prefers-color-scheme: dark) { body::after { content: 'night' } }</style>
<button onclick="said.textContent = 'pressed ' + ++n">Press</button>
<button style="display:none" onclick="said.textContent = 'wrong'">Press</button>
<input id=name oninput="said.textContent = 'typed ' + this.value" value="old">
<p id=said>nothing yet</p>
<script>
  let n = 0;
  addEventListener('keydown', e => {
    if (e.ctrlKey && e.key === 'Enter') said.textContent = 'saved';
    if (e.key === 'j' && e.target === document.body) said.textContent = 'next';
  });
  setTimeout(() => document.body.append('late words'), 300);
</script>
"""


def shown(html: str) -> str:
    return "data:text/html," + quote(html)


def test_pages_are_read_pressed_typed_into_and_pictured(browser: Browser, tmp_path: Path) -> None:
    with browser.page(shown(HTML)) as page:
        page.wait_for(text="late words")
        page.press("j")
        page.wait_for(text="next")
        page.click("Press", times=2)
        page.wait_for(text="pressed 2")
        page.type("Ada", css="#name")
        page.wait_for(text="typed Ada")
        page.press("Control+Enter")
        page.wait_for(css="#said", text="saved")
        page.press("j")
        page.wait_for(text="typed Adaj")
        assert page.count(css="button") == 1
        assert page.screenshot(tmp_path / "page.png").read_bytes()[:4] == b"\x89PNG"
        assert page.errors == []


def test_light_and_dark_are_what_the_page_is_told(browser: Browser) -> None:
    night = "getComputedStyle(document.body, '::after').content.includes('night')"
    with browser.page(shown(HTML), light=False) as page:
        page.wait_until("document.readyState === 'complete'")
        assert page.run(night) is True
        page.scheme("light")
        assert page.run(night) is False


def test_what_goes_wrong_in_a_page_is_collected(browser: Browser) -> None:
    with browser.page(shown("<script>console.error('broken', 1); nothing.here</script>x")) as page:
        page.wait_for(text="x")
        assert any("broken 1" in one for one in page.errors)
        assert any("nothing is not defined" in one for one in page.errors)


def test_a_wait_that_fails_shows_what_was_there(browser: Browser) -> None:
    with browser.page(shown("<p>only this")) as page:
        with pytest.raises(Unseen, match="only this") as told:
            page.wait_for(text="something else", timeout_s=0.3)
        picture = str(told.value).partition("; ")[2].partition(" shows")[0]
        assert Path(picture).read_bytes()[:4] == b"\x89PNG"


def test_the_browser_ends_with_a_test_run_that_is_killed(browser: Browser, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from tests.browser.chromium import Browser\n"
        "Browser(Path(sys.argv[1])); print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout
        assert run.stdout.readline() == "up\n"
        assert using(tmp_path)
        os.kill(run.pid, signal.SIGKILL)
    until = time.monotonic() + 60
    while using(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert using(tmp_path) == []


def using(folder: Path) -> list[int]:
    """Processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"--user-data-dir={folder}" in words:
            found.append(int(path.parent.name))
    return found


def test_where_no_browser_is_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert program() is None
