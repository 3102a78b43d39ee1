"""Imports only point down, and each heavy library stays in its own rooms (docs/architecture.md)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY = {
    "flywheel": set(),
    "storage": {"flywheel"},
    "environments": {"flywheel"},
    "trainer": {"flywheel", "environments"},
    "serving": {"flywheel", "storage", "trainer"},
    "tasks": {"flywheel", "storage", "environments", "trainer", "serving"},
    "flows": {"flywheel", "tasks"},
    "app": {"flywheel", "storage", "environments", "trainer", "serving", "tasks", "flows"},
}
ROOMS = {
    "prefect": ("tasks/", "flows/"),
    "mlflow": ("serving/registry", "tasks/tracking"),
    "streamlit": ("app/views/", "app/dashboard"),  # its pages, and the process that serves them
    "altair": ("app/views/",),
    "matplotlib": ("tasks/tracking",),
    "torch": ("trainer/", "serving/engines/embedded"),
    "transformers": ("trainer/",),
    "peft": ("trainer/",),
    "great_expectations": ("storage/gates/",),
    "duckdb": ("storage/",),
    "openai": ("environments/", "app/"),
    "vllm": (),
}
FROM_SERVING = {"trainer.models", "trainer.render"}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules() -> list[Path]:
    return sorted(path for folder in MAY for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0]
    for name in imports(path):
        top = name.split(".")[0]
        if top in MAY and top != own:
            assert top in MAY[own], f"{own} may not import {name}"
        if own == "serving" and top == "trainer" and name.count(".") == 1:
            assert name in FROM_SERVING, f"serving takes only {FROM_SERVING} of the trainer"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_libraries_stay_in_their_rooms(path: Path) -> None:
    where = str(path.relative_to(ROOT))
    for name in imports(path):
        rooms = ROOMS.get(name.split(".")[0])
        assert rooms is None or where.startswith(rooms), f"{name} may not be imported in {where}"


def test_package_inits_are_only_docstrings_or_tables() -> None:
    for folder in MAY:
        body = ast.parse((ROOT / folder / "__init__.py").read_text()).body
        assert len(body) == 1 and ast.get_docstring(ast.Module(body, [])), folder


def test_no_module_of_flows_or_app_hides_a_package() -> None:
    """Prefect puts flows/ on sys.path and Streamlit puts app/ there."""
    import importlib.metadata

    taken = set(MAY) | set(importlib.metadata.packages_distributions())
    for folder in ("flows", "app"):
        names = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__", "__main__"}
        assert not names & taken
