"""A project's judge: calibrated against people, sampled, within its budget, shown and tried."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from app.cli import flywheel
from app.commands.grade_ import _lines
from environments.grading import score
from environments.judges.standing import NOT_CALIBRATED
from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.progress import listen
from storage.judgements import grades
from storage.queries import records
from tasks.calibrate import calibrate
from tasks.grade import grade_recorded
from tasks.judges import informing, judge_of
from tasks.turns import Turn, environment_of, turn_to_come
from tests.environments.judges.scripted_judge import Endpoint, prompt, quoted, scripted_judge
from tests.tasks.judging_project import compared, review, store, trace, write_project


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with scripted_judge() as made:
        made.verdict = kind
        yield made


def kind(body: dict[str, Any]) -> Any:
    """Likes what says "gladly"; of two the one that does; fooled by "!"."""
    if "<<<FIRST" in prompt(body):
        first, second = ("gladly" in quoted(body, name) for name in ("FIRST", "SECOND"))
        return "neither" if first == second else "first" if first else "second"
    answer = quoted(body, "ANSWER")
    return 4 if "gladly" in answer or "!" in answer else 0


def traffic(home: Home, count: int = 40) -> None:
    """Half of it kind, and reviewed as such, apart from three that only look kind."""
    answers = [f"{number} gladly" if number % 2 else f"{number} no" for number in range(count)]
    for number in (0, 2, 4):
        answers[number] += "!"
    made = [trace(number, answer) for number, answer in enumerate(answers)]
    reviews = [review(one.id, bool(number % 2)) for number, one in enumerate(made)]
    store(home, [*made, *reviews])


def looked_at(project: Any) -> Turn:
    return turn_to_come(str(project.folder))


def graded(home: Home, project: Any) -> dict[str, Any]:
    found: dict[str, Any] = grade_recorded.fn(looked_at(project))  # type: ignore[attr-defined]
    return found


def test_calibration_measures_agreement_and_lets_the_judge_gate_from_then_on(
    home: Home, endpoint: Endpoint, tmp_path: Path
) -> None:
    project = write_project(tmp_path / "desk", endpoint.url, price_in=1.0, price_out=1.0)
    traffic(home)
    seen: list[tuple[str, int, int | None, str]] = []
    stop = listen(lambda *said: seen.append(said))
    told = graded(home, project)
    stop()
    assert (told["graded"], told["not_gradable"]) == (0, 0)  # nothing has any weight
    cost = {"traces": 40, "informing": 40, "cost_usd": pytest.approx(0.0044), "no_verdict": {}}
    assert told["judge"] == cost
    assert list(_lines(told, None, None)) == ["40 traces judged, informing only, $0.0044"]
    steps = [said[1:] for said in seen if said[0] == "judging"]
    assert steps[0][:2] == (0, 40) and steps[-1] == (40, 40, "40 calls, $0.0044 today")
    before = [one for one in grades(home, project="desk") if one.reward == "kind"]
    assert len(before) == 40 and all(one.weight == 0.0 for one in before)
    assert all("agreement with people is not known" in (one.reason or "") for one in before)
    environment = environment_of(project)
    assert informing(environment, before) == {"kind": NOT_CALIBRATED}

    asked = len(endpoint.asked)
    (found,) = calibrate(project, home)
    assert len(endpoint.asked) == asked  # all of it was asked before
    assert (found.labels, found.confusion) == (("rejected", "accepted"), ((17, 3), (0, 20)))
    assert found.kappa == pytest.approx(0.85) and found.low and found.high
    assert found.low < 0.85 < found.high and found.cost_usd == 0.0
    assert records(home, "calibration", project="desk") == [found]

    graded(home, project)
    after = [one for one in grades(home, project="desk") if one.reward == "kind"]
    assert all((one.kind, one.weight, one.reason) == ("judge", 1.0, "because") for one in after)
    assert informing(environment, after) == {}
    assert after[0].grader.endswith(f":{found.judge}") and score([after[1]]) == 1.0
    other = write_project(tmp_path / "other", endpoint.url, votes=3, temperature=1.0)
    judge = judge_of(other, home)
    assert judge and judge.only_informs(judge.digest_of("score", "Is it kind?"))


def test_pairs_that_people_compared_calibrate_a_group_reward(
    home: Home, endpoint: Endpoint, tmp_path: Path
) -> None:
    project = write_project(tmp_path / "desk", endpoint.url, least_reviews=2)
    traffic(home, 12)
    said = [("t001", "t002", "better"), ("t004", "t003", "worse"), ("t005", "t007", "equal"),
            ("t006", "t008", "better")]  # fmt: skip
    at_odds = [*compared("t001", "t009", "better"), *compared("t001", "t009", "equal", by="bob")]
    store(home, [*(one for pair in said for one in compared(*pair)), *at_odds])
    pairs, reviews = sorted(calibrate(project, home), key=lambda one: one.kind)
    assert (pairs.reward, pairs.n, pairs.disputed) == ("kinder", 4, 1)
    # t004/t003 is kept as t003/t004: the first is better there.
    assert pairs.confusion == ((0, 0, 0), (0, 1, 0), (0, 1, 2))
    assert reviews.reward == "kind" and pairs.judge != reviews.judge


def test_a_useless_judge_has_a_kappa_near_0_and_may_not_gate(
    home: Home, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.verdict = lambda body: 4 if body["seed"] % 2 else 0
    project = write_project(tmp_path / "desk", endpoint.url)
    traffic(home, 60)
    (found,) = calibrate(project, home)
    assert found.kappa is not None and abs(found.kappa) < 0.4
    judge = judge_of(project, home)
    assert judge and "the bar is 0.6" in judge.only_informs(found.judge)


def test_what_people_said_is_kept_from_the_judge_that_is_measured(
    home: Home, endpoint: Endpoint, tmp_path: Path
) -> None:
    environment = """
