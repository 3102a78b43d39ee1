"""Whose a trace is, by what senders call it, and what the command line adds."""

import json
from pathlib import Path
from typing import Any

import pytest

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.records import Trace
from storage.belonging import Belonging, expiry, owned
from storage.importer import import_path
from storage.queries import traces
from tests.storage.store_parts import spoken

DAY = 86_400 * 10**9


@pytest.mark.parametrize(
    ("attributes", "field", "value"),
    [
        ({"tenant.id": "acme"}, "tenant", "acme"),
        ({"metadata": {"org_id": 7}}, "tenant", "7"),
        ({"flywheel.tenant": " acme "}, "tenant", "acme"),
        ({"langfuse.trace.metadata.tenant": "acme"}, "tenant", "acme"),
        ({"trace.metadata": {"userId": "u9"}}, "user", "u9"),
        ({"consent": True}, "consent", "granted"),
        ({"metadata": {"training_consent": "opt-out"}}, "consent", "denied"),
        ({"consent": {"training": False}}, "consent", "denied"),
        ({"consent": "perhaps"}, "consent", None),
        ({"expires_at": "1970-01-02"}, "expires", DAY),
        ({"flywheel.expires": 86_400}, "expires", DAY),
        ({"delete_after": "1970-01-02T00:00:00+00:00"}, "expires", DAY),
        ({"tenant": ["a"]}, "tenant", None),
    ],
)
def test_usual_names_are_understood(attributes: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(owned(spoken(attributes=attributes)), field) == value


def test_a_refusal_and_the_earliest_end_stand() -> None:
    said = spoken(attributes={"consent": "denied", "expires": "1970-01-03"}, tenant="first")
    found = owned(said, Belonging("other", "granted", DAY))
    assert (found.tenant, found.consent, found.expires) == ("first", "denied", DAY)
    told = owned(spoken(), Belonging("acme", "denied", DAY))
    assert (told.tenant, told.consent, told.expires) == ("acme", "denied", DAY)
    plain = spoken()
    assert owned(plain) is plain


def test_an_import_is_told_whose_it_is(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    other = {"messages": [{"role": "user", "content": "other"}, *row["messages"][1:]]}
    path.write_text(json.dumps(row) + "\n" + json.dumps({**other, "metadata": {"tenant": "b"}}))
    import_path(home, path, project="p")
    assert [one.tenant for one in _all(home)] == [None, "b"]
    import_path(home, path, project="p", told=Belonging("a", "denied", expiry("2027-01-31")))
    assert sorted(str(one.tenant) for one in _all(home)) == ["a", "b"]
    assert {one.consent for one in _all(home)} == {"denied"}
    with pytest.raises(UsageError, match="no date"):
        expiry("soon")


def test_what_a_trace_is_told_to_be_by_is_not_counted_as_unmapped(
    home: Home, tmp_path: Path
) -> None:
    path = tmp_path / "in.jsonl"
    said = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    row = {**said, "user": "ada", "expires": "2027-01-31", "team": "red"}
    other = {"messages": [{"role": "user", "content": "r"}, *said["messages"][1:]],
             "user": ["not", "read"], "user_id": "bob"}  # fmt: skip
    path.write_text(json.dumps(row) + "\n" + json.dumps(other))
    report = import_path(home, path, project="p")
    assert report.unmapped_fields == {"team": 1, "user": 1}
    assert sorted(str(one.user) for one in _all(home)) == ["ada", "bob"]


def _all(home: Home) -> list[Trace]:
    found = [one for batch in traces(home) for one in batch]
    return sorted(found, key=lambda one: str(one.tenant) if one.tenant else "")
