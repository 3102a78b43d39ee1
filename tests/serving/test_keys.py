"""Keys: what each may do, seen without a restart, and nothing of them kept but hashes."""

import time
from pathlib import Path

import httpx
import pytest

from flywheel.errors import CorruptFile, UsageError
from flywheel.home import Home
from serving import key_file
from serving.key_file import Key
from serving.keys import UNNAMED, Keys, check_host
from serving.refusal import ApiError
from tests.app.calling import call
from tests.serving.running import body, route, running
from tests.serving.scripted_upstream import upstream

HOUR = 3600 * 10**9


def bearer(secret: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {secret}".encode()}


def status(keys: Keys, secret: str, scope: key_file.Scope = "infer") -> int:
    try:
        keys.admit(bearer(secret), scope)
    except ApiError as error:
        return error.status
    return 200


def test_a_key_does_what_its_scopes_say_and_is_known_by_its_name(tmp_path: Path) -> None:
    home = Home(tmp_path)
    secret = key_file.add(
        home,
        Key(name="shop", scopes=frozenset({"infer"}), projects=frozenset({"a"}), concurrent=3),
    )
    keys = Keys(home=home)
    caller = keys.admit(bearer(secret), "infer")
    assert (caller.name, caller.concurrent) == ("shop", 3)
    assert caller.may("a") and not caller.may("b")
    assert keys.admit({b"x-api-key": secret.encode()}, "infer") == caller
    assert status(keys, secret, "admin") == status(keys, secret, "feedback") == 403
    assert status(keys, secret[:-1]) == status(keys, "") == 401


def test_issued_rotated_and_revoked_keys_are_seen_at_the_next_request(tmp_path: Path) -> None:
    home = Home(tmp_path)
    keys = Keys(home=home)
    assert not keys and keys.admit({}, "infer").name == ""
    first = key_file.add(home, Key(name="shop"))
    assert keys and status(keys, first) == 200 and status(keys, "") == 401
    second = key_file.rotate(home, "shop", HOUR)
    assert status(keys, first) == status(keys, second) == 200
    third = key_file.rotate(home, "shop", 0)
    assert [status(keys, one) for one in (first, second, third)] == [401, 401, 200]
    key_file.revoke(home, "shop")
    assert status(keys, third) == 401
    with pytest.raises(UsageError, match="revoked"):
        key_file.add(home, Key(name="shop"))
    with pytest.raises(UsageError, match="is revoked"):
        key_file.rotate(home, "shop", 0)


def test_a_key_ends_when_it_expires_the_secret_of_a_rotation_too(tmp_path: Path) -> None:
    home = Home(tmp_path)
    over = key_file.add(home, Key(name="over", until=time.time_ns() - 1))
    good = key_file.add(home, Key(name="good", until=time.time_ns() + HOUR))
    keys = Keys(home=home)
    assert status(keys, over) == 401 and status(keys, good) == 200
    key_file.rotate(home, "good", 400 * HOUR)
    listed = key_file.read(home)
    assert listed is not None and listed["over"].state(time.time_ns()) == "expired"


def test_what_closed_the_door_keeps_it_closed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    secret = key_file.add(home, Key(name="shop"))
    keys = Keys(home=home)
    home.keys.rename(tmp_path / "away")
    assert keys and status(keys, secret) == 401 and "gone" in str(keys.problem)
    home.keys.write_bytes(b"{half")
    assert status(keys, secret) == 401 and "no keys" in str(keys.problem)
    with pytest.raises(CorruptFile, match="no keys"):
        Keys(home=home)
    (tmp_path / "away").rename(home.keys)
    assert status(keys, secret) == 200 and keys.problem is None
    key_file.revoke(home, "shop")
    assert Keys(home=home)
    check_host("0.0.0.0", Keys(home=home))


def test_a_damaged_file_leaves_in_force_what_held_before(tmp_path: Path) -> None:
    home = Home(tmp_path)
    secret = key_file.add(home, Key(name="shop"))
    keys = Keys((key_file.digest_of(b"written"),), home)
    home.keys.write_bytes(b"[]")
    assert status(keys, secret) == status(keys, "written") == 200
    assert keys.admit(bearer("written"), "admin").name == UNNAMED


def test_only_the_owner_reads_the_file_and_no_secret_is_in_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    secret = key_file.add(home, Key(name="shop"))
    assert home.keys.stat().st_mode & 0o077 == 0
    assert secret.encode() not in home.keys.read_bytes()
    for name in ("", "a b", "-x", "x\n", "é", "x" * 65):
        with pytest.raises(UsageError, match="no name"):
            key_file.add(home, Key(name=name))


def test_a_key_of_one_project_learns_nothing_of_others(tmp_path: Path) -> None:
    home = Home(tmp_path)
    secret = key_file.add(home, Key(name="shop", projects=frozenset({"shop"})))
    for project in ("shop", "support"):
        route(home, project=project)
    keys, projects = Keys(home=home), frozenset({"shop", "support"})
    with (
        upstream() as engine,
        running(tmp_path, engine.url, keys=keys, projects=projects) as up,
    ):
        client = httpx.Client(base_url=up.url, headers={"authorization": f"Bearer {secret}"})
        allowed = client.post("/v1/chat/completions", content=body(model="shop"))
        denied = client.post("/v1/chat/completions", content=body())
        unknown = client.post("/v1/chat/completions", content=body(model="nothing"))
        listed = client.get("/v1/models").json()["data"]
        said = client.post("/v1/feedback", json={"project": "support", "trace_id": "x", "value": 1})
        own = client.get("/v1/models/support")
        client.close()
        traces = up.traces()
    assert allowed.status_code == 200 and traces[0].spans[0].attributes["key"] == "shop"
    assert [denied.status_code, unknown.status_code, own.status_code] == [404] * 3
    # The same words as of a model that there is not.
    assert denied.text.replace("'support'", "'nothing'") == unknown.text
    assert {one["id"].split("-")[0] for one in listed} == {"shop"}
    assert said.status_code in (400, 404)


def test_the_command_shows_a_secret_once_and_lists_none(tmp_path: Path) -> None:
    at = tmp_path / "home"
    made = call("keys", "add", "shop", "--project", "a", "--tokens", 9, "--json", home=at).object()
    keys = Keys(home=Home(at))
    assert status(keys, made["key"]) == 200 and status(keys, made["key"], "admin") == 403
    turned = call("keys", "rotate", "shop", "--grace", "2h", "--json", home=at).object()
    (held,) = call("keys", "list", "--json", home=at).object()["keys"]
    assert (held["secrets"], held["old_until"]) == (2, turned["old_until"])
    assert "an old secret holds until 20" in call("keys", "list", home=at).out
    said = call("keys", "rotate", "shop", "--grace", "0s", home=at)
    assert "the old one has ended" in said.err
    assert (
        status(keys, made["key"]) == status(keys, turned["key"]) == 401
        and status(keys, said.out.strip()) == 200
    )
    listed = call("keys", "list", "--json", home=at)
    (one,) = listed.object()["keys"]
    assert (one["name"], one["state"], one["tokens_per_minute"]) == ("shop", "valid", 9)
    assert "digest" not in listed.out and said.out.strip() not in listed.out
    assert call("keys", "revoke", "nobody", home=at).code == 2


def test_a_key_of_a_project_that_nobody_knows_yet_is_issued_and_told_of(tmp_path: Path) -> None:
    said = call("keys", "add", "early", "--project", "nosuch", home=tmp_path / "home")
    assert said.code == 0 and "no project nosuch is known in this home yet" in said.err
