"""A real Chromium without a window, driven by its DevTools protocol.

`Browser` is the process, `Page` one tab of it: real mouse and key events in, what a person would
see out. The browser lives no longer than this process, even one killed with -9: it ends when the
pipe that we hold is closed. A wait that fails saves a picture and the page's text.
"""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--no-proxy-server",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-default-apps", "--disable-extensions", "--disable-dev-shm-usage", "--mute-audio",
    "--no-default-browser-check", "--password-store=basic", "--hide-scrollbars",
    "--force-color-profile=srgb", "--lang=en-US", "--remote-debugging-pipe",
    "--remote-debugging-port=0",
)  # fmt: skip
WIDE, HIGH = 1400, 900
WAIT_S = 120.0
"""How long a page may take to show something. Generous: the machine may be busy."""
KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Escape": ("Escape", 27, ""),
    "Backspace": ("Backspace", 8, ""),
    "Delete": ("Delete", 46, ""),
    "Space": ("Space", 32, " "),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
}
"""Key -> its code, its number, the text that it types."""
MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}

FIND = """
(want => {
  const seen = e => {
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    return box.width > 0 && box.height > 0 && style.visibility !== 'hidden';
  };
  if (want.css) {
    const all = [...document.querySelectorAll(want.css)].filter(seen);
    return want.text === null ? all : all.filter(e => e.innerText.includes(want.text));
  }
  const said = e => (e.innerText || e.value || e.ariaLabel || '').trim();
  const can = 'button, a, label, summary, input, [role=button], [role=tab], [role=option], '
    + '[role=radio], [role=menuitem]';
  const all = [...document.querySelectorAll(can)].filter(seen);
  const exact = all.filter(e => said(e) === want.text);
  if (exact.length) return exact;
  const inside = all.filter(e => said(e).includes(want.text));
  if (inside.length) return inside;
  return [...document.querySelectorAll('body *')].filter(
    e => seen(e) && said(e).includes(want.text)
      && ![...e.children].some(c => said(c).includes(want.text)));
})(%s)
"""
"""What a person would mean by a css selector, or by words: what can be pressed goes first."""


class Unseen(AssertionError):
    """The page did not come to what was waited for."""


def program() -> str | None:
    """The browser of this machine; None = there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: for its profile and for pictures of what failed.
        """
        self.folder, self.pictures = folder, folder / "pictures"
        self.pictures.mkdir(parents=True, exist_ok=True)
        found = program()
        assert found, "no Chromium on the PATH"
        self._process, self._held = _start(found, folder)
        self._port = self._announced(folder / "profile" / "DevToolsActivePort")

    def _announced(self, file: Path) -> int:
        until = time.monotonic() + 60
        while not (file.exists() and file.read_text().count("\n")):
            if self._process.poll() is not None or time.monotonic() > until:
                self.close()
                said = (self.folder / "chromium.log").read_text(errors="replace")[-2000:]
                raise AssertionError(f"Chromium did not start: {said}")
            time.sleep(0.05)
        return int(file.read_text().split("\n")[0])

    @contextlib.contextmanager
    def page(self, url: str, *, light: bool = True) -> Iterator["Page"]:
        """A fresh tab, with nothing kept of others', that shows `url`."""
        at = f"http://127.0.0.1:{self._port}/json"
        with httpx.Client(trust_env=False, timeout=30) as http:
            whole = http.get(f"{at}/version").json()["webSocketDebuggerUrl"]
            with connect(whole, max_size=None, compression=None, proxy=None) as line:
                root = Page(line, self.pictures)
                context = root.call("Target.createBrowserContext", disposeOnDetach=True)
                target = root.call("Target.createTarget", url="about:blank", **context)["targetId"]
                mine = f"ws://127.0.0.1:{self._port}/devtools/page/{target}"
                with connect(mine, max_size=None, compression=None, proxy=None) as tab:
                    page = Page(tab, self.pictures)
                    page.begin(light=light)
                    page.open(url)
                    yield page
                root.call("Target.disposeBrowserContext", **context)

    def close(self) -> None:
        for handle in self._held:
            with contextlib.suppress(OSError):
                os.close(handle)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _start(found: str, folder: Path) -> tuple["subprocess.Popen[bytes]", tuple[int, int]]:
    """Its pipe is handles 3 and 4; it leaves when the other ends are closed."""
    reads, writes = os.pipe()
    hears, says = os.pipe()

    def plumb() -> None:
        # Out of the way first: either may be 3 or 4 itself.
        one, two = os.dup(reads), os.dup(says)
        os.dup2(one, 3)
        os.dup2(two, 4)

    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [found, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
            start_new_session=True,
            preexec_fn=plumb,
            pass_fds=(3, 4),
        )
    os.close(reads)
    os.close(says)
    return process, (writes, hears)


