"""Real runs, sessions and data sets of other projects, one table of expectations a format: every
file is read or refused with a reason, and the numbers that it states are the numbers that we hold.
Skipped without ../shared."""

import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flywheel.home import Home
from flywheel.records import Feedback, Span, Trace
from storage.importer import import_path
from storage.judgements import feedback_for
from storage.merge import copies, counted_once, judged, merge
from storage.queries import traces
from tests.storage.formats.conftest import SHARED, read_file

pytestmark = pytest.mark.slow


class Holds(NamedTuple):
    format: str | None
    """None = it is no trace, and refused."""
    traces: int = 1
    calls: int = 0
    """Model calls that have an answer."""
    tools: int = 0
    """Tools as they ran."""
    feedback: int = 0
    refused: int = 0
    reason: str = ""
    rows: int | None = None
    """Rows understood; None = as many as traces."""


NOT_JSON = "is not JSON"
NONE = "holds no samples"
SWE, MINI, HANDS = "swe_agent_traj", "mini_swe_agent", "openhands"
INSPECT, CLAUDE, OPEN = "inspect_ai", "claude_code_sessions", "opencode_sessions"
REPLAY = "replay__marshmallow-code__marshmallow-1867__"
TABLES: dict[str, dict[str, Holds]] = {
    SWE: {
        "6e44b9__sweagenttestrepo-1c2844.traj": Holds("swe_agent", 1, 5, 5),
        "BabyEncryption.traj": Holds("swe_agent", 1, 16, 16),
        "BabyTimeCapsule.traj": Holds("swe_agent", 1, 9, 9),
        "flash.traj": Holds("swe_agent", 1, 4, 4),
        "function_calling_simple.traj": Holds("swe_agent", 1, 5, 5),
        "humanevalfix-python-0.traj": Holds("swe_agent", 1, 5, 5),
        "katy.traj": Holds("swe_agent", 1, 18, 18),
        REPLAY + "default_sys-env___marshmallow-code__marshmallow-1867.traj": Holds(
            "swe_agent", 1, 11, 11
        ),
        REPLAY + "function_calling__marshmallow-code__marshmallow-1867.traj": Holds(
            "swe_agent", 1, 13, 13
        ),
        REPLAY + "xml_sys-env_wind__marshmallow-code__marshmallow-1867.traj": Holds(
            "swe_agent", 1, 11, 11
        ),
        "rock.traj": Holds("swe_agent", 1, 12, 12),
        "swe-agent__test-repo-i1.traj": Holds("swe_agent", 1, 5, 5),
        "warmup.traj": Holds("swe_agent", 1, 7, 7),
    },
    MINI: {
        "astropy__astropy-12907.traj.json": Holds("mini_swe", 1, 64, 64),
        "astropy__astropy-14182.traj.json": Holds("mini_swe", 1, 98, 98),
        "astropy__astropy-6938.traj.json": Holds("mini_swe", 1, 76, 76),
        "django__django-10914.traj.json": Holds("mini_swe", 1, 48, 48),
        "django__django-11283.traj.json": Holds("mini_swe", 1, 61, 61),
        "github_issue.traj.json": Holds("mini_swe", 1, 10, 10),
        "results.json": Holds(None, 0, refused=1, reason="is of no known format"),
    },
    HANDS: {
        "App.tsx": Holds(None, 0, refused=1, reason=NOT_JSON),
        "PullRequestViewer.test.tsx": Holds(None, 0, refused=1, reason=NOT_JSON),
        "basic.json": Holds("openhands", 1, 2, 2),
        "basic_gui_mode.json": Holds("openhands", 1, 5, 4),
        "output.jsonl": Holds("openhands", 2, 26, 26, feedback=2),
        "wrong_initial_state.json": Holds("openhands", 1, 4, 4),
    },
    "atif": {
        "scout_openhands_hello-world.trajectory.json": Holds("atif", 1, 2, 2),
        "scout_openhands_hello-world.trajectory.no_function_calling.json": Holds("atif", 1, 2),
        "scout_terminus_2_hello-world-context-summarization-linear-history.trajectory.json": Holds(
            "atif", 1, 3
        ),
    },
    "tau_bench": {
        "MockRetail-few_shot.jsonl": Holds("spoken", 69, 943),
        "gpt-4o-airline.part1.json": Holds("tau_bench", 40, 571, 254, feedback=40),
    },
    "verifiers": {
        "arc-agi-3--gpt-4.1-mini-1c109c41.results.jsonl": Holds("verifiers", 3, 255, feedback=6),
        "arc-agi-3--gpt-4.1-mini-7a5fcb34.results.jsonl": Holds("verifiers", 1, 85, feedback=2),
        # 15 rows of 5 examples that all say nothing: rows that are alike are one.
        "mmmu--gpt-4.1-mini-51f717af.results.jsonl": Holds("verifiers", 6, feedback=12, rows=15),
    },
    INSPECT: {
        "2024-08-29T15-11-17+00-00_popularity_5EAmX6wjMFqea6WY7XHzZp.json": Holds(
            None, 0, refused=1, reason=NONE
        ),
        "2024-11-05T13-31-45-05-00_input-task_8zXjbRzCWrL9GXiXo2vus9.json": Holds(
            "inspect", 2, 2, feedback=1, rows=1
        ),
        "2025-02-11T15-17-00-05-00_popularity_dPiJifoWeEQBrfWsAopzWr.eval": Holds(
            "inspect", 10, 10, rows=11
        ),
        "2025-05-12T20-27-36-04-00_browser.json": Holds("inspect", 1, 5, 4, feedback=1),
        "2025-05-12T20-28-13-04-00_no-samples.json": Holds(None, 0, refused=1, reason=NONE),
        "2025-05-12T20-28-26-04-00_security-guide.json": Holds("inspect", 6, 6, feedback=3, rows=1),
        "2025-09-23T08-09-58-04-00_popularity_DN2wbX2ZvACsBpjwptzBRo.eval": Holds(
            "inspect", 100, 100, feedback=100, rows=101
        ),
        "2025-09-23T08-09-58-04-00_security-guide_LuxZJVwvymC3S3SyoJczxB.eval": Holds(
            "inspect", 32, 32, feedback=16, rows=17
        ),
        "log_formats.eval": Holds("inspect", 1, 1, feedback=1, rows=2),
        "log_formats.json": Holds("inspect", 1, 1, feedback=1),
        "log_images_tc.json": Holds("inspect", 1, 1, feedback=1),
        "log_message_deduplication.eval": Holds("inspect", 1, 6, 5, feedback=1, rows=2),
        "log_read_sample.eval": Holds("inspect", 1, 1, feedback=1, rows=2),
        "log_tool_call_error.json": Holds("inspect"),
    },
    CLAUDE: {
        "agent-atest01.jsonl": Holds("claude_code", 1, 2, 1),
        "agent_session.jsonl": Holds("claude_code", 1, 2, 1),
        "compaction_session.jsonl": Holds("claude_code", 1, 2),
        "simple_conversation.jsonl": Holds("claude_code", 1, 2),
        "slug_clear_session.jsonl": Holds("claude_code", 1, 2),
        "slug_multi_clear_file1.jsonl": Holds("claude_code", 1, 2),
        "slug_session_1.jsonl": Holds("claude_code", 1, 1),
        "slug_session_2.jsonl": Holds("claude_code", 1, 1),
    },
    OPEN: {
        "ses_basic.jsonl": Holds("opencode", 1, 4, 9),
        "ses_editing.jsonl": Holds("opencode", 1, 3, 3),
        "ses_subagents.jsonl": Holds("opencode", 1, 4, 2),
    },
    "sharegpt_tools": {
        "glaive_toolcall_en_demo.json": Holds("sharegpt", 95, 330, rows=100),
        "hermes_few_shot.json": Holds("spoken", 2, 2, 2),
        "reason_tool_use_demo_50.jsonl": Holds("chat_rows", 50, 112),
    },
    "chatml_messages": {
        "mllm_demo.json": Holds("chat_rows", 6, 12),
        "tinker_conversations.jsonl": Holds("chat_rows", 128, 128),
        "v1_sft_demo.jsonl": Holds("chat_rows", 150, 150),
    },
    "alpaca": {
        "alpaca_en_demo.json": Holds("alpaca", 120, 120),
        "identity.json": Holds("alpaca", 91, 91),
    },
    "preference_pairs": {
        "dpo_en_demo.json": Holds("preference", 60, 60, feedback=60),
        "kto_en_demo.json": Holds("chat_rows", 80, 134, feedback=80),
    },
}
FILES = [(folder, name) for folder, files in TABLES.items() for name in files]


