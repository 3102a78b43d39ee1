"""What is personal or secret in a text: places that do not overlap, in order.

Enters a text, leaves where something stands and what it is. Where two kinds claim the same
characters the surer one has them: the order of RECOGNISERS. Nothing depends on what was looked at
before.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import lru_cache

from flywheel.data_section import Found, PrivacySection
from flywheel.records import Record
from storage.privacy import contact, numbers, person, secrets
from storage.privacy.place import CLOSE, Place, Recogniser, glance

RECOGNISERS: tuple[tuple[tuple[Found, ...], Recogniser], ...] = (
    (("private_key",), secrets.private_keys),
    (("jwt", "api_key"), secrets.tokens),
    (("api_key",), secrets.vendor_keys),
    (("credential",), secrets.credentials),
    (("email",), contact.emails),
    (("password", "api_key"), secrets.passwords),
    (("iban",), numbers.accounts),
    (("card",), numbers.cards),
    (("national_id",), numbers.national),
    (("birth_date",), person.birthdays),
    (("ip",), contact.machines),
    (("phone",), contact.phones),
    (("address",), person.streets),
    (("name",), person.names),
)
"""What each finds, the surest first."""
KINDS: tuple[Found, ...] = tuple(dict.fromkeys(kind for kinds, _ in RECOGNISERS for kind in kinds))
SHORTEST = 5
"""Characters under which a text holds nothing that is told by its form."""
_PLAIN = 20
"""Characters under which one word with few digits is a word, or an id."""
_REMEMBERED, _WHOLE = 1024, 1 << 15


class Policy(Record, frozen=True, kw_only=True):
    """What a project looks for."""

    kinds: tuple[Found, ...] = KINDS
    allow: frozenset[str] = frozenset()
    """In lower case; those with an @ before them are domains."""


@lru_cache(maxsize=64)
def policy_of(section: PrivacySection) -> Policy:
    return Policy(
        kinds=tuple(section.kinds) or KINDS,
        allow=frozenset(text.casefold() for text in section.allow),
    )


EVERYTHING = Policy()


def find(text: str, policy: Policy = EVERYTHING) -> Sequence[Place]:
    if len(text) < SHORTEST or (len(text) < _PLAIN and _is_word(text)):
        return ()
    # System prompts and tools come again with each row.
    return _known(text, policy) if len(text) <= _WHOLE else _found(text, policy)


def _is_word(text: str) -> bool:
    """Neither a number that is somebody's, nor an address, nor long enough for a key."""
    return text.replace("-", "").replace("_", "").isalnum() and (
        text.isalpha() or sum(map(str.isdigit, text)) < CLOSE
    )


@lru_cache(maxsize=_REMEMBERED)
def _known(text: str, policy: Policy) -> tuple[Place, ...]:
    return _found(text, policy)


def _found(text: str, policy: Policy) -> tuple[Place, ...]:
    look, wanted = glance(text), frozenset(policy.kinds)
    kept: list[Place] = []
    for kinds, recognise in RECOGNISERS:
        if not wanted.isdisjoint(kinds):
            for place in recognise(text, look):
                if (
                    place.kind in wanted
                    and _free(place, kept)
                    and not _allowed(text[place.start : place.end], policy)
                ):
                    insort(kept, place)
    return tuple(kept)


def _free(place: Place, kept: list[Place]) -> bool:
    at = bisect_left(kept, place)
    after = at == len(kept) or place.end <= kept[at].start
    return after and (at == 0 or kept[at - 1].end <= place.start)


def _allowed(said: str, policy: Policy) -> bool:
    if not policy.allow:
        return False
    said = said.casefold()
    return said in policy.allow or "@" + said.rpartition("@")[2] in policy.allow
