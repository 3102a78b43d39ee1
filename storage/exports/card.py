"""The card of an export: README.md with a head in YAML, as Hugging Face's hub reads it.

Enter the dataset and what was written of it; leaves the text. What is not known is said so: no
licence, no consent, no language is guessed.
"""

import json
from typing import TYPE_CHECKING, Any

from flywheel.home import Home
from flywheel.lineage import Dataset
from storage.dataset_rows import narrow_columns
from storage.datasets import Manifest, verified
from storage.exports.layout import Layout

if TYPE_CHECKING:
    import polars as pl

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"),
          (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M"))  # fmt: skip
"""The hub's categories."""
_LISTED = 20
_PRODUCTS = {
    "rows": "Answers to learn from",
    "preferences": "Preferences between answers",
    "problems": "Problems to sample answers to",
    "calibration": "People's verdicts on answers, which judges are measured by",
    "evaluation": "Problems to evaluate on; never to be trained on",
}


def card(
    home: Home,
    dataset: Dataset,
    layout: str,
    form: Layout,
    items: int,
    left_out: dict[str, int],
) -> str:
    """
    Args:
        items: lines of the data.
        left_out: why -> rows that the layout cannot hold.
    """
    manifest, frame = verified(home, dataset), narrow_columns(home, dataset)
    parts = [
        _head(dataset, form, items),
        f"# {dataset.project}: {_PRODUCTS[dataset.product].lower()}\n",
        f"{_PRODUCTS[dataset.product]}, selected by Flywheel. Read it with {form.read_by}.\n",
        *(_left_out(left_out)),
        "## What is in it\n",
        _table(("what", "count"), _counts(frame, items, layout)),
        "## Where it comes from\n",
        _table(("origin", "sender", "answered by", "rows"), _sources(frame)),
        "## What was selected, and how\n",
        _table(("rule", "in", "out", "by"),
               [(one.rule, one.rows_in, one.rows_out, one.note) for one in dataset.rules]),
        "## What is known of it\n",
        "\n".join(f"- {line}" for line in _known(home, dataset, manifest, frame)) + "\n",
        "## Which version this is\n",
        "\n".join(f"- {line}" for line in _version(dataset, manifest, layout)) + "\n",
    ]  # fmt: skip
    return "\n".join(parts)


def _head(dataset: Dataset, form: Layout, items: int) -> str:
    size = next((name for bound, name in _SIZES if items < bound), "n>10M")
    lines = [
        "---",
        f"pretty_name: {json.dumps(f'{dataset.project} {dataset.id[:8]}')}",
        "license: unknown",
        "task_categories:",
        "- text-generation",
        "tags:",
        "- flywheel",
        f"- {dataset.product}",
        "size_categories:",
        f"- {size}",
        "configs:",
        "- config_name: default",
        "  data_files:",
        "  - split: " + ("test" if dataset.product == "evaluation" else "train"),
        f"    path: {form.file}",
        "---",
        "",
    ]
    return "\n".join(lines)


def _left_out(left_out: dict[str, int]) -> list[str]:
    if not left_out:
        return []
    told = "\n".join(f"- {count}: {_cell(why)}" for why, count in left_out.items())
    return [f"Left out, since this layout cannot hold them:\n\n{told}\n"]


def _counts(frame: "pl.DataFrame", items: int, layout: str) -> list[tuple[Any, ...]]:
    distinct = {
        "traces": "trace_id", "prompts": "prompt", "problems": "problem_id",
        "conversations": "conversation", "users": "user", "slices": "slice",
    }  # fmt: skip
    found: list[tuple[Any, ...]] = [(f"lines of {layout}", items), ("rows", frame.height)]
    found += [(name, frame[column].drop_nulls().n_unique()) for name, column in distinct.items()]
    found += [
        ("corrections or demonstrations by people", int(frame["corrected"].sum())),
        ("repeated from earlier datasets", frame["rehearsed"].drop_nulls().len()),
        ("with the sampled tokens", int(frame["has_tokens"].sum())),
    ]
    for name in ("prompt_tokens", "answer_tokens", "reward"):
        known = frame[name].drop_nulls()
        if known.len():
            told: list[Any] = [known.mean(), known.median(), known.max()]
            found.append((f"{name}: mean, median, most", ", ".join(f"{one:g}" for one in told)))
    return found


def _sources(frame: "pl.DataFrame") -> list[tuple[Any, ...]]:
    counted = (
        frame.group_by("origin", "source", "answered_by")
        .len("rows")
        .sort("rows", "origin", "source", "answered_by", descending=[True, False, False, False])
    )
    rows = list(counted.head(_LISTED).iter_rows())
    if counted.height > _LISTED:
        rows.append(("others", None, None, int(counted["rows"][_LISTED:].sum())))
    return rows


def _known(
    home: Home, dataset: Dataset, manifest: Manifest, frame: "pl.DataFrame"
) -> list[str]:  # fmt: skip
    gate = {True: "passed", False: "refused", None: "did not judge it"}[dataset.gate_passed]
    leaks = next((one.note for one in dataset.rules if one.rule == "leakage"), "")
    found = [
        "Licence: unknown. Nobody said under which terms its texts may be used; whoever passes it "
        "on must settle that with those whose texts they are.",
        f"Data gate: {gate}.",
        f"Decontamination: {leaks or 'not done: these are held out, or their set was not judged'}.",
        f"Consent: {_consent(home, frame)}.",
        f"Personal data: {_privacy(manifest)}.",
        f"Rests on something outside the model: {int(frame['outside'].sum())} of {frame.height} "
        "rows.",
    ]
    if dataset.retired:
        found.insert(0, f"**Retired: {dataset.retired}.** Nothing may be trained on it any more.")
    return found


def _consent(home: Home, frame: "pl.DataFrame") -> str:
    from storage.exports.consent import consents

    found = consents(home, sorted(set(frame["trace_id"])))
    return ", ".join(f"{said} of {count} traces" for said, count in sorted(found.items()))


def _privacy(manifest: Manifest) -> str:
    if manifest.recipe is None:
        return "not known whether it was looked for"
    section = manifest.recipe.sections.get("privacy", {})
    where = section.get("at", ())
    if not where:
        return "not looked for ([privacy] of the project names no place)"
    kinds = ", ".join(section.get("kinds", ())) or "every kind that is found by its form"
    return f"found and replaced at {' and '.join(where)}: {kinds}"


def _version(dataset: Dataset, manifest: Manifest, layout: str) -> list[str]:
    lines = [
        f"Dataset `{dataset.id}` of project {dataset.project}, as {layout}",
        f"Content `{manifest.content}` (blake2b of rows.parquet)",
        f"Made from {', '.join(f'`{one}`' for one in manifest.parents) or 'no other record'}",
    ]
    if manifest.recipe is not None:
        lines.append(f"Seen: the store up to sequence {manifest.recipe.sequence}")
    return lines


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(_cell(one) for one in line)} |" for line in lines) + "\n"


def _cell(value: Any) -> str:
    """One line of a table, whatever somebody called their system."""
    if value is None:
        return "unknown"
    plain = " ".join(str(value).split())
    for sign in "\\|<>`*_[]":
        plain = plain.replace(sign, "\\" + sign)
    return plain
