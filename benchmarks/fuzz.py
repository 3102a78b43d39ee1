"""Real files of every format, bent: nothing leaves an importer, nothing hangs, memory is bounded.

Rows of the files in a folder are the seeds, and some that `benchmarks/data.py` makes. By default
they are bent as JSON (a value in the place of another one, a key lost, a list repeated) and as
bytes; with --atheris, coverage of the formats leads (`pip install --no-deps atheris`, where it has
a wheel; it is not among the locks). Ends with what was tried, or with the input that broke
something, written beside.

    python benchmarks/fuzz.py [--seconds 60] [--seeds ../shared/traces] [--seed 0] [--atheris]
"""

import argparse
import copy
import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage.chunk import ChunkRead
    from storage.rows_in import Row

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

SHARED = ROOT.parent / "shared" / "traces"
SLOW_S = 5.0
"""CPU seconds that no row of a seed's size may take."""
_LARGEST = 1 << 15
"""Bytes of a seed: larger rows say nothing new."""
JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, -(2**70), 1e308, "", "x", "\ud800", "\x00", "[{", "{}", [], {},
    [None], [[]], {"type": "text"}, {"type": 1, "text": 2}, [1, "a", {"role": 2}],
    "2026-13-45T99:99:99Z", {"values": 3}, "data:image/png;base64,@@", "9" * 400,
)  # fmt: skip


class Broken(Exception):
    """What no input may do."""


def seeds(folder: Path, most: int = 12) -> Iterator[bytes]:
    """Up to `most` small rows of each file."""
    from storage.files_in import blocks
    from storage.rows_in import rows
    from storage.whole import joined
    from storage.zip_in import is_zip, zip_files

    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        found = zip_files(path, 1 << 26) if is_zip(path) else [("", rows(blocks(path), 1 << 26))]
        taken = 0
        for _, inner in found:
            for row in joined(iter(inner), "auto", 1 << 26):
                if row.problem is None and len(row.data) <= _LARGEST:
                    yield row.data
                    taken += 1
                if taken == most:
                    break


def chat_rows(count: int) -> Iterator[bytes]:
    """Rows of the form that has readers of its own, which few files hold."""
    from benchmarks.data import row

    for number in range(count):
        yield json.dumps(row(number, seed=0)).encode()


def one_input(data: bytes) -> int:
    """Reads bytes as the importer does; the number of rows that were understood.

    Raises:
        Broken: an exception, a shape that no format foresaw, an outcome without a reason or that
            cannot be stored or is another one as rows at once, or too long a time.
    """
    from flywheel.ids import digest_bytes
    from storage.chunk import read_chunk
    from storage.envelope import decode, encode
    from storage.rows_in import chunks, rows
    from storage.whole import joined

    began = time.process_time()
    understood = 0
    for chunk in chunks(joined(rows(iter([data]), 1 << 22), "auto", 1 << 22)):
        read = read_chunk(chunk, "0" * 32, "p", "auto", digest_bytes)
        understood += sum(read.formats.values())
        for record in read.records:
            if encode(decode(encode(record))[1]) != encode(record):
                raise Broken("a record does not come back as it was stored")
        for _, error, _ in read.rejects:
            if not error.reason or "has a shape that" in error.reason:
                raise Broken(f"rejected without a proper reason: {error.reason!r}")
        _same_at_once(chunk, read)
    if (took := time.process_time() - began) > SLOW_S:
        raise Broken(f"took {took:.1f} CPU seconds")
    return understood


def _same_at_once(chunk: "list[Row]", read: "ChunkRead") -> None:
    """The chunk once more, as the importer reads it behind a row of the same format: quick readers,
    and rows of tables in place of records."""
    from flywheel.ids import digest_bytes
    from storage.chunk import read_chunk
    from storage.prepared import Preparing, Unprepared, prepare

    if len(chunk) > 1 or len(read.formats) != 1 or not read.records:
        return
    (name,) = read.formats
    again = read_chunk(chunk, "0" * 32, "p", name, digest_bytes, ready=Preparing())
    told = (read.spans, read.feedback, read.unmapped, [str(one) for _, one, _ in read.rejects])
    found = (again.spans, again.feedback, again.unmapped, [str(one) for _, one, _ in again.rejects])
    if told != found:
        raise Broken(f"read at once it gives {found}, else {told}")
    try:
        rows = prepare(read.records)
    except Unprepared:
        return
    if again.ready is None or again.ready.packed() != rows:
        raise Broken("rows that are made at once are not those of the records")


