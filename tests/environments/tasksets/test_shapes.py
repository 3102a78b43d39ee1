"""Benchmarks' own formats, recognised by their shape."""

import json
from pathlib import Path
from typing import Any

import pytest

from environments.define import Environment
from environments.tasksets.contract import Read
from environments.tasksets.table import kind_of
from flywheel.errors import ProjectError
from flywheel.records import Problem


class Any_(Environment):
    pass


def read(path: Path, kind: str = "", **tasks: Any) -> Read:
    environment = Any_({"tasks": {"path": str(path), "near_duplicate": None, **tasks}})
    assert environment.tasks is not None
    assert not kind or kind_of(path, environment.tasks) == kind
    return environment.problems()


def lines(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def told(found: Read) -> list[str]:
    return [f"{one.line}:{one.field}:{one.reason}"[:60] for one in found.rejects]


def test_gsm8k_answers_are_the_number_at_the_end(tmp_path: Path) -> None:
    rows = [
        {"question": "a?", "answer": "so <<1*2=2>>2\n#### 70,000"},
        {"question": "b?", "answer": "no mark"},
        {"question": 3, "answer": "x\n#### 1"},
    ]
    found = read(lines(tmp_path / "gsm.jsonl", *rows), "gsm8k", heldout_share=1)
    (one,) = found.problems
    assert (one.answer, one.split) == ("70000", "heldout")
    assert one.attributes["solution"] == "so <<1*2=2>>2"
    assert told(found)[0].startswith("2:answer:has no `#### number`")
    assert told(found)[1].startswith("3:question:is int: the question's text")


def test_humaneval_keeps_what_a_sandbox_needs(tmp_path: Path) -> None:
    row = {
        "task_id": "HumanEval/0", "prompt": "def f(x):\n", "entry_point": "f",
        "test": "def check(f): assert f(1)", "canonical_solution": "    return x\n",
    }  # fmt: skip
    found = read(lines(tmp_path / "h.jsonl", row, {**row, "test": None}), "humaneval")
    (one,) = found.problems
    assert one.answer == {
        "prompt": row["prompt"], "entry_point": "f", "test": row["test"],
        "solution": row["canonical_solution"],
    }  # fmt: skip
    assert told(found)[0].startswith("2:test:is missing: a program text")


SUM = {
    "name": "math.sum",
    "description": "Sums.",
    "parameters": {
        "type": "dict",
        "properties": {
            "numbers": {"type": "array", "items": {"type": "float"}},
            "any": {"type": "any", "description": "x"},
        },
        "required": ["numbers"],
    },
}


def asked(id: str, turns: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "question": [[{"role": "user", "content": f"Sum ({id})."}]] * turns,
        "function": [SUM],
        **more,
    }


def test_bfcl_files_find_their_truth_beside_them(tmp_path: Path) -> None:
    lines(tmp_path / "BFCL_v4_parallel.json", asked("parallel_0"), asked("parallel_1"))
    lines(tmp_path / "BFCL_v4_irrelevance.json", asked("irrelevance_0"))
    lines(tmp_path / "BFCL_v4_multi_turn_base.json", asked("multi_turn_base_0", turns=2))
    truth = {"id": "parallel_0", "ground_truth": [{"math.sum": {"numbers": [[1, 2]]}}]}
    lines(tmp_path / "possible_answer" / "BFCL_v4_parallel.json", truth)
    found = read(tmp_path, "bfcl")
    by_id = {p.attributes["id"]: p for p in found.problems}
    assert by_id["parallel_0"].answer == [{"name": "math_sum", "arguments": {"numbers": [[1, 2]]}}]
    assert by_id["irrelevance_0"].answer == [] and by_id["irrelevance_0"].slice == "irrelevance"
    assert by_id["parallel_1"].answer is None
    assert by_id["parallel_1"].attributes["truth"].startswith("no ground truth of parallel_1")
    assert by_id["parallel_0"].tools[0]["function"] == {
        "name": "math_sum",
        "description": "Sums.",
        "parameters": {
            "type": "object",
            "properties": {
                "numbers": {"type": "array", "items": {"type": "number"}},
                "any": {"description": "x"},
            },
            "required": ["numbers"],
        },
    }
    assert told(found)[0].startswith("1:question:has 2 turns")
    only = read(tmp_path, options={"categories": ["irrelevance"]})
    assert [p.slice for p in only.problems] == ["irrelevance"]
    torn = read(lines(tmp_path / "x" / "t.jsonl", asked("simple_0", ground_truth=[{"f": [1]}])))
    assert told(torn)[0].startswith("1:ground_truth[0]:is not {function")


TASK = {
    "id": "create_1",
    "user_scenario": {"instructions": "You want a task.", "persona": None},
    "ticket": "Needs a task.",
    "evaluation_criteria": {"actions": []},
}


def test_tau2_tasks_of_one_opening_are_told_apart_and_hide_their_scenario(tmp_path: Path) -> None:
    (tmp_path / "policy.md").write_text("Be kind.\n")
    (tmp_path / "splits.json").write_text('{"train": ["create_1"], "base": ["create_2"]}')
    other = {"instructions": "You want another thing."}
    two = {**TASK, "id": "create_2", "evaluation_criteria": None, "user_scenario": other}
    rows = [TASK, two, {**TASK, "id": 3}]
    path = lines(tmp_path / "tasks.jsonl", *rows)
    options = {"policy": "policy.md", "splits": "splits.json"}
    found = read(path, "tau2", options=options, heldout_share=0.999)
    first, second = found.problems
    assert [m.text for m in first.messages] == ["Be kind.", "Needs a task."]
    assert first.messages == second.messages and first.id != second.id
    assert (first.split, second.split) == ("train", "heldout")
    assert first.answer["scenario"]["instructions"] == "You want a task."
    assert second.answer is None and "another thing" in second.text
    assert told(found) == ["3:id:is int: the task's name"]
    with pytest.raises(ProjectError, match=r"gone.md cannot be read"):
        read(path, options={"policy": "gone.md"})


def test_nemo_gym_rows_take_responses_items_and_leave_sampling(tmp_path: Path) -> None:
    params = {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "2+2?"}]},
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 2}'},
            {"type": "function_call_output", "call_id": "c", "output": "4"},
        ],
        "instructions": "Short.",
        "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}}],
        "temperature": 1.0,
    }
    rows = [
        {"responses_create_params": params, "expected_answer": "4", "agent_ref": {"name": "x"}},
        {"responses_create_params": {"input": "3+3?"}, "other": 6},
        {"responses_create_params": {"input": [{"type": "image"}]}},
        {"responses_create_params": {"input": []}},
    ]
    found = read(lines(tmp_path / "r.jsonl", *rows), "nemo_gym")
    one, two = found.problems
    assert [m.role for m in one.messages] == ["system", "user", "assistant", "tool"]
    assert one.answer == "4" and one.tools[0]["function"]["name"] == "add"
    assert one.attributes == {"row": {"agent_ref": {"name": "x"}}}
    assert two.answer is None and two.attributes["truth"].startswith(
        "the row has no expected_answer"
    )
    assert [text.split(":")[1] for text in told(found)] == [
        "responses_create_params.input[0]", "responses_create_params.input",
    ]  # fmt: skip


