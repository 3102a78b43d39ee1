"""`flywheel prefect`: this home's Prefect server and worker, until stopped."""

import click

from app.cli import echo, echo_json
from app.start import start


@click.command("prefect")
@click.option("--port", type=int, default=4200, show_default=True, help="0: a free one.")
@click.option("--host", default="127.0.0.1", show_default=True,
              help="To listen on; wider than this machine needs a password.")  # fmt: skip
@click.option("--no-worker", is_flag=True, help="Only the server: what is due waits.")
@click.option("--json", "as_json", is_flag=True, help="Print one object once it answers.")
def command(port: int, host: str, no_worker: bool, as_json: bool) -> None:
    """Run Prefect's server and a worker for this home, until Ctrl-C.

    What `flywheel deploy` put on the schedule runs then. Where PREFECT_API_URL names a server, only
    a worker is run.
    """
    settings = start(progress=True)
    from flows.deployments import queue_of
    from flows.keeping import keep_prefect
    from flows.server import PrefectServer

    def ready(at: PrefectServer) -> None:
        if as_json:
            pid = int(at.process.partition("@")[0])
            echo_json({"url": at.pages, "api_url": at.url, "pid": pid, "worker": at.worker})
        else:
            what = "the worker runs what is due" if at.worker else "no worker runs"
            echo(f"Prefect's pages: {at.pages}; {what}; Ctrl-C stops it")

    keep_prefect(
        settings.at(), queue=queue_of(), host=host, port=port, worker=not no_worker, ready=ready
    )
