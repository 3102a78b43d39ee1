from collections import Counter
from pathlib import Path

from environments.grading import Item, grade_all, score
from environments.load import load_environment
from environments.mining import choose, mine
from flywheel.curate_section import ProblemsSection
from tests.sorting.traffic import asks, feedback, recorded

FOLDER = Path(__file__).parents[1] / "sorting"


def test_traffic_becomes_problems_and_grades() -> None:
    environment = load_environment("environment.py:Sorting", FOLDER)
    given = asks(200)
    said = feedback("sorting", given)
    traces = recorded("sorting", given, "sorting-v0")
    by_conversation = {trace.conversation: trace.id for trace in traces}
    effective = {by_conversation[item.target]: [item] for item in said}
    problems = mine(environment, traces, effective, ProblemsSection())
    by_trace = {problem.trace_id: problem for problem in problems}
    known = [problem for problem in problems if problem.answer is not None]
    right = {ask.messages: ask.answer for ask in given}
    wrong = sum(problem.answer != right[problem.messages] for problem in known)
    assert 0.75 < len(known) / len(problems) < 0.95
    assert 0 < wrong < 0.12 * len(known)
    assert set(Counter(p.slice for p in problems)) == {f"length {n}" for n in (3, 4, 5, 6)}
    assert len(choose([p for p in problems if p.split == "heldout"], 32)) == 32
    graded = grade_all(environment, [Item(trace, by_trace.get(trace.id)) for trace in traces])
    scores = Counter(score(grades) for grades in graded)
    assert scores[0.0] > scores[None] > 0 and scores[1.0] > 0


def test_traffic_repeats_and_grows_at_its_end() -> None:
    assert asks(50) == asks(80)[:50]
    assert asks(50) != asks(50, seed=1)
    assert feedback("p", asks(50)) == feedback("p", asks(80))[: len(feedback("p", asks(50)))]