@pytest.mark.parametrize(("folder", "name"), FILES, ids=[name[:40] for _, name in FILES])
def test_a_file_gives_what_it_holds(shared: Path, folder: str, name: str):
    path = shared / folder / name
    if not path.exists():
        pytest.skip(f"no {name}")
    expected = TABLES[folder][name]
    read = read_file(path)
    merged = merged_of(read.records)
    rows = expected.traces if expected.rows is None else expected.rows
    assert read.formats == ({} if expected.format is None else {expected.format: rows})
    assert (len(merged), len(read.rejects)) == (expected.traces, expected.refused)
    assert all(expected.reason in error.reason for _, error, _ in read.rejects)
    found = [span for trace in merged for span in trace.spans]
    assert sum(bool(one.call and one.call.choices) for one in found) == expected.calls
    assert sum(one.tool is not None for one in found) == expected.tools
    assert sum(isinstance(one, Feedback) for one in read.records) == expected.feedback
    stated = STATED.get(folder)
    if stated is not None and expected.format is not None:
        stated(path, found)


def merged_of(records: list[Any]) -> list[Trace]:
    """Traces as the store merges and shows them."""
    found: dict[str, Trace] = {}
    for one in records:
        if isinstance(one, Trace):
            found[one.id] = merge(found.get(one.id), one)
    return [judged(counted_once(trace, copies(trace))) for trace in found.values()]


