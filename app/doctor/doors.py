"""Keys and who may come in: files that hold secrets, and hosts that are open to others."""

import stat
from collections.abc import Iterator
from pathlib import Path

from app.doctor.finding import Case, Finding, ok, warning, wrong
from flywheel.errors import CorruptFile, FlywheelError, UsageError
from flywheel.project import load_project
from serving.keys import check_host, keys_of


def keys(case: Case) -> Iterator[Finding]:
    file = case.settings.api_keys_file
    try:
        given = keys_of(case.settings)
    except UsageError as error:
        yield wrong(str(error), "mend FLYWHEEL_KEYS or the file FLYWHEEL_API_KEYS_FILE names")
        return
    except CorruptFile as error:
        yield wrong(str(error), f"put a copy of {case.home.keys} back")
        return
    yield ok("clients of the gateway must show a key" if given else "the gateway asks for no key")
    if file is not None:
        yield from _private(file, "the keys file")
    yield from _private(case.home.keys, "the file of issued keys")
    for folder in case.folders:
        try:
            project = load_project(folder)
            check_host(project.serving.host, given)
        except UsageError as error:
            if "will not listen" in str(error):
                yield wrong(
                    f"{project.name}: {error}", 'host = "127.0.0.1" under [serving], or set keys'
                )
        except FlywheelError:
            continue  # the check of projects tells


def people(case: Case) -> Iterator[Finding]:
    from app.people import file_of
    from app.people import people as listed

    try:
        found = listed(case.home)
    except UsageError as error:
        yield wrong(str(error), f"mend {file_of(case.home)} or move it away")
        return
    if found is None:
        yield ok("the dashboard has no list of people: whoever uses this machine may do everything")
    else:
        yield ok(f"the dashboard knows {len(found.people)} people")
        if file_of(case.home).stat().st_mode & stat.S_IWOTH:
            yield wrong(
                f"anybody may write {file_of(case.home)}", f"chmod o-w {file_of(case.home)}"
            )
    for secrets in (Path.home() / ".streamlit", Path.cwd() / ".streamlit"):
        yield from _private(secrets / "secrets.toml", "the dashboard's sign-in secrets")


def _private(file: Path, what: str) -> Iterator[Finding]:
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return
    if mode & 0o077:
        yield warning(f"{what} {file} can be read by others (mode {mode:03o})", f"chmod 600 {file}")
    else:
        yield ok(f"{what} {file} is private")