def bent(data: bytes, chance: random.Random) -> bytes:
    """A row, changed in one to three places."""
    if chance.random() < 0.2:
        return _bent_bytes(data, chance)
    try:
        value = json.loads(data)
    except ValueError:
        return _bent_bytes(data, chance)
    for _ in range(chance.randint(1, 3)):
        if not isinstance(value, dict | list) or not (holder := _holder(value, chance)):
            break
        _bend(holder, chance)
    return json.dumps(value).encode()


def _holder(value: Any, chance: random.Random) -> Any:
    """An object or a list somewhere inside, JSON in texts apart."""
    while True:
        items = value.values() if isinstance(value, dict) else value
        below = [one for one in items if isinstance(one, dict | list) and one]
        if not below or chance.random() < 0.25:
            return value
        value = chance.choice(below)


def _bend(holder: Any, chance: random.Random) -> None:
    place = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    how = chance.random()
    if how < 0.6:
        holder[place] = copy.deepcopy(chance.choice(JUNK))
    elif how < 0.75:
        del holder[place]
    elif how < 0.9:
        other = chance.choice(list(holder.values()) if isinstance(holder, dict) else holder)
        holder[place] = [copy.deepcopy(other)] * chance.choice((1, 2, 40))
    elif isinstance(holder, dict):
        holder[chance.choice(("type", "role", "content", "id", "messages"))] = copy.deepcopy(
            chance.choice(JUNK)
        )


def _bent_bytes(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed[: chance.randint(1, len(changed))] if chance.random() < 0.3 else changed)


def run(found: list[bytes], seconds: float, seed: int) -> dict[str, Any]:
    """Bends for so long. What broke is in the report, with its input."""
    chance = random.Random(seed)
    until, tried, understood = time.monotonic() + seconds, 0, 0
    while time.monotonic() < until:
        data = bent(chance.choice(found), chance)
        try:
            understood += one_input(data) > 0
        except Exception as error:  # whatever it is, it is what is looked for
            return {"tried": tried, "broken": f"{type(error).__name__}: {error}", "input": data}
        tried += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"tried": tried, "understood": understood, "peak_mb": round(peak)}


def _under_instruments() -> None:
    """Loads the formats so that their coverage is seen."""
    import importlib

    import atheris  # type: ignore[import-not-found, unused-ignore]

    names = [path.stem for path in (ROOT / "storage" / "formats").glob("[a-z]*.py")]
    with atheris.instrument_imports(include=["storage"]):
        for name in (
            "storage.chunk",
            "storage.whole",
            *(f"storage.formats.{one}" for one in names),
        ):
            importlib.import_module(name)


def _by_coverage(found: list[bytes], seconds: float, seed: int) -> None:
    import tempfile

    import atheris  # type: ignore[import-not-found, unused-ignore]

    def mutated(data: bytes, size: int, number: int) -> bytes:
        chance = random.Random(number)
        plain = atheris.Mutate(data, size) if chance.random() < 0.3 else bent(data, chance)
        return bytes(plain[:size])

    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(found):
            (Path(folder) / f"{number}").write_bytes(data)
        options = [f"-max_total_time={int(seconds)}", f"-seed={seed + 1}", f"-max_len={_LARGEST}"]
        atheris.Setup(
            [sys.argv[0], *options, "-rss_limit_mb=4096", "-timeout=60", folder],
            one_input, custom_mutator=mutated,
        )  # fmt: skip
        atheris.Fuzz()


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    asked.add_argument("--seconds", type=float, default=60)
    asked.add_argument("--seeds", type=Path, default=SHARED)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--atheris", action="store_true")
    given = asked.parse_args()
    if given.atheris:
        _under_instruments()
    found = list(seeds(given.seeds))
    if not found:
        print(f"no rows under {given.seeds}: give a folder of traces with --seeds")
        return 2
    found += chat_rows(len(found) // 10)
    if given.atheris:
        _by_coverage(found, given.seconds, given.seed)
        return 0
    report = run(found, given.seconds, given.seed)
    if (data := report.pop("input", None)) is not None:
        place = Path("broken-input")
        place.write_bytes(data)
        report["kept"] = str(place)
    print(json.dumps({"seeds": len(found), **report}))
    return 1 if "broken" in report else 0


if __name__ == "__main__":
    sys.exit(main())
