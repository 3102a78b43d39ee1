from typing import Any

import pytest

from storage.arrow import array_of


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("VARCHAR", ["a", None, "", "é\x00\U0001f600"]),
        ("VARCHAR", [None, None]),
        ("BIGINT", [1, None, -(2**63)]),
        ("DOUBLE", [0.5, None, 3]),
        ("BOOLEAN", [True, None, False] * 5),
        ("BLOB", [b"\xff", None, b""]),
        ("VARCHAR[]", [["a", None], [], None, ["bc"]]),
        ("BIGINT[]", [(1, 2), None, ()]),
        ("VARCHAR[]", []),
    ],
)
def test_an_array_holds_the_values(kind: str, values: list[Any]) -> None:
    held = [None if one is None else list(one) if "[" in kind else one for one in values]
    made = array_of(values, kind)
    made.validate(full=True)
    assert made.to_pylist() == held


def test_utf8_is_text() -> None:
    assert array_of(["é".encode(), None], "VARCHAR").to_pylist() == ["é", None]


@pytest.mark.parametrize(
    ("kind", "value"), [("BIGINT", 2**63), ("BIGINT", 1.5), ("VARCHAR", 1), ("VARCHAR", "\ud800")]
)
def test_what_does_not_fit_is_said(kind: str, value: object) -> None:
    with pytest.raises((OverflowError, TypeError, ValueError)):
        array_of([value], kind)
