"""What matches reaches no file: looked for in every byte that the home has in the end."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from serving.limits import Limits
from serving.redaction import Redaction
from tests.serving.running import Running, body, running, terms
from tests.serving.scripted_upstream import WORDS, Upstream

CARD = "4111 1111 1111 1111"
RULES: Any = [
    {"pattern": r"\b\d{4} \d{4} \d{4} \d{4}\b", "replace": "[card]"},
    {"pattern": r"[\w.]+@[\w.]+\.\w+"},
    {"pattern": "shipped", "replace": "[state]"},
]


def redaction() -> Redaction:
    return Redaction([(rule["pattern"], rule.get("replace", "[redacted]")) for rule in RULES], b"k")


def post(gateway: Running, content: bytes, path: str = "chat/completions", **headers: str) -> Any:
    answer = httpx.post(f"{gateway.url}/v1/{path}", content=content, headers=headers)
    assert answer.status_code < 300, answer.text
    return answer


def stored(home: Path) -> bytes:
    """All bytes of all files, packed ones unpacked, and their names."""
    found = []
    for path in sorted(path for path in home.rglob("*") if path.is_file()):
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().decompress(data)
        found += [path.name.encode(), data]
    return b"\n".join(found)


def test_nothing_that_matches_is_in_any_file(tmp_path: Path, engine: Upstream) -> None:
    mail = "ann@example.com"
    secret = f"my card is {CARD}"
    with running(
        tmp_path, engine.url, limits=Limits(text=4096), terms=terms(capture={"redact": RULES})
    ) as up:
        for stream in (False, True):
            message = body(
                f"{secret} " + "x" * (5000 if stream else 0),
                stream=stream,
                user=mail,
                metadata={"conversation_id": f"of {mail}", CARD: 1},
                stop=[mail],
                tools=[{"type": "function", "function": {"name": "f", "description": mail}}],
                prediction={"said": [CARD]},
            )
            answer = post(up, message, **{"x-request-id": mail})
            assert "shipped" in answer.text
            assert engine.requests[-1]["messages"][0]["content"].startswith(secret)
        said = {"conversation_id": f"of {mail}", "value": {"right": CARD}, "by": mail, "name": mail}
        post(up, json.dumps({**said, "comment": f"asked {mail}"}).encode(), "feedback")
        one, two = up.traces()
        (feedback,) = up.feedback()
    everything = stored(tmp_path)
    for word in (CARD, mail, "shipped"):
        assert word.encode() not in everything
    assert b"[card]" in everything
    assert one.id == two.id and one.user == two.user != None  # noqa: E711
    assert feedback.target == one.conversation and feedback.by == one.user
    (span,) = one.spans
    assert span.call and span.call.choices[0].tokens is None
    assert span.attributes["tokens"] == "redacted"
    assert span.call.choices[0].message.text == "".join(WORDS).replace("shipped", "[state]")


def test_an_answer_alone_loses_its_tokens_and_another_conversation_keeps_them(
    tmp_path: Path, engine: Upstream
) -> None:
    for rules, kept in ((RULES, False), (RULES[:2], True)):
        with running(
            tmp_path / str(kept), engine.url, terms=terms(capture={"redact": rules})
        ) as up:
            post(up, body("where is it?"))
            (trace,) = up.traces()
            assert trace.spans[0].call
            assert (trace.spans[0].call.choices[0].tokens is not None) == kept


def test_a_conversation_is_known_by_what_is_left_of_it(tmp_path: Path, engine: Upstream) -> None:
    with running(tmp_path, engine.url, terms=terms(capture={"redact": RULES})) as up:
        first = [{"role": "user", "content": CARD}]
        more = [{"role": "assistant", "content": "".join(WORDS)}, {"role": "user", "content": "?"}]
        for messages in (first, first + more):
            post(up, json.dumps({"model": "support", "messages": messages}).encode())
        one, two = up.traces()
        assert one.id == two.id


def test_what_is_personal_or_secret_is_found_without_rules_and_named_alike_in_a_conversation(
    tmp_path: Path, engine: Upstream
) -> None:
    mail, key = "ann@example.com", "ghp_" + "aB3xY9" * 6
    said = terms(privacy={"at": ["capture"], "allow": ["help@ours.example"]})
    with running(tmp_path, engine.url, terms=said) as up:
        first = [{"role": "user", "content": f"I am {mail}, not help@ours.example"}]
        answer = {"role": "assistant", "content": "".join(WORDS)}
        more = [answer, {"role": "user", "content": json.dumps({"key": key, "for": mail})}]
        for messages in (first, first + more):
            request = {"model": "support", "messages": messages, "user": mail}
            post(up, json.dumps(request).encode())
        one, two = up.traces()
    assert one.id == two.id and one.user == two.user and "redacted-" in str(one.user)
    assert two.spans[0].call
    assert [message.text for message in two.spans[0].call.input] == [
        "I am [EMAIL_1], not help@ours.example", "".join(WORDS),
        '{"key": "[API_KEY_1]", "for": "[EMAIL_1]"}',
    ]  # fmt: skip
    assert one.spans[0].attributes["tokens"] == "redacted"
    everything = stored(tmp_path)
    assert mail.encode() not in everything and key.encode() not in everything


def test_what_an_engine_says_of_a_fault_is_redacted_too(tmp_path: Path, engine: Upstream) -> None:
    rules = [{"pattern": "too long"}]
    with running(tmp_path, engine.url, terms=terms(capture={"redact": rules})) as up:
        answer = httpx.post(up.url + "/v1/chat/completions", content=body("bad"))
        assert answer.status_code == 400 and "too long" in answer.text
    assert b"too long" not in stored(tmp_path)


@pytest.mark.parametrize(
    ("value", "clean"),
    [
        (f"a {CARD} b", "a [card] b"),
        ({"a": ["x@y.de", 1, None, True]}, {"a": ["[redacted]", 1, None, True]}),
        ({CARD: 1}, {"[card]": 1}),
        ('{"to": "x\\u0040y.de"}', '{"to":"[redacted]"}'),
        ('{"to": "x\\u0040y', '{"to": "x\\u0040y'),
        ("data:image/png;base64,shipped", "data:image/png;base64,shipped"),
        ("data:text/plain,shipped", "data:text/plain,[state]"),
    ],
)
def test_texts_are_found_wherever_they_stand(value: Any, clean: Any) -> None:
    assert redaction().value(value) == clean


def test_what_does_not_match_stays_the_very_same_object() -> None:
    for value in ({"a": [1, "b", {"c": None}]}, "text", ["x"], ("y",), 4.5):
        assert redaction().value(value) is value


def test_numbers_are_read_as_they_are_written() -> None:
    assert Redaction([(r"\d{16}", "[card]")], b"").value({"n": 4111111111111111, "m": 12}) == {
        "n": "[card]", "m": 12
    }  # fmt: skip


def test_a_replacement_is_no_template_and_nothing_matches_nothing() -> None:
    assert Redaction([("(b)", r"\1\2"), ("z*", "!")], b"").text("abc") == r"a\1\2c"


def test_names_stay_apart_and_the_same() -> None:
    one, other = redaction().name("ann@x.de"), redaction().name("bob@x.de")
    assert one == redaction().name("ann@x.de") != other and one.startswith("redacted-")
    assert redaction().name("ann") == "ann"
    assert Redaction([("@", "")], b"other key").name("ann@x.de") != one


def test_a_body_is_redacted_as_json_and_else_as_text() -> None:
    assert redaction().body(b'{"a": "x@y.de"}') == b'{"a":"[redacted]"}'
    assert redaction().body(b'{"a":  1}') == b'{"a":  1}'
    assert redaction().body(b"{shipped") == b"{[state]"
