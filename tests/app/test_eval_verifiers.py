"""A real environment of the verifiers package, played by its own harness, recorded and graded here.

Needs `.venv-verifiers` (`make install-verifiers`); skipped where it is not.
"""

from pathlib import Path

import pytest

from environments.verifiers.child import started
from flywheel.errors import MissingPart
from flywheel.home import Home
from flywheel.settings import load
from storage.judgements import grades
from storage.queries import traces
from tests.app.calling import ROOT, call
from tests.tasks.answering import answering, last_number

SOURCE = """
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def right(self, trace) -> float:
        if self.data.answer == "12":
            raise ValueError("this one cannot be graded")
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=-1.0)
    async def too_long(self, trace) -> float:
        return float(len(trace.last_reply) > 1)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class Sums(vf.Taskset[SumTask]):
    def load(self):
        for number in (6, 7, 12):
            other = number + (3 if number % 2 else -3)
            yield SumTask(
                SumData(
                    prompt=f"Say the larger of {number} and {other}",
                    system_prompt="Say only the number.",
                    answer=str(max(number, other)),
                ),
                self.config.task,
            )


__all__ = ["Sums"]
"""
THERE = (load().verifiers / "bin" / "python").is_file()


@pytest.mark.slow
@pytest.mark.skipif(not THERE, reason="no .venv-verifiers: `make install-verifiers` brings it")
def test_an_environment_of_verifiers_is_evaluated_as_ours_are(tmp_path: Path) -> None:
    package = tmp_path / "packages" / "flywheel_tiny_sums"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    home = tmp_path / "home"
    with answering(last_number) as model:
        said = call(
            "eval", "verifiers:flywheel-tiny-sums", "--model", model.url, "--n", "1", "--json",
            home=home, PYTHONPATH=f"{package.parent}:{ROOT}",
        )  # fmt: skip
        asked = model.requests
    found = said.object()
    assert said.code == 0, said
    assert found["episodes"] == {
        "planned": 3, "done": 3, "graded": 2, "not_graded": 1, "infrastructure": 0,
    }  # fmt: skip
    means = {one["name"]: (one["weight"], one["mean"]) for one in found["rewards"]}
    # What verifiers takes off is a reward here too, with the sign in its value.
    assert means["right"] == (2.0, 0.5) and means["too_long"] == (1.0, -0.5)
    assert means["length"][0] == 0.0
    assert any("cannot be graded" in reason for reason in found["not_graded"])
    assert {body["temperature"] for body in asked} == {1.0}
    kept = [one for batch in traces(Home(home), origin="evaluation") for one in batch]
    assert len(kept) == 3 and all(one.spans[0].call for one in kept)
    nulls = [one for one in grades(Home(home), run_id=found["run"]) if one.value is None]
    assert nulls and all(one.reason for one in nulls)
    wrong = call("eval", "verifiers:no-such-thing", "--model", model.url, "--json", home=home)
    assert wrong.code == 2 and "no-such-thing" in wrong.object()["error"]


def test_without_the_package_the_verb_that_brings_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingPart, match="make install-verifiers"), started(tmp_path, "x"):
        pass
