"""A key is in nothing that is told, wherever the network cut it."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.masking import MASK, Masking, masked

KEYS = ("sk-of-the-vendor", "abababab", "aaaaaaaab")


@settings(deadline=None)
@given(
    key=st.sampled_from(KEYS),
    said=st.lists(st.sampled_from([*KEYS, *"ab-sk", "sk-of-", "[key]", "\n"]), max_size=12),
    cuts=st.lists(st.integers(0, 120), max_size=12),
)
def test_pieces_are_masked_as_the_whole_is(key: str, said: list[str], cuts: list[int]) -> None:
    data = "".join(said).encode()
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    masking = Masking(key)
    told = [masking.feed(data[a:b]) for a, b in pairwise(at)]
    assert b"".join([*told, masking.rest()]) == masked(data, key)


def test_only_what_may_be_the_keys_beginning_waits() -> None:
    masking = Masking("sk-of-the-vendor")
    assert masking.feed(b"data: no sk-of-the-v") == b"data: no "
    assert masking.feed(b"endor\n\n") == MASK + b"\n\n"
    assert masking.feed(b"data: tasks.") == b"data: tasks."
    assert masking.feed(b" s") == b" " and masking.rest() == b"s" and masking.rest() == b""


def test_a_dummy_stands_in_common_words_and_passes() -> None:
    assert Masking("none").feed(b"none") == b"none" and Masking(None).feed(b"x") == b"x"
