"""Buttons that act: asked first, done once, by one who may, and told."""

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.actions import actions
from flywheel.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    place = Home(tmp_path / "home")
    place.root.mkdir()
    return place


def page(home: Home, role: str = "promoter") -> AppTest:
    def script(root: str, role: str) -> None:
        from pathlib import Path

        from app.views import frame
        from app.views.acting import confirm
        from flywheel.errors import Refused
        from flywheel.home import Home

        frame.show(frame.Shown(Home(Path(root)), "shop", None, frame.Person("ann", role)))  # type: ignore[arg-type]
        count = Path(root) / "count"

        def act() -> str:
            count.write_text(f"{int(count.read_text()) + 1 if count.exists() else 1}")
            if (Path(root) / "refuse").exists():
                raise Refused("the **gate** said no")
            return "it is <b>done</b>"

        confirm("x", "Promote it", question="Do you <i>really</i>?", role="promoter", act=act)

    shown = AppTest.from_function(script, kwargs={"root": str(home.root), "role": role})
    return shown.run()


def press(shown: AppTest, label: str) -> Any:
    return next(one for one in shown.button if one.label == label)


def test_it_asks_then_acts_once_and_tells(home: Home) -> None:
    shown = page(home)
    press(shown, "Promote it").click().run()
    assert not (home.root / "count").exists() and "\\<i\\>really" in shown.markdown[0].value
    press(shown, "No").click().run()
    assert [one.label for one in shown.button] == ["Promote it"] and not actions(home)
    press(shown, "Promote it").click().run()
    yes = press(shown, "Yes, promote it")
    yes.click().run()
    for _ in range(3):
        shown.run()
    assert (home.root / "count").read_text() == "1"
    assert "it is \\<b\\>done" in shown.success[0].value
    (one,) = actions(home)
    assert (one.begun.by, one.begun.what, one.state) == ("ann", "Promote it", "done")


def test_a_refusal_is_told_as_one(home: Home) -> None:
    (home.root / "refuse").touch()
    shown = page(home)
    press(shown, "Promote it").click().run()
    press(shown, "Yes, promote it").click().run()
    assert "said no" in shown.warning[0].value and actions(home)[0].state == "refused"


def test_whoever_may_not_sees_it_disabled_and_is_refused_where_it_acts(home: Home) -> None:
    assert press(page(home, "reviewer"), "Promote it").disabled
    shown = page(home)
    press(shown, "Promote it").click().run()
    (home.root / "people.toml").write_text('[people]\nann = "reviewer"\n')
    press(shown, "Yes, promote it").click().run()
    assert "needs a promoter" in shown.warning[0].value
    assert not (home.root / "count").exists()


def test_of_two_pages_with_one_token_one_acts(home: Home) -> None:
    first, second = page(home), page(home)
    press(first, "Promote it").click().run()
    token = first.session_state["confirm:x:token"]
    second.session_state["confirm:x:token"] = token
    second.run()
    press(first, "Yes, promote it").click().run()
    press(second, "Yes, promote it").click().run()
    assert (home.root / "count").read_text() == "1" and len(actions(home)) == 1
