"""Search finds what was said, keeps up with the store, and survives what is done to its file."""

import sqlite3

import pytest

from flywheel.home import Home
from flywheel.records import Message, ToolCall, ToolResult
from storage import search
from storage.committer import commit
from storage.inbox import Inbox
from tests.storage.store_parts import spoken

ODD = [
    '"', "*", "foo* AND (", "NEAR(a b)", "-x", "^", "a:b", "''", "\x00", "OR", "\ud800", "said:x",
    "(((", "a" * 5000, "{", "said: NOT", "\u202e", '"unclosed phrase', "%", ";DROP TABLE docs",
]  # fmt: skip


def filled(home: Home, count: int = 6) -> None:
    Inbox(home).append([
        spoken(f"e{n}", question=f"Where is order A{n:04d}?", answer="C'est livré à Genève",
               start=n) for n in range(count)
    ])  # fmt: skip
    commit(home)


def found(home: Home, text: str) -> int:
    return len(search.search(home, "shop", text).ids)


def test_words_phrases_beginnings_and_accents_are_found(home: Home) -> None:
    filled(home)
    assert search.advance(home, "shop") == 6
    assert found(home, "order") == 6 and found(home, "A0003") == 1
    assert found(home, "geneve livre") == 6, "without their accents"
    assert found(home, '"where is order"') == 6 and found(home, '"order is where"') == 0
    assert found(home, "ord") == 6 and found(home, "ord ") == 0
    assert found(home, "brief") == 0, "system prompts are not searched"
    shown = search.previews(home, "shop", [spoken("e3").id, "nobody"])
    assert shown == {spoken("e3").id: ("Where is order A0003?", "C'est livré à Genève")}


def test_scripts_without_spaces_are_found_by_their_parts(home: Home) -> None:
    Inbox(home).append([spoken("e", question="注文はどこですか", answer="배송 중입니다")])
    commit(home)
    search.advance(home, "shop")
    assert found(home, "どこ") == 1 and found(home, "注文") == 1 and found(home, "こど") == 0


def test_tool_calls_and_results_are_found(home: Home) -> None:
    call = spoken("t").spans[0].call
    assert call is not None
    import msgspec

    call = msgspec.structs.replace(call, input=(
        Message(role="assistant", parts=(ToolCall(name="refund", arguments='{"id": 77}'),)),
        Message(role="tool", parts=(ToolResult(content="quux"),)),
    ))  # fmt: skip
    span = msgspec.structs.replace(spoken("t").spans[0], call=call)
    Inbox(home).append([spoken("t", spans=(span,))])
    commit(home)
    search.advance(home, "shop")
    assert found(home, "refund 77") == 1 and found(home, "quux") == 1


def test_no_query_raises(home: Home) -> None:
    filled(home)
    search.advance(home, "shop")
    for text in ODD:
        assert found(home, text) >= 0 and found(home, f"order {text}") >= 0


def test_it_keeps_up_by_pieces_and_says_how_far_it_is(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "BATCH", 4)
    filled(home, 10)
    assert search.standing(home, "shop") == (0, 10)
    assert search.advance(home, "shop") == 4
    assert search.standing(home, "shop") == (4, 6)
    assert search.advance(home, "shop", batches=9) == 6
    Inbox(home).append([spoken("e1", span="s2", answer="a second answer", start=50)])
    commit(home)
    assert search.standing(home, "shop").waiting == 1
    assert search.advance(home, "shop", batches=9) == 1
    assert found(home, "second answer") == 1 and found(home, "order") == 10


def test_a_torn_or_foreign_file_is_built_anew(home: Home) -> None:
    filled(home)
    search.advance(home, "shop")
    path = home.root / "search" / "shop.sqlite"
    data = path.read_bytes()
    for torn in (b"", b"nonsense" * 999, data[: len(data) // 2], data[:4096] + b"\xff" * 8192):
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.write_bytes(torn)
        assert found(home, "order") >= 0
        while not search.advance(home, "shop") and found(home, "order") != 6:
            pass
        assert found(home, "order") == 6


def test_a_store_that_was_put_back_is_indexed_anew(home: Home) -> None:
    filled(home, 2)
    kept = home.database.read_bytes()
    for number in range(3):
        Inbox(home).append([spoken(f"later{number}", question="something newer")])
        commit(home)
    search.advance(home, "shop")
    assert found(home, "newer") == 3
    home.database.write_bytes(kept)
    Inbox(home).append([spoken("other", question="after the backup")])
    commit(home)
    search.advance(home, "shop")
    assert found(home, "newer") == 0 and found(home, "backup") == 1 and found(home, "order") == 2


def test_what_is_erased_is_out_of_the_file_too(home: Home) -> None:
    filled(home)
    Inbox(home).append([spoken("secret", question="my passport is XKCD1234567")])
    commit(home)
    search.advance(home, "shop")
    assert found(home, "XKCD1234567") == 1
    search.forget(home, "shop", [spoken("secret").id])
    assert found(home, "XKCD1234567") == 0
    files = (home.root / "search").iterdir()
    assert not any(b"xkcd1234567" in file.read_bytes().lower() for file in files)


def test_several_processes_index_each_trace_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.setattr(search, "BATCH", 2)
    filled(home, 12)
    children = []
    for _ in range(3):
        if (child := os.fork()) == 0:
            ended = 1
            try:
                search.advance(home, "shop", batches=50)
                ended = 0
            finally:  # never on with the tests, whatever it raised
                os._exit(ended)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in children] == [0, 0, 0]
    search.advance(home, "shop", batches=50)
    with sqlite3.connect(home.root / "search" / "shop.sqlite") as index:
        assert index.execute("SELECT count(*), count(DISTINCT trace_id) FROM docs").fetchall() == [
            (12, 12)
        ]
    assert found(home, "order") == 12
