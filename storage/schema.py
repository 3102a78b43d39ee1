"""The database's shape: numbered migrations that are only ever added to.

`migrate` brings a database that is open for writing to the newest; `version` says where one stands.
Each migration runs in one transaction with the row that notes it.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from flywheel.errors import FlywheelError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_FOLDER = Path(__file__).parent / "migrations"


def newest() -> int:
    return max(_migrations())


def version(database: "DuckDBPyConnection") -> int:
    """The last migration that was applied; 0 = an empty database."""
    import duckdb

    try:
        ((last,),) = database.execute("SELECT coalesce(max(number), 0) FROM migrations").fetchall()
    except duckdb.CatalogException:
        return 0
    return int(last)


def check(reached: int) -> None:
    """
    Raises:
        FlywheelError: the database was written by newer code than this.
    """
    if reached > newest():
        raise FlywheelError(
            f"the store is of version {reached}, newer than this program's {newest()}: update it"
        )


def migrate(database: "DuckDBPyConnection") -> None:
    """Applies what is missing. A new store gets all at once, so that a kill leaves none of an
    earlier version behind."""
    reached = version(database)
    check(reached)
    missing = [(number, path) for number, path in sorted(_migrations().items()) if number > reached]
    together = [missing] if reached == 0 else [[one] for one in missing]
    for steps in together:
        database.begin()
        database.execute("CREATE TABLE IF NOT EXISTS migrations (number BIGINT, name VARCHAR)")
        for number, path in steps:
            database.execute(path.read_text())
            database.execute("INSERT INTO migrations VALUES (?, ?)", [number, path.name])
        database.commit()


def _migrations() -> dict[int, Path]:
    return {int(path.name[:4]): path for path in _FOLDER.glob("[0-9][0-9][0-9][0-9]_*.sql")}
