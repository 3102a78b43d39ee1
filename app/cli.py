"""The `flywheel` command: a table of commands, imported only when one is called.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by a gate.
"""

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from flywheel.durable import is_full
from flywheel.errors import FlywheelError, Full, UsageError
from flywheel.plain import plain

COMMANDS = {
    "init": "Write a working project into a folder.",
    "demo": "The main job: two turns of the wheel on a support inbox.",
    "serve": "Serve a project: gateway and engine, until stopped.",
    "keys": "Who may use the gateway: keys issued, listed, rotated, revoked.",
    "import": "Bring trace files in.",
    "pull": "Bring in what Langfuse, LangSmith, MLflow or Phoenix recorded.",
    "privacy": "Personal data and secrets: where they are.",
    "preset": "What vLLM is started with on GPUs, by name.",
    "turn": "One whole turn: ingest to promotion or refusal.",
    "ingest": "Commit what waits in the inbox.",
    "publish": "Share the store's tables, raw bytes and datasets in the lake.",
    "send": "Leave what waits here for the machine that commits.",
    "grade": "Grade recorded traces.",
    "problems": "Problems of a project's traffic: mined, listed, shown.",
    "labels": "What people say of answers: agreement, reliability, what to judge next.",
    "judge": "A model that judges: its cost, its agreement with people, a trial.",
    "curate": "Sample, grade and select: the open turn's dataset.",
    "datasets": "Datasets: listed, shown, compared, exported, made, rebuilt.",
    "fidelity": "What of each source can be trained on, and what its sender must change.",
    "explain": "Why a trace is, or is not, in a dataset.",
    "train": "Train the open turn's candidate.",
    "evaluate": "Compare the open turn's candidate with the champion.",
    "promote": "Promote a candidate, if the gates let it.",
    "release": "Let a version answer a share of the requests until its test is over.",
    "estimate": "What a version would have earned on recent traffic.",
    "route": "Who answers, who gets copies, and who stands in.",
    "variant": "What serves, made faster: in eight bits, or guessing ahead.",
    "rollback": "Put the previous deployment back.",
    "eval": "Try any model on any environment.",
    "replay": "Recorded traces under another version of a reward.",
    "env": "Environments: written, checked, built, listed.",
    "erase": "Take all that is somebody's out of the home, and show that nothing is left.",
    "status": "What serves, what runs, what waits.",
    "usage": "Calls, tokens and dollars by project, key, deployment or day.",
    "lineage": "The chain from a deployment to the traces that made it, and back.",
    "deploy": "Put a project's flows on Prefect's schedule.",
    "prefect": "Prefect's server, pages and worker of this home, until stopped.",
    "mlflow": "MLflow's pages of this home, until stopped.",
    "dashboard": "The pages where people look, review and act.",
    "doctor": "Check every part, and say how to mend what is wrong.",
}
"""Command -> its line of help; the command itself is `app.commands.<name>:command`."""


class Lazy(click.Group):
    def list_commands(self, _: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, n=1)
            raise click.UsageError(
                f"no command {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            )
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
    """Runs the command; every error is one message, one exit code and, for scripts, one object."""
    with _only_our_object():
        try:
            flywheel.main(standalone_mode=False)
        except click.exceptions.Exit as end:
            sys.exit(end.exit_code)
        except (click.Abort, KeyboardInterrupt):
            fail("stopped; run the same command again to go on", 130)
        except click.ClickException as error:
            fail(_with_usage(error), UsageError.exit_code)
        except FlywheelError as error:
            fail(str(error), error.exit_code)
        except BrokenPipeError:
            nobody = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nobody, (sys.__stdout__ or sys.stdout).fileno())
            sys.exit(0)
        except Exception as error:
            if is_full(error):
                fail(f"no space left ({error}): free some and run again", Full.exit_code)
            if told := _prefect_gone(error):
                fail(told, 1)
            echo(traceback.format_exc(), err=True, nl=False)
            fail(f"{type(error).__name__}: {error}", 1)


@contextlib.contextmanager
def _only_our_object() -> Iterator[None]:
    """Where a script reads our standard output, what others print goes to standard error, that of
    programs that they start too."""
    if not _for_script() or sys.__stdout__ is None:
        yield
        return
    theirs = sys.__stdout__
    theirs.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as ours:
        os.dup2(2, 1)
        sys.__stdout__ = ours  # type: ignore[misc]
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            sys.__stdout__ = theirs  # type: ignore[misc]
            os.dup2(ours.fileno(), 1)


def _prefect_gone(error: Exception) -> str | None:
    """What to tell where Prefect's server died under a command; None = something else is wrong."""
    if "prefect" not in sys.modules:
        return None
    from flows.server import gone

    return gone(error)


def _for_script() -> bool:
    return "--json" in sys.argv


def _with_usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    help = f" (`{context.command_path} --help` says more)" if context else ""
    return error.format_message() + help


def fail(message: str, code: int) -> None:
    """Tells the error once, where the person or the script looks, and leaves."""
    message = message.encode("utf-8", "backslashreplace").decode()  # a name that is no UTF-8
    if _for_script():
        echo_json({"error": message, "exit_code": code})
    else:
        echo(f"flywheel: {message}", err=True)
    sys.exit(code)


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Prints what a person reads; whoever wrote parts of it moves no terminal."""
    click.echo(plain(text), err=err, nl=nl)


def echo_json(value: Any) -> None:
    """One line on the real standard output; a number that is none is null."""
    text = msgspec.json.encode(value, enc_hook=str)
    print(text.decode(), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