def test_every_file_of_these_folders_is_in_the_tables(shared: Path):
    for folder, files in TABLES.items():
        there = {path.name for path in (shared / folder).glob("*")}
        assert there <= set(files), folder


# --- what the sources state, read without our formats ---------------------------------------------


def usage(found: list[Span]) -> Counter[tuple[int | None, int | None]]:
    calls = [one.call for one in found if one.call and one.call.choices]
    return Counter((call.usage.input_tokens, call.usage.output_tokens) for call in calls)


def swe(path: Path, found: list[Span]) -> None:
    run = json.loads(path.read_text())
    (root,) = [one for one in found if one.kind == "agent"]
    for key, value in run.get("info", {}).get("model_stats", {}).items():
        assert root.attributes[key] == value
    seen = [one.result.content for one in found if one.tool and one.result]
    for step in run.get("trajectory", []):
        if "tool_calls" not in json.dumps(run["history"]):
            assert step["observation"] in seen
    assert root.attributes.get("exit_status") == run.get("info", {}).get("exit_status")


def mini(path: Path, found: list[Span]) -> None:
    run = json.loads(path.read_text())
    if isinstance(run, list):
        return
    answers = [one for one in run["messages"] if one["role"] == "assistant"]
    stated = [one["extra"]["response"] for one in answers]
    assert usage(found) == Counter(
        (one["usage"]["prompt_tokens"], one["usage"]["completion_tokens"]) for one in stated
    )
    calls = [one.call for one in found if one.call]
    cost = sum(call.cost_usd or 0 for call in calls)
    assert cost == pytest.approx(run["info"]["model_stats"]["instance_cost"])
    assert len(calls) == run["info"]["model_stats"]["api_calls"]
    ended = Counter(call.choices[0].finish_reason for call in calls)
    assert ended == Counter(one["choices"][0]["finish_reason"] for one in stated)
    cached = sum(call.usage.cached_input_tokens or 0 for call in calls)
    assert cached == sum(one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in stated)


def hands(path: Path, found: list[Span]) -> None:
    calls = [one.call for one in found if one.call]
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        stated = sum(row["metrics"]["accumulated_cost"] for row in rows)
        assert sum(call.cost_usd or 0 for call in calls) == pytest.approx(stated)
        return
    by_id = {
        event["tool_call_metadata"]["model_response"]["id"]: event["tool_call_metadata"]
        for event in json.loads(path.read_text()) if "tool_call_metadata" in event
    }  # fmt: skip
    stated_usage = [one["model_response"]["usage"] for one in by_id.values()]
    stated_calls = Counter((one["prompt_tokens"], one["completion_tokens"]) for one in stated_usage)
    assert stated_calls <= usage(found)
    ids = {one.tool.id for one in found if one.tool}
    assert ids >= {one["tool_call_id"] for one in by_id.values()}


def atif(path: Path, found: list[Span]) -> None:
    run = json.loads(path.read_text())
    steps = [step for step in run["steps"] if step["source"] == "agent"]
    assert usage(found) == Counter(
        (step["metrics"]["prompt_tokens"], step["metrics"]["completion_tokens"]) for step in steps
    )
    cost = sum(one.call.cost_usd or 0 for one in found if one.call)
    assert cost == pytest.approx(sum(step["metrics"]["cost_usd"] for step in steps))
    (root,) = [one for one in found if one.attributes.get("final_metrics")]
    assert root.attributes["final_metrics"] == run["final_metrics"]


