"""Versions that people ask for in MLflow, by number, or register by hand: one promoted home for all
tests here, with a server that runs through them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flywheel.errors import Busy, FlywheelError, UsageError
from flywheel.home import Home
from flywheel.lineage import Decision
from flywheel.project import load_project
from flywheel.settings import Settings

pytestmark = pytest.mark.slow
SORTING = Path(__file__).resolve().parents[1] / "sorting"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose turn waits for a person."""
    folder = tmp_path_factory.mktemp("project") / "sorting"
    folder.mkdir()
    for name in ("flywheel.toml", "environment.py"):
        (folder / name).write_bytes((SORTING / name).read_bytes())
    (folder / "base").symlink_to(SORTING / "base")
    file = folder / "flywheel.toml"
    gate = 'accept = "better"\nconfidence = 0.6\npromotion = "asked"\n'
    text = file.read_text().replace('accept = "better"', gate)
    file.write_text(text + "\n[problems]\nmax_train = 32\nmax_heldout = 24\n")
    return folder


@pytest.fixture(scope="module")
def waiting(
    prefect_server: str,
    project: Path,
    traffic: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Home, Any, Any]]:
    """Home, state and report of one turn whose candidate passed; its server runs on."""
    from flows.turn import turn
    from serving.server import ensure
    from storage.inbox import Inbox

    place = pytest.MonkeyPatch()
    place.setenv("FLYWHEEL_HOME", str(tmp_path_factory.mktemp("waiting") / "home"))
    place.setenv("FLYWHEEL_THREADS", "1")
    place.setenv("FLYWHEEL_TRAINER", "inline")
    home = Settings().at()
    home.root.mkdir()
    asks = traffic.asks(90)
    Inbox(home).append(traffic.recorded("sorting", asks, "sorting-v0"))
    Inbox(home).append(traffic.feedback("sorting", asks))
    with ensure(home, load_project(project), Settings()):
        state: Any = turn(str(project), return_state=True)
        yield home, state, state.result()
    place.undo()


@pytest.fixture
def home(waiting: tuple[Home, Any, Any]) -> Home:
    return waiting[0]


def mlflow_of(home: Home) -> Any:
    """MLflow as a person's program sees it."""
    from mlflow import MlflowClient

    from serving.registry import tracking_uri

    return MlflowClient(tracking_uri=tracking_uri(home), registry_uri=tracking_uri(home))


def aliases(home: Home) -> dict[str, str]:
    found = mlflow_of(home).get_registered_model("sorting").aliases
    return {alias: str(version) for alias, version in found.items()}


def decisions(home: Home) -> list[Decision]:
    from storage.committer import commit
    from storage.queries import records

    commit(home)
    return sorted(records(home, "decision"), key=lambda one: one.at)


def champion(home: Home) -> str:
    from serving.routing import read

    return read(home).projects["sorting"].champion.name


def an_adapter(home: Home, folder: Path, *, harm: str = "") -> Path:
    """The candidate's files as a person would have them, changed where that is asked for."""
    from storage.queries import records

    (checkpoint,) = records(home, "checkpoint")
    shutil.copytree(home.path(checkpoint.path), folder)
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    if harm == "not trained":
        import torch
        from safetensors.torch import load_file, save_file

        tensors = {
            name: torch.zeros_like(one) if "lora_B" in name else one
            for name, one in load_file(str(weights)).items()
        }
        save_file(tensors, str(weights), metadata={"format": "pt"})
    elif harm == "other rank":
        config.write_text(json.dumps({**json.loads(config.read_text()), "r": 4}))
    elif harm == "no weights":
        weights.unlink()
    return folder


# These follow one another, as a person's day does: the home is the same in all.


def test_a_candidate_that_passed_waits_for_a_person(waiting: tuple[Home, Any, Any]) -> None:
    home, state, report = waiting
    assert (state.type.value, state.name) == ("COMPLETED", "Waiting")
    assert (report["decision"], report["gate"], report["waiting"]) == ("refused", "person", True)
    assert "flywheel promote" in report["reason"] and "--version 1" in report["reason"]
    assert champion(home) == "sorting-v0"
    last = decisions(home)[-1]
    assert (last.outcome, last.gate, last.deployment) == ("waiting", "person", "sorting-v1")
    client = mlflow_of(home)
    assert aliases(home) == {}
    assert "Waits for a person" in client.get_model_version("sorting", "1").description


