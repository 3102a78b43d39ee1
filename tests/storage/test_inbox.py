import errno
import os
from pathlib import Path

import pytest

from flywheel.errors import BadRecord, CorruptFile, Full
from flywheel.home import Home
from flywheel.records import Feedback, Trace
from storage.committer import commit
from storage.envelope import decode, encode
from storage.inbox import Inbox, name_of, pack, unpack
from tests.storage.store_parts import everything, killed_at, spoken


def test_a_segment_gives_back_the_records_that_went_in(home: Home) -> None:
    said = Feedback(project="shop", target="c", value={"queue": "billing"}, kind="demonstration")
    Inbox(home).append([everything(), said])
    (path,) = Inbox(home).pending()
    assert [decode(line) for line in unpack(path.read_bytes())] == [
        ("trace", everything()),
        ("feedback", said),
    ]


def test_a_named_segment_is_written_once_while_it_waits_and_after_it_was_committed(
    home: Home,
) -> None:
    inbox = Inbox(home)
    name = "rollouts-run:1/π"
    assert inbox.append([spoken("a")], name=name) == name
    before = inbox.pending()[0].stat()
    assert inbox.append([spoken("b")], name=name) == name
    assert len(inbox.pending()) == 1
    assert inbox.pending()[0].stat() == before
    assert name_of(inbox.pending()[0]) == name
    commit(home)
    assert inbox.append([spoken("b")], name=name) == name
    assert inbox.pending() == []


def test_a_name_too_long_for_a_file_still_names_one_segment(home: Home) -> None:
    inbox = Inbox(home)
    first = inbox.append([spoken("a")], name="n" * 400)
    assert inbox.append([spoken("b")], name="n" * 400) == first
    assert inbox.append([spoken("b")], name="n" * 401) != first
    assert len(inbox.pending()) == 2


def test_an_empty_segment_is_one(home: Home) -> None:
    Inbox(home).append([], name="nothing")
    assert commit(home).segments == 1


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "text", "longer"])
def test_a_damaged_segment_is_told_from_a_whole_one(damage: str) -> None:
    whole = pack([encode(spoken(str(number))) for number in range(20)])
    damaged = {
        "cut": whole[:-20],
        "changed": whole[:-10] + bytes([whole[-10] ^ 1]) + whole[-9:],
        "empty": b"",
        "text": b'{"id": 1}\n',
        "longer": whole + b"x",
    }[damage]
    assert len(unpack(whole)) == 20
    with pytest.raises(CorruptFile):
        unpack(damaged)


def test_a_full_disk_leaves_nothing_half_visible(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Full, match="free some"):
        Inbox(home).append([spoken()])
    assert list(home.inbox.iterdir()) == []


def test_a_kill_before_the_rename_leaves_no_segment_and_the_next_try_works(home: Home) -> None:
    killed_at("store.segment_written", lambda: Inbox(home).append([spoken()], name="one"))
    assert Inbox(home).pending() == []
    Inbox(home).append([spoken()], name="one")
    assert commit(home).traces == 1


def test_lone_surrogates_become_replacement_characters_and_pairs_become_one_character() -> None:
    trace = spoken(
        question="half \ud83d end",
        answer="split \ud83d\ude00 whole \U0001f600 nul \x00",
        attributes={"k\udc00": ["\ud800", {"deep": "ok"}]},
    )
    _, back = decode(encode(trace))
    assert isinstance(back, Trace)
    call = back.spans[0].call
    assert call is not None
    assert call.input[1].text == "half \ufffd end"
    assert call.choices[0].message.text == "split \U0001f600 whole \U0001f600 nul \x00"
    assert back.attributes == {"k\ufffd": ["\ufffd", {"deep": "ok"}]}


def test_numbers_that_json_has_no_form_for_become_null() -> None:
    _, back = decode(encode(spoken(attributes={"a": float("nan"), "b": [float("-inf")]})))
    assert isinstance(back, Trace)
    assert back.attributes == {"a": None, "b": [None]}


def test_equal_records_give_equal_bytes_whatever_the_order_of_their_keys() -> None:
    one, other = spoken(attributes={"a": 1, "b": 2}), spoken(attributes={"b": 2, "a": 1})
    assert encode(one) == encode(other)


def test_what_has_no_stored_form_is_refused_and_nothing_is_written(home: Home) -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    for bad in ({"a": object()}, {"a": nested}):
        with pytest.raises(BadRecord, match="trace"):
            Inbox(home).append([spoken(attributes=bad)])
    assert Inbox(home).pending() == []
    del nested


def test_temporary_files_are_no_segments(home: Home) -> None:
    home.inbox.mkdir(parents=True)
    Path(home.inbox / ".writing-x").write_bytes(b"half")
    assert Inbox(home).pending() == []
    assert commit(home).segments == 0
