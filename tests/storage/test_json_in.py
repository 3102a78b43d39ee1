"""JSON that is sound, mended, or refused with its reason."""

import json

import pytest

from flywheel.errors import BadRecord
from storage import json_in
from storage.json_in import MOST_DEPTH, decode, elements


def test_lone_surrogates_and_nul_are_replaced_and_whole_pairs_stay():
    data = b'{"a": "x\\ud83d y", "b": "\\ud83d\\ude00", "c": "n\\u0000l", "\\udc00": 1}'
    assert decode(data) == {"a": "x\ufffd y", "b": "\U0001f600", "c": "n\ufffdl", "\ufffd": 1}


def test_bytes_that_are_no_utf8_are_replaced():
    assert decode(b'{"a": "x\xffy"}') == {"a": "x\ufffdy"}


def test_nan_infinity_and_endless_numbers_are_kept_as_text():
    value = decode(b"[NaN, -Infinity, 1e999, " + b"9" * 5000 + b"]")
    assert value == ["NaN", "-Infinity", "1e999", "9" * 5000]


def test_whole_numbers_beyond_64_bits_are_exact():
    assert decode(b"[18446744073709551616]") == [2**64]


def test_a_byte_order_mark_and_control_characters_are_no_fault():
    assert decode(b'\xef\xbb\xbf{"a": "x\ty"}') == {"a": "x\ty"}


@pytest.mark.parametrize("depth", [MOST_DEPTH + 1, 1_000, 10_000, 200_000])
def test_deep_nesting_is_refused(depth):
    with pytest.raises(BadRecord, match=f"deeper than {MOST_DEPTH}"):
        decode(b"[" * depth + b"]" * depth)
    with pytest.raises(BadRecord, match=f"deeper than {MOST_DEPTH}"):
        decode(b'{"a":' * depth + b"1" + b"}" * depth)


def test_nesting_up_to_the_limit_is_read():
    data = b"[" * MOST_DEPTH + b"]" * MOST_DEPTH
    assert json.dumps(decode(data), separators=(",", ":")).encode() == data


@pytest.mark.parametrize("data", [b'{"a": "half', b'{"a": [1, 2', b'{"a":', b'{"a": 1'])
def test_half_a_value_is_said_to_be_cut_off(data):
    with pytest.raises(BadRecord, match="is cut off"):
        decode(data)


def test_nothing_but_nul_is_said_so():
    with pytest.raises(BadRecord, match="nothing but blanks or NUL"):
        decode(b"\x00" * 4096)


def test_what_is_not_json_says_where():
    with pytest.raises(BadRecord, match="at character 4"):
        decode(b"[1 2, 3, 4]")


def test_elements_of_an_array_keep_their_bytes():
    assert list(elements(b'[ {"a" : 1} , [2],"x"\n]')) == [b'{"a" : 1}', b"[2]", b'"x"']


def test_elements_before_a_break_are_given():
    found = []
    with pytest.raises(BadRecord, match="is cut off"):
        for one in elements(b'[{"a": 1}, {"a": 2}, {"a": '):
            found.append(one)
    assert found == [b'{"a": 1}', b'{"a": 2}']


def test_arrays_that_follow_each_other_are_read_to_the_end():
    assert list(elements(b'[{"a": 1}]\n[{"a": 2}, [3]] {"a": 4}')) == [
        b'{"a": 1}', b'{"a": 2}', b"[3]", b'{"a": 4}'
    ]  # fmt: skip
    with pytest.raises(BadRecord, match="is not JSON"):
        list(elements(b'[{"a": 1}] and more of it'))


def test_values_that_follow_each_other_are_elements():
    assert list(elements(b'{\n"a": 1\n}\n{\n"a": 2\n}')) == [b'{\n"a": 1\n}', b'{\n"a": 2\n}']


def test_a_value_of_too_many_parts_is_refused_and_texts_are_no_parts(monkeypatch):
    monkeypatch.setattr(json_in, "MOST_VALUES", 1000)
    for many in (b"[" + b"{}," * 999 + b"{}]", b"[" + b"[]," * 1000 + b"1]"):
        with pytest.raises(BadRecord, match="over 1,000 objects"):
            decode(many)
    with pytest.raises(BadRecord, match="over 1,000 objects"):
        decode(json.dumps(dict.fromkeys(map(str, range(1000)))).encode())
    text = {"a": '{"\\"[:' * 5000, "b": [1.5] * 5000}
    assert decode(json.dumps(text).encode()) == text
    assert len(decode(b"[" + b"{}," * 998 + b"{}]")) == 999


def test_an_array_of_very_many_rows_is_read_one_by_one(monkeypatch):
    monkeypatch.setattr(json_in, "MOST_VALUES", 100)
    monkeypatch.setattr(json_in, "_list_decoder", None)
    assert list(json_in.elements(b"[" + b'{"a": 1},' * 999 + b"{}]")) == [b'{"a": 1}'] * 999 + [
        b"{}"
    ]