def inspect(path: Path, found: list[Span]) -> None:
    if path.suffix == ".eval":
        with zipfile.ZipFile(path) as log:
            names = [name for name in log.namelist() if name.startswith("samples/")]
            samples = [json.loads(log.read(name)) for name in names]
    else:
        samples = json.loads(path.read_text())["samples"]
    stated: Counter[str] = Counter()
    for sample in samples:
        for used in (sample.get("model_usage") or {}).values():
            stated["input"] += used["input_tokens"]
            stated["output"] += used["output_tokens"]
            stated["cached"] += used.get("input_tokens_cache_read") or 0
    calls = [one.call for one in found if one.call]
    if stated:
        assert sum(call.usage.input_tokens or 0 for call in calls) == stated["input"]
        assert sum(call.usage.output_tokens or 0 for call in calls) == stated["output"]
        assert sum(call.usage.cached_input_tokens or 0 for call in calls) == stated["cached"]
    assert not any(
        text.startswith(("attachment://", "tc://"))
        for call in calls for message in call.input for text in [message.text]
    )  # fmt: skip


def claude(path: Path, found: list[Span]) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    answers = [row["message"] for row in rows if row["type"] == "assistant"]
    assert usage(found) == Counter(
        (one["usage"]["input_tokens"], one["usage"]["output_tokens"]) for one in answers
    )
    assert {one.id for one in found if one.call} == {one["id"] for one in answers}


def opencode(path: Path, found: list[Span]) -> None:
    ended, tools = {}, set()
    for line in path.read_text().splitlines():
        _, *rest = json.loads(line)
        event = rest[0].get("event", {})
        if event.get("type") == "message.part.updated":
            part = event["properties"]["part"]
            if part["type"] == "step-finish":
                ended[part["id"]] = part
            elif part["type"] == "tool":
                tools.add(part["callID"])
    assert {one.tool.id for one in found if one.tool} == tools
    assert usage(found) == Counter(
        (one["tokens"]["input"] + one["tokens"]["cache"]["read"], one["tokens"]["output"])
        for one in ended.values()
    )
    reasons = Counter(one["reason"].replace("-", "_") for one in ended.values())
    calls = [one.call for one in found if one.call and one.call.choices]
    assert Counter(call.choices[0].finish_reason for call in calls) == reasons


STATED = {
    SWE: swe, MINI: mini, HANDS: hands, "atif": atif, INSPECT: inspect, CLAUDE: claude,
    OPEN: opencode,
}  # fmt: skip


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """All these folders in one store."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared/traces beside this checkout")
    home = Home(tmp_path_factory.mktemp("everything"))
    for folder in TABLES:
        import_path(home, SHARED / folder, project="p")
    return home


def of(home: Home, source: str) -> list[Trace]:
    found = (one for batch in traces(home, project="p") for one in batch)
    return [one for one in found if one.source == f"import:{source}"]


def test_rewards_of_benchmarks_are_theirs(everything: Home):
    path = SHARED / "tau_bench" / "gpt-4o-airline.part1.json"
    found = feedback_for(everything, of(everything, "tau_bench"))
    stated = Counter(row["reward"] for row in json.loads(path.read_text()))
    assert Counter(one.value for said in found.values() for one in said) == stated
    assert {one.by for said in found.values() for one in said} == {"tau-bench"}


def test_both_answers_of_a_pair_are_kept(everything: Home):
    rows = json.loads((SHARED / "preference_pairs" / "dpo_en_demo.json").read_text())
    pairs = {
        tuple(choice.message.text for choice in span.call.choices)
        for trace in of(everything, "preference") for span in trace.spans if span.call
    }  # fmt: skip
    assert pairs == {(row["chosen"]["value"], row["rejected"]["value"]) for row in rows}


def test_a_session_and_its_sub_agent_are_one_trace(everything: Home):
    by_session = {trace.external_id: trace for trace in of(everything, "claude_code")}
    assert len(by_session) == 7
    trace = by_session["test-session-004"]
    parents = {one.id: one.parents for one in trace.spans}
    assert parents[parents["msg_agent_001"][0]] == ("toolu_task_001",)
    assert not any("incomplete" in reason for reason in trace.fidelity_reasons)
    assert by_session["session-aaa"].conversation == by_session["session-bbb"].conversation


def test_importing_all_of_it_again_adds_nothing(everything: Home):
    for folder in (SWE, INSPECT, CLAUDE, OPEN):
        report = import_path(everything, SHARED / folder, project="p")
        assert (report.traces, report.spans) == (0, 0)
