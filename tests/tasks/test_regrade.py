"""Recorded traces graded by any environment, twice without a difference, and replayed."""

from pathlib import Path

import pytest

from app.commands.grade_ import _lines
from environments.load import load_environment
from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.records import Choice, Grade, ModelCall, Problem, Span, Trace, say, trace_id
from storage.committer import commit
from storage.inbox import Inbox
from storage.judgements import grades
from tasks.grade_env import grade_recorded_with
from tasks.regrade import Narrowed
from tasks.replay import replay
from tests.tasks.evaluating import SOURCE, write_sums

HOUR = 3600 * 10**9


def recorded(home: Home, number: int, *, at: int, answer: str | None) -> str:
    """A trace of production, and the problem that it is known to be an answer to."""
    problem = Problem(environment="sums", messages=(say("user", f"say {number}"),),
                      answer=str(number), split="heldout")  # fmt: skip
    choices = () if answer is None else (
        Choice(message=say("assistant", answer), finish_reason="stop"),
    )  # fmt: skip
    call = ModelCall(input=problem.messages, choices=choices)
    trace = Trace(
        id=trace_id("p", "s", str(number)), project="p", source="s", external_id=str(number),
        origin="production", problem_id=problem.id,
        spans=(Span(id="a", kind="model", start=at, end=at + 1, call=call),),
    )  # fmt: skip
    Inbox(home).append([problem, trace])
    return trace.id


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    recorded(made, 1, at=HOUR, answer="1")
    recorded(made, 2, at=2 * HOUR, answer="wrong")
    recorded(made, 3, at=3 * HOUR, answer=None)
    commit(made)
    return made


def test_grading_again_stores_nothing_new(home: Home, tmp_path: Path) -> None:
    environment = load_environment("environment.py:Sums", write_sums(tmp_path / "e"))
    first = grade_recorded_with(home, environment, Narrowed())
    assert (first["traces"], first["graded"], first["not_gradable"]) == (3, 2, 1)
    assert first["reward"] == 0.5 and first["stored"] == 9
    assert first["reasons"] == {"no answer was recorded": 1}
    assert {one.grader for one in grades(home, project="p")} == {environment.digest}
    again = grade_recorded_with(home, environment, Narrowed())
    assert again["stored"] == 0 and again["reward"] == 0.5


def test_a_trace_that_an_environment_cannot_read_stops_no_other(home: Home, tmp_path: Path) -> None:
    """As another project's may be: with its own hooks they would never have met it."""
    source = SOURCE + "\n    def slice(self, problem):\n        return {}[problem.text]\n"
    environment = load_environment("environment.py:Sums", write_sums(tmp_path / "e", 4, source))
    said = Choice(message=say("assistant", "1"), finish_reason="stop")
    call = ModelCall(input=(say("user", "else"),), choices=(said,))
    span = Span(id="a", kind="model", start=HOUR, end=HOUR + 1, call=call)
    other = Trace(id=trace_id("q", "s", "9"), project="q", source="s", external_id="9",
                  origin="production", spans=(span,))  # fmt: skip
    Inbox(home).append([other])
    found = grade_recorded_with(home, environment, Narrowed())
    assert found["traces"] == 4 and found["reward"] == 0.5
    assert found["reasons"]["its problem cannot be told: KeyError: 'else'"] == 1


def test_only_the_time_that_was_asked_for(home: Home, tmp_path: Path) -> None:
    environment = load_environment("environment.py:Sums", write_sums(tmp_path / "e"))
    found = grade_recorded_with(home, environment, Narrowed(since=2 * HOUR, until=3 * HOUR))
    assert (found["traces"], found["graded"], found["reward"]) == (1, 1, 0.0)
    assert grade_recorded_with(home, environment, Narrowed(project="other"))["traces"] == 0
    none = grade_recorded_with(home, environment, Narrowed(project="p", since=9 * HOUR))
    assert list(_lines(none, "7d", None)) == [
        "0 of 3 recorded traces since 7d: nothing was graded; the newest is of 1970-01-01 03:00 UTC"
    ]


def test_a_replay_shows_what_changed_and_stores_nothing_until_it_is_told(
    home: Home, tmp_path: Path
) -> None:
    folder = write_sums(tmp_path / "e")
    old = load_environment("environment.py:Sums", folder)
    grade_recorded_with(home, old, Narrowed())
    file = folder / "environment.py"
    changed = file.read_text().replace("str(problem.answer) == answer", "0.25")
    file.write_text(changed.replace("def words", "def letters"))
    new = load_environment("environment.py:Sums", folder)
    before = len(grades(home, project="p"))
    found = replay(home, new, Narrowed())
    assert found["traces"] == 3 and found["saved"] is None
    assert found["rewards"]["right"] == {
        "same": 1, "up": 1, "down": 1, "became_known": 0, "became_null": 0,
        "mean_before": 0.5, "mean_after": 0.25,
    }  # fmt: skip
    assert found["rewards"]["letters"]["became_known"] == 2
    assert found["rewards"]["words"]["became_null"] == 2
    assert len(grades(home, project="p")) == before
    (one, *_) = [one for one in found["changes"] if one.reward == "words"]
    assert (one.before, one.after, one.reason_after) == (1.0, None, "no longer a reward")
    assert replay(home, new, Narrowed(), save=True)["saved"] == 9
    assert replay(home, new, Narrowed())["rewards"]["right"]["same"] == 3
    (first, *_) = found["changes"]
    strange = [Grade(trace_id=first.trace, reward="kind", value=1.0, grader="g", problem_id="p"),
               Grade(trace_id=first.trace, reward="review", value=1.0, kind="human")]  # fmt: skip
    Inbox(home).append(strange)
    commit(home)
    assert not {"kind", "review"} & set(replay(home, new, Narrowed())["rewards"])
    with pytest.raises(UsageError, match="no trace 'nobody'"):
        replay(home, new, Narrowed(ids=["nobody"], origins=None))
