"""Lets an environment's file import the files beside it, while it is executed.

Enter: the file's folder. Leave: the texts that were imported from there, for the digest.
Invariants: what is installed comes first, so that no file stands in a package's place; nothing
stays in sys.modules, so that two projects may each have a `codes.py`; no byte code is written or
believed.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType


@contextlib.contextmanager
def neighbours(folder: Path) -> Iterator[dict[str, str]]:
    """By module name, the texts of the files in `folder` that were imported meanwhile."""
    texts: dict[str, str] = {}
    finder = _Finder(folder, texts)
    sys.meta_path.insert(0, finder)
    try:
        yield texts
    finally:
        sys.meta_path.remove(finder)
        for name in finder.found:
            sys.modules.pop(name, None)


class _Finder(MetaPathFinder):
    def __init__(self, folder: Path, texts: dict[str, str]) -> None:
        self.folder, self.texts = folder, texts
        self.found: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.folder / f"{fullname}.py"
        if path is not None or not file.is_file() or self._installed(fullname):
            return None
        self.found.add(fullname)
        return spec_from_file_location(
            fullname, file, loader=_Loader(fullname, str(file), self.texts)
        )

    def _installed(self, name: str) -> bool:
        """Whether it is to be had elsewhere; the folder may itself be on sys.path."""
        if name in sys.stdlib_module_names:
            return True
        elsewhere = [one for one in sys.path if Path(one).absolute() != self.folder]
        return PathFinder.find_spec(name, elsewhere) is not None


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, texts: dict[str, str]) -> None:
        super().__init__(fullname, path)
        self.texts = texts

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        self.texts[fullname] = source.decode("utf-8")
        code: CodeType = self.source_to_code(source, self.path)
        return code
