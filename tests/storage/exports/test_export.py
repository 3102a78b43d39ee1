"""Exports: what each layout says, that nothing goes silently, and that others' readers take it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
import yaml

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.ids import digest, digest_bytes
from flywheel.lineage import Dataset, Product, RuleCount
from flywheel.records import Image, Message, Text, ToolCall, ToolResult, Trace, model_spans, say
from flywheel.rows import TrainingRow
from storage.curate import gathered
from storage.datasets import write_dataset
from storage.exports import LAYOUTS
from storage.exports.export import Exported, export
from tests.storage.rows_for_curation import a_row

ROOT = Path(__file__).resolve().parents[3]
TRL, VERIFIERS = (ROOT / name / "bin" / "python" for name in (".venv-trl", ".venv-verifiers"))
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = ToolCall(name="look", arguments='{"at": 1}', id="c1")


def called() -> TrainingRow:
    """An answer after a tool was asked."""
    messages = (
        say("system", "Be brief."),
        say("user", "Where?"),
        Message(role="assistant", parts=(CALL,)),
        Message(role="tool", parts=(ToolResult(content="there", id="c1"),)),
    )
    return a_row(1, messages=messages, completion=say("assistant", "There."), tools=(TOOL,))


def pictured() -> TrainingRow:
    parts = (Text(text="What is it?"), Image(digest="0" * 32))
    return a_row(2, messages=(Message(role="user", parts=parts),))


def pair(k: int) -> list[TrainingRow]:
    same = {"messages": (say("user", f"Question {k}"),), "pair_id": digest("pair", k)}
    return [
        a_row(k, completion=say("assistant", f"{label} {k}"), label=label, tokens=None, **same)
        for label in ("chosen", "rejected")
    ]


def posed(k: int) -> TrainingRow:
    return a_row(k, completion=Message(role="assistant"), tokens=None, reward=None,
                 environment="support", truth=json.dumps({"answer": k}))  # fmt: skip


def made(home: Home, rows: list[TrainingRow], product: Product = "rows") -> Dataset:
    curated = gathered(rows, RuleCount(rule="chosen", rows_in=len(rows), rows_out=len(rows)))
    return write_dataset(home, "support", curated, parents=(), rules=(), product=product)


def exported(tmp_path: Path, layout: str, dataset: Dataset) -> tuple[Exported, Path]:
    done = export(Home(tmp_path / "home"), dataset, layout, tmp_path / layout)
    return done, tmp_path / layout / LAYOUTS[layout].file


def test_what_a_killed_export_left_beside_the_folder_goes_with_the_next(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, used = (tmp_path / f".chat.making-{number}" for number in (ended.pid, 1))
    other = tmp_path / ".chat.making-notes"
    for folder in (left, used, other):
        folder.mkdir()
    exported(tmp_path, "chat", made(home, [a_row(1)]))
    assert not left.exists() and used.exists() and other.exists()


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def home_of(tmp_path: Path) -> Home:
    (tmp_path / "home").mkdir(exist_ok=True)
    return Home(tmp_path / "home")


def read_again(path: Path) -> list[Trace]:
    """What our own importer makes of an exported file."""
    from storage.formats import FORMATS
    from storage.formats.parsed import Context

    found = []
    for row in lines(path):
        form = next(one for one in FORMATS.values() if one.recognise(row))
        context = Context("again", digest_bytes)
        found += form.read(row, context).traces
    return found


def test_chat_lines_train_the_last_answer_alone_and_come_back_as_they_were(tmp_path: Path) -> None:
    done, file = exported(tmp_path, "chat", made(home_of(tmp_path), [called(), a_row(7)]))
    assert done.items == 2 and not done.left_out and set(done.files) == {"README.md", file.name}
    (row,) = [one for one in lines(file) if "tools" in one]
    assert [one.get("weight") for one in row["messages"]] == [None, None, 0, None, None]
    assert row["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"at": 1}'
    (trace,) = [one for one in read_again(file) if len(model_spans(one)[-1].call.input) == 4]  # type: ignore[union-attr]
    call = model_spans(trace)[-1].call
    assert call and call.input == called().messages and call.tools == (TOOL,)
    assert call.choices[0].message == called().completion


def test_preferences_are_openais_pairs_and_sharegpts(tmp_path: Path) -> None:
    rows = [row for k in range(3) for row in pair(k)]
    dataset = made(home_of(tmp_path), rows, "preferences")
    done, file = exported(tmp_path, "chat", dataset)
    assert done.items == 3
    assert {one["preferred_output"][0]["content"] for one in lines(file)} == {
        f"chosen {k}" for k in range(3)
    }
    for one in lines(file):
        number = one["input"]["messages"][0]["content"].split()[-1]
        assert one["non_preferred_output"][0]["content"] == f"rejected {number}"
    _, file = exported(tmp_path, "sharegpt", dataset)
    assert all(one["chosen"]["from"] == "gpt" for one in lines(file))
    spans = [span for trace in read_again(file) for span in model_spans(trace)]
    assert all(span.attributes["preference"] == {"chosen": 0, "rejected": 1} for span in spans)


def test_preferences_without_pairs_are_labelled_answers(tmp_path: Path) -> None:
    rows = [a_row(k, label=("desirable", "undesirable")[k % 2]) for k in range(3)]
    done, file = exported(tmp_path, "chat", made(home_of(tmp_path), rows, "preferences"))
    assert done.items == 3 and sorted(one["label"] for one in lines(file)) == [False, True, True]
    alone = made(home_of(tmp_path), [*pair(1), pair(2)[0]], "preferences")
    done = export(home_of(tmp_path), alone, "chat", tmp_path / "alone")
    assert (done.items, done.left_out) == (1, {"the other answer of its pair is not there": 1})


def test_sharegpt_has_calls_and_their_results_as_turns(tmp_path: Path) -> None:
    _, file = exported(tmp_path, "sharegpt", made(home_of(tmp_path), [called()]))
    (row,) = lines(file)
    assert row["system"] == "Be brief." and json.loads(row["tools"]) == [TOOL]
    said = [one["from"] for one in row["conversations"]]
    assert said == ["human", "function_call", "observation", "gpt"]


def test_what_a_layout_cannot_hold_is_counted_with_its_reason(tmp_path: Path) -> None:
    dataset = made(home_of(tmp_path), [called(), pictured()])
    for layout in ("chat", "sharegpt", "huggingface", "verl", "verifiers"):
        done, _ = exported(tmp_path, layout, dataset)
        ((why, count),) = done.left_out.items()
        assert (done.items, count) == (1, 1) and "image" in why
        assert f"1: {why}" in (tmp_path / layout / "README.md").read_text()
    done, file = exported(tmp_path, "parquet", dataset)
    assert done.items == 2 and not done.left_out
    stored = home_of(tmp_path).path(dataset.path) / "rows.parquet"
    assert file.read_bytes() == stored.read_bytes()


def test_verl_reads_prompts_truths_and_whole_conversations(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    _, file = exported(tmp_path, "verl", made(home, [posed(4)], "problems"))
    (row,) = pl.read_parquet(file).to_dicts()
    assert row["data_source"] == "support" and row["ability"] == "all"
    assert row["reward_model"] == {"style": "rule", "ground_truth": '{"answer": 4}'}
    assert [one["role"] for one in row["prompt"]] == ["system", "user"]
    assert row["extra_info"]["problem"] == "problem-4" and "messages" not in row
    export(home, made(home, [called()]), "verl", tmp_path / "answers")
    (row,) = pl.read_parquet(tmp_path / "answers" / "train.parquet").to_dicts()
    assert row["messages"][-1]["content"] == "There." and len(row["prompt"]) == 4
    with pytest.raises(UsageError, match="verl has no place for pairs of answers; parquet, chat"):
        export(home, made(home, pair(1), "preferences"), "verl", tmp_path / "pairs")
    assert not (tmp_path / "pairs").exists()


def test_the_card_says_what_is_known_and_what_is_not(tmp_path: Path) -> None:
    rows = [a_row(k, source="gate|way <b>\n", answered_by="shop-v1") for k in range(3)]
    dataset = msgspec.structs.replace(made(home_of(tmp_path), rows), gate_passed=True)
    exported(tmp_path, "huggingface", dataset)
    text = (tmp_path / "huggingface" / "README.md").read_text()
    head = yaml.safe_load(text.split("---\n")[1])
    assert head["license"] == "unknown" and head["size_categories"] == ["n<1K"]
    assert head["configs"][0]["data_files"][0]["path"] == "data/train-00000-of-00001.parquet"
    assert r"| rollout | gate\|way \<b\> | shop-v1 | 3 |" in text
    for said in ("Licence: unknown", "Data gate: passed", "Decontamination: not done",
                 "Consent: not in the store any more of 3 traces", "Personal data: not known",
                 dataset.id, "| rows | 3 |"):  # fmt: skip
        assert said in text


def test_a_folder_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    dataset = made(home_of(tmp_path), [a_row(1)])
    (tmp_path / "chat").mkdir()
    exported(tmp_path, "chat", dataset)
    with pytest.raises(UsageError, match="not empty"):
        exported(tmp_path, "chat", dataset)
    assert {path.name for path in tmp_path.iterdir()} == {"home", "chat"}


@pytest.mark.slow
@pytest.mark.skipif(not TRL.is_file(), reason="no .venv-trl: `make install-trl` brings it")
def test_hugging_faces_own_library_loads_the_folder(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    export(home, made(home, [called(), a_row(7)]), "huggingface", tmp_path / "answers")
    export(home, made(home, pair(1), "preferences"), "huggingface", tmp_path / "pairs")
    code = (
        "import datasets, sys\n"
        "one = datasets.load_dataset(sys.argv[1], split='train')\n"
        "two = datasets.load_dataset(sys.argv[2], split='train')\n"
        "print(len(one), sorted(one.column_names)[:3], two[0]['chosen'][0]['content'])\n"
    )
    said = subprocess.run(
        [TRL, "-c", code, tmp_path / "answers", tmp_path / "pairs"], capture_output=True, text=True,
        env={"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)},
        timeout=300,
    )  # fmt: skip
    assert said.stdout.splitlines()[-1:] == ["2 ['completion', 'confirmed_by', 'id'] chosen 1"], (
        said.stderr
    )


@pytest.mark.slow
@pytest.mark.skipif(
    not VERIFIERS.is_file(), reason="no .venv-verifiers: `make install-verifiers` brings it"
)
def test_the_verifiers_package_poses_the_problems(tmp_path: Path) -> None:
    exported(tmp_path, "verifiers", made(home_of(tmp_path), [posed(4)], "problems"))
    code = (
        "import asyncio, types\n"
        "from verifiers.v1.configs.taskset import TasksetConfig\n"
        "from flywheel_problems import FlywheelProblems\n"
        "(task,) = FlywheelProblems(TasksetConfig(id='flywheel_problems'))\n"
        "for reply in ('{\"answer\":  4}', 'no'):\n"
        "    said = types.SimpleNamespace(last_reply=reply)\n"
        "    print(len(task.data.prompt), asyncio.run(task.equals_truth(said)))\n"
    )
    said = subprocess.run(
        [VERIFIERS, "-c", code], capture_output=True, text=True, timeout=300,
        cwd=tmp_path / "verifiers", env={"HOME": str(tmp_path)},
    )  # fmt: skip
    assert said.stdout.splitlines()[-2:] == ["2 1.0", "2 0.0"], said.stderr
