"""What is made one item ahead comes in its order, no further ahead, and fails where it is due."""

from collections.abc import Iterator

import pytest

from flywheel.ahead import ahead


def test_items_come_in_order_and_one_ahead_at_most() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(5):
            made.append(number)
            yield number
        raise ValueError("no more")

    found = ahead(numbers())
    for number in range(5):
        assert next(found) == number
        assert len(made) <= number + 2
    with pytest.raises(ValueError, match="no more"):
        next(found)
    assert list(ahead([])) == []
    part = ahead(iter(range(9)))
    assert next(part) == 0
    part.close()
