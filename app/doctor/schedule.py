"""Prefect: its database, the server and worker of this home, the deployments of each project."""

from collections.abc import Iterator

from app.doctor.finding import Case, Finding, ok, wrong


def prefect(case: Case) -> Iterator[Finding]:
    from storage.sqlite_file import tables

    file = case.home.prefect / "prefect.db"
    if not file.exists():
        yield ok("Prefect has nothing yet: the first turn is recorded there")
        return
    try:
        tables(file)
    except (OSError, ValueError) as error:
        yield wrong(
            f"Prefect's database {file} cannot be used: {error}",
            f"mv {file} {file}.broken: it begins anew; turns go on from their own files",
        )
        return
    yield ok("Prefect's database opens")
