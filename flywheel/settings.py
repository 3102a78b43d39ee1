"""The one place that reads the environment: FLYWHEEL_*. Everything else receives values."""

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from flywheel import failpoints
from flywheel.home import Home

_PREFIX = "FLYWHEEL_"


class Settings(BaseModel):
    """What is given goes before what the environment says.

    pydantic-settings would read it too, and takes as long to load as pydantic and DuckDB together:
    every command pays for that.
    """

    model_config = ConfigDict(extra="ignore", validate_default=True)

    home: Path = Path(".flywheel")
    """FLYWHEEL_HOME: the store, runs, registry and routing of this installation."""
    models: Path = Path(__file__).resolve().parent.parent / ".models"
    """FLYWHEEL_MODELS: where base models lie, one folder each."""
    threads: int = Field(2, ge=1)
    """FLYWHEEL_THREADS: threads of the engine and of the trainer; sampling repeats exactly only
    with the same number."""
    trainer: Literal["process", "inline"] = "process"
    """FLYWHEEL_TRAINER: inline trains in the flow's own process (tests that fork)."""
    keys: SecretStr | None = None
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
    engine_key: SecretStr | None = None
    """FLYWHEEL_ENGINE_KEY: of a vLLM that somebody else runs, where it wants one."""
    worker: str | None = None
    """FLYWHEEL_WORKER: `pid@start` of the worker that started this run, which it does not outlive.
    Set by the worker; None = nobody's."""
    deployment: str | None = None
    """FLYWHEEL_DEPLOYMENT: flow/PROJECT of the deployment that made this run; prefect.yaml sets it.
    """
    run_limit_s: float | None = Field(None, gt=0)
    """FLYWHEEL_RUN_LIMIT_S: after which a run that a worker started is ended; prefect.yaml has it
    for each flow."""
    beat_s: float = Field(5.0, gt=0)
    """FLYWHEEL_BEAT_S: how often a run says that it lives."""
    silent_s: float = Field(60.0, gt=0)
    """FLYWHEEL_SILENT_S: after which a run that says nothing is taken for dead."""
    attempts: int = Field(3, ge=1)
    """FLYWHEEL_ATTEMPTS: how often a run is begun in all, when its process dies."""
    lake: str | None = None
    """FLYWHEEL_LAKE: a folder, or s3://bucket/prefix, that the home publishes to, and that machines
    without the database send to. S3's endpoint, region and keys are AWS's usual variables."""
    catalog: SecretStr | None = None
    """FLYWHEEL_CATALOG: postgresql://… of a DuckLake catalog, whose data lies in FLYWHEEL_LAKE.
    None = the database is one file in the home."""
    failpoint: str | None = None
    """FLYWHEEL_FAILPOINT: where a test kills the process."""

    @model_validator(mode="before")
    @classmethod
    def _said(cls, given: dict[str, Any]) -> dict[str, Any]:
        variables = {name: _PREFIX + name.upper() for name in cls.model_fields}
        said = {name: os.environ[one] for name, one in variables.items() if one in os.environ}
        return said | given

    def at(self) -> Home:
        catalog = self.catalog.get_secret_value() if self.catalog else None
        return Home(self.home.resolve(), lake=self.lake or None, catalog=catalog or None)

    def paths(self) -> dict[str, Path]:
        """Every path that is set, absolute: for a process that starts in another folder."""
        return {name: value.resolve() for name, value in self if isinstance(value, Path)}


def load() -> Settings:
    settings = Settings()
    if settings.failpoint:
        failpoints.arm(settings.failpoint)
    return settings


def prefer(name: str, value: str | None) -> None:
    """Sets a setting for this process and its children, as the command line said; None = nothing
    was said."""
    if value is not None:
        os.environ[_PREFIX + name.upper()] = value


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
