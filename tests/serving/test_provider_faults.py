"""What a provider may do to us, over plain HTTP and over TLS: each is told the client as an error,
and recorded as that."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import aiohttp.connector
import httpx
import pytest

from serving.limits import Limits
from tests.serving import certificate
from tests.serving.running import Running, body, running, terms
from tests.serving.scripted_upstream import Upstream, upstream

KEY = "sk-of-the-vendor"
BOUND = 2**20


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """The provider's side of it; ours trusts that certificate beside the system's."""
    place = tmp_path_factory.mktemp("tls")
    certificate.main(place / "cert.pem", place / "key.pem")
    aiohttp.connector._SSL_CONTEXT_VERIFIED.load_verify_locations(place / "cert.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place / "cert.pem", place / "key.pem")
    return context


@pytest.fixture(params=["plain", "tls"])
def vendor(request: pytest.FixtureRequest, trusted: ssl.SSLContext) -> Iterator[Upstream]:
    with upstream(trusted if request.param == "tls" else None) as scripted:
        yield scripted


@pytest.fixture
def gateway(tmp_path: Path, vendor: Upstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv("VENDORS_KEY", KEY)
    vendors = {"url": vendor.url + "/v1", "model": "gpt-9", "key_env": "VENDORS_KEY"}
    known = terms(providers={"vendor": vendors})
    with running(tmp_path, "http://127.0.0.1:9", terms=known, limits=Limits(answer=BOUND)) as up:
        up.champion("vendor")
        yield up


def post(gateway: Running, text: str, *, stream: bool = False) -> httpx.Response:
    url = gateway.url + "/v1/chat/completions"
    return httpx.post(url, content=body(text, stream=stream), timeout=30)


def test_where_it_sends_us_on_to_hears_neither_prompt_nor_key(
    gateway: Running, vendor: Upstream
) -> None:
    assert post(gateway, "hello").status_code == 200, "it can be reached"
    with upstream() as elsewhere:
        vendor.moved_to = elsewhere.url + "/v1/chat/completions"
        answer = post(gateway, "moved")
        assert not elsewhere.requests and len(vendor.requests) == 2
    assert answer.status_code == 502 and "failed with status 307" in answer.text
    assert "failed with status 307" in str(gateway.last().error)


@pytest.mark.parametrize(("text", "stream"), [("large", False), ("flood", True)])
def test_an_answer_beyond_the_bound_is_read_no_further(
    gateway: Running, text: str, stream: bool
) -> None:
    answer = post(gateway, text, stream=stream)
    assert answer.status_code == (200 if stream else 502)
    assert f"larger than {BOUND} bytes" in answer.text and len(answer.content) < 2 * BOUND
    assert f"larger than {BOUND} bytes" in str(gateway.last().error)


def test_a_stream_that_it_cuts_is_recorded_with_what_came(gateway: Running) -> None:
    answer = post(gateway, "cut", stream=True)
    assert "It " in answer.text and "cut the connection" in answer.text
    assert "[DONE]" not in answer.text
    call = gateway.last().call
    assert call and call.choices[0].message.text == "It is "
    assert "cut the connection" in str(gateway.last().error)


def test_a_key_that_its_refusal_repeats_is_told_nobody(gateway: Running) -> None:
    answer = post(gateway, "key")
    assert answer.status_code == 502 and "wants another key" in answer.text
    assert "no such key" in answer.text and KEY not in answer.text
    kept = [path.read_bytes() for path in gateway.home.root.rglob("*") if path.is_file()]
    assert kept and not any(KEY.encode() in one for one in kept)