from environments.define import Environment, reward


class Desk(Environment):
    @reward(truth=False)
    async def kind(self, judge, answer, problem):
        return await judge.score(f"Is it like {problem.answer}?", answer)
"""
    project = write_project(tmp_path / "desk", endpoint.url, environment)
    said = review("t000", True)
    answer = msgspec.structs.replace(said, kind="demonstration", value="0 gladly")
    store(home, [trace(0, "0 gladly"), answer])
    calibrate(project, home)
    assert "Is it like None?" in prompt(endpoint.asked[0])


def test_people_at_odds_are_left_out_and_answers_without_a_verdict_are_missing(
    home: Home, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.verdict = lambda body: "no" if quoted(body, "ANSWER") == "3 gladly" else kind(body)
    project = write_project(tmp_path / "desk", endpoint.url)
    traffic(home, 10)
    store(home, [review("t001", False, by="bob"), review("t002", False, by="bob")])
    (found,) = calibrate(project, home)
    assert (found.n, found.disputed, found.missing) == (8, 1, 1)


def test_nothing_to_calibrate_is_told(home: Home, endpoint: Endpoint, tmp_path: Path) -> None:
    project = write_project(tmp_path / "desk", endpoint.url)
    with pytest.raises(UsageError, match="nobody has reviewed an answer of desk"):
        calibrate(project, home)
    without = project.model_copy(update={"judge": None})
    with pytest.raises(UsageError, match=r"no \[judge\] in"):
        calibrate(without, home)
    assert judge_of(without, home) is None
    plain = "from environments.define import Environment\n\n\nclass Desk(Environment):\n    pass\n"
    silent = write_project(tmp_path / "silent", endpoint.url, plain)
    with pytest.raises(UsageError, match="names `judge`"):
        calibrate(silent, home)


def test_a_share_of_recorded_traces_is_judged_evenly_until_the_budget_is_spent(
    home: Home, endpoint: Endpoint, tmp_path: Path
) -> None:
    project = write_project(tmp_path / "desk", endpoint.url, share=0.5, budget_calls=12)
    traffic(home, 60)
    graded(home, project)
    found = [one for one in grades(home, project="desk") if one.reward == "kind"]
    judged = [one for one in found if one.value is not None]
    unasked = [one for one in found if "outside of the judge's sample" in (one.reason or "")]
    spent = [one for one in found if "budget of 12 calls a day is spent" in (one.reason or "")]
    assert len(judged) == len(endpoint.asked) == 12
    assert 15 < len(unasked) < 45 and len(judged) + len(unasked) + len(spent) == 60
    strata = {(int(one.trace_id[1:]) % 2, int(one.trace_id[1:]) % 3) for one in judged}
    assert len(strata) == 6  # each slice of each day
    graded(home, project)
    again = {one.trace_id for one in grades(home, project="desk") if one.value is not None}
    assert again == {one.trace_id for one in judged} and len(endpoint.asked) == 12


def test_the_command_shows_calibrates_and_tries(
    home: Home, endpoint: Endpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project = write_project(tmp_path / "desk", endpoint.url)
    traffic(home)
    folder = str(project.folder)

    def said(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(flywheel, ["judge", *words])
        assert not result.exception or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    code, text = said("show", folder)
    assert code == 0 and "never calibrated: its grades inform only" in text
    assert "rewards that ask it: kind, kinder" in text and "cost not known (no price)" in text
    code, text = said("calibrate", folder)
    assert code == 0 and "kappa 0.85, 95% interval" in text and "it gates and trains" in text
    assert "rejected          17         3" in text
    code, text = said("try", "t001", folder)
    assert code == 0 and "kind: 1.00  because" in text
    capfd.readouterr()
    assert said("show", folder, "--json")[0] == 0
    found = json.loads(capfd.readouterr().out)
    assert found["today"]["calls"] == 40 and found["calibrations"][0]["gates"] is True
    strict = project.folder / "flywheel.toml"
    strict.write_text(strict.read_text() + "bar = 0.99\n")
    code, text = said("calibrate", folder)
    assert code == 3 and "kappa with people is 0.85, the bar is 0.99" in text
    strict.write_text(strict.read_text().replace("scripted", "another"))
    endpoint.verdict = lambda body: (401, {"error": {"message": "who are you?"}}, {})
    code, text = said("try", "t001", folder)
    assert code == 1 and "kind: null  no verdict: " in text and "who are you?" in text
    assert "asking the judge" in text and f"another at {endpoint.url}" in text
    nothing = CliRunner().invoke(flywheel, ["judge", "try", "t999", folder])
    assert isinstance(nothing.exception, UsageError) and "no trace t999" in str(nothing.exception)
