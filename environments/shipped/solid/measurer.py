"""Runs in the sandbox after the program has ended: measures the shape that it left.

Enter, as arguments: where the kernel's packages lie, and the width of a picture (0 = none). Leaves:
one line of JSON, what the shape is. Invariant: nothing of the program runs any more, and none of
its files is imported.
"""

import base64
import json
import struct
import sys
import zlib
from typing import Any

_RESULT = "result.brep"
_LARGEST = 16 << 20
_COARSE = 0.01
"""Of a shape's size: how far the picture's triangles may lie beside it."""
_LIGHT = (0.2, 0.6, 0.77)


def read() -> Any:
    from OCP.BRep import BRep_Builder
    from OCP.BRepTools import BRepTools
    from OCP.TopoDS import TopoDS_Shape

    with open(_RESULT, "rb") as file:
        if len(file.read(_LARGEST + 1)) > _LARGEST:
            raise ValueError("the shape is too large")
    shape = TopoDS_Shape()
    if not BRepTools.Read_s(shape, _RESULT, BRep_Builder()) or shape.IsNull():
        raise ValueError("there is no shape")
    return shape


def parts(shape: Any, kind: str) -> list[Any]:
    """The different faces, edges … of a shape, each once."""
    from OCP.TopAbs import TopAbs_ShapeEnum
    from OCP.TopExp import TopExp
    from OCP.TopTools import TopTools_IndexedMapOfShape

    found = TopTools_IndexedMapOfShape()
    TopExp.MapShapes_s(shape, getattr(TopAbs_ShapeEnum, f"TopAbs_{kind}"), found)
    return [found.FindKey(number) for number in range(1, found.Extent() + 1)]


def holes(solid: Any) -> float:
    """How many holes go through it, by the Euler–Poincaré formula of its boundary:
    V - E + F - (L - F) = 2 (S - G), with L loops, S shells and genus G."""
    from OCP.BRep import BRep_Tool
    from OCP.TopoDS import TopoDS

    edges = [one for one in parts(solid, "EDGE") if not BRep_Tool.Degenerated_s(TopoDS.Edge_s(one))]
    faces = parts(solid, "FACE")
    loops = sum(len(parts(face, "WIRE")) for face in faces)
    euler = len(parts(solid, "VERTEX")) - len(edges) + len(faces) - (loops - len(faces))
    return len(parts(solid, "SHELL")) - euler / 2


def measured(shape: Any) -> dict[str, Any]:
    from OCP.Bnd import Bnd_Box
    from OCP.BRep import BRep_Tool
    from OCP.BRepBndLib import BRepBndLib
    from OCP.BRepCheck import BRepCheck_Analyzer
    from OCP.BRepGProp import BRepGProp
    from OCP.GProp import GProp_GProps

    solids = parts(shape, "SOLID")
    volume, box = GProp_GProps(), Bnd_Box()
    BRepGProp.VolumeProperties_s(shape, volume)
    BRepBndLib.AddOptimal_s(shape, box, False, False)
    low, high = box.CornerMin(), box.CornerMax()
    corners = zip((low.X(), low.Y(), low.Z()), (high.X(), high.Y(), high.Z()), strict=True)
    closed = all(BRep_Tool.IsClosed_s(shell) for shell in parts(shape, "SHELL"))
    return {
        "solids": len(solids),
        "watertight": bool(solids) and closed and BRepCheck_Analyzer(shape).IsValid(),
        "volume": volume.Mass(),
        "holes": sum(map(holes, solids)),
        "size": [round(b - a, 6) for a, b in corners],
    }


def picture(shape: Any, width: int) -> str:
    """The shape from above, front and right, shaded, as a PNG in base64."""
    import numpy as np

    points, faces = triangles(shape)
    turn = np.array([[0.866, 0.5, 0.0], [-0.25, 0.433, 0.866], [0.433, -0.75, 0.5]])
    seen = points @ turn.T
    low, high = seen.min(axis=0), seen.max(axis=0)
    scale = 0.9 * width / max(*(high - low)[:2], 1e-9)
    seen = (seen - (low + high) / 2) * scale
    corners = seen[faces]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normals /= np.linalg.norm(normals, axis=1, keepdims=True) + 1e-12
    shades = 60 + 170 * np.abs(normals @ np.array(_LIGHT)).clip(0, 1)
    image, depth = np.full((width, width), 255, np.uint8), np.full((width, width), -np.inf)
    for triangle, shade in zip(corners, shades, strict=True):
        _fill(image, depth, triangle, int(shade), width)
    return base64.b64encode(png(image)).decode()


def _fill(image: Any, depth: Any, triangle: Any, shade: int, width: int) -> None:
    import numpy as np

    flat = triangle[:, :2] * (1, -1) + width / 2
    low = np.floor(flat.min(axis=0)).astype(int).clip(0, width - 1)
    high = np.ceil(flat.max(axis=0)).astype(int).clip(0, width - 1)
    ys, xs = np.mgrid[low[1] : high[1] + 1, low[0] : high[0] + 1]
    (ax, ay), (bx, by), (cx, cy) = flat
    area = (bx - ax) * (cy - ay) - (cx - ax) * (by - ay)
    if abs(area) < 1e-9:
        return
    u = ((bx - xs) * (cy - ys) - (cx - xs) * (by - ys)) / area
    v = ((cx - xs) * (ay - ys) - (ax - xs) * (cy - ys)) / area
    z = u * triangle[0, 2] + v * triangle[1, 2] + (1 - u - v) * triangle[2, 2]
    inside = (u >= -1e-6) & (v >= -1e-6) & (u + v <= 1 + 1e-6)
    inside &= z > depth[ys, xs]
    image[ys[inside], xs[inside]] = shade
    depth[ys[inside], xs[inside]] = z[inside]


def triangles(shape: Any) -> tuple[Any, Any]:
    """Points [n, 3] and triangles [m, 3] of the shape's surface."""
    import numpy as np
    from OCP.BRep import BRep_Tool
    from OCP.BRepMesh import BRepMesh_IncrementalMesh
    from OCP.TopLoc import TopLoc_Location
    from OCP.TopoDS import TopoDS

    BRepMesh_IncrementalMesh(shape, _COARSE, True, 0.4, False)
    points: list[list[float]] = []
    faces: list[list[int]] = []
    for face in parts(shape, "FACE"):
        place = TopLoc_Location()
        mesh = BRep_Tool.Triangulation_s(TopoDS.Face_s(face), place)
        if mesh is None:
            continue
        first = len(points) - 1
        for number in range(1, mesh.NbNodes() + 1):
            point = mesh.Node(number).Transformed(place.Transformation())
            points.append([point.X(), point.Y(), point.Z()])
        for number in range(1, mesh.NbTriangles() + 1):
            faces.append([first + one for one in mesh.Triangle(number).Get()])
    return np.array(points), np.array(faces)


def png(image: Any) -> bytes:
    """A grey picture [rows, columns] as the format has it."""
    height, width = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in image)

    def chunk(name: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    shape, width = read(), int(sys.argv[2])
    said = measured(shape)
    if width and said["solids"]:
        said["picture"] = picture(shape, width)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
