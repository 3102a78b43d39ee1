"""An hourly look grades what it has not seen as it is now, and nothing else."""

from pathlib import Path
from typing import Any

from flywheel.home import Home
from flywheel.records import Feedback
from storage.committer import commit
from storage.inbox import Inbox
from storage.judgements import grades
from tasks.grade import grade_recorded
from tasks.turns import turn_to_come
from tests.storage.test_released import drawn

SOURCE = """
from environments.define import Environment, reward

class Support(Environment):
    version = "1"

    @reward()
    def right(self, answer, problem):
        return answer == problem.answer
"""
FILE = """name = "support"
model.base = "base"
environment.path = "environment.py:Support"
"""


def write_project(folder: Path) -> Path:
    base = Path(__file__).parents[1] / "sorting" / "base"
    folder.mkdir()
    (folder / "base").symlink_to(base)
    (folder / "environment.py").write_text(SOURCE)
    (folder / "flywheel.toml").write_text(FILE)
    return folder


def store(home: Home, *records: Any) -> None:
    Inbox(home).append(records)
    commit(home)


def right(conversation: str, answer: str, at: int) -> Feedback:
    return Feedback(
        project="support", target=conversation, target_kind="conversation", name="right",
        value=answer, kind="demonstration", by="ann", at=at,
    )  # fmt: skip


def look(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = grade_recorded.fn(turn_to_come(str(folder)))  # type: ignore[attr-defined]
    return found


def values(home: Home) -> dict[str, float | None]:
    return {one.trace_id: one.value for one in grades(home, project="support")}


def test_a_look_grades_what_came_changed_or_was_spoken_of_since_the_last(
    home: Home, tmp_path: Path
) -> None:
    folder = write_project(tmp_path / "support")
    a, b, c = (drawn(name, "support-v1", 1.0) for name in "abc")
    copy = drawn("copy", "support-v2", 1.0, shadow_of={"trace": a.id, "span": "a"})
    store(home, a, b, c, copy, *(right(name, name, 1) for name in "ab"))
    first = look(folder)
    assert (first["looked_at"], first["graded"], first["not_gradable"]) == (4, 3, 1)
    assert len(first["reasons"]) == 1 and values(home)[a.id] == 1.0 and values(home)[c.id] is None
    assert look(folder) == {**first, "looked_at": 0}

    store(home, right("a", "another", 2))
    late = look(folder)
    assert (late["looked_at"], values(home)[a.id], values(home)[copy.id]) == (2, 0.0, 0.0)
    store(home, right("a", "a", 3))
    assert (look(folder)["looked_at"], values(home)[a.id]) == (2, 1.0), "said back, graded back"
    store(home, drawn("d", "support-v1", 1.0))
    assert look(folder)["looked_at"] == 1


def test_another_grader_grades_everything_and_its_predecessor_again(
    home: Home, tmp_path: Path
) -> None:
    folder = write_project(tmp_path / "support")
    a, b = drawn("a", "support-v1", 1.0), drawn("b", "support-v1", 1.0)
    store(home, a, b, right("a", "a", 1), right("b", "other", 1))
    look(folder)
    before = values(home)
    stricter = SOURCE.replace("return answer == problem.answer", "return False")
    (folder / "environment.py").write_text(stricter)
    assert look(folder)["looked_at"] == 2 and set(values(home).values()) == {0.0}
    (folder / "environment.py").write_text(SOURCE)
    assert look(folder)["looked_at"] == 2 and values(home) == before == {a.id: 1.0, b.id: 0.0}
