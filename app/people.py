"""Who may do what in the dashboard: `people.toml` in the home, read anew each time.

Enters a name, as typed or as a sign-in proves it (an address, or `sub:` and its own id of the
person); a role leaves. Each role may do what the ones before it may. Without the file everybody who
reaches a dashboard with local names, which only this machine can, is promoter; whoever signed in
from elsewhere is a viewer.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from flywheel.errors import UsageError, unfit
from flywheel.home import Home
from flywheel.reviews import SUBJECT, one_person

Role = Literal["viewer", "reviewer", "promoter"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class Person:
    name: str
    """What records say in `by`: a local name, or the address that was signed in with; of one
    person always spelled the same, as people.toml has it or in small letters."""
    role: Role


class People(BaseModel):
    """What people.toml may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default: Role = "viewer"
    """Of those it does not name."""
    people: dict[str, Role] = {}

    @field_validator("people")
    @classmethod
    def _once_each(cls, named: dict[str, Role]) -> dict[str, Role]:
        seen: dict[str, str] = {}
        for one in named:
            other = seen.setdefault(one_person(one), one)
            if other != one:
                raise ValueError(f"{other!r} and {one!r} are the same person: keep one of them")
        return named


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
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {unfit(one)}"
                         for one in error.errors())  # fmt: skip
        raise UsageError(
            f'{path} does not fit: {told}. It looks like: default = "viewer", then [people] with '
            '"ann@example.org" = "promoter"'
        ) from error


def person_of(home: Home, name: str, *, local: bool) -> Person:
    """The person of that name, with the role that the file gives now.

    Large and small letters A to Z are the same, all other characters are themselves; an id after
    `sub:` is exact.

    Args:
        local: the name was typed on this machine, not proven by a sign-in.
    """
    known = people(home)
    if known is None:
        return Person(one_person(name), "promoter" if local else "viewer")
    named = {one_person(one): (one, role) for one, role in known.people.items()}
    return Person(*named.get(one_person(name), (one_person(name), known.default)))


def proven_name(user: Mapping[str, Any]) -> str:
    """The name that a sign-in proves: the address, where the provider says that it verified it,
    else `sub:` and its own id of the person. A display name is its owner's to choose, so it gives
    no role.

    Raises:
        UsageError: it proves neither.
    """
    address, verified = user.get("email"), user.get("email_verified")
    # Some providers write the claim as a text.
    if (verified is True or verified == "true") and _is_address(address):
        return str(address)
    subject = user.get("sub")
    if not isinstance(subject, str) or not subject:
        raise UsageError(
            "the sign-in proves no name: the provider gives neither an e-mail address with "
            "email_verified true nor a subject (sub)"
        )
    return SUBJECT + subject


def _is_address(given: object) -> bool:
    return isinstance(given, str) and "@" in given and not given.lower().startswith(SUBJECT)


def allowed(person: Person, role: str) -> bool:
    """Whether `person` may do what `role` may."""
    return ROLES.index(person.role) >= ROLES.index(role)
