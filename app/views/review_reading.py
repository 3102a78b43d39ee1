"""What a review page asks of the project's files, read anew where they changed."""

import functools
from pathlib import Path
from typing import Any

from app.views import kept
from app.views.frame import Shown
from app.views.review_data import environment_of
from app.views.traces_data import lately
from flywheel.data_section import LabelsSection
from flywheel.errors import FlywheelError
from flywheel.project import load_project
from storage.queries import problems

_KNOWN = 50


def reading(here: Shown) -> tuple[Any, list[Any]]:
    """The environment, and some answers that it knows."""

    def known() -> list[Any]:
        each = problems(here.home, here.project)
        return [one.answer for one in each if one.answer is not None][:_KNOWN]

    answers = lately(here.home, kept.sequence(here.home), known, "known answers", here.project)
    return _environment(here.folder, _changed(here.folder)), answers


@functools.lru_cache(maxsize=8)
def _environment(folder: Path | None, _changed: tuple[int, ...]) -> Any:
    return environment_of(folder)


@functools.lru_cache(maxsize=8)
def _labels(folder: Path | None, _changed: tuple[int, ...]) -> LabelsSection:
    try:
        return LabelsSection() if folder is None else load_project(folder).labels
    except FlywheelError:
        return LabelsSection()


def _changed(folder: Path | None) -> tuple[int, ...]:
    files = [] if folder is None else [*folder.glob("*.py"), *folder.glob("*.toml")]
    return tuple(sorted(one.stat().st_mtime_ns for one in files))


def labels_of(folder: Path | None) -> LabelsSection:
    """What a label is, by the project's file; the default where it is not known here."""
    return _labels(folder, _changed(folder))
