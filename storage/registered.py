"""What MLflow's aliases and versions say, read from its database file: for pages, which must not
pay the seconds of importing MLflow at each look.

Only looks; `serving.registry` is the one place that changes anything. A file of another shape than
the pinned MLflow writes is told as not known, never guessed.
"""

import contextlib
import sqlite3

from msgspec import field

from flywheel.home import Home
from flywheel.records import Record


class Registered(Record, frozen=True, kw_only=True):
    versions: tuple[str, ...] = ()
    """In order."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Alias -> version."""
    places: dict[str, str] = field(default_factory=dict)
    """Version -> address of its files, where MLflow says one."""
    unknown: str = ""
    """Why the two are not known; "" = they are."""


def registered(home: Home, project: str) -> Registered:
    file = home.mlflow / "mlflow.db"
    if not file.exists():
        return Registered()
    try:
        place = f"{file.resolve().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(place, uri=True, timeout=2)) as database:
            versions = database.execute(
                "SELECT version, storage_location FROM model_versions WHERE name = ? "
                "AND current_stage <> 'Deleted_Internal' ORDER BY version",
                [project],
            ).fetchall()
            aliases = database.execute(
                "SELECT alias, version FROM registered_model_aliases WHERE name = ?", [project]
            ).fetchall()
    except sqlite3.Error as error:
        return Registered(unknown=f"{file} cannot be read: {error}")
    return Registered(
        versions=tuple(str(one) for one, _ in versions),
        places={str(one): str(place) for one, place in versions if place},
        aliases={str(alias): str(version) for alias, version in aliases},
    )