def test_the_runs_page_has_data_plots_tables_and_the_decisions_text(home: Home) -> None:
    from storage.queries import records

    client, (run,) = mlflow_of(home), records(home, "run")
    found = client.get_run(run.mlflow_run_id)
    inputs = {
        one.tags[0].value: (one.dataset.digest, json.loads(one.dataset.source)["uri"])
        for one in found.inputs.dataset_inputs
    }
    (dataset,) = records(home, "dataset")
    (given,) = [one.dataset for one in found.inputs.dataset_inputs if one.dataset.name == "sorting"]
    profile, columns = json.loads(given.profile), json.loads(given.schema)["mlflow_colspec"]
    assert (profile["num_rows"], profile["product"]) == (dataset.rows, "rows")
    assert {"name": "reward", "required": False, "type": "double"} in columns
    assert inputs["training"] == (dataset.id, home.path(dataset.path).as_uri())
    assert set(inputs) == {"training", "evaluation"}
    files = {
        one.path
        for folder in ("plots", "dataset", "evaluation")
        for one in client.list_artifacts(run.mlflow_run_id, folder)
    }
    assert files >= {
        "plots/training.png", "plots/heldout.png", "evaluation/pairs.json",
        "evaluation/slices.json", "dataset/rules.json",
    }  # fmt: skip
    assert any(one.endswith(".html") for one in files)
    root = home.mlflow / "artifacts" / "sorting" / run.mlflow_run_id / "artifacts"
    assert (root / "plots" / "heldout.png").read_bytes()[:4] == b"\x89PNG"
    pairs = json.loads((root / "evaluation" / "pairs.json").read_text())
    assert len(pairs["data"]) == 24 and "candidate answer" in pairs["columns"]
    assert found.info.status == "FINISHED"
    assert "waiting for a person" in found.data.tags["mlflow.note.content"]
    assert found.data.tags["mlflow.source.name"] == "flywheel turn sorting"


def test_a_person_moves_the_alias_challenger_and_the_candidate_serves(
    home: Home, project: Path
) -> None:
    from flows.registry import registry

    client, before = mlflow_of(home), len(decisions(home))
    client.set_registered_model_alias("sorting", "challenger", "1")
    found = registry(str(project))
    (report,) = found["answered"]
    assert (report["decision"], report["deployment"]) == ("promoted", "sorting-v1"), report
    assert report["evaluation"]["taken_from"], "the turn's own evaluation holds"
    assert champion(home) == "sorting-v1"
    assert aliases(home) == {"champion": "1"}
    (promoted,) = decisions(home)[before:]
    assert (promoted.outcome, promoted.by) == ("promoted", "MLflow")
    assert "alias challenger" in promoted.reason
    version = client.get_model_version("sorting", "1")
    assert "**champion** since" in version.description and "logprobs" in version.description
    assert version.tags["flywheel.answer"] == "promoted"
    assert "**sorting-v1** answers" in client.get_registered_model("sorting").description
    again = registry(str(project))
    assert again == {"answered": [], "waiting": 0, "in_line": []}


def test_a_version_registered_by_hand_is_evaluated_and_not_promoted(
    home: Home, project: Path, tmp_path: Path
) -> None:
    from flows.registry import registry

    client = mlflow_of(home)
    folder = an_adapter(home, tmp_path / "adapter", harm="not trained")
    client.create_model_version("sorting", source=str(folder))
    found = registry(str(project))
    (report,) = found["answered"]
    assert (report["candidate"], report["decision"]) == ("sorting-v2", "refused"), report
    assert (report["gate"], report["evaluation"]["problems"]) == ("learning", 24)
    assert report["evaluation"]["taken_from"] is None
    assert champion(home) == "sorting-v1"
    tags = client.get_model_version("sorting", "2").tags
    assert tags["flywheel.answer"] == "refused" and tags["flywheel.deployment"] == "sorting-v2"
    assert registry(str(project))["answered"] == []


def test_an_alias_moved_by_hand_that_the_gates_refuse_is_told_and_set_back(
    home: Home, project: Path
) -> None:
    from flows.registry import registry

    client, before = mlflow_of(home), len(decisions(home))
    client.set_registered_model_alias("sorting", "champion", "2")
    client.set_model_version_tag("sorting", "2", "promote", "ann | <b>wants it</b>")
    client.set_registered_model_alias("sorting", "previous", "2")
    found = registry(str(project))
    (report,) = found["answered"]
    assert (report["decision"], report["gate"]) == ("refused", "learning")
    assert champion(home) == "sorting-v1"
    assert aliases(home) == {"champion": "1"}
    version = client.get_model_version("sorting", "2")
    assert "promote" not in version.tags
    assert version.tags["flywheel.answer_reason"] == report["reason"]
    (refused,) = decisions(home)[before:]
    assert (refused.outcome, refused.gate, refused.deployment) == (
        "refused", "learning", "sorting-v2",
    )  # fmt: skip
    assert registry(str(project))["answered"] == [], "answered once"


