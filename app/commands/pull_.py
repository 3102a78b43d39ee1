"""`flywheel pull`: traces of other platforms come in from their servers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from app.cli import echo_json
from app.commands.import_ import project_name, show
from app.durations import MOMENT
from app.start import start

if TYPE_CHECKING:
    from storage.pull.pulling import Pulled


@click.command("pull")
@click.argument("source", type=click.Choice(["langfuse", "langsmith", "mlflow", "phoenix"]))
@click.option("--url", help="Of the server. [default: the vendor's own, where it has one]")
@click.option("--project", "theirs", required=True, help="As it is called there.")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    help='Folder of our project. [default: the one here, else "default"]',
)
@click.option("--since", type=MOMENT,
              help="2026-11-01, or how long ago: 30d. [default: since the last pull]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(
    source: str,
    url: str | None,
    theirs: str,
    into: Path | None,
    since: int | None,
    as_json: bool,
) -> None:
    """Pull what SOURCE recorded since the last pull into the store, each trace once.

    Keys stand in the vendor's own variables: LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY,
    LANGSMITH_API_KEY, MLFLOW_TRACKING_TOKEN, PHOENIX_API_KEY. Stopped anywhere, the same command
    goes on.
    """
    home = start(progress=True).at()
    from flywheel.errors import UsageError
    from flywheel.settings import secret
    from storage.pull.pulling import SOURCES, pull, server_of

    kind, ours = SOURCES[source], project_name(into)
    if (place := url or kind.url) is None:
        raise UsageError(f"--url says where your {source} server is")
    keys = {name: value for name in kind.keys if (value := secret(name))}
    done = pull(home, source, server_of(kind, place, keys), theirs, project=ours, since=since)
    found = _told(ours, done)
    if as_json:
        echo_json(found)
    else:
        show(found)


def _told(project: str, done: "Pulled") -> dict[str, Any]:
    said = msgspec.to_builtins(done)
    report = {
        name: value
        for name, value in said.pop("report").items()
        if name not in ("files", "readable")
    }
    return {"project": project, **said, **report}
