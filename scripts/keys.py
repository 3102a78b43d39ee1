"""Writes docs/project.md: every key of flywheel.toml with its default and its meaning, as
flywheel/project.py and its sections have them. `--check` only says whether the page
is what it would write."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("project.py", *sorted(one.name for one in (ROOT / "flywheel").glob("*section.py")))
PAGE = ROOT / "docs" / "project.md"
GIVEN = "must be given"
HEAD = """# flywheel.toml

Every key, with its default. A key that is not known is an error that names the nearest right one.
This page is written from the sections in `flywheel/` by `python scripts/keys.py`.
"""


def page() -> str:
    classes = {
        node.name: node
        for source in SOURCES
        for node in ast.parse((ROOT / "flywheel" / source).read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    parts = [HEAD, "## At the top\n", table(classes["Project"], skip=set(classes))]
    return "\n".join(parts + sections(classes, "Project", "", {"Project"}))


def sections(classes: dict[str, ast.ClassDef], name: str, path: str, shown: set[str]) -> list[str]:
    """The sections inside of one, each with its own inside it; one that stands twice, once."""
    parts = []
    for key, kind, _, said in fields(classes[name]):
        inner = inner_of(kind)
        if inner not in classes or inner in shown:
            continue
        shown.add(inner)
        about = ast.get_docstring(classes[inner])
        title = f"[[{path}{key}]]" if kind.startswith("tuple[") else f"[{path}{key}]"
        title = f"[{path}{key}.NAME]" if kind.startswith("dict[") else title
        parts += [f"## {title}\n"] + ([f"{plain(about, title)}\n"] if about else [])
        if kind.endswith(" | None") and said:
            parts.append(f"Left out: {said.removeprefix('None = ')}\n")
        if inner == "Rule":
            parts.append(
                f"The default, to begin from:\n\n```toml\n{usual_rules(classes[name])}```\n"
            )
        parts.append(
            table(classes[inner], skip=set(classes) - {"Rule", *shared(classes[inner], shown)})
        )
        if inner != "Rule":
            parts += sections(classes, inner, f"{path}{key}.", shown)
    return parts


def inner_of(kind: str) -> str:
    """The section that a field holds, alone, as a list or by names."""
    kind = kind.removesuffix(" | None")
    if kind.startswith("dict["):
        return kind.removesuffix("]").rpartition(", ")[2]
    return kind.removeprefix("tuple[").removesuffix(", ...]")


def shared(node: ast.ClassDef, shown: set[str]) -> set[str]:
    """Sections inside of this one that have their own place further up: they are named here."""
    return {kind for _, kind, default, _ in fields(node) if kind in shown and default == GIVEN}


def usual_rules(node: ast.ClassDef) -> str:
    """The default of `rules` as one writes it in the file."""
    (value,) = (
        one.value for one in node.body
        if isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == "rules"
    )  # fmt: skip
    assert isinstance(value, ast.Tuple)
    rules = [rule_of(one) for one in value.elts if isinstance(one, ast.Call)]
    return "\n".join(f"[[curate.rules]]\n{lines}\n" for lines in rules)


def plain(about: str, title: str) -> str:
    """Without the title that a docstring may begin with."""
    words = about.removeprefix(f"{title}: ")
    return words[0].upper() + words[1:]


def table(node: ast.ClassDef, skip: set[str]) -> str:
    rows = ["| key | values | default | meaning |", "|---|---|---|---|"]
    for name, kind, default, meaning in fields(node):
        inside = kind.removesuffix(" | None") in skip or by_name(kind, skip)
        if not inside and name != "folder":
            shown = "[environment]" if kind == "EnvironmentSection" else kind
            rows.append(f"| `{name}` | {cell(shown)} | {cell(default)} | {meaning} |")
    return "\n".join(rows) + "\n"


def by_name(kind: str, skip: set[str]) -> bool:
    return kind.startswith("dict[") and inner_of(kind) in skip


def fields(node: ast.ClassDef) -> list[tuple[str, str, str, str]]:
    """(name, type, default, docstring) of each field, in order."""
    found = []
    for at, one in enumerate(node.body):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            after = node.body[at + 1] if at + 1 < len(node.body) else None
            said = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                said = " ".join(str(after.value.value).split()).replace("|", "\\|")
            found.append((one.target.id, kind_of(one), default_of(one), said))
    return found


def kind_of(field: ast.AnnAssign) -> str:
    kind = field.annotation
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Literal":
        given = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
        return " | ".join(text_of(one) for one in given)
    text = ast.unparse(kind)
    return "cron | seconds | off" if text == "Every" else text


def text_of(value: ast.expr) -> str:
    return ast.unparse(value).replace("'", '"')


def default_of(field: ast.AnnAssign) -> str:
    value = field.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "Field":
        if value.args:
            return text_of(value.args[0])
        return "{}" if any(one.arg == "default_factory" for one in value.keywords) else GIVEN
    if isinstance(value, ast.Tuple) and value.elts and isinstance(value.elts[0], ast.Call):
        return "as below"
    return GIVEN if value is None else text_of(value)


def rule_of(call: ast.Call) -> str:
    """A curation rule's default, key by key."""
    given = (
        {"name": ast.literal_eval(call.keywords[0].value)}
        if call.keywords
        else ast.literal_eval(call.args[0])
    )
    return "\n".join(
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
        for key, value in given.items()
    )


def cell(text: str) -> str:
    return text if text in (GIVEN, "as below") else "`" + text.replace("|", "\\|") + "`"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page() and "docs/project.md is old: python scripts/keys.py")
    PAGE.write_text(page())
