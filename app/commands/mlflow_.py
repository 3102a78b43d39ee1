"""`flywheel mlflow`: MLflow's pages of this home, until stopped."""

import click

from app.cli import echo, echo_json
from app.start import start


@click.command("mlflow")
@click.option("--port", type=int, default=5000, show_default=True, help="0: a free one.")
@click.option("--json", "as_json", is_flag=True, help="Print one object once it answers.")
def command(port: int, as_json: bool) -> None:
    """Show runs, models and versions in MLflow's own pages, until Ctrl-C.

    On this machine only. Moving the alias challenger to a version there, or tagging it promote,
    asks for it: flywheel promote --asked, or the schedule, answers.
    """
    settings = start(progress=True)
    from serving.registry_server import experiments, keep_mlflow

    def ready(url: str) -> None:
        found = experiments(url)
        if as_json:
            echo_json({"url": url, "experiments": found})
            return
        echo(f"MLflow's pages: {url}; Ctrl-C stops them")
        for project, address in found.items():
            echo(f"  {project}: {address}")

    keep_mlflow(settings.at(), port=port, ready=ready)
