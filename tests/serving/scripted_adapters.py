"""A scripted engine: it keeps what is loaded, and fails where it is told to."""

from pathlib import Path

from flywheel.errors import EngineError, Refused
from flywheel.home import Home
from flywheel.lineage import Deployment


class ScriptedEngine:
    """Lives in a folder, so that it outlives a killed process as a real engine does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.dead = False

    def load_adapter(self, name: str, folder: Path) -> None:
        self._alive()
        if not (folder / "adapter_model.safetensors").is_file():
            raise Refused(f"no adapter in {folder}")
        (self.folder / name).write_text(str(folder))

    def unload_adapter(self, name: str) -> None:
        self._alive()
        (self.folder / name).unlink(missing_ok=True)

    def models(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def _alive(self) -> None:
        if self.dead:
            raise EngineError("the engine is gone")


def an_adapter(home: Home, run: str) -> Path:
    """An adapter's folder of that run, with files enough for a registry."""
    folder = home.runs / run / "adapter"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "adapter_model.safetensors").write_bytes(run.encode() * 16)
    return folder


def a_candidate(home: Home, run: str, project: str = "support") -> Deployment:
    """Registered in the home's MLflow."""
    from serving.registry import Registry

    return Registry(home).register_candidate(
        project=project,
        base_model="tiny",
        adapter=an_adapter(home, run),
        checkpoint_id=f"checkpoint-{run}",
        run_id=run,
        tags={"flywheel.parent": f"{project}-v0"},
    )
