"""Runs in the sandbox: a model's CAD program, in CadQuery; what it binds to `result` is kept.

Enter, as arguments: where the kernel's packages lie; on standard input: the program. Leaves:
result.brep, or the program's stack on standard error and exit code 1. Invariant: CadQuery's viewer
and its solver of assemblies are not installed; what would import them finds nothing there.
"""

import importlib.abc
import importlib.machinery
import linecache
import sys
import traceback
import types
from collections.abc import Sequence
from typing import Any

NAME = "<program>"
RESULT = "result.brep"
ABSENT = ("vtkmodules", "vtk", "casadi", "nlopt", "scipy", "trame")


class _Nothing:
    """What a module that is not here seems to hold."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ImportError("this part of CadQuery is not here")

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


class _Absent(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        absent = name.partition(".")[0] in ABSENT or name.startswith("OCP.IVtk")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if absent else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def shape_of(result: Any) -> Any:
    """One shape: of a Workplane all its solids, of an assembly its parts.

    Raises:
        TypeError: it is none.
    """
    import cadquery

    if isinstance(result, cadquery.Workplane):
        result = [one for one in result.vals() if isinstance(one, cadquery.Shape)]
    if isinstance(result, cadquery.Assembly):
        result = result.toCompound()
    if isinstance(result, Sequence):
        shapes = [shape_of(one) for one in result]
        result = shapes[0] if len(shapes) == 1 else cadquery.Compound.makeCompound(shapes)
    if not isinstance(result, cadquery.Shape):
        raise TypeError(f"`result` is a {type(result).__name__}, no Workplane and no Shape")
    return result


def told(error: BaseException) -> str:
    """The stack from the program's own first line on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != NAME:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace or error.__traceback__)
    return "".join(lines)


def main() -> int:
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.insert(0, _Finder())
    source = sys.stdin.read()
    linecache.cache[NAME] = (len(source), None, source.splitlines(True), NAME)
    space: dict[str, Any] = {"__name__": "program"}
    try:
        exec(compile(source, NAME, "exec"), space)
        if "result" not in space:
            raise NameError("the program binds nothing to `result`")
        shape_of(space["result"]).exportBrep(RESULT)
    except BaseException as error:
        sys.stderr.write(told(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
