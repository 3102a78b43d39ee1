"""The model registry, in MLflow: each candidate a version with its files and where it came from.

A folder of weights and its lineage go in; a numbered deployment comes out. The aliases `champion`,
`previous` and `challenger` follow the routing file: the registry never decides what serves. MLflow
has no compare-and-set, so writers take turns by a file lock, and read back.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flywheel.durable import is_full
from flywheel.errors import CorruptFile, FlywheelError, Full, MissingPart
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.lineage import Deployment
from serving import registry_asked as asked
from serving.routing import canary_of
from storage.locks import held

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

RUN, CHECKPOINT, DEPLOYMENT = "flywheel.run_id", "flywheel.checkpoint", "flywheel.deployment"
KIND, WHOLE = "flywheel.kind", "full"
"""A version without this tag is an adapter, one with this value a whole model."""
ADAPTER, BASE = "flywheel.adapter", "flywheel.base_model"
"""Of a version that a person registered, or whose files were fetched again."""
_WAIT_S = 60.0
_TRIES = 5
_SQLITE = b"SQLite format 3\0"


def tracking_uri(home: Home) -> str:
    """Where MLflow keeps everything of this home; its folder is there afterwards.

    Raises:
        CorruptFile: its database is none. MLflow would try for minutes before it said so.
    """
    home.mlflow.mkdir(parents=True, exist_ok=True)
    file = home.mlflow.resolve() / "mlflow.db"
    if file.exists():
        try:
            with file.open("rb") as database:
                begins = database.read(len(_SQLITE))
        except OSError as error:
            raise CorruptFile(
                f"{file} cannot be read ({error}): mend that, and run again"
            ) from error
        if begins not in (b"", _SQLITE):
            raise CorruptFile(
                f"{file} is not a database: move it away, and MLflow begins anew. What serves "
                "and its lineage do not depend on it"
            )
    return f"sqlite:///{file}"


@contextlib.contextmanager
def telling(home: Home) -> Iterator[None]:
    """Says of MLflow's and its database's errors where they come from.

    Raises:
        Full: no space left.
        FlywheelError: whatever else it was.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError) as error:
        said = str(error).partition("\n")[0]  # the rest is SQL
        if is_full(error):
            raise Full(
                f"no space left for MLflow at {home.mlflow}: free some and run again"
            ) from error
        raise FlywheelError(f"MLflow at {home.mlflow}: {said}") from error


