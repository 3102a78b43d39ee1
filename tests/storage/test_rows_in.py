"""Rows of a file in any of its forms, and chunks that stay where they were."""

import json
import random
from collections.abc import Iterator

import pytest

from flywheel.errors import BadRecord
from storage.rows_in import KEPT_OF_LONG, Row, chunks, rows

LIMIT = 1 << 20


def read(data: bytes, limit: int = LIMIT, block: int = 1000) -> list[Row]:
    return list(rows((data[at : at + block] for at in range(0, len(data), block)), limit))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a":1}\n{"a":2}\n', [(1, b'{"a":1}'), (2, b'{"a":2}')]),
        (b'\xef\xbb\xbf{"a":1}\r\n\r\n{"a":2}', [(1, b'{"a":1}'), (3, b'{"a":2}')]),
        (b'[{"a":1},\n {"a":2}]', [(1, b'{"a":1}'), (2, b'{"a":2}')]),
        (b'[\n{"a":1},\n{"a":2}\n]\n', [(1, b'{"a":1}'), (2, b'{"a":2}')]),
        (b'{\n "a": 1\n}\n', [(1, b'{\n "a": 1\n}')]),
        (b'{\n "a": 1\n}\n{\n "a": 2\n}', [(1, b'{\n "a": 1\n}'), (2, b'{\n "a": 2\n}')]),
        (b'{"a":1}', [(1, b'{"a":1}')]),
        (b'[{"a":1}]\n[{"a":2}]\n', [(1, b'[{"a":1}]'), (2, b'[{"a":2}]')]),
    ],
)
@pytest.mark.parametrize("block", [3, 1000])
def test_lines_documents_and_arrays_are_rows(data, expected, block):
    found = read(data, block=block)
    assert [(row.number, row.data) for row in found] == expected
    assert all(row.problem is None for row in found)


def test_a_half_written_first_line_does_not_hide_the_others():
    found = read(b'{"a": 1, "b\n{"a":2}\n{"a":3}\n')
    assert [row.number for row in found] == [1, 2, 3]
    assert read(b'garbage\n{"a":2}\n')[1].data == b'{"a":2}'


def test_a_broken_array_gives_its_sound_elements_and_the_break():
    *sound, broken = read(b'[{"a":1},\n{"a":2},\n{"a":')
    assert [row.data for row in sound] == [b'{"a":1}', b'{"a":2}']
    assert broken.number == 3 and "is cut off" in broken.problem


def test_a_long_line_is_refused_without_being_held_and_the_rest_goes_on():
    long = b'{"a": "' + b"x" * (3 * LIMIT) + b'"}'
    first, refused, last = read(b'{"a":1}\n' + long + b'\n{"a":2}\n', block=1 << 16)
    assert (first.data, last.data, last.number) == (b'{"a":1}', b'{"a":2}', 3)
    assert f"has {len(long):,} bytes, over the limit of {LIMIT:,}" in refused.problem
    assert refused.data == long[:KEPT_OF_LONG]


def test_a_line_of_exactly_the_limit_is_read():
    line = b'{"a": "' + b"x" * (LIMIT - 9) + b'"}'
    assert len(line) == LIMIT
    assert [row.problem for row in read(line + b"\n", block=1 << 16)] == [None]


def test_a_document_over_the_limit_is_refused():
    (refused,) = read(b"[" + b"1,\n" * LIMIT + b"1]", block=1 << 16)
    assert "over the limit" in refused.problem and "document" in refused.problem
    assert "--max-line;" in refused.problem


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\0\0\0", b"\xef\xbb\xbf", b"[]", b"[ ]\n"])
def test_files_without_a_row_say_so(data):
    (only,) = read(data)
    assert "nothing to read" in only.problem


@pytest.mark.parametrize("data", [b"hello\nworld\n", b"a,b\n1,2\n", b"<html>", b"\x7fELF\0"])
def test_what_is_no_json_is_one_problem(data):
    (only,) = read(data)
    assert "is not JSON" in only.problem


def test_a_fault_of_the_file_keeps_the_rows_before_it():
    def broken() -> Iterator[bytes]:
        yield b'{"a":1}\n' * 10_000 + b'{"a":'
        raise BadRecord("is cut off: the gzip stream ends before its end mark")

    *sound, last = rows(broken(), LIMIT)
    assert len(sound) == 10_000 and last.number == 10_001
    assert last.problem == (
        "is cut off: the gzip stream ends before its end mark (the lines before this one were read)"
    )


def test_one_row_more_leaves_all_but_two_chunks_as_they_were():
    dice = random.Random(7)
    lines = [Row(at, json.dumps([at, dice.random()]).encode()) for at in range(30_000)]
    more = [*lines[:9_000], Row(0, b'"new"'), *lines[9_000:]]
    before = [tuple(row.data for row in chunk) for chunk in chunks(lines)]
    after = [tuple(row.data for row in chunk) for chunk in chunks(more)]
    assert sum(map(len, before)) == 30_000 and len(before) > 8
    assert len(set(before) - set(after)) <= 2


BLANKS = {"NULs": b"\0" * (5 << 20), "lines": b"\n" * (5 << 20), "blanks": b" \t\r\n" * (2 << 20)}


@pytest.mark.parametrize("blank", BLANKS.values(), ids=BLANKS)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("limit", [LIMIT, 64 << 20])
def test_any_number_of_blanks_before_the_first_row_is_skipped(blank, mark, limit):
    first = blank.count(b"\n") + 1
    found = read(mark + blank + b'{"a":1}\n{"a":2}\n', limit, block=1 << 20)
    assert found == [Row(first, b'{"a":1}'), Row(first + 1, b'{"a":2}')]
    assert read(mark + blank + b'[{"a":1}]', limit, block=1 << 20) == [Row(1, b'{"a":1}')]
    (only,) = read(mark + blank, limit, block=1 << 20)
    assert "is empty" in only.problem and len(only.data) <= KEPT_OF_LONG


def test_nuls_within_and_after_the_rows_cost_no_row():
    nuls = b"\0" * (3 * LIMIT)
    found = read(b'{"a":1}\n' + nuls + b'{"a":2}\n' + nuls, block=1 << 16)
    assert [row.data for row in found[:2]] == [b'{"a":1}', b'{"a":2}']
    assert all(row.problem is None for row in found)
    assert not found[2].data.strip(b"\0"), "a reader says that it is nothing but NULs"
    assert 0 < len(found[2].data) <= KEPT_OF_LONG
    assert read(b'[{"a":1}]' + nuls, block=1 << 16) == [Row(1, b'{"a":1}')]


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\0" * 70_000 + b"\n"])
def test_every_row_is_read_however_a_file_comes_in_blocks(start: bytes) -> None:
    data = start + b"".join(b'{"n": %d, "text": "%s"}\n' % (n, b"x" * 500) for n in range(1000))
    for size in (1, 1000, 1 << 16, 1 << 20):
        if size == 1:
            blocks = iter([data[:1], data[1:2], data[2:]])
        else:
            blocks = (data[at : at + size] for at in range(0, len(data), size))
        found = list(rows(blocks, 1 << 20))
        assert len(found) == 1000 and not any(row.problem for row in found)
