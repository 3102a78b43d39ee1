"""`flywheel datasets`: listed, shown, compared, exported, made, rebuilt."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start
from app.told import GATE, RETRAIN
from flywheel.errors import Refused
from flywheel.lineage import Product
from flywheel.plain import many
from storage.exports import LAYOUTS

if TYPE_CHECKING:
    from flywheel.lineage import Dataset
    from storage.dataset_records import Standing
    from storage.exports.export import Exported
    from storage.versions import Comparison

_json = click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")


@click.group("datasets")
def command() -> None:
    """Datasets: listed, shown, compared, exported, made, rebuilt."""


@command.command("list")
@click.option("--project", help="Of one project by its name; without: of all.")
@_json
def list_(project: str | None, as_json: bool) -> None:
    """The datasets of this home, the last one last."""
    home = start().at()
    from storage.dataset_records import datasets

    made = datasets(home, project)
    if as_json:
        echo_json({"datasets": [_object(one) for one in made]})
        return
    if not made:
        echo("no dataset yet: flywheel turn PROJECT makes one, and so does flywheel datasets make")
        return
    echo(f"{'id':<14}{'project':<18}{'product':<13}{'rows':>9}  {'gate':<11}")
    for one in made:
        gate = "retired" if one.retired else GATE[one.gate_passed]
        echo(f"{one.id[:12]:<14}{one.project:<18}{one.product:<13}{one.rows:>9,}  {gate:<11}")


@command.command("show")
@click.argument("id")
@_json
def show(id: str, as_json: bool) -> None:
    """The dataset ID (the beginning of it will do): its rules, its gate, what became of it."""
    home = start().at()
    from storage.dataset_records import found, standing

    known = standing(home, found(home, id))
    if as_json:
        echo_json({**msgspec.to_builtins(known), "dataset": _object(known.dataset)})
        return
    for line in shown(known):
        echo(line)


def _object(one: "Dataset") -> dict[str, object]:
    """With what a record leaves out where it is the usual, or is not known."""
    unsaid = {"product": one.product, "gate_passed": one.gate_passed, "retired": one.retired}
    return {**msgspec.to_builtins(one), **unsaid}


def shown(known: "Standing") -> Iterator[str]:
    one = known.dataset
    yield f"{'id':<12} {one.id}"
    yield f"{'project':<12} {one.project}"
    yield f"{'product':<12} {one.product}"
    yield f"{'rows':<12} {one.rows:,}{'' if known.here else ' (its files are not here)'}"
    yield f"{'data gate':<12} {GATE[one.gate_passed]}"
    for name, several in (("made from", one.parents), ("trained", known.runs),
                          ("successors", known.successors)):  # fmt: skip
        if several:
            yield f"{name:<12} {', '.join(several)}"
    if one.retired:
        yield f"{'retired':<12} {one.retired}"
    for mark in known.marks:
        yield f"{'changed':<12} {mark.cause}: {mark.reason} ({RETRAIN[mark.retrain]})"
    for rule in one.rules:
        yield f"  {rule.rule:<20} {rule.rows_in:>9,} -> {rule.rows_out:<9,} {rule.note}".rstrip()


@command.command("diff")
@click.argument("before")
@click.argument("after")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The page's file.")
@_json
def diff(before: str, after: str, out: Path | None, as_json: bool) -> None:
    """What dataset AFTER has that BEFORE has not: rows, rules, distributions.

    Writes a page with a plot for each column.
    """
    home = start(progress=True).at()
    from flywheel import durable
    from storage.dataset_records import found
    from storage.versions import compare, page

    told = compare(home, found(home, before), found(home, after))
    file = out or Path(f"{told.before[:8]}-{told.after[:8]}.html")
    durable.write(file, page(told).encode())
    if as_json:
        echo_json({**compared(told), "page": str(file.resolve())})
        return
    for line in differing(told):
        echo(line)
    echo(f"plots: {file}")


def compared(told: "Comparison") -> dict[str, Any]:
    shifted = {one.column for one in told.shifted}
    found: dict[str, Any] = msgspec.to_builtins(told)
    for shift in found["shifts"]:
        shift["shifted"] = shift["column"] in shifted
    return found


def differing(told: "Comparison") -> Iterator[str]:
    rows = told.difference
    yield f"rows       {told.rows_before:,} before, {told.rows_after:,} after"
    yield (
        f"           {rows.added:,} added, {rows.removed:,} removed, {rows.same:,} the same "
        f"({rows.reweighted:,} with another reward or weight), {rows.changed:,} traces in both "
        "with another answer"
    )
    for one in told.rules:
        if one.what != "same":
            values = f"{_spelled(one.before)} -> {_spelled(one.after)}"
            yield f"rule       {one.rule} {one.what}: {values}"
    shifted = told.shifted
    for shift in told.shifts:
        if shift.psi is None or shift.js is None:
            continue
        apart = "shifted" if shift in shifted else "alike"
        ks = "" if shift.ks is None else f", KS {shift.ks:.3f}"
        yield f"{apart:<10} {shift.column}: PSI {shift.psi:.3f}{ks}, JS {shift.js:.3f}"


def _spelled(parameters: str | None) -> str:
    return "not there" if parameters is None else parameters or "defaults"


@command.command("make")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--product", type=click.Choice(get_args(Product)), default="rows",
              show_default=True, help="What it is for.")  # fmt: skip
@_json
def make(project: Path, product: Product, as_json: bool) -> None:
    """Make a dataset of what the store has of PROJECT: nothing is sampled, nothing trained.

    Under the project's rules, leakage check and data gate; a refused one is kept, and exits with 3.
    """
    start(progress=True)
    from tasks.products import make

    made = make(str(project), product)
    if as_json:
        echo_json(made)
    else:
        echo(f"dataset {made['id']}: {made['rows']:,} {product}")
        for rule in made.get("rules", ()):
            echo(f"  {rule['rule']:<20} {rule['rows_in']:>9,} -> {rule['rows_out']:<9,} "
                 f"{rule.get('note', '')}".rstrip())  # fmt: skip
        for warning in made["warnings"]:
            echo(f"  warning: {warning}")
        if made["gate_passed"] is False:
            echo(f"  the data gate refuses it: {made['reason']}")
    if made["gate_passed"] is False:
        raise click.exceptions.Exit(Refused.exit_code)


@command.command("rebuild")
@click.argument("id")
@_json
def rebuild(id: str, as_json: bool) -> None:
    """Make the dataset ID again from its manifest, and say whether the same bytes come out.

    A file that is gone or damaged is put back. Other bytes: exits with 1, and says why.
    """
    home = start(progress=True).at()
    from storage.dataset_records import found
    from tasks.rebuild import rebuild

    told = rebuild(found(home, id))
    if as_json:
        echo_json(told)
    elif told["same"]:
        put_back = "; its file was put back" if told["restored"] else ""
        echo(f"the same, bit for bit: {told['rows']:,} rows, {told['content']}{put_back}")
    else:
        echo(
            f"not the same: {told['missing']:,} of {told['rows']:,} rows are missing, "
            f"{told['added']:,} are new, {told['reweighted']:,} have another reward or weight"
        )
        for why in told["why"]:
            echo(f"  {why}")
    if not told["same"]:
        raise click.exceptions.Exit(1)


@command.command("export")
@click.argument("id")
@click.option("--as", "layout", type=click.Choice(list(LAYOUTS)), default="huggingface",
              show_default=True, help="Whose layout.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="The folder.")
@_json
def export(id: str, layout: str, out: Path | None, as_json: bool) -> None:
    """Write the dataset ID in somebody else's layout, with its card."""
    home = start(progress=True).at()
    from storage.dataset_records import found
    from storage.exports.export import export

    dataset = found(home, id)
    folder = out or Path(f"{dataset.project}-{dataset.id[:8]}-{layout}")
    done = export(home, not_retired(dataset), layout, folder)
    if as_json:
        echo_json(msgspec.to_builtins(done))
        return
    for line in written(done):
        echo(line)


def not_retired(dataset: "Dataset") -> "Dataset":
    """
    Raises:
        Refused: nothing may be made of it any more.
    """
    if dataset.retired:
        raise Refused(f"dataset {dataset.id} was retired: {dataset.retired}")
    return dataset


def written(done: "Exported") -> Iterator[str]:
    yield f"{many(done.items, 'line')} in {done.folder}: {', '.join(done.files)}"
    for why, count in done.left_out.items():
        yield f"  left out: {count:,}, {why}"
