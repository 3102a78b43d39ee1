"""What the environment says is what a process and those that it starts are set to."""

from dataclasses import replace
from pathlib import Path

import pytest

from flywheel.settings import Secret, Settings, Unfit


def test_what_is_given_goes_before_the_environment_and_that_before_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLYWHEEL_THREADS", "7")
    monkeypatch.setenv("FLYWHEEL_LAKE", "null")
    monkeypatch.setenv("FLYWHEEL_VLLM", "some/folder")
    monkeypatch.setenv("FLYWHEEL_RUN_LIMIT_S", "2.5")
    found = Settings()
    assert (found.threads, found.lake, found.run_limit_s) == (7, "null", 2.5)
    assert found.vllm == Path("some/folder") and found.attempts == 3
    assert Settings(threads=1).threads == 1 and replace(found, threads=1).run_limit_s == 2.5


def test_every_value_that_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, said in (("THREADS", "none"), ("BEAT_S", "0"), ("ENGINE", "other")):
        monkeypatch.setenv(f"FLYWHEEL_{name}", said)
    with pytest.raises(Unfit, match=r"FLYWHEEL_THREADS.*FLYWHEEL_ENGINE.*FLYWHEEL_BEAT_S") as told:
        Settings()
    assert told.value.why.keys() == {"threads", "engine", "beat_s"}


def test_a_process_that_is_started_is_set_the_same_and_no_log_has_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = Settings(keys=Secret("k1"), catalog=Secret("postgresql://x"), failpoint="here")
    assert "k1" not in f"{given} {given!r}" and "postgresql" not in str(given)
    said = given.environment()
    assert said["FLYWHEEL_KEYS"] == "k1" and "FLYWHEEL_FAILPOINT" not in said
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert Settings() == replace(given, failpoint=None)
