"""How often an address may show keys that are none: guessing is bounded, and who has a key goes on.

Enters a request at the door; leaves its caller. An address that showed too many wrong keys within a
minute is turned away unlooked at, right or wrong, except with a key that was let in before: so that
what comes through one proxy is not shut out by one of them.
"""

import time
from collections import OrderedDict

from serving.key_file import Scope, digest_of
from serving.keys import Caller, Keys, shown
from serving.refusal import ApiError

_A_MINUTE = 60.0
_ADDRESSES, _KNOWN = 10_000, 10_000


class Guesses:
    def __init__(self, keys: Keys, most: int = 60) -> None:
        """`most`: wrong keys of one address within a minute."""
        self._keys, self._most = keys, most
        self._wrong: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """By address: when its minute began, and the wrong keys since."""
        self._passed: OrderedDict[bytes, None] = OrderedDict()

    def admit(self, headers: dict[bytes, bytes], scope: Scope, address: str) -> Caller:
        """
        Raises:
            ApiError: 401, 403: as `Keys.admit`; 429: too many wrong keys came from there.
        """
        if not self._keys:
            return self._keys.admit_as_known(headers, scope)
        key = shown(headers)
        secret = digest_of(key)
        if key and secret not in self._passed:
            self._bound(address)
        try:
            caller = self._keys.admit_as_known(headers, scope)
        except ApiError as error:
            if error.status == 401 and key:
                self._count(address)
                self._passed.pop(secret, None)
            raise
        self._passed[secret] = None
        if len(self._passed) > _KNOWN:
            self._passed.popitem(last=False)
        return caller

    def _bound(self, address: str) -> None:
        since, wrong = self._wrong.get(address, (0.0, 0))
        left = since + _A_MINUTE - time.monotonic()
        if wrong >= self._most and left > 0:
            raise ApiError(
                429, "too many wrong keys came from this address: come again",
                code="too_many_wrong_keys", retry_after=int(left) + 1,
            )  # fmt: skip

    def _count(self, address: str) -> None:
        since, wrong = self._wrong.pop(address, (0.0, 0))
        now = time.monotonic()
        began = now - since < _A_MINUTE and wrong > 0
        self._wrong[address] = (since, wrong + 1) if began else (now, 1)
        if len(self._wrong) > _ADDRESSES:
            self._wrong.popitem(last=False)
