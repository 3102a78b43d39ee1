"""A new environment: a package of its own that works at once, with its test.

Enter a folder's name. Leave its files. Invariant: nothing that is there is overwritten.
"""

import re
from pathlib import Path

from flywheel.errors import UsageError

TEMPLATE = Path(__file__).resolve().parent / "environment_template"


def write_environment(folder: Path) -> list[str]:
    """The template's files with the folder's name in them.

    Raises:
        UsageError: the name makes no package, or files are there already.
    """
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,40}", name):
        raise UsageError(
            f"{folder.name!r} makes no environment's name: it must start with a letter"
        )
    package = "flywheel_env_" + name.replace("-", "_")
    class_ = "".join(part.capitalize() for part in name.split("-"))
    names = {
        "{name}": name,
        "{package}": package,
        "{Class}": class_,
        "template_package": package,
        "Template": class_,
    }
    files = sorted(path for path in TEMPLATE.rglob("*") if path.is_file() and _ours(path))
    targets = {path: folder / _name(path).replace("package/", f"{package}/") for path in files}
    there = [str(target) for target in targets.values() if target.exists()]
    if there:
        raise UsageError(f"{', '.join(there)} is there already: nothing was written")
    for path, target in targets.items():
        text = path.read_text(encoding="utf-8")
        for word, with_ in names.items():
            text = text.replace(word, with_)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            told = error.strerror or error
            raise UsageError(f"{target} cannot be written: {told}; name another folder") from error
    return [str(target.relative_to(folder)) for target in targets.values()]


def _name(path: Path) -> str:
    """A file whose own name would mean something here has `.txt` at its end."""
    return str(path.relative_to(TEMPLATE)).removesuffix(".txt")


def _ours(path: Path) -> bool:
    return "__pycache__" not in path.parts
