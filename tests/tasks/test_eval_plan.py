"""What is asked for, settled before anything is spent."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from aiohttp import web

from app.evaluation_words import listed
from flywheel.errors import EngineError, FlywheelError, ProjectError, UsageError
from flywheel.home import Home
from flywheel.known import remember
from flywheel.project import load_project
from tasks.eval_base import base_model
from tasks.eval_defaults import project_here, sampled_as
from tasks.eval_model import at_url, key_of
from tasks.eval_plan import (
    Plan,
    absolute,
    chosen,
    configuration,
    differences,
    found,
    new_run,
    plan_of,
    run_named,
    runs,
)
from tests.app.calling import ROOT
from tests.tasks.answering import Model, answering, last_number
from tests.tasks.evaluating import setting, write_sums


def test_pairs_become_nested_values() -> None:
    pairs = [
        "weights.right=2",
        "harness.budget.turns=3",
        "name=plain text",
        'list=["a"]',
        "off=null",
    ]
    assert configuration(pairs) == {
        "weights": {"right": 2},
        "harness": {"budget": {"turns": 3}},
        "name": "plain text",
        "list": ["a"],
        "off": None,
    }
    for wrong in ("no sign", "=1"):
        with pytest.raises(ProjectError, match="KEY=VALUE"):
            configuration([wrong])
    with pytest.raises(ProjectError, match="has a value already"):
        configuration(["a=1", "a.b=2"])


def test_a_file_is_found_from_anywhere_and_a_name_stays_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sums(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert absolute("environment.py:Sums") == f"{tmp_path}/environment.py:Sums"
    assert absolute("math") == "math" and absolute("") == ""


def test_a_side_without_problems_is_told(tmp_path: Path) -> None:
    asked = found(f"{write_sums(tmp_path)}/environment.py:Sums", {}, None)
    assert len(chosen(asked, "heldout", 2)) == 2
    with pytest.raises(UsageError, match="no train problems"):
        chosen(asked, "train", None)
    with pytest.raises(UsageError, match="has no problems"):
        chosen(asked._replace(problems=[]), "all", None)


@pytest.mark.parametrize("name", ["../../elsewhere", "owner/name", "..", "a:b c", "\u00fc" * 90])
def test_a_run_lies_in_its_home_whatever_its_environment_is_called(
    tmp_path: Path, name: str
) -> None:
    home = Home(tmp_path / "home")
    folder = new_run(home, Plan(environment="x", name=name, digest=""))
    assert folder.parent == home.evals and runs(home) == [folder]
    assert run_named(home, "last", None) == folder


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    whole, torn = (new_run(home, Plan(environment="x", name=name, digest="")) for name in "ab")
    (torn / "plan.json").write_text("{")
    for summary in ('{"reward": 5}', '{"reward": {"mean": "x"}}', "[]", ""):
        (whole / "summary.json").write_text(summary)
        rows = {one["run"]: one for one in listed(home)}
        assert rows[whole.name]["reward"] == "unknown"
        assert "holds no evaluation" in rows[torn.name]["environment"]
    (whole / "summary.json").write_text('{"reward": {"mean": 0.5}, "more": 1}')
    assert {one["reward"] for one in listed(home)} == {"0.500", "unknown"}
    assert run_named(home, "last", None) == whole


def test_another_plan_is_told_by_what_differs(tmp_path: Path) -> None:
    from msgspec.structs import replace

    made = setting(tmp_path)
    then = plan_of(made.folder)
    assert differences(then, made.plan) == []
    now = replace(then, temperature=0.5, digest="other")
    told = differences(then, now)
    assert f"digest: {then.digest!r} then, 'other' now" in told and len(told) == 2
    assert runs(made.home) == [made.folder]


def test_the_key_is_sent_and_kept_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_KEY", "sk-very-secret")
    seen: list[str | None] = []

    class Guarded(Model):
        async def models(self, request: web.Request) -> web.Response:
            seen.append(request.headers.get("authorization"))
            if seen[-1] != "Bearer sk-very-secret":
                return web.json_response({"error": "who?"}, status=401)
            return web.json_response({"data": [{"id": "one"}, {"id": "two"}]})

    with answering(last_number, kind=Guarded) as model:
        with pytest.raises(EngineError, match="refuses the key") as refused:
            at_url(model.url, None, "sk-wrong", tokens=False)
        with pytest.raises(UsageError, match=r"serves 2 models \(one, two\): --model-name"):
            at_url(model.url, None, key_of("HOST_KEY"), tokens=False)
        served = at_url(model.url + "/v1/", "two", key_of("HOST_KEY"), tokens=False)
    assert (served.url, served.model, served.key) == (model.url, "two", "sk-very-secret")
    assert "sk-" not in str(refused.value)
    made = setting(tmp_path)
    kept = [path.read_text() for path in made.folder.rglob("*") if path.is_file()]
    assert not any("sk-" in text for text in kept) and json.loads(kept[0])["served"] == "scripted"


@pytest.mark.parametrize("key", ["sk-very-secret\nx", "sk-very-secr\u00e9t"])
def test_what_is_no_key_is_told_without_it(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("HOST_KEY", key)
    with pytest.raises(UsageError, match="HOST_KEY that --key-env names holds no key") as told:
        key_of("HOST_KEY")
    assert "very" not in str(told.value)


@pytest.mark.parametrize(
    ("url", "says"), [("http://[::1", "is no URL"), ("http://127.0.0.1:1", "no model answers")]
)
def test_an_address_that_is_none_is_told(url: str, says: str) -> None:
    with pytest.raises(FlywheelError, match=says):
        at_url(url, None, None, tokens=False)


def test_a_list_of_models_without_an_end_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dripping(Model):
        async def models(self, request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):
                for _ in range(400):
                    await response.write(b" ")
                    await asyncio.sleep(0.02)
            return response

    monkeypatch.setattr("tasks.eval_model.LIST_S", 0.1)
    with (
        answering(last_number, kind=Dripping) as model,
        pytest.raises(EngineError, match="without an end"),
    ):
        at_url(model.url, None, None, tokens=False)


def test_the_project_that_is_meant_and_how_it_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    project = load_project(ROOT / "tests" / "sorting")
    given = {"environment": "math", "model": "base", "temperature": None, "max_tokens": 9}
    monkeypatch.chdir(tmp_path)
    assert project_here(home, given) is None
    remember(home, project)
    assert project_here(home, given) == project.folder
    assert project_here(home, {**given, "model": "http://127.0.0.1:1"}) is None
    (tmp_path / "flywheel.toml").write_text("")
    assert project_here(home, given) == tmp_path
    assert sampled_as(given, project) == {**given, "temperature": 0.7}
    assert sampled_as(given, None) == given


def test_a_base_model_needs_no_project(tmp_path: Path) -> None:
    assert base_model("base", tmp_path) is None is base_model("nobody-v3", tmp_path)
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        if name == "small":
            assert base_model("base", tmp_path) == tmp_path / "small"
    assert base_model("large", tmp_path) == tmp_path / "large"
    assert base_model(str(tmp_path / "large"), tmp_path / "none") == tmp_path / "large"
    with pytest.raises(UsageError, match="large, small: name one"):
        base_model("base", tmp_path)