def harbor(folder: Path, toml: str = '[metadata]\ncategory = "files"\n') -> Path:
    for name, text in (
        ("task.toml", toml), ("instruction.md", "<!-- canary 1 -->\n# canary x\n# Do it\nNow.\n"),
        ("tests/test.sh", "exit 0\n"), ("solution/solve.sh", "true\n"),
        ("environment/Dockerfile", "FROM debian\n"),
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "tests" / "data.bin").write_bytes(b"\xff\x00")
    return folder


def test_harbor_folders_carry_all_that_a_grader_needs(tmp_path: Path) -> None:
    harbor(tmp_path / "set" / "one")
    harbor(tmp_path / "set" / "two", "schema_version = \n")
    linked = harbor(tmp_path / "set" / "three")
    (linked / "tests" / "passwd").symlink_to("/etc/passwd")
    (harbor(tmp_path / "set" / "four") / "tests" / "test.sh").unlink()
    (tmp_path / "set" / "five").symlink_to(tmp_path / "set" / "one")
    found = read(tmp_path / "set", "harbor")
    (one,) = found.problems
    assert one.messages[0].text == "# Do it\nNow." and (one.slice, one.key) == ("files", "one")
    assert one.answer["tests"] == {"test.sh": "exit 0\n", "data.bin": {"base64": "/wA="}}
    assert one.answer["solution"] == {"solve.sh": "true\n"} and one.answer["image"] is None
    assert sorted(str(r).removeprefix(f"{tmp_path}/set/")[:28] for r in found.rejects) == [
        "four/tests: has no test.sh: ",
        "three/tests: passwd is a lin",
        "two/task.toml: is no TOML: I",
    ]
    assert [p.key for p in read(tmp_path / "set" / "one", "harbor").problems] == ["one"]


GENERATED = {"tasks": {"basic_arithmetic": {"max_terms": 3}, "chain_sum": {}}, "items": 5}


def test_generators_give_the_same_problems_by_seed() -> None:
    pytest.importorskip("reasoning_gym", reason="`make install-reasoning` brings reasoning-gym")
    from environments.tasksets.reasoning_gym import score

    def made(seed: int, **options: Any) -> list[Problem]:
        tasks = {"kind": "reasoning_gym", "seed": seed, "options": {**GENERATED, **options}}
        return list(Any_({"tasks": tasks | {"near_duplicate": None}}).problems().problems)

    first = made(1)
    assert len(first) == 10 and {p.slice for p in first} == {"basic_arithmetic", "chain_sum"}
    assert first == made(1) and not {p.id for p in first} & {p.id for p in made(2)}
    assert all(score(p.answer, p) == 1.0 and score("x", p) < 1.0 for p in first)
    assert [p.id for p in made(1, items=7) if p in first] == [p.id for p in first]
    (null,) = made(4, tasks={"propositional_logic": {}}, items=1)
    assert null.answer is None and "states no answer" in null.attributes["truth"]
    for tasks, expected in (
        ({"basic_arithmetik": {}}, "did you mean 'basic_arithmetic'"),
        ({"chain_sum": {"min_term": 2}}, "did you mean 'min_terms'"),
        ({"chain_sum": {"min_terms": -2}}, "settings of chain_sum do not fit"),
        ({"ransom_note": {}}, "leave it out"),
        ({}, "names no generator"),
    ):
        with pytest.raises(ProjectError, match=expected):
            made(1, tasks=tasks)


EXPECTED = {
    "bfcl_parallel": (60, "bfcl"), "bfcl_irrelevance": (60, "bfcl"), "gsm8k": (300, "gsm8k"),
    "humaneval": (110, "humaneval"), "tau2_airline_tasks": (33, "tau2"),
    "tau2_mock_tasks": (10, "tau2"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_the_real_files_are_read_whole(name: str, problems: Path) -> None:
    count, kind = EXPECTED[name]
    found = read(problems / f"{name}_shared.jsonl", kind, heldout_share=1)
    assert len(list(found.problems)) == count and not found.rejects and not found.left_out
