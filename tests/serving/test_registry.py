import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flywheel.errors import FlywheelError, MissingPart
from flywheel.home import Home
from flywheel.lineage import Deployment
from serving.registry import Registry, tracking_uri
from serving.routing import base_deployment
from tests.serving.scripted_adapters import an_adapter

pytestmark = pytest.mark.slow  # MLflow takes seconds to import and to make its tables


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its tables made, once for all tests of this file."""
    home = Home(tmp_path_factory.mktemp("made"))
    Registry(home).register_candidate(
        project="warm", base_model="b", adapter=an_adapter(home, "w"), checkpoint_id="c", run_id="w"
    )
    return home.mlflow / "mlflow.db"


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    home.mlflow.mkdir(parents=True)
    shutil.copy(made, home.mlflow / "mlflow.db")
    yield home


def register(home: Home, run: str, project: str = "support") -> Deployment:
    return Registry(home).register_candidate(
        project=project,
        base_model="tiny",
        adapter=an_adapter(home, run),
        checkpoint_id=f"checkpoint-{run}",
        run_id=run,
        tags={"flywheel.parent": f"{project}-v0"},
    )


def test_a_candidate_becomes_the_next_numbered_deployment_and_challenger(home: Home) -> None:
    first, second = register(home, "one"), register(home, "two")
    assert (first.name, first.version, first.registry_version) == ("support-v1", 1, "1")
    assert first.adapter == "runs/one/adapter"
    assert (first.checkpoint_id, first.run_id) == ("checkpoint-one", "one")
    assert second.name == "support-v2"
    assert Registry(home).aliases("support") == {"challenger": "2"}


def test_lineage_is_in_the_versions_tags_and_grows(home: Home) -> None:
    deployment = register(home, "one")
    Registry(home).tag(deployment, {"flywheel.evaluation": "e"})
    assert Registry(home).tags(deployment) == {
        "flywheel.project": "support",
        "flywheel.run_id": "one",
        "flywheel.checkpoint": "checkpoint-one",
        "flywheel.parent": "support-v0",
        "flywheel.deployment": "support-v1",
        "flywheel.evaluation": "e",
    }


def test_the_base_model_has_no_version_and_no_tags(home: Home) -> None:
    base = base_deployment("support", "tiny")
    Registry(home).tag(base, {"flywheel.decision": "d"})
    assert Registry(home).tags(base) == {}


def test_the_same_checkpoint_again_is_the_same_deployment(home: Home) -> None:
    assert register(home, "one") == register(home, "one")
    assert register(home, "two").version == 2


def test_a_number_is_never_used_twice_even_where_its_version_was_deleted(home: Home) -> None:
    from mlflow import MlflowClient

    register(home, "one")
    MlflowClient(tracking_uri=tracking_uri(home)).delete_model_version("support", "1")
    assert register(home, "two").name == "support-v2"
    assert register(home, "one").name == "support-v3"


def test_the_registered_files_come_back_by_alias(home: Home, tmp_path: Path) -> None:
    import mlflow

    deployment = register(home, "one")
    Registry(home).set_aliases("support", {"champion": deployment.registry_version})
    mlflow.set_tracking_uri(tracking_uri(home))
    got = mlflow.artifacts.download_artifacts("models:/support@champion", dst_path=str(tmp_path))
    original = home.path(deployment.adapter or "") / "adapter_model.safetensors"
    assert (Path(got) / "adapter_model.safetensors").read_bytes() == original.read_bytes()


def test_the_version_belongs_to_the_run_that_trained_it(home: Home) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking_uri(home))
    experiment = client.create_experiment("support")
    run = client.create_run(experiment, tags={"flywheel.run_id": "one"})
    register(home, "one")
    assert client.get_model_version("support", "1").run_id == run.info.run_id


def test_aliases_are_set_moved_and_taken_away(home: Home) -> None:
    register(home, "one"), register(home, "two")
    registry = Registry(home)
    registry.set_aliases("support", {"champion": "1", "previous": None, "challenger": None})
    assert registry.aliases("support") == {"champion": "1"}
    registry.set_aliases("support", {"champion": "2", "previous": "1"})
    assert registry.aliases("support") == {"champion": "2", "previous": "1"}
    registry.set_aliases("support", {"champion": None, "previous": "2"})
    assert registry.aliases("support") == {"previous": "2"}


def test_projects_and_homes_do_not_see_each_other(home: Home, tmp_path: Path, made: Path) -> None:
    register(home, "one")
    assert register(home, "other", project="billing").name == "billing-v1"
    second = Home(tmp_path / "second")
    second.mlflow.mkdir(parents=True)
    shutil.copy(made, second.mlflow / "mlflow.db")
    assert register(second, "one").name == "support-v1"
    assert register(home, "two").name == "support-v2"
    assert Registry(second).aliases("support") == {"challenger": "1"}


def test_an_unknown_project_has_no_aliases_and_makes_no_file(home: Home, tmp_path: Path) -> None:
    assert Registry(home).aliases("nobody") == {}
    fresh = Home(tmp_path / "fresh")
    assert Registry(fresh).aliases("support") == {}
    assert not fresh.mlflow.exists()


def test_a_version_that_does_not_exist_is_told_with_the_registrys_place(home: Home) -> None:
    register(home, "one")
    with pytest.raises(FlywheelError, match=r"MLflow at .*mlflow.*9"):
        Registry(home).set_aliases("support", {"champion": "9"})


@pytest.mark.parametrize("content", ["nothing", "empty"])
def test_an_adapter_that_is_not_there_is_not_registered(home: Home, content: str) -> None:
    folder = home.root / "runs" / "gone"
    if content == "empty":
        folder.mkdir(parents=True)
    with pytest.raises(MissingPart, match="train run r again"):
        Registry(home).register_candidate(
            project="support", base_model="b", adapter=folder, checkpoint_id="c", run_id="r"
        )
    assert Registry(home).aliases("support") == {}


def test_many_at_once_get_numbers_of_their_own(home: Home) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda k: register(home, f"run-{k}"), range(6)))
    assert sorted(deployment.version for deployment in made) == [1, 2, 3, 4, 5, 6]
    assert Registry(home).aliases("support")["challenger"] in "123456"


def test_it_writes_only_in_its_home_and_is_quiet(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from flywheel.home import Home;"
        "from serving.registry import Registry;"
        "from tests.serving.scripted_adapters import an_adapter;"
        "home = Home(Path(sys.argv[1]) / 'home');"
        "Registry(home).register_candidate(project='p', base_model='b', "
        "adapter=an_adapter(home, 'r'), checkpoint_id='c', run_id='r')"
    )
    work, user = tmp_path / "work", tmp_path / "user"
    work.mkdir(), user.mkdir()
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "HOME": str(user)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert list(work.iterdir()) == []
    assert [path for path in user.rglob("*") if path.is_file()] == []
