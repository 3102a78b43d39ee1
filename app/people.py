"""Who may do what in the dashboard: `people.toml` in the home, read anew each time.

A name or an e-mail address enters, as the sign-in knows it; a role leaves. Each role may do what
the ones before it may. Without the file everybody who reaches a dashboard with local names, which
only this machine can, is promoter; whoever signed in from elsewhere is a viewer.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from flywheel.errors import UsageError
from flywheel.home import Home

Role = Literal["viewer", "reviewer", "promoter"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class Person:
    name: str
    """What records say in `by`: a local name, or the address that was signed in with."""
    role: Role


class People(BaseModel):
    """What people.toml may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default: Role = "viewer"
    """Of those it does not name."""
    people: dict[str, Role] = {}


def file_of(home: Home) -> Path:
    return home.root / "people.toml"


def people(home: Home) -> People | None:
    """None = there is no file.

    Raises:
        UsageError: it cannot be read; nobody gets a role from a file that may mean something else.
    """
    path = file_of(home)
    try:
        return People.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
                         for one in error.errors())  # fmt: skip
        raise UsageError(
            f'{path} does not fit: {told}. It looks like: default = "viewer", then [people] with '
            '"ann@example.org" = "promoter"'
        ) from error


def person_of(home: Home, name: str, *, local: bool) -> Person:
    """The person of that name, with the role that the file gives now.

    Args:
        local: the name was typed on this machine, not proven by a sign-in.
    """
    known = people(home)
    if known is None:
        return Person(name, "promoter" if local else "viewer")
    named = {one.casefold(): role for one, role in known.people.items()}
    return Person(name, named.get(name.casefold(), known.default))


def proven_name(user: Mapping[str, Any]) -> str:
    """The name that a sign-in proves: the address, where the provider does not doubt it, else its
    own id of the person. A display name is its owner's to choose, so it gives no role."""
    if user.get("email") and user.get("email_verified") is not False:
        return str(user["email"])
    return str(user.get("sub") or "somebody")


def allowed(person: Person, role: str) -> bool:
    """Whether `person` may do what `role` may."""
    return ROLES.index(person.role) >= ROLES.index(role)
