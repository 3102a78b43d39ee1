"""A run handed to another engine. The engine is a scripted stand-in at the far edge: a program that
leaves what verl leaves. That verl's own code takes the job is tests/trainer/external's."""

import json
from pathlib import Path

import msgspec
import pytest

from flywheel.errors import Busy, FlywheelError, MissingPart
from flywheel.records import Problem, say
from serving.routing import base_deployment
from tasks.elsewhere import _running, engine_there, train_elsewhere
from tasks.turns import Turn, run_folder
from trainer.models import add_adapter, load_base, save_adapter
from trainer.probe import read_probe

SORTING = Path(__file__).resolve().parents[1] / "sorting"
PROBLEMS = tuple(
    Problem(environment="sorting", messages=(say("user", text),), answer=answer, text=text)
    for text, answer in (("3 1 2", "1 2 3"), ("9 8", "8 9"))
)
SCRIPT = """#!/bin/sh
# Stands for verl's interpreter: argument 2 says what is asked.
case "$2" in
verl.trainer.main_ppo)
    echo '{"step": 1, "data": {"actor/loss": 0.5, "critic/score/mean": 0.25}}' >> verl.jsonl
    echo '{"step": 2, "data": {"actor/loss": 0.4, "critic/score/mean": 0.5}}' >> verl.jsonl ;;
verl.model_merger) mkdir -p weights && cp -r "ADAPTER" weights/lora_adapter ;;
esac
"""


@pytest.fixture
def turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Turn:
    project = tmp_path / "sorting"
    project.mkdir()
    text = (SORTING / "flywheel.toml").read_text().replace("[train]", TRAIN)
    (project / "flywheel.toml").write_text(text)
    (project / "environment.py").write_text((SORTING / "environment.py").read_text())
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLYWHEEL_VERL", str(tmp_path / "verl"))
    start = base_deployment("sorting", str(SORTING / "base"))
    return Turn(
        run_id="run1", project="sorting", folder=str(project), start=start, configuration="c",
        sequence=0, snapshot="s",
    )  # fmt: skip


TRAIN = """[train]
algorithm = "grpo"
schedule = "constant"
machine = {engine = "verl"}
rl = {steps = 2}
"""


def scripted(tmp_path: Path, script: str) -> None:
    program = tmp_path / "verl" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(script.replace("ADAPTER", str(tmp_path / "trained")))
    program.chmod(0o755)


@pytest.mark.slow
def test_what_it_trained_comes_back_as_a_run_of_ours(turn: Turn, tmp_path: Path) -> None:
    base = load_base(SORTING / "base", threads=1)
    add_adapter(base.model, "theirs", rank=8, alpha=16, seed=3)
    save_adapter(base.model, "theirs", tmp_path / "trained")
    scripted(tmp_path, SCRIPT)
    followed: list[int] = []
    out = run_folder(turn)
    found = train_elsewhere(turn, PROBLEMS, lambda: followed.append(1))
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"], line["reward"]) for line in lines] == [
        (1, 0.5, 0.25),
        (2, 0.4, 0.5),
    ]
    assert followed and found["last_loss"] == 0.4 and found["tokens"] is None
    assert Path(found["adapter"]) == out / "adapter"
    assert len(read_probe(out / "probe.json").entries) == 2
    # Again: nothing is run anew.
    (tmp_path / "verl" / "bin" / "python").unlink()
    assert train_elsewhere(turn, PROBLEMS, lambda: None) == msgspec.to_builtins(found)


def test_an_engine_that_is_not_installed_is_told_before_anything_is_sampled(
    turn: Turn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingPart, match=r"verl/bin/python.*`make install-verl`") as told:
        engine_there(turn.folder)
    assert "prime" not in str(told.value).replace(str(tmp_path), "").lower()
    monkeypatch.setenv("FLYWHEEL_TRAIN_ENGINE", "prime-rl")
    for place in ("", str(tmp_path / "prime")):
        if place:
            monkeypatch.setenv("FLYWHEEL_PRIME_RL", place)
        with pytest.raises(MissingPart, match="set FLYWHEEL_PRIME_RL") as told:
            engine_there(turn.folder)
        assert "verl" not in str(told.value)
    monkeypatch.delenv("FLYWHEEL_TRAIN_ENGINE")
    scripted(tmp_path, SCRIPT)
    engine_there(turn.folder)


def test_an_engine_that_fails_says_what_its_log_says(turn: Turn, tmp_path: Path) -> None:
    scripted(tmp_path, "#!/bin/sh\necho no GPU here\nexit 3\n")
    with pytest.raises(FlywheelError, match="no GPU here"):
        train_elsewhere(turn, PROBLEMS, lambda: None)


def test_an_engine_that_outlived_who_started_it_is_not_joined_by_a_second(tmp_path: Path) -> None:
    sleeping = _running(("/bin/sh", "-c", "exec sleep 60"), tmp_path, {})
    next(sleeping)  # the child alone holds the lock
    with pytest.raises(Busy, match="still trains"):
        next(_running(("/bin/sh", "-c", "true"), tmp_path, {}))
    sleeping.close()  # type: ignore[attr-defined]
    assert list(_running(("/bin/sh", "-c", "true"), tmp_path, {}))
