import pytest

from flywheel.home import Home
from flywheel.records import Feedback, Trace
from storage.envelope import encode
from storage.inbox import Inbox, opened, plain_size, unpack
from storage.merge import merge
from storage.prepared import Unprepared, count, prepare, records, tables
from tests.storage.store_parts import everything, spoken


def test_rows_say_all_that_their_records_say() -> None:
    whole = everything()
    said = Feedback(project="shop", target="x", value={"right": "é"}, at=3)
    found = tables(prepare([whole, said, spoken("x")]))
    assert count(found) == 3
    back = {one.id: one for one in records(found)}
    assert back[said.id] == said
    assert back[whole.id] == merge(None, whole)


def test_a_trace_from_several_places_names_them_all() -> None:
    parts = [spoken(raw="1" * 32), spoken(raw="2" * 32, user="u")]
    back = [one for one in records(tables(prepare(parts))) if isinstance(one, Trace)]
    assert {one.raw for one in back} == {"1" * 32, "2" * 32}
    together = merge(merge(None, back[0]), back[1])
    assert together == merge(merge(None, parts[1]), parts[0])


def test_a_segment_of_rows_unpacks_to_the_lines_that_say_the_same(home: Home) -> None:
    Inbox(home).append_rows(prepare([spoken()]), name="one")
    (path,) = Inbox(home).pending()
    assert unpack(path.read_bytes()) == [encode(spoken())]


def test_a_number_that_no_column_holds_is_left_to_its_own_line() -> None:
    with pytest.raises(Unprepared):
        prepare([spoken(), spoken("y", start=2**63)])


def test_what_a_segment_unpacks_to_is_told_by_its_head(home: Home) -> None:
    plain = prepare([spoken()])
    Inbox(home).append_rows(plain, name="a-rows")
    Inbox(home).append([spoken()], name="b-lines")
    rows, lines = Inbox(home).pending()
    assert plain_size(rows) == (len(plain), True)
    assert plain_size(lines) == (len(opened(lines.read_bytes())), False)
    lines.write_bytes(b"none")
    assert plain_size(lines) == (4, False)
