"""One-time tokens: what a page offers may be done once, however often the button is pressed.

Spending is one exclusive creation of a file, so that of two processes one wins.
"""

import os
import re
import secrets

from flywheel.errors import UsageError
from flywheel.home import Home

_SHAPE = re.compile(r"[A-Za-z0-9_-]{16,64}")


def issue() -> str:
    return secrets.token_urlsafe(18)


def spend(home: Home, token: str) -> bool:
    """Whether the token was still good; it is not any more.

    Raises:
        UsageError: not a token of ours.
    """
    if not _SHAPE.fullmatch(token):
        raise UsageError("not a one-time token")
    home.once.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(home.once / token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def spent(home: Home, token: str) -> bool:
    """Whether the token is good no more."""
    return bool(_SHAPE.fullmatch(token)) and (home.once / token).exists()


def give_back(home: Home, token: str) -> None:
    """Makes a token good again: what it was spent for could not be done."""
    (home.once / token).unlink(missing_ok=True)
