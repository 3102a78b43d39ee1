"""`flywheel dashboard`: the pages where people look, review and act, until stopped."""

import signal
from pathlib import Path
from types import FrameType

import click

from app.cli import echo, echo_json
from app.start import start


@click.command("dashboard")
@click.argument("projects", type=click.Path(path_type=Path), nargs=-1)
@click.option("--port", type=click.IntRange(0, 65535), default=8501, show_default=True,
              help="0: a free one.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True,
              help="To listen on; wider than this machine needs a sign-in.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one object once it answers.")
def command(projects: tuple[Path, ...], port: int, host: str, as_json: bool) -> None:
    """Open the dashboard of this home, until Ctrl-C.

    PROJECTs are folders that it may read environments from; the ones that other commands were
    given are known already.
    """
    settings = start()
    from app import dashboard_server as server
    from flywheel.known import remember
    from flywheel.project import load_project
    from serving.listening import listen

    home = settings.at()
    for folder in projects:
        remember(home, load_project(folder))
    with listen(host, port) as taken:
        port = taken.getsockname()[1]
    # What a script starts in the background has SIGINT ignored until it is set.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    with server.start(home, host, port, Path.cwd()) as child:
        at = server.url(host, port)
        try:
            if as_json:
                echo_json({"url": at, "pid": child.pid})
            else:
                echo(f"the dashboard of {home.root} is at {at}; Ctrl-C stops it")
            code = child.wait()
        except KeyboardInterrupt:  # it may come as soon as the address was told
            return
    raise click.ClickException(f"the dashboard ended with code {code}: logs/dashboard.log says why")


def _stop(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt
