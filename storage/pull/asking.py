"""One server, asked politely: a request at a time, again where it says later, and never for ever.

Enter a path and what is asked; leaves the answer's JSON. Limits stand on tries, on seconds waited
for a server that is busy, and on bytes. Invariant: no key is in any message.
"""

import email.utils
import time
from typing import TYPE_CHECKING, Any, Self

from flywheel.errors import BadRecord, FlywheelError, MissingPart, UsageError
from storage.json_in import decode

if TYPE_CHECKING:
    import httpx

TRIES = 6
LONGEST_WAIT_S, FIRST_WAIT_S = 120.0, 0.5
MOST_BYTES = 256 << 20
"""Of one answer."""
_LATER = (408, 425, 429, 500, 502, 503, 504)
_TIMEOUT_S = 60.0


class Server:
    """Used as a context manager."""

    def __init__(
        self,
        url: str,
        headers: dict[str, str] | None = None,
        auth: tuple[str, str] | None = None,
        keys: str = "",
    ) -> None:
        """
        Args:
            keys: where its keys are looked for, as a person is told.
        """
        self.url, self._keys = url.rstrip("/"), keys
        self._given: dict[str, Any] = {"headers": headers or {}, "auth": auth}
        self.asked = self.waited = 0
        """Requests; those of them that had to be made again."""

    def __enter__(self) -> Self:
        import httpx

        hooks = {"request": [self._only_ours]}
        self._client = httpx.Client(
            timeout=_TIMEOUT_S, follow_redirects=True, event_hooks=hooks, **self._given
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _only_ours(self, request: "httpx.Request") -> None:
        """Where we are led to another machine, it is not given the key."""
        import httpx

        ours = httpx.URL(self.url)
        if request.url.host != ours.host or request.url.scheme not in (ours.scheme, "https"):
            for name in self._given["headers"]:
                request.headers.pop(name, None)

    def get(self, path: str, **params: Any) -> Any:
        """
        Raises:
            UsageError: there is no such thing, or the server does not let us in.
            FlywheelError: it cannot be reached, or does not answer in time.
        """
        kept = {name: value for name, value in params.items() if value is not None}
        return self._json("GET", path, params=kept)

    def post(self, path: str, body: Any) -> Any:
        """Of what is asked by a body and changes nothing. Raises: as `get`."""
        return self._json("POST", path, json=body)

    def _json(self, method: str, path: str, **given: Any) -> Any:
        import httpx

        why = ""
        for attempt in range(TRIES):
            self.asked += 1
            wait = min(FIRST_WAIT_S * 2**attempt, LONGEST_WAIT_S)
            try:
                with self._client.stream(method, self.url + path, **given) as answer:
                    if answer.status_code not in _LATER:
                        return decode(self._body(path, answer))
                    why = f"it answered {answer.status_code}"
                    wait = _asked_for(answer.headers.get("retry-after"), wait)
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
            except (httpx.HTTPError, httpx.InvalidURL, BadRecord) as error:
                raise FlywheelError(f"{self.url}{path} gave no JSON answer: {error}") from error
            if attempt + 1 < TRIES:
                self.waited += 1
                time.sleep(wait)
        raise FlywheelError(
            f"{self.url}{path} could not be asked ({TRIES} tries): {why}; run the same command "
            "again to go on where it stopped"
        )

    def _body(self, path: str, answer: "httpx.Response") -> bytes:
        data = bytearray()
        for block in answer.iter_bytes():
            data += block
            if len(data) > MOST_BYTES:
                raise FlywheelError(f"{self.url}{path} answered more than {MOST_BYTES} bytes")
        if answer.status_code in (401, 403):
            where = f": its key is looked for in {self._keys}" if self._keys else ""
            raise MissingPart(f"{self.url} does not let us in ({answer.status_code}){where}")
        if answer.status_code >= 400:
            said = bytes(data[:300]).decode("utf-8", "replace")
            raise UsageError(f"{self.url}{path} answered {answer.status_code}: {said}")
        return bytes(data)


def _asked_for(said: str | None, usual: float) -> float:
    """Seconds that the server wants us to wait: a number of them, or a date (RFC 9110, 10.2.3)."""
    if said is None:
        return usual
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(said).timestamp() - time.time()
        except ValueError:
            return usual
    return min(max(seconds, 0.0), LONGEST_WAIT_S) if seconds == seconds else usual
