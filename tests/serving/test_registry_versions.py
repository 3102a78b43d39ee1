"""The registry as people use it: asks that are noticed and answered once, files fetched, pages."""

import multiprocessing
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flywheel import failpoints
from flywheel.errors import FlywheelError, Refused, UsageError
from flywheel.home import Home
from flywheel.lineage import Decision, Deployment
from serving import routing
from serving.registry import Registry, tracking_uri
from serving.registry_pages import write_pages
from serving.registry_versions import (
    answer,
    asks,
    deployment_of,
    newcomers,
    version_of,
)
from serving.routing import ProjectRoute, Routing
from storage.committer import commit
from storage.inbox import Inbox
from tests.serving.scripted_adapters import a_candidate
from trainer.models import digest_of, digests_of

pytestmark = pytest.mark.slow  # MLflow takes seconds to import and to make its tables


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """support-v1 serves, support-v2 and support-v3 are candidates."""
    home = Home(tmp_path_factory.mktemp("made"))
    first, *_ = [a_candidate(home, run) for run in ("one", "two", "three")]
    route = ProjectRoute(project="support", base_model="tiny", champion=first)
    routing.replace(home, Routing(projects={"support": route}))
    Registry(home).set_aliases("support", {"champion": "1", "challenger": None})
    return home


@pytest.fixture
def home(made: Home, tmp_path: Path) -> Home:
    shutil.copytree(made.root, tmp_path / "home")
    return Home(tmp_path / "home")


@pytest.fixture
def registry(home: Home) -> Registry:
    return Registry(home)


