"""The one place that reads the environment: FLYWHEEL_*. Everything else receives values."""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from flywheel import failpoints
from flywheel.errors import UsageError
from flywheel.home import Home

_PREFIX = "FLYWHEEL_"
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Unfit(UsageError):
    """Values of the environment that cannot be used."""

    def __init__(self, why: dict[str, str]) -> None:
        super().__init__("; ".join(f"{variable_of(name)}: {one}" for name, one in why.items()))
        self.why = why
        """Reasons, by the setting's name."""


class Secret:
    """A text that stands in no log and no message."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_secret_value(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(**)"


@dataclass(frozen=True, init=False)
class Settings:
    """What is given goes before what the environment says.

    No model of pydantic's, which takes as long to load as all else that a short command does.
    """

    home: Path = Path(".flywheel")
    """FLYWHEEL_HOME: the store, runs, registry and routing of this installation."""
    models: Path = Path(__file__).resolve().parent.parent / ".models"
    """FLYWHEEL_MODELS: where base models lie, one folder each."""
    threads: _Count = 2
    """FLYWHEEL_THREADS: threads of the engine and of the trainer; sampling repeats exactly only
    with the same number."""
    trainer: Literal["process", "inline"] = "process"
    """FLYWHEEL_TRAINER: inline trains in the flow's own process (tests that fork)."""
    keys: Secret | None = None
    """FLYWHEEL_KEYS: keys that clients of the gateway must show, comma-separated. None = none, and
    the gateway listens on the loopback address only."""
    api_keys_file: Path | None = None
    """FLYWHEEL_API_KEYS_FILE: the same, one a line; `sha256:HEX` stands for a key that is not
    written out."""
    vllm: Path = Path(__file__).resolve().parent.parent / ".venv-vllm"
    """FLYWHEEL_VLLM: the environment that `make install-vllm` made."""
    verifiers: Path = Path(__file__).resolve().parent.parent / ".venv-verifiers"
    """FLYWHEEL_VERIFIERS: the environment that `make install-verifiers` made."""
    verl: Path = Path(__file__).resolve().parent.parent / ".venv-verl"
    """FLYWHEEL_VERL: the environment that `make install-verl` made."""
    prime_rl: Path | None = None
    """FLYWHEEL_PRIME_RL: the environment of a prime-rl checkout (its .venv). None = none."""
    train_engine: Literal["here", "torchrun", "verl", "prime-rl"] | None = None
    """FLYWHEEL_TRAIN_ENGINE, or `flywheel train --engine`: goes before [train.machine] engine."""
    engine: Literal["embedded", "vllm"] | None = None
    """FLYWHEEL_ENGINE, or `flywheel serve --engine`: goes before what a project names."""
    engine_key: Secret | None = None
    """FLYWHEEL_ENGINE_KEY: of a vLLM that somebody else runs, where it wants one."""
    worker: str | None = None
    """FLYWHEEL_WORKER: `pid@start` of the worker that started this run, which it does not outlive.
    Set by the worker; None = nobody's."""
    deployment: str | None = None
    """FLYWHEEL_DEPLOYMENT: flow/PROJECT of the deployment that made this run; prefect.yaml sets it.
    """
    run_limit_s: _Seconds | None = None
    """FLYWHEEL_RUN_LIMIT_S: after which a run that a worker started is ended; prefect.yaml has it
    for each flow."""
    beat_s: _Seconds = 5.0
    """FLYWHEEL_BEAT_S: how often a run says that it lives."""
    silent_s: _Seconds = 60.0
    """FLYWHEEL_SILENT_S: after which a run that says nothing is taken for dead."""
    attempts: _Count = 3
    """FLYWHEEL_ATTEMPTS: how often a run is begun in all, when its process dies."""
    lake: str | None = None
    """FLYWHEEL_LAKE: a folder, or s3://bucket/prefix, that the home publishes to, and that machines
    without the database send to. S3's endpoint, region and keys are AWS's usual variables."""
    catalog: Secret | None = None
    """FLYWHEEL_CATALOG: postgresql://… of a DuckLake catalog, whose data lies in FLYWHEEL_LAKE.
    None = the database is one file in the home."""
    failpoint: str | None = None
    """FLYWHEEL_FAILPOINT: where a test kills the process."""

    def __init__(self, **given: Any) -> None:
        """
        Raises:
            Unfit: what the environment says does not fit.
        """
        unfit: dict[str, str] = {}
        for name, kind in get_type_hints(Settings, include_extras=True).items():
            value = getattr(Settings, name)
            try:
                value = given.pop(name) if name in given else _said(name, kind, value)
            except msgspec.ValidationError as error:
                unfit[name] = str(error)
            object.__setattr__(self, name, value)
        if given:
            raise TypeError(f"no settings: {', '.join(given)}")
        if unfit:
            raise Unfit(unfit)

    def at(self) -> Home:
        catalog = self.catalog.get_secret_value() if self.catalog else None
        return Home(self.home.resolve(), lake=self.lake or None, catalog=catalog or None)

    def paths(self) -> dict[str, Path]:
        """Every path that is set, absolute: for a process that starts in another folder."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value.resolve() for name, value in found.items() if isinstance(value, Path)}

    def environment(self) -> dict[str, str]:
        """What gives a process that is started these settings, secrets too, but not where a test
        kills this one."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            variable_of(name): value.get_secret_value() if isinstance(value, Secret) else str(value)
            for name, value in found.items()
            if value is not None and name != "failpoint"
        }


def variable_of(name: str) -> str:
    """The environment's variable of a setting."""
    return _PREFIX + name.upper()


def _said(name: str, kind: Any, default: Any) -> Any:
    if (said := os.environ.get(variable_of(name))) is None:
        return default
    return msgspec.convert(said, kind, strict=False, dec_hook=_made)


def _made(kind: type, said: str) -> Path | Secret:
    return Path(said) if kind is Path else Secret(said)


def load() -> Settings:
    settings = Settings()
    if settings.failpoint:
        failpoints.arm(settings.failpoint)
    return settings


def prefer(name: str, value: str | None) -> None:
    """Sets a setting for this process and its children, as the command line said; None = nothing
    was said."""
    if value is not None:
        os.environ[variable_of(name)] = value


def secret(variable: str) -> str | None:
    """What stands in a variable that a project's file names; None = it is not set."""
    return os.environ.get(variable)


def quiet_dependencies(home: Home) -> None:
    """Points Prefect at the home and turns every dependency's telemetry and hub access off.

    Must run before prefect, mlflow, great_expectations, torch or transformers are imported. Values
    that the person has set stay. Torch's threads sleep while they wait for one another: where
    others use the cores too, two threads that spin were several times slower than one.
    """
    for name, value in {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
        "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "60",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GX_ANALYTICS_ENABLED": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_WAIT_POLICY": "PASSIVE",
    }.items():
        os.environ.setdefault(name, value)
