"""Takes the pictures of the docs: `python -m tests.browser.pictures [FOLDER]`, some minutes.

Of a real home: one turn, promoted, and requests with feedback that both deployments answered.
"""

import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import httpx
import msgspec

from flywheel.home import Home
from storage.inbox import Inbox
from tests.app.calling import ROOT, call
from tests.browser.chromium import Browser, Page
from tests.browser.lived import Lived, lived
from tests.promoted import Promoted, load_traffic, promote_in

PICTURES = ROOT / "docs" / "pictures"
WIDE, HIGH = 1280, 800
LARGEST = 200_000


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="flywheel-pictures-") as place:
        promoted = promote_in(Path(place), over_days)
        (Path(place) / "shown").mkdir()
        take(promoted, Path(place) / "shown", folder)


def take(promoted: Promoted, place: Path, folder: Path) -> None:
    browser = Browser(place / "chromium")
    try:
        with lived(promoted, place) as there:
            ask(there)
            pages(browser, there, folder)
    finally:
        browser.close()


def over_days(home: Home, traffic: ModuleType, count: int) -> None:
    """The tests' traffic as three days up to now would have brought it."""
    asks = traffic.asks(count)
    end = time.time_ns() - 5 * 60 * 10**9
    step = 3 * 86_400 * 10**9 // count
    traces = []
    for number, trace in enumerate(traffic.recorded("sorting", asks, "sorting-v0")):
        (span,) = trace.spans
        start = end - (count - number) * step
        moved = msgspec.structs.replace(span, start=start, end=start + 80_000_000)
        traces.append(msgspec.structs.replace(trace, spans=(moved,)))
    Inbox(home).append(traces)
    Inbox(home).append(traffic.feedback("sorting", asks))


def ask(there: Lived) -> None:
    """Some traffic that the promoted model answers, with what people said of it."""
    traffic = load_traffic()
    asks = traffic.asks(60, seed=7)
    with httpx.Client(base_url=there.gateway, timeout=120, trust_env=False) as client:
        for one in asks:
            body = {
                "model": "sorting",
                "messages": [{"role": m.role, "content": m.text} for m in one.messages],
                "user": one.user,
                "max_tokens": 16,
                "logprobs": True,
            }
            headers = {"x-conversation-id": one.conversation}
            client.post("/v1/chat/completions", json=body, headers=headers).raise_for_status()
        for said in traffic.feedback("sorting", asks):
            body = {
                "conversation_id": said.target,
                "name": said.name,
                "kind": said.kind,
                "value": said.value,
                "by": said.by,
            }
            client.post("/v1/feedback", json=body).raise_for_status()
    for command in ("ingest",), ("grade", there.project):
        done = call(*command, home=there.home.root)
        assert done.code == 0, done


def pages(browser: Browser, there: Lived, folder: Path) -> None:
    from storage.queries import traces

    answered = next(
        trace.id
        for batch in traces(there.home, project="sorting", origin="production")
        for trace in batch
        if trace.fidelity == "trainable"
    )
    with browser.page(there.page("")) as page:
        page.click("7 days")
        shot(page, folder / "overview.png", "Turns")
        page.scheme("dark")
        shot(page, folder / "overview-dark.png", "Turns")
    for name, words, more in (
        ("traces", "Choose a row", ""),
        ("trace", "Back to the list", f"&trace={answered}"),
        ("review", "Accept", ""),
        ("datasets", "Datasets", ""),
        ("deployments", "Ledger", ""),
    ):
        at = there.page("traces" if name == "trace" else name) + more
        with browser.page(at) as page:
            page.wait_for(text=words)
            shot(page, folder / f"{name}.png", words)
    with browser.page(there.page("runs")) as page:
        shot(page, folder / "run.png", "Held out")


def shot(page: Page, path: Path, words: str) -> None:
    page.size(WIDE, HIGH)
    page.wait_for(text=words)
    page.settled()
    page.run("document.querySelector('[data-testid=stMain]').scrollTo(0, 0)")
    page.run("new Promise(done => setTimeout(done, 1500))")  # charts end their movement
    page.screenshot(path)
    smaller(path)


def smaller(path: Path) -> None:
    """The same picture in 256 colours."""
    from PIL import Image

    with Image.open(path) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < LARGEST, path


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) == 2 else PICTURES)
