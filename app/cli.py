"""The `flywheel` command: a table of commands, imported only when one is called.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by a gate.
"""

import importlib
import json
import sys
from typing import Any

import click

from flywheel.errors import FlywheelError

COMMANDS = {
    "init": "Write a working project into a folder.",
    "demo": "The main job: two turns of the wheel on a support inbox.",
    "serve": "Serve a project: gateway and engine, until stopped.",
    "import": "Bring trace files in.",
    "turn": "One whole turn: ingest to promotion or refusal.",
    "ingest": "Commit what waits in the inbox.",
    "grade": "Grade recorded traces.",
    "curate": "Sample, grade and select: the open turn's dataset.",
    "train": "Train the open turn's candidate.",
    "evaluate": "Compare the open turn's candidate with the champion.",
    "promote": "Promote the open turn's candidate, if the gate lets it.",
    "rollback": "Put the previous deployment back.",
    "status": "What serves, what runs, what waits.",
    "lineage": "The chain from a deployment to the traces that made it, and back.",
}
"""Command -> its line of help; the command itself is `app.commands.<name>:command`."""


class Lazy(click.Group):
    def list_commands(self, _: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"app.commands.{name}_")
        command: click.Command = module.command
        return command

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flywheel")
def flywheel() -> None:
    """Turns a production model's traces into its better, cheaper successor."""


def main() -> None:
    """Runs the command; every error of ours is one message and one exit code."""
    try:
        flywheel.main(standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.Abort:
        fail("stopped", 130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except FlywheelError as error:
        fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        fail("stopped; run the same command again to go on", 130)


def fail(message: str, code: int) -> None:
    """Tells the error where the person or the script looks, and leaves."""
    if "--json" in sys.argv:
        click.echo(json.dumps({"error": message, "exit_code": code}))
    click.echo(f"flywheel: {message}", err=True)
    sys.exit(code)


def echo_json(value: Any) -> None:
    click.echo(json.dumps(value, default=str))


if __name__ == "__main__":
    main()