@pytest.fixture
def person(home: Home) -> Any:
    """MLflow as another program, or its pages, write to it."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri(home), registry_uri=tracking_uri(home))


def asked(registry: Registry) -> list[tuple[str, str]]:
    return [(one.version, one.how) for one in asks(registry, "support")]


def killed(step: str, action: Callable[[], object]) -> None:
    def child() -> None:
        failpoints.arm(f"registry.{step}")
        action()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


def by_hand(person: Any, folder: Path, weights: bytes = b"w" * 64, config: str = "{}") -> str:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(config)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return str(person.create_model_version("support", source=str(folder)).version)


# --- what was asked for


def test_what_we_set_ourselves_asks_for_nothing(home: Home, registry: Registry) -> None:
    assert asked(registry) == []
    registry.set_aliases("support", {"champion": "2", "previous": "1", "challenger": "3"})
    a_candidate(home, "four")
    assert asked(registry) == [] and newcomers(registry, "support") == []


def test_moved_aliases_and_tags_ask_once_each_in_any_case(registry: Registry, person: Any) -> None:
    person.set_registered_model_alias("support", "challenger", "3")
    person.set_model_version_tag("support", "2", "promote", "Ann wants it")
    person.set_model_version_tag("support", "1", "promote", "False")
    first = asks(registry, "support")
    assert asked(registry) == [("3", "the alias challenger"), ("2", "the tag promote")]
    person.set_model_version_tag("support", "3", "promote", "true")
    person.set_registered_model_alias("support", "champion", "2")
    assert asks(registry, "support") == first, "asked twice is asked once"
    assert first[1].said == "Ann wants it"


@pytest.mark.parametrize("word", ["false", "FALSE ", "no", "0", "off"])
def test_a_tag_that_says_no_asks_for_nothing(registry: Registry, person: Any, word: str) -> None:
    person.set_model_version_tag("support", "2", "promote", word)
    assert asked(registry) == []


def test_an_ask_that_we_write_over_before_we_saw_it_is_kept(
    home: Home, registry: Registry, person: Any
) -> None:
    person.set_registered_model_alias("support", "champion", "3")
    registry.set_aliases("support", {"champion": "1"})  # a rollback, say
    person.set_registered_model_alias("support", "challenger", "2")
    a_candidate(home, "four")  # a turn
    assert asked(registry) == [("3", "the alias champion"), ("2", "the alias challenger")]


def test_an_answer_is_told_on_the_version_and_the_ask_is_over(
    registry: Registry, person: Any
) -> None:
    person.set_registered_model_alias("support", "champion", "3")
    person.set_model_version_tag("support", "3", "promote", "true")
    (ask,) = asks(registry, "support")
    answer(registry, "support", ask.version, "refused", "no better: " + "x" * 9000)
    tags = version_of(registry, "support", "3").tags
    assert tags["flywheel.answer"] == "refused" and "promote" not in tags
    assert tags["flywheel.answer_reason"].startswith("no better")
    assert registry.aliases("support") == {"champion": "1"}
    assert asked(registry) == []
    person.set_model_version_tag("support", "3", "promote", "please")
    (again,) = asks(registry, "support")
    assert again.id != ask.id, "a new ask"


@pytest.mark.parametrize("step", ["answer_told", "alias_moved", "put_back"])
def test_killed_while_it_answers_the_same_ask_is_there_still(
    registry: Registry, person: Any, step: str
) -> None:
    person.set_registered_model_alias("support", "challenger", "3")
    before = asks(registry, "support")
    killed(step, lambda: answer(registry, "support", "3", "refused", "no"))
    assert asks(registry, "support") == before
    answer(registry, "support", "3", "refused", "no")
    assert asked(registry) == [] and registry.aliases("support") == {"champion": "1"}


def test_killed_while_we_set_an_alias_nobody_asked_for_it(
    home: Home, registry: Registry, person: Any
) -> None:
    killed("alias_moved", lambda: registry.set_aliases("support", {"champion": "2"}))
    killed("alias_moved", lambda: a_candidate(home, "four"))
    assert registry.aliases("support") == {"champion": "2", "challenger": "4"}
    assert asked(registry) == []
    registry.set_aliases("support", {"champion": "1"})
    person.set_registered_model_alias("support", "champion", "2")
    assert asked(registry) == [("2", "the alias champion")], "now it is a person"


def test_a_version_that_is_gone_is_asked_for_no_more(registry: Registry, person: Any) -> None:
    person.set_registered_model_alias("support", "challenger", "3")
    assert len(asks(registry, "support")) == 1
    person.delete_model_version("support", "3")
    assert asked(registry) == []
    with pytest.raises(UsageError, match=r"no version 3 of support; there are: 1, 2"):
        version_of(registry, "support", "3")
    for name in ("2", "v2", "support-v2"):
        assert version_of(registry, "support", name).number == "2"


def test_a_note_that_cannot_be_read_costs_no_ask(
    home: Home, registry: Registry, person: Any
) -> None:
    person.set_model_version_tag("support", "2", "promote", "true")
    assert len(asks(registry, "support")) == 1
    (home.mlflow / "asked" / "support.json").write_bytes(b"{")
    assert asked(registry) == [("2", "the tag promote")]
    assert (home.mlflow / "asked" / "support.broken").exists()


def test_an_alias_reads_the_same_by_every_route(registry: Registry, person: Any) -> None:
    registry.set_aliases("support", {"champion": "2", "previous": "1"})
    for alias, number in (("champion", "2"), ("previous", "1")):
        assert str(person.get_model_version_by_alias("support", alias).version) == number
        assert alias in person.get_model_version("support", number).aliases
        assert str(person.get_registered_model("support").aliases[alias]) == number
    assert registry.aliases("support") == {"champion": "2", "previous": "1"}


@pytest.mark.parametrize("harm", ["a folder", "text", "torn"])
def test_a_database_that_is_none_is_told_with_its_place(
    home: Home, registry: Registry, harm: str
) -> None:
    file = home.mlflow / "mlflow.db"
    whole = file.read_bytes()
    file.unlink()
    if harm == "a folder":
        file.mkdir()
    else:
        file.write_bytes(b"text" * 100 if harm == "text" else whole[: len(whole) // 3])
    with pytest.raises(FlywheelError, match=r"mlflow"):
        asks(registry, "support")


# --- files


def test_a_version_registered_by_hand_becomes_a_deployment_of_the_home(
    home: Home, registry: Registry, person: Any, tmp_path: Path
) -> None:
    number = by_hand(person, tmp_path / "theirs")
    assert newcomers(registry, "support") == [number]
    made = deployment_of(registry, version_of(registry, "support", number), "tiny")
    assert (made.name, made.base_model, made.run_id) == (f"support-v{number}", "tiny", None)
    folder = home.path(made.adapter or "")
    assert digest_of(folder) == made.checkpoint_id and folder.is_relative_to(home.runs)
    shutil.rmtree(tmp_path / "theirs")
    assert deployment_of(registry, version_of(registry, "support", number), "tiny") == made
    assert newcomers(registry, "support") == [number], "until it was judged"
    person.set_model_version_tag("support", number, "flywheel.adapter", "../elsewhere")
    shutil.copytree(folder, tmp_path / "elsewhere")
    with pytest.raises(Refused, match="are gone"):
        deployment_of(registry, version_of(registry, "support", number), "tiny")
    answer(registry, "support", number, "refused", "no")
    assert newcomers(registry, "support") == []
    shutil.rmtree(home.runs)
    with pytest.raises(Refused, match=rf"files of version {number} of support are gone"):
        deployment_of(registry, version_of(registry, "support", number), "tiny")


def test_our_own_files_that_are_gone_come_back_from_mlflow(home: Home, tmp_path: Path) -> None:
    """Only as what they were: files that changed there are refused."""
    folder = home.runs / "five" / "adapter"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"five" * 32)
    digest, registry = digest_of(folder), Registry(home)
    made = registry.register_candidate(
        project="billing", base_model="tiny", adapter=folder, checkpoint_id=digest, run_id="five"
    )

    def again() -> Deployment:
        return deployment_of(registry, version_of(registry, "billing", str(made.version)), "tiny")

    assert again() == made
    (folder / "adapter_model.safetensors").write_bytes(b"torn")
    fetched = again()
    assert (fetched.name, fetched.checkpoint_id) == (made.name, digest)
    assert fetched.adapter != made.adapter and digest_of(home.path(fetched.adapter or "")) == digest
    shutil.rmtree(home.path(fetched.adapter or ""))
    (copy,) = [
        path for path in (home.mlflow / "artifacts").rglob("adapter_model.safetensors")
        if path.read_bytes() == b"five" * 32
    ]  # fmt: skip
    copy.write_bytes(b"something else")
    with pytest.raises(Refused, match="they changed"):
        again()


def test_a_version_that_is_tagged_so_is_a_whole_model(
    home: Home, registry: Registry, person: Any, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "code.py"):
        (theirs / name).write_text(name)
    number = str(person.create_model_version("support", source=str(theirs)).version)
    with pytest.raises(Refused, match=r"no LoRA adapter.*tag flywheel\.kind = full"):
        deployment_of(registry, version_of(registry, "support", number), "tiny")
    person.set_model_version_tag("support", number, "flywheel.kind", "full")
    made = deployment_of(registry, version_of(registry, "support", number), "tiny")
    folder = home.path(made.adapter or "")
    assert (made.kind, folder.name, made.checkpoint_id) == ("full", "model", digest_of(folder))
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".json", ".safetensors"]
    shutil.rmtree(home.runs)
    (theirs / "config.json").unlink()
    with pytest.raises(Refused, match="is no whole model"):
        deployment_of(registry, version_of(registry, "support", number), "tiny")


@pytest.mark.parametrize("what", ["nothing to it", "two of them", "pickled"])
def test_what_is_no_adapter_is_refused(
    registry: Registry, person: Any, tmp_path: Path, what: str
) -> None:
    number = by_hand(person, tmp_path / "theirs")
    if what == "two of them":
        shutil.copytree(tmp_path / "theirs", tmp_path / "theirs" / "again")
    else:
        (tmp_path / "theirs" / "adapter_model.safetensors").unlink()
    if what == "pickled":
        (tmp_path / "theirs" / "adapter_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(Refused, match="is no LoRA adapter"):
        deployment_of(registry, version_of(registry, "support", number), "tiny")
    assert list(registry.home.runs.glob(".fetching*")) == []


def test_the_same_weights_with_another_config_are_another_adapter(
    registry: Registry, person: Any, tmp_path: Path
) -> None:
    configs = ['{"r": 8, "lora_alpha": 16}', '{"r": 8, "lora_alpha": 64}']
    made: list[Deployment] = []
    for config in configs:
        number = by_hand(person, tmp_path / str(len(made)), config=config)
        made.append(deployment_of(registry, version_of(registry, "support", number), "tiny"))
    read = [registry.home.path(one.adapter or "") / "adapter_config.json" for one in made]
    assert [path.read_text() for path in read] == configs
    assert made[0].checkpoint_id != made[1].checkpoint_id


def test_a_run_of_an_older_home_keeps_the_name_of_its_checkpoint(
    home: Home, registry: Registry
) -> None:
    folder = home.runs / "old" / "adapter"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"old" * 32)
    weights = digests_of(folder)[1]
    made = registry.register_candidate(
        project="support", base_model="tiny", adapter=folder, checkpoint_id=weights, run_id="old"
    )
    for _ in range(2):
        version = version_of(registry, "support", str(made.version))
        assert deployment_of(registry, version, "tiny").checkpoint_id == weights
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    "tags",
    [
        {"flywheel.adapter": "{elsewhere}"},
        {"flywheel.adapter": "../../elsewhere"},
        {"flywheel.adapter": "runs/../../elsewhere"},
        {"flywheel.adapter": "runs/link"},
        {"flywheel.adapter": "x" * 4000},
        {"flywheel.adapter": "runs/circle"},
        {"flywheel.run_id": "../../elsewhere"},
        {"flywheel.run_id": "/etc"},
        {"flywheel.run_id": ".."},
    ],
)
def test_no_tag_leads_to_files_outside_the_home(
    home: Home, registry: Registry, person: Any, tmp_path: Path, tags: dict[str, str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    number = by_hand(person, tmp_path / "theirs", config='{"r": 8}')
    for folder in (elsewhere, elsewhere / "adapter"):
        shutil.copytree(tmp_path / "theirs", folder)
    (home.runs / "link").symlink_to(elsewhere)
    (home.runs / "circle").symlink_to("circle")
    given = {"flywheel.checkpoint": digest_of(elsewhere), **tags}
    for key, value in given.items():
        person.set_model_version_tag("support", number, key, value.format(elsewhere=elsewhere))
    made = deployment_of(registry, version_of(registry, "support", number), "tiny")
    assert home.path(made.adapter or "").resolve().is_relative_to(home.runs.resolve())
    assert made.run_id is None


def test_an_alias_moved_while_we_set_it_is_set_again_and_asked_for(
    registry: Registry, person: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = ["3"]

    def meanwhile(name: str) -> None:
        if name == "registry.aliases_set" and moves:
            person.set_registered_model_alias("support", "champion", moves.pop())

    monkeypatch.setattr("serving.registry.failpoint", meanwhile)
    registry.set_aliases("support", {"champion": "2"})
    assert registry.aliases("support")["champion"] == "2"
    assert asked(registry) == [("3", "the alias champion")]
    moves += ["3"] * 9
    with pytest.raises(FlywheelError, match="something else writes"):
        registry.set_aliases("support", {"champion": "1"})


# --- pages


def test_pages_tell_what_serves_and_take_a_persons_words_as_words(
    home: Home, registry: Registry, person: Any
) -> None:
    evil = "it | is <script>alert(1)</script>\n# worse [here](http://x) `rm`"
    decision = Decision(
        id="d1", project="support", outcome="refused", gate="learning", reason=evil,
        by="<b>ann</b>", at=1_795_000_000_000_000_000, deployment="support-v2",
    )  # fmt: skip
    Inbox(home).append([decision])
    commit(home)
    assert write_pages(home, registry, "support") > 0
    page = person.get_model_version("support", "2").description
    assert "<script" not in page and "<b>" not in page and "\n# worse" not in page
    assert "\\[here\\]" in page and "refused" in page
    assert person.get_model_version("support", "2").tags["flywheel.outcome"] == "refused"
    model = person.get_registered_model("support").description
    assert "**support-v1** answers" in model and "tag it `promote`" in model
    assert write_pages(home, registry, "support") == 0, "nothing changed, nothing is written"
