"""Parts to be modelled, made from a seed; their figures are worked out here, not by the kernel.

Enter: how many, and a seed. Leave: for each what is asked, the figures that it must have, a program
that makes it and one that nearly does. Invariant: problem n of a seed is the same however many are
made; lengths are millimetres.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple


class Made(NamedTuple):
    kind: str
    text: str
    figures: dict[str, Any]
    """"volume", "holes" (that go through it), "size" along X, Y, Z."""
    program: str
    near: str


def made(count: int, seed: int, kinds: Sequence[str] = ()) -> Iterator[Made]:
    wanted = tuple(kinds or KINDS)
    for number in range(count):
        draw = random.Random(f"solid {seed} {number}")
        kind = wanted[number % len(wanted)]
        text, figures, lines, near = KINDS[kind](draw)
        yield Made(kind, text, figures, _program(lines), _program(near))


_Part = tuple[str, dict[str, Any], str, str]


def _program(lines: str) -> str:
    return f"import cadquery as cq\n\n{lines}\n"


def _figures(volume: float, holes: int, *size: float) -> dict[str, Any]:
    return {"volume": volume, "holes": holes, "size": list(map(float, size))}


def _plate(draw: random.Random) -> _Part:
    """Through holes in a grid, well inside."""
    columns, rows, d = draw.randint(1, 4), draw.randint(1, 2), draw.randint(3, 8)
    step = d + draw.randint(4, 9)
    x, y = columns * step + draw.randint(4, 20), rows * step + draw.randint(4, 20)
    t, n = draw.randint(3, 12), columns * rows
    grid = f"rarray({step}, {step}, {columns}, {rows})"
    where = (
        f"a round hole of diameter {d} through the middle of it"
        if n == 1
        else f"{n} round holes of diameter {d} through it, in a grid about its middle: {columns} "
        f"along X and {rows} along Y, their axes {step} apart"
    )
    text = f"A rectangular plate, {x} long (X), {y} wide (Y) and {t} thick (Z), with {where}."
    volume = x * y * t - n * math.pi * d**2 / 4 * t
    near = f"result = cq.Workplane().box({x}, {y}, {t})"
    line = f"{near}.faces('>Z').workplane().{grid}.hole({d})"
    return text, _figures(volume, n, x, y, t), line, near


def _tube(draw: random.Random) -> _Part:
    outer, wall, h = 2 * draw.randint(6, 30), draw.randint(1, 4), draw.randint(5, 80)
    inner = outer - 2 * wall
    text = (
        f"A straight round tube along Z, {h} long, of outer diameter {outer} and wall thickness "
        f"{wall}, open at both ends."
    )
    line = f"result = cq.Workplane().circle({outer} / 2).circle({inner} / 2).extrude({h})"
    near = f"result = cq.Workplane().circle({outer} / 2).circle({outer - wall} / 2).extrude({h})"
    volume = math.pi / 4 * (outer**2 - inner**2) * h
    return text, _figures(volume, 1, outer, outer, h), line, near


def _shaft(draw: random.Random) -> _Part:
    steps = [(2 * draw.randint(5, 20), draw.randint(4, 30)) for _ in range(draw.randint(2, 4))]
    steps = [step for at, step in enumerate(steps) if not at or step[0] != steps[at - 1][0]]
    bore = draw.choice((0, draw.randint(2, 4)))
    told = "; then ".join(f"diameter {d}, length {length}" for d, length in steps)
    text = f"A turned shaft along Z, its sections from the bottom up: {told}."
    text += f" A bore of diameter {bore} goes through all of it along its axis." if bore else ""
    lines, z = ["result = cq.Workplane()"], 0
    for d, length in steps:
        lines.append(f"result = result.union(cq.Workplane().workplane(offset={z})"
                     f".circle({d} / 2).extrude({length}))")  # fmt: skip
        z += length
    lines[:2] = [f"result = cq.Workplane().circle({steps[0][0]} / 2).extrude({steps[0][1]})"]
    near = "\n".join(lines[: max(1, len(lines) - 1)] if not bore else lines)
    if bore:
        lines.append(f"result = result.cut(cq.Workplane().circle({bore} / 2).extrude({z}))")
    elif len(steps) == 1:
        near = f"result = cq.Workplane().circle({steps[0][0]}).extrude({steps[0][1]})"
    widest = max(d for d, _ in steps)
    volume = sum(math.pi / 4 * (d**2 - bore**2) * length for d, length in steps)
    return text, _figures(volume, 1 if bore else 0, widest, widest, z), "\n".join(lines), near


def _tray(draw: random.Random) -> _Part:
    x, y = draw.randint(30, 90), draw.randint(20, 60)
    h, wall = draw.randint(10, 40), draw.randint(1, 4)
    text = (
        f"An open box without a lid: outside {x} long (X), {y} wide (Y) and {h} high (Z), its "
        f"walls and its floor {wall} thick, all edges sharp."
    )

    def hollow(floor: int) -> str:
        plane = f"cq.Workplane().workplane(offset={floor})"
        inside = f"{plane}.rect({x - 2 * wall}, {y - 2 * wall}).extrude({h})"
        return f"result = cq.Workplane().rect({x}, {y}).extrude({h}).cut({inside})"

    volume = x * y * h - (x - 2 * wall) * (y - 2 * wall) * (h - wall)
    return text, _figures(volume, 0, x, y, h), hollow(wall), hollow(0)


def _bracket(draw: random.Random) -> _Part:
    t, w, d = draw.randint(3, 8), draw.randint(16, 40), draw.randint(4, 9)
    foot, back = draw.randint(25, 60), draw.randint(25, 60)
    text = (
        f"An L-shaped bracket, {w} wide (Y): a foot {foot} long (X) and {t} thick (Z), lying flat, "
        f"and a back {back} high (Z, over all) and {t} thick (X) that stands on one end of the "
        "foot. In the middle of the back's whole height and width a round hole of diameter "
        f"{d} goes through the back along X."
    )
    outline = f"(0, 0), ({foot}, 0), ({foot}, {t}), ({t}, {t}), ({t}, {back}), (0, {back})"

    def drilled(d: int) -> str:
        shape = f"cq.Workplane('XZ').polyline([{outline}]).close().extrude(-{w})"
        drill = f"cq.Workplane('YZ').center({w} / 2, {back} / 2).circle({d} / 2).extrude({t})"
        return f"result = {shape}.cut({drill})"

    volume = w * (foot * t + (back - t) * t) - math.pi / 4 * d**2 * t
    return text, _figures(volume, 1, foot, w, back), drilled(d), drilled(2 * d)


def _flange(draw: random.Random) -> _Part:
    bolts, d, bore = draw.randint(3, 8), draw.randint(3, 7), 2 * draw.randint(4, 10)
    circle = bore + 2 * d + 2 * draw.randint(3, 8) + bolts * 2
    outer, t = circle + 2 * d + 2 * draw.randint(2, 5), draw.randint(4, 15)
    text = (
        f"A round flange, {t} thick (Z) and {outer} in diameter, with a bore of diameter {bore} in "
        f"its middle and {bolts} bolt holes of diameter {d} through it, evenly on a circle of "
        f"diameter {circle}."
    )

    def drilled(many: int) -> str:
        disc = f"cq.Workplane().circle({outer} / 2).circle({bore} / 2).extrude({t})"
        array = f"polarArray({circle} / 2, 0, 360, {many})"
        return f"result = {disc}.faces('>Z').workplane().{array}.hole({d})"

    volume = math.pi / 4 * t * (outer**2 - bore**2 - bolts * d**2)
    figures = _figures(volume, bolts + 1, outer, outer, t)
    return text, figures, drilled(bolts), drilled(bolts - 1)


def _block(draw: random.Random) -> _Part:
    """Blind pockets: no hole goes through."""
    x, y, h = draw.randint(40, 80), draw.randint(20, 50), draw.randint(12, 30)
    d, deep = draw.randint(6, 12), draw.randint(3, 9)
    apart = d + draw.randint(4, 12)
    text = (
        f"A block, {x} long (X), {y} wide (Y) and {h} high (Z). Into its top go two round blind "
        f"holes with flat bottoms, of diameter {d} and {deep} deep, on the middle line along X, "
        f"their axes {apart} apart, evenly about the middle of the block."
    )
    start = f"result = cq.Workplane().box({x}, {y}, {h}).faces('>Z').workplane()"
    places = f"pushPoints([(-{apart} / 2, 0), ({apart} / 2, 0)])"
    line = f"{start}.{places}.hole({d}, {deep})"
    volume = x * y * h - 2 * math.pi / 4 * d**2 * deep
    return text, _figures(volume, 0, x, y, h), line, f"{start}.{places}.hole({d})"


KINDS: dict[str, Callable[[random.Random], _Part]] = {
    "plate": _plate,
    "tube": _tube,
    "shaft": _shaft,
    "tray": _tray,
    "bracket": _bracket,
    "flange": _flange,
    "block": _block,
}
