"""A look at the next dataset, and why a trace is in it or not, on a real store without a model."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.commands.curate_ import lines as preview_lines
from app.commands.explain_ import lines as explain_lines
from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.records import Choice, Grade, ModelCall, Span, Trace, say, trace_id
from storage.committer import commit
from storage.curate import curate
from storage.datasets import write_dataset
from storage.explain import explained
from storage.inbox import Inbox
from tasks.curate import rows_to_train, rules_of
from tasks.known import known, rehearsed
from tasks.preview import preview, verdicts
from tasks.turns import turn_to_come
from tests.app.calling import call

DESK = """
from environments.define import Environment, reward


class Desk(Environment):
    @reward()
    def right(self, answer, problem):
        return answer == problem.answer
"""
DAY = 86_400 * 10**9


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "environment.py").write_text(DESK)
    return written(
        folder,
        'rules = [{name = "self_training"}, {name = "exact_duplicates"}, '
        '{name = "min_reward", value = 0.5}]',
    )


def written(folder: Path, rules: str) -> Path:
    (folder / "flywheel.toml").write_text(
        'name = "desk"\nmodel.base = "base"\nenvironment.path = "environment.py:Desk"\n'
        f'[curate]\nsources = ["recorded"]\nmin_rows = 1\n{rules}\n'
    )
    return folder


def asked(name: str, day: int = 0, **changes: Any) -> Trace:
    call = ModelCall(
        input=(say("user", f"ask {name}"),), tools=(),
        choices=(Choice(message=say("assistant", f"answer {name}"), finish_reason="stop"),),
    )  # fmt: skip
    span = Span(id="call", kind="model", start=day * DAY, end=day * DAY + 1, call=call)
    given = Trace(id=trace_id("desk", "gateway", name), project="desk", source="gateway",
                  external_id=name, origin="production", spans=(span,))  # fmt: skip
    return msgspec.structs.replace(given, **changes)


def graded(name: str, value: float, **more: Any) -> Grade:
    given = {"confirmed_by": "feedback"} | more
    return Grade(trace_id=trace_id("desk", "gateway", name), reward="right", value=value, **given)


def put(home: Home, *records: Any) -> None:
    Inbox(home).append(list(records))
    commit(home)


def filled(home: Home) -> None:
    put(home, *(asked(name) for name in ("good", "bad", "believed", "silent")))
    put(home, graded("good", 1.0), graded("bad", 0.0), graded("believed", 1.0, confirmed_by=None))


def test_a_preview_counts_and_shows_what_stays_and_what_goes_and_writes_nothing(
    home: Home, desk: Path
) -> None:
    filled(home)
    before = sorted(path for path in home.root.rglob("*") if path.is_file())
    found = preview(str(desk))
    assert found["candidates"] == {"production": 4} and found["rows"] == 1
    assert [(one["rule"], one["rows_in"], one["rows_out"]) for one in found["rules"]] == [
        ("leakage", 4, 4), ("self_training", 4, 2), ("exact_duplicates", 2, 2),
        ("min_reward", 2, 1),
    ]  # fmt: skip
    [kept], [wrong] = found["kept"], found["rules"][3]["examples"]
    assert (kept["asked"], kept["answered"], kept["reward"]) == ("ask good", "answer good", 1.0)
    assert wrong["reason"] == "reward 0 is under 0.5" and wrong["answered"] == "answer bad"
    assert before == sorted(path for path in home.root.rglob("*") if path.is_file())
    words = "\n".join(preview_lines(found))
    assert "the dataset would have 1 row:" in words and "ask bad → answer bad" in words


def test_a_trace_is_explained_by_what_is_known_of_it_by_datasets_and_by_the_rules_of_now(
    home: Home, desk: Path
) -> None:
    filled(home)
    turn = turn_to_come(str(desk))
    beside = known(turn)
    made = curate(rows_to_train(turn, {}, beside), rules_of(turn), [], 0.7, beside)
    dataset = write_dataset(home, "desk", made, parents=("run",), rules=rules_of(turn))
    put(home, msgspec.structs.replace(dataset, gate_passed=True))

    good, bad = explained(home, "good"), explained(home, "bad")
    assert (good.reward, good.fidelity) == (1.0, "renderable") and good.fates[0].inside
    assert (bad.fates[0].rule, bad.fates[0].why) == ("min_reward", "reward 0 is under 0.5")
    now = verdicts(str(desk), explained(home, "believed"))
    assert [(one["rule"], one["why"]) for one in now["rules"]] == [
        ("leakage", None),
        ("self_training", "the model's own answer, confirmed by nothing outside it"),
        ("exact_duplicates", None),
        ("min_reward", None),
    ]
    assert (now["no_candidate"], now["inside"]) == (None, False)

    words = list(explain_lines(explained(home, "bad"), now))
    assert (
        f"dataset {dataset.id[:12]}  not in: left out by min_reward: reward 0 is under 0.5" in words
    )
    assert words[-3:] == [
        "  - self_training        the model's own answer, confirmed by nothing outside it",
        "  + exact_duplicates     stays",
        "  + min_reward           stays",
    ]
    assert explained(home, bad.trace_id[:12]).trace_id == bad.trace_id
    for unknown in ("nobody", bad.trace_id[:4], "%" * 12):
        with pytest.raises(UsageError, match=f"no trace of this home has the id {unknown}"):
            explained(home, unknown)

    put(home, asked("late", day=3), asked("good", source="other", id="copy", day=3))
    assert explained(home, "copy").trace_id == explained(home, "good").trace_id
    late = explained(home, "late")
    assert "made before" in late.fates[0].why
    put(home, asked("good", consent="denied"), asked("tried", origin="rollout", run_id="r"))
    for name, why in (("good", "did not consent"), ("tried", "does not name 'rollouts'")):
        assert why in verdicts(str(desk), explained(home, name))["no_candidate"]


def test_what_must_be_gone_when_the_turn_opens_is_no_candidate(home: Home, desk: Path) -> None:
    filled(home)
    before = turn_to_come(str(desk))
    put(home, asked("good", expires=2 * DAY))
    turn = turn_to_come(str(desk))
    assert before.snapshot != turn.snapshot and turn.at is not None
    assert {row.completion.text for row in rows_to_train(turn, {}, known(turn))} == {
        "answer bad", "answer believed", "answer silent"
    }  # fmt: skip
    earlier = msgspec.structs.replace(turn, at=DAY)
    assert len(list(rows_to_train(earlier, {}, known(earlier)))) == 4
    now = verdicts(str(desk), explained(home, "good"))
    assert now["no_candidate"] == "it was to be gone by 1970-01-03, as its sender said"
    assert "  must be gone by 1970-01-03" in explain_lines(explained(home, "good"), now)


def test_what_a_project_rehearses_is_among_its_candidates_and_an_unwilling_sender_is_not(
    home: Home, desk: Path
) -> None:
    filled(home)
    turn = turn_to_come(str(desk))
    made = curate(rows_to_train(turn, {}, known(turn)), (), [], 0.7)
    dataset = write_dataset(home, "desk", made, parents=("before",), rules=())
    put(home, msgspec.structs.replace(dataset, gate_passed=True))
    put(home, asked("good", consent="denied"), asked("late", day=9))

    assert list(rehearsed(turn_to_come(str(desk)), known(turn_to_come(str(desk))))) == []
    written(desk, 'rules = [{name = "rehearsal", share = 0.5}]')
    turn = turn_to_come(str(desk))
    beside = known(turn)
    assert beside.earlier == (dataset.id,) and beside.now == 9 * DAY + 1
    put(
        home, graded("bad", 1.0, grader="second")
    )  # of what is graded otherwise since nothing stays
    [batch] = rehearsed(turn, beside)
    assert {row.rehearsed for row in batch} == {dataset.id}
    assert {row.completion.text for row in batch} == {
        "answer believed", "answer silent"
    }  # fmt: skip
    counts = {one["rule"]: (one["rows_in"], one["rows_out"]) for one in preview(str(desk))["rules"]}
    fresh = sum(row.rehearsed is None for row in rows_to_train(turn, {}, beside))
    assert counts["rehearsal"] == (fresh + 2, fresh)


@pytest.mark.slow
def test_the_commands_say_it_in_words_and_as_one_object(home: Home, desk: Path) -> None:
    filled(home)
    found = json.loads(call("curate", desk, "--preview", "--json", home=home.root).out)
    assert found["rows"] == 1
    said = call("explain", "bad", "--project", desk, home=home.root)
    assert said.code == 0 and "- min_reward" in said.out, said