class Registry:
    """Opens MLflow when it is first needed: that takes seconds, its first use of a home more."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._opened: MlflowClient | None = None

    def register_candidate(
        self,
        *,
        project: str,
        base_model: str,
        adapter: str | Path,
        checkpoint_id: str,
        run_id: str,
        kind: Literal["adapter", "full"] = "adapter",
        tags: Mapping[str, str] | None = None,
    ) -> Deployment:
        """The checkpoint as the project's next deployment, aliased `challenger`.

        The number of its version is its own, and never used twice. The same checkpoint of the same
        run again gives the deployment that it has.

        Args:
            adapter: folder of its weights, absolute or relative to the home, where it stays: MLflow
                copies it.
            kind: what that folder holds.

        Raises:
            MissingPart: there is no such folder, or nothing in it.
        """
        folder = self.home.path(str(adapter))
        if not folder.is_dir() or not any(folder.iterdir()):
            raise MissingPart(f"no weights at {folder} to register: train run {run_id} again")
        tags = {
            **(tags or {}),
            RUN: run_id,
            CHECKPOINT: checkpoint_id,
            "flywheel.project": project,
            **({KIND: kind} if kind == WHOLE else {}),
        }
        with self.writing() as client:
            known = self._version_of(client, project, run_id, checkpoint_id)
            version = known or self._new_version(client, project, folder, tags)
            number = int(version.version)
            deployment = Deployment(
                name=f"{project}-v{number}",
                project=project,
                version=number,
                base_model=base_model,
                adapter=self.home.relative(folder),
                kind=kind,
                checkpoint_id=checkpoint_id,
                run_id=run_id,
                registry_version=str(number),
            )
            client.set_model_version_tag(project, str(number), DEPLOYMENT, deployment.name)
            # While a canary runs the alias is its challenger's.
            if canary_of(self.home, project) is None:
                self._move(client, project, {"challenger": str(number)})
        return deployment

    @property
    def begun(self) -> bool:
        """Whether anything was ever registered; if not, MLflow's seconds are saved."""
        return (self.home.mlflow / "mlflow.db").exists()

    def aliases(self, project: str) -> dict[str, str]:
        """The version that each alias names; {} for a project that MLflow does not know."""
        if not self.begun:
            return {}
        with telling(self.home):
            return self.read_aliases(self.client(), project)

    def set_aliases(self, project: str, wanted: Mapping[str, str | None]) -> None:
        """Sets each alias in `wanted` to a version, None = to none, as for the base model. One that
        a person moves between our setting and our looking is kept as what they ask for, and set
        again.

        Raises:
            FlywheelError: something other than this home's writers changes them each time.
        """
        with self.writing() as client:
            for _ in range(_TRIES):
                self._move(client, project, wanted)
                failpoint("registry.aliases_set")
                after = self.read_aliases(client, project)
                if all(after.get(alias) == version for alias, version in wanted.items()):
                    return
        raise FlywheelError(
            f"MLflow's aliases of {project} are {after} right after they were set to "
            f"{dict(wanted)}, {_TRIES} times: something else writes to {self.home.mlflow}"
        )

    def tag(self, deployment: Deployment, tags: Mapping[str, str]) -> None:
        """Adds lineage that came later (evaluation, decision) to the deployment's version."""
        if deployment.registry_version is not None:
            with self.writing() as client:
                for key, value in tags.items():
                    client.set_model_version_tag(
                        deployment.project, deployment.registry_version, key, value
                    )

    def tags(self, deployment: Deployment) -> dict[str, str]:
        if deployment.registry_version is None:
            return {}
        with telling(self.home):
            version = self.client().get_model_version(
                deployment.project, deployment.registry_version
            )
            return dict(version.tags)

    def _move(self, client: "MlflowClient", project: str, wanted: Mapping[str, str | None]) -> None:
        """Sets aliases; where a person had moved one of them, what they asked for is kept."""
        before = self.read_aliases(client, project)
        now = self.noticed(client, project, before)
        asked.keep(self.home, project, asked.with_ours(now, wanted, done=False))
        for alias, version in wanted.items():
            if version is not None and before.get(alias) != version:
                client.set_registered_model_alias(project, alias, version)
            elif version is None and alias in before:
                client.delete_registered_model_alias(project, alias)
        failpoint("registry.alias_moved")
        asked.keep(self.home, project, asked.with_ours(now, wanted, done=True))

    def noticed(
        self, client: "MlflowClient", project: str, aliases: Mapping[str, str]
    ) -> asked.Kept:
        """What was noted of the project, with whatever a person moved since."""
        now = asked.kept(self.home, project)
        if now is None:
            made = {
                str(one.version) for one in versions_of(client, project) if DEPLOYMENT in one.tags
            }
            ours: dict[str, tuple[str, ...]] = {
                alias: (one,) for alias, one in aliases.items() if one in made
            }
            now = asked.Kept(ours=ours)
        return asked.with_moved(self.home, now, aliases)

    def _version_of(
        self, client: "MlflowClient", project: str, run_id: str, checkpoint_id: str
    ) -> "ModelVersion | None":
        return next(
            (
                version
                for version in versions_of(client, project)
                if version.tags.get(RUN) == run_id and version.tags.get(CHECKPOINT) == checkpoint_id
            ),
            None,
        )

    def _new_version(
        self, client: "MlflowClient", project: str, folder: Path, tags: dict[str, str]
    ) -> "ModelVersion":
        import mlflow

        self._have_model(client, project)
        experiment = self._experiment(client, project)
        run = client.search_runs([experiment], f"tags.`{RUN}` = '{tags[RUN]}'", max_results=1)
        model = client.create_logged_model(
            experiment,
            name=f"{project}-{tags[CHECKPOINT][:12]}",
            source_run_id=run[0].info.run_id if run else None,
            tags=tags,
            model_type="whole-model" if KIND in tags else "lora-adapter",
        )
        client.log_model_artifacts(model.model_id, str(folder))
        client.finalize_logged_model(model.model_id, "READY")
        # The registry's store looks the model up by the process-wide address, not the client's.
        mlflow.set_tracking_uri(tracking_uri(self.home))
        return client.create_model_version(
            project,
            source=f"models:/{model.model_id}",
            run_id=run[0].info.run_id if run else None,
            model_id=model.model_id,
            tags=tags,
        )

    def _have_model(self, client: "MlflowClient", project: str) -> None:
        if not client.search_registered_models(f"name = '{project}'"):
            client.create_registered_model(project, tags={"flywheel.project": project})

    def _experiment(self, client: "MlflowClient", project: str) -> str:
        known = client.get_experiment_by_name(project)
        if known is not None:
            return str(known.experiment_id)
        artifacts = (self.home.mlflow.resolve() / "artifacts" / project).as_uri()
        return str(client.create_experiment(project, artifact_location=artifacts))

    def read_aliases(self, client: "MlflowClient", project: str) -> dict[str, str]:
        found = client.search_registered_models(f"name = '{project}'")
        return {alias: str(version) for alias, version in found[0].aliases.items()} if found else {}

    @contextlib.contextmanager
    def writing(self) -> Iterator["MlflowClient"]:
        busy = f"another process has been writing to {self.home.mlflow} for over {_WAIT_S:g} s"
        with held(self.home.locks / "mlflow.lock", wait_s=_WAIT_S, busy=busy), telling(self.home):
            yield self.client()

    def client(self) -> "MlflowClient":
        if self._opened is None:
            self._opened = open_mlflow(self.home)
        return self._opened


def open_mlflow(home: Home) -> "MlflowClient":
    """MLflow of this home, quiet."""
    defaults = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    # Where the artifacts of MLflow's default experiment go: else to the folder that we run in.
    os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = (home.mlflow.resolve() / "artifacts").as_uri()
    for noisy in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    from mlflow import MlflowClient

    uri = tracking_uri(home)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def versions_of(client: "MlflowClient", project: str) -> "list[ModelVersion]":
    """All of the project's, newest first; MLflow gives them by the page."""
    found: list[ModelVersion] = []
    token: str | None = None
    while True:
        page = client.search_model_versions(f"name = '{project}'", page_token=token)
        found += page
        token = page.token
        if not token:
            return sorted(found, key=lambda one: -int(one.version))