def test_files_that_cannot_serve_are_refused_with_their_reasons(
    home: Home, project: Path, tmp_path: Path
) -> None:
    from flows.registry import registry

    client, before = mlflow_of(home), len(decisions(home))
    expected = {"other rank": "was not loaded", "no weights": "no LoRA adapter", "gone": "are gone"}
    for harm in expected:
        folder = an_adapter(home, tmp_path / harm, harm=harm)
        version = client.create_model_version("sorting", source=str(folder)).version
        client.set_model_version_tag("sorting", version, "promote", "true")
    shutil.rmtree(tmp_path / "gone")
    reports = registry(str(project))["answered"]
    assert [(one["decision"], one["gate"]) for one in reports] == [("refused", "serving")] * 3
    for said, report in zip(expected.values(), reports, strict=True):
        assert said in report["reason"]
    told = [(one.outcome, one.gate) for one in decisions(home)[before:]]
    assert told == [("refused", "serving")] * 3
    assert champion(home) == "sorting-v1"
    assert registry(str(project))["answered"] == []


def test_a_canary_serves_a_version_and_rollback_ends_it(home: Home, project: Path) -> None:
    from flows.release import release
    from serving.engines.client import EngineClient
    from serving.presence import running
    from serving.promotion import rollback
    from serving.registry import Registry

    found = release(str(project), "2", 0.25, "ann", "let us see")
    assert found == {
        "project": "sorting", "champion": "sorting-v1", "challenger": "sorting-v2", "share": 0.25,
        "shadow": None, "shadow_share": 0.0,
    }  # fmt: skip
    client = mlflow_of(home)
    assert aliases(home) == {"champion": "1", "challenger": "2"}
    assert "25.0%" in client.get_registered_model("sorting").description
    server = running(home)
    assert server
    with EngineClient(server.engine_url) as engine:
        assert set(engine.models()) == {"base", "sorting-v1", "sorting-v2"}
        rollback(home, "sorting", engine=engine, registry=Registry(home), by="ann", reason="odd")
        assert set(engine.models()) == {"base", "sorting-v1"}
    with pytest.raises(UsageError, match="nothing to end"):
        release(str(project), None, 0.0, "ann")


def test_a_version_by_its_number_is_promoted_again_after_a_rollback(
    home: Home, project: Path
) -> None:
    from flows.trial import trial

    report: Any = trial(str(project), "1", True, "ann", "it was not the model")
    assert (report["decision"], report["deployment"]) == ("promoted", "sorting-v1"), report
    last = decisions(home)[-1]
    assert (last.by, last.outcome, last.deployment) == ("ann", "promoted", "sorting-v1")
    assert "it was not the model" in last.reason
    with pytest.raises(UsageError, match="no version 77 of sorting"):
        trial(str(project), "77", True, "ann")


def test_mlflow_that_breaks_amid_a_promotion_is_told_and_the_next_pass_ends_it_once(
    home: Home, project: Path
) -> None:
    from flows.registry import registry
    from flywheel import progress
    from serving.promotion import rollback
    from serving.registry import Registry

    rollback(home, "sorting", engine=None, registry=Registry(home), by="ann", reason="once more")
    client, before = mlflow_of(home), len(decisions(home))
    client.set_model_version_tag("sorting", "1", "promote", "true")
    file, whole = home.mlflow / "mlflow.db", []

    def spoil(step: str, done: int, total: int | None, note: str) -> None:
        if step == "promoting" and not whole:
            whole.append(file.read_bytes())
            file.write_bytes(b"no database" * 1000)

    stop = progress.listen(spoil)
    try:
        with pytest.raises(FlywheelError, match="sorting-v1 serves now, but that could not be"):
            registry(str(project))
    finally:
        stop()
        file.write_bytes(whole[0])
    assert champion(home) == "sorting-v1", "what serves does not wait for MLflow"
    (report,) = registry(str(project))["answered"]
    assert (report["decision"], report["deployment"]) == ("promoted", "sorting-v1")
    assert [one.outcome for one in decisions(home)[before:]] == ["promoted"]
    assert aliases(home) == {"champion": "1"}
    assert registry(str(project))["answered"] == []


def test_an_ask_that_is_answered_twice_stands_in_the_ledger_once(home: Home, project: Path) -> None:
    from flows.trial import trial

    before = len(decisions(home))
    for _ in range(2):  # as after a kill between the verdict and its end
        report: Any = trial(str(project), "2", True, "ann", "please", "01ASK")
        assert (report["decision"], report["gate"]) == ("refused", "learning")
    (refused,) = decisions(home)[before:]
    assert (refused.by, refused.deployment) == ("ann", "sorting-v2")


def test_while_a_turn_runs_what_was_asked_waits(home: Home, project: Path) -> None:
    from flows.registry import registry
    from flows.trial import trial
    from tasks.turns import only_turn

    client = mlflow_of(home)
    client.set_model_version_tag("sorting", "2", "promote", "true")
    with only_turn(load_project(project)):
        found = registry(str(project))
        assert (found["answered"], found["waiting"]) == ([], 1)
        with pytest.raises(Busy, match="under way"):
            trial(str(project), "1", True, "ann")
    (report,) = registry(str(project))["answered"]
    assert report["version"] == "2"
