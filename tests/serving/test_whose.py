"""Tenant, consent and end of keeping of what passes the gateway's doors."""

from pathlib import Path

import httpx
import pytest

from flywheel.home import Home
from serving import key_file
from serving.key_file import Key
from serving.keys import Caller, Keys
from serving.refusal import ApiError
from serving.whose import whose
from storage.committer import commit
from storage.queries import traces
from tests.serving.running import body, running
from tests.serving.scripted_upstream import upstream
from tests.serving.test_otlp import request, span

DAY = 86_400 * 10**9
ANY = Caller()


def test_what_is_said_where() -> None:
    said = {b"x-flywheel-tenant": b"acme", b"x-flywheel-consent": b"granted"}
    assert whose(said, None, ANY, 256)[:2] == ("acme", "granted")
    assert whose({}, {"tenant": "acme", "expires": "1970-01-02"}, ANY, 256) == ("acme", None, DAY)
    assert whose(said, {"consent": False}, ANY, 256).consent == "denied"
    assert whose(said, None, Caller(tenant="own"), 256).tenant == "own"
    assert whose({}, {"team": "x"}, ANY, 256) == (None, None, None)
    for name, value in (("consent", b"maybe"), ("expires", b"soon"), ("tenant", b"x" * 300)):
        with pytest.raises(ApiError):
            whose({f"x-flywheel-{name}".encode(): value}, None, ANY, 256)


def test_the_record_says_it(tmp_path: Path) -> None:
    secret = key_file.add(
        Home(tmp_path), Key(name="k", scopes=frozenset({"infer", "ingest"}), tenant="acme")
    )
    with (
        upstream() as engine,
        running(tmp_path, engine.url, keys=Keys(home=Home(tmp_path))) as up,
    ):
        headers = {"authorization": f"Bearer {secret}", "x-flywheel-consent": "denied"}
        asked = body(metadata={"tenant": "somebody", "expires_at": "2100-01-01"})
        post = f"{up.url}/v1/chat/completions"
        assert httpx.post(post, content=asked, headers=headers).status_code == 200
        sent = request(span("a", **{"gen_ai.request.model": "m", "gen_ai.prompt": "hi"}))
        json = {**headers, "content-type": "application/json"}
        assert httpx.post(f"{up.url}/v1/traces", content=sent, headers=json).status_code == 200
    commit(Home(tmp_path))
    found = [one for batch in traces(Home(tmp_path)) for one in batch]
    assert [(one.tenant, one.consent) for one in found] == [("acme", "denied")] * 2
    assert {one.expires is None for one in found} == {True, False}
