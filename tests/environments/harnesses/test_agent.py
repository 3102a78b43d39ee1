"""A real agent of somebody else, unmodified, in a sandbox: it does not know who its model is."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from environments.define import Environment
from environments.harnesses.contract import Budget, Program
from environments.marks import reward, setup
from environments.runtimes.contract import Limits, Runtime, Sandbox
from environments.runtimes.pool import Pool
from flywheel.records import Problem, model_spans, say
from tests.environments.playing import ended, play, says, spans

ROOT = Path(__file__).resolve().parents[3]
AGENT = ROOT / ".venv-agent"
PACKAGES = AGENT / "lib" / "python3.11" / "site-packages"
WORK = [
    "grep -n colour notes.txt",
    "sed -i s/colour/color/ notes.txt && cat notes.txt",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
]


class Repair(Environment):
    """A file is to be mended by whatever commands the agent runs."""

    runtime = Sandbox(
        readable=(AGENT,), limits=Limits(memory=2**31, cpu_s=300, processes=128, wall_s=30)
    )
    harness = Program(
        command=("python3", "-m", "minisweagent", "-m", "openai/{model}", "-t", "{prompt}", "-y",
                 "--exit-immediately", "-o", "/tmp/steps.json"),
        env={"PYTHONPATH": str(PACKAGES), "MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1",
             "MSWEA_COST_TRACKING": "ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        budget=Budget(turns=8, wall_s=400),
    )  # fmt: skip

    @setup
    async def lay(self, runtime: Runtime) -> None:
        await runtime.write("notes.txt", "The colour is red.\n")

    @reward(truth=False)
    async def mended(self, runtime: Runtime) -> bool:
        return await runtime.read("notes.txt") == b"The color is red.\n"


@pytest.mark.slow
@pytest.mark.skipif(not PACKAGES.is_dir(), reason="no .venv-agent: make install-agent")
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_third_party_agent_runs_unmodified(engine: Any, tmp_path: Path) -> None:
    """mini-swe-agent mends a file by the commands that the model gives it; each of its calls is
    recorded with its tokens, and the conversation is one path."""
    engine.reply = says(
        lambda messages: [
            ("bash", {"command": WORK[sum(one["role"] == "assistant" for one in messages)]})
        ]
    )
    environment = Repair()
    problem = Problem(environment="repair", messages=(say("user", "Write color, not colour."),))
    (done,) = play(environment, engine.url, [problem], pool=lambda: Pool(Repair.runtime, tmp_path))
    (agent,) = spans(done, "agent")
    assert ended(done) == "answered", agent.attributes
    calls = model_spans(done.trace)
    assert [call.parents for call in calls] == [(), (calls[0].id,), (calls[1].id,)]
    assert all(call.call and call.call.choices[0].tokens for call in calls)
    assert "Write color, not colour." in calls[0].call.input[1].text  # type: ignore[union-attr]
    assert [grade.value for grade in done.grades] == [1.0]
