"""Judges: is the key there, does anybody listen, is it known what they cost and how far to trust
them. None is asked anything: that costs money."""

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from app.doctor.finding import Case, Finding, ok, warning, wrong
from app.doctor.projects import sound
from flywheel.errors import FlywheelError
from flywheel.judge_section import JudgeSection
from flywheel.project import Project

_WAIT_S = 3.0


def judges(case: Case) -> Iterator[Finding | str]:
    asked = [(one, one.judge) for one in sound(case) if one.judge is not None]
    if not asked:
        yield ok("no project has a judge ([judge] in its flywheel.toml)")
    for project, section in asked:
        name = f"{project.name}: its judge {section.model} at {section.url}"
        yield name
        told = [*_reached(name, project, section), *_trusted(case, name, project, section)]
        yield from told or [ok(f"{name} is there, priced and calibrated")]


def _reached(name: str, project: Project, section: JudgeSection) -> Iterator[Finding]:
    from environments.judges.judge import open_judge

    try:
        open_judge(section, None, folder=project.folder)
    except FlywheelError as error:
        yield wrong(f"{project.name}: {error}", "set that variable, or write that file")
    if section.url == "home":
        return  # the check of the server tells
    place = urlsplit(section.url)
    port = place.port or (443 if place.scheme == "https" else 80)
    try:
        socket.create_connection((place.hostname or "", port), timeout=_WAIT_S).close()
    except OSError as error:
        yield warning(f"{name} does not answer: {error}", "start it, or mend url under [judge]")


def _trusted(case: Case, name: str, project: Project, section: JudgeSection) -> Iterator[Finding]:
    from tasks.judges import standings_of

    if section.kind == "chat" and (section.price_in is None or section.price_out is None):
        yield warning(
            f"{name} has no price: what it costs is not known, and no budget in dollars holds",
            "price_in and price_out under [judge]; 0 for a model of your own",
        )
    try:
        known = standings_of(project, case.home)
    except FlywheelError:
        return  # the check of the store tells
    if "" not in known.values():
        why = next(iter(known.values()), "it was never compared with people")
        yield warning(
            f"{name} informs only: {why}",
            f"review some answers, then flywheel judge calibrate {project.folder}",
        )