class Page:
    """One tab. Where a call takes `text` or `css`, the first visible element that fits is meant."""

    def __init__(self, line: ClientConnection, pictures: Path) -> None:
        self._line, self._pictures, self._number = line, pictures, 0
        self.errors: list[str] = []
        """What the page's console said was wrong, so far."""

    def begin(self, *, light: bool) -> None:
        for part in ("Page", "Runtime", "Log"):
            self.call(f"{part}.enable")
        self.size(WIDE, HIGH)
        self.scheme("light" if light else "dark")

    def open(self, url: str) -> None:
        said = self.call("Page.navigate", url=url)
        assert "errorText" not in said, f"{url}: {said['errorText']}"

    def size(self, width: int, height: int, *, scale: float = 1.0) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=False,
        )  # fmt: skip

    def scheme(self, which: Literal["light", "dark"]) -> None:
        """What the person's system prefers."""
        features = [{"name": "prefers-color-scheme", "value": which}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        said = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def text(self, css: str = "body") -> str:
        """What is to be read there; "" = there is no such thing."""
        script = f"(document.querySelector({json.dumps(css)}) || {{}}).innerText || ''"
        return str(self.run(script))

    def count(self, *, text: str | None = None, css: str | None = None) -> int:
        """How many elements fit, visible ones."""
        return int(self.run(f"{_finding(text, css)}.length"))

    def has(self, *, text: str | None = None, css: str | None = None) -> bool:
        if css is None:
            return (text or "") in self.text()
        return self.count(text=text, css=css) > 0

    def wait_for(
        self,
        *,
        text: str | None = None,
        css: str | None = None,
        gone: bool = False,
        timeout_s: float = WAIT_S,
    ) -> None:
        """Returns when the page shows it, or with `gone` no longer shows it.

        Raises:
            Unseen: it did not come in time; names a picture and says what the page said.
        """
        until = time.monotonic() + timeout_s
        while self.has(text=text, css=css) == gone:
            if time.monotonic() > until:
                what = " ".join(filter(None, (css, repr(text) if text is not None else None)))
                raise Unseen(self._told(f"{what} {'stayed' if gone else 'did not come'}"))
            time.sleep(0.1)

    def wait_until(self, script: str, *, timeout_s: float = WAIT_S) -> None:
        """Returns when a JavaScript expression is true."""
        until = time.monotonic() + timeout_s
        while not self.run(script):
            if time.monotonic() > until:
                raise Unseen(self._told(f"{script} did not become true"))
            time.sleep(0.1)

    def settled(self, *, timeout_s: float = WAIT_S) -> None:
        """Returns when Streamlit has drawn everything: its script rests, and nothing is stale."""
        rests = (
            "(() => { const app = document.querySelector('[data-testid=stApp]');"
            " return !!app && app.dataset.testScriptState === 'notRunning'"
            " && !document.querySelector('[data-testid=stSkeleton]')"
            " && !document.querySelector('[data-stale=true]'); })()"
        )
        quiet = 0
        until = time.monotonic() + timeout_s
        while quiet < 3:
            quiet = quiet + 1 if self.run(rests) else 0
            if time.monotonic() > until:
                raise Unseen(self._told("the page did not come to rest"))
            time.sleep(0.1)

    def click(
        self,
        text: str | None = None,
        *,
        css: str | None = None,
        times: int = 1,
        at: tuple[float, float] | None = None,
        timeout_s: float = WAIT_S,
    ) -> None:
        """Presses the mouse on it, once nothing covers it.

        Args:
            times: 2 = twice, as fast as can be.
            at: where, from its upper left corner; None = in its middle.
        """
        x, y, left, top = self._spot(text, css, timeout_s)
        if at is not None:
            x, y = left + at[0], top + at[1]
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for number in range(times):
            for kind in ("mousePressed", "mouseReleased"):
                self.call(
                    "Input.dispatchMouseEvent",
                    type=kind, x=x, y=y, button="left", clickCount=number + 1,
                )  # fmt: skip

    def choose(self, option: str, *, css: str, timeout_s: float = WAIT_S) -> None:
        """Opens a list and presses an option of it. A list that does not open is pressed again, as
        a person would: the page may have been drawn anew under the mouse."""
        until = time.monotonic() + timeout_s
        while True:
            self.click(css=css)
            try:
                return self.click(option, css="[role=option]", timeout_s=timeout_s / 12)
            except Unseen:
                if time.monotonic() > until:
                    raise

    def type(self, words: str, *, css: str | None = None, text: str | None = None) -> None:
        """Types into what has the focus, or into an element in place of what it held."""
        if css is not None or text is not None:
            self.click(text, css=css)
            self.press("Control+a")
        self.call("Input.insertText", text=words)

    def press(self, keys: str) -> None:
        """One key with its modifiers, as `a`, `Enter`, `Control+Enter`, `Shift+Tab`."""
        *held, key = keys.split("+") if keys != "+" else ["+"]
        modifiers = sum(MODIFIERS[one] for one in held)
        code, number, types = KEYS.get(key) or _letter(key)
        about = {
            "key": " " if key == "Space" else key,
            "code": code,
            "windowsVirtualKeyCode": number,
            "modifiers": modifiers,
        }
        if modifiers & ~MODIFIERS["Shift"]:
            types = ""
        commands = ["selectAll"] if keys in ("Control+a", "Meta+a") else []
        down = {"type": "keyDown", "text": types} if types else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **about, **down, commands=commands)
        self.call("Input.dispatchKeyEvent", **about, type="keyUp")

    def screenshot(self, path: Path, *, whole: bool = False) -> Path:
        """A PNG of the window, or of the whole page."""
        said = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(said["data"]))
        return path

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        self._line.send(json.dumps(command))
        while True:
            said = json.loads(self._line.recv(timeout=60))
            if said.get("id") == self._number:
                assert "error" not in said, f"{method}: {said['error']}"
                return dict(said["result"])
            self._heard(said)

    def _heard(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "assert"):
                words = (str(one.get("value", one.get("description"))) for one in about["args"])
                self.errors.append(" ".join(words))
            case "Runtime.exceptionThrown":
                told = about["exceptionDetails"]
                what = told.get("exception", {}).get("description") or told["text"]
                self.errors.append(what)
            case "Log.entryAdded" if about["entry"]["level"] == "error":
                entry = about["entry"]
                self.errors.append(f"{entry['text']} ({entry.get('url', '')})")

    def _spot(self, text: str | None, css: str | None, timeout_s: float) -> list[float]:
        """Of the first that fits and that nothing covers, once it stands still: its middle, then
        its upper left corner."""
        script = f"""
        (() => {{
          for (const found of {_finding(text, css)}) {{
            if (found.disabled || found.ariaDisabled === 'true') continue;
            found.scrollIntoView({{block: 'center', behavior: 'instant'}});
            const box = found.getBoundingClientRect();
            const x = box.x + box.width / 2, y = box.y + box.height / 2;
            const top = document.elementFromPoint(x, y);
            if (top && (found.contains(top) || top.contains(found))) return [x, y, box.x, box.y];
          }}
          return null;
        }})()"""
        until, before = time.monotonic() + timeout_s, None
        while True:
            spot: list[float] | None = self.run(script)
            if spot is not None and spot == before:
                return spot
            before = spot
            if time.monotonic() > until:
                raise Unseen(self._told(f"nothing to press at {css or ''} {text or ''}"))
            time.sleep(0.05)

    def _told(self, what: str) -> str:
        picture = self._pictures / f"{time.time_ns()}.png"
        with contextlib.suppress(AssertionError, WebSocketException, TimeoutError):
            self.screenshot(picture)
        errors = "".join(f"\nconsole: {one}" for one in self.errors)
        said = " | ".join(line for line in self.text().splitlines() if line.strip())
        return f"{what}; {picture} shows the page, which says: {said[:4000]}{errors}"


def _finding(text: str | None, css: str | None) -> str:
    assert text is not None or css is not None, "name what is meant by its text or by css"
    return FIND.strip() % json.dumps({"text": text, "css": css})


def _letter(key: str) -> tuple[str, int, str]:
    assert len(key) == 1, f"no key {key!r}; known: {', '.join(KEYS)} and single letters"
    code = f"Digit{key}" if key.isdigit() else f"Key{key.upper()}" if key.isalpha() else ""
    return code, ord(key.upper()), key
