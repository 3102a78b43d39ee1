"""A conversation reads on as one: the same for the same, JSON still JSON, no more than needed."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.records import Message, Problem, Reasoning, Text, ToolCall, say
from storage.privacy.clean import Cleaning
from storage.privacy.rows import Privacy
from tests.storage.rows_for_curation import a_row

MAIL, PHONE, CARD = "ann@example.com", "+49 30 901820", "4111111111111111"


def test_the_same_has_one_name_in_all_of_a_conversation_and_another_one_elsewhere() -> None:
    one, other = Cleaning(), Cleaning()
    assert one.text(f"{MAIL} or bob@example.com") == "[EMAIL_1] or [EMAIL_2]"
    assert one.text(f"to {MAIL.upper()}, {CARD}") == "to [EMAIL_1], [CARD_1]"
    assert one.text("4111 1111 1111 1111") == "[CARD_1]"
    assert other.text("bob@example.com") == "[EMAIL_1]"


def test_a_name_is_known_once_it_was_said_and_not_before() -> None:
    made = Cleaning()
    assert (
        made.text("Maria asked. My name is Maria Will.") == "[NAME_1] asked. My name is [NAME_1]."
    )
    assert made.text("Thank you, Maria! Will that do?") == "Thank you, [NAME_1]! Will that do?"


def test_json_stays_json_as_it_was_laid_out() -> None:
    said = f'{{ "to":"{MAIL}", "card": {CARD},\n  "at": "x\\n{PHONE}", "n": 3, "tel": 2125550143 }}'
    clean = Cleaning().text(said)
    assert clean == (
        '{ "to":"[EMAIL_1]", "card": "[CARD_1]",\n'
        '  "at": "x\\n[PHONE_1]", "n": 3, "tel": "[PHONE_2]" }'
    )
    inner = json.dumps({"body": json.dumps({"to": MAIL, "é": "\u0040"})})
    assert json.loads(json.loads(Cleaning().text(inner))["body"])["to"] == "[EMAIL_1]"
    assert Cleaning().text('{"to": "ann\\u0040example.com"}') == '{"to": "[EMAIL_1]"}'
    assert Cleaning().text(f'So: {{"card": {CARD}, "x": 1}}') == 'So: {"card": "[CARD_1]", "x": 1}'
    assert Cleaning().text('{"firstName": "Ann", "password": "swordfish"}') == (
        '{"firstName": "[NAME_1]", "password": "[PASSWORD_1]"}'
    )


_LEAF = st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.sampled_from(
    [MAIL, PHONE, int(CARD), f'{{"a": "{MAIL}"}}', "password: hunter2!", '"my name is Ann Bo"']
)  # fmt: skip
_TREE = st.recursive(
    _LEAF,
    lambda part: (
        st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=8), part, max_size=4)
    ),
)


@settings(max_examples=60, deadline=None)
@given(value=_TREE, indent=st.sampled_from([None, 1]), ascii=st.booleans())
def test_any_json_is_read_as_before_but_for_what_went(value: Any, indent: Any, ascii: bool) -> None:
    said = json.dumps([value], indent=indent, ensure_ascii=ascii)
    clean = Cleaning().text(said)
    json.loads(clean)
    assert MAIL not in clean and CARD not in clean
    assert Cleaning().text(clean) == clean


def test_a_row_loses_the_tokens_of_what_was_changed_and_nothing_else() -> None:
    privacy = Privacy(b"key")
    same, changed = a_row(1), a_row(
        2,
        messages=(say("system", f"Write to {MAIL}."), say("user", f"I am at {PHONE}")),
        completion=Message(
            role="assistant",
            parts=(
                Reasoning(text=f"{MAIL}?", signature="s"), Text(text=f"Call {PHONE}."),
                ToolCall(name="mail", arguments=f'{{"to": "{MAIL}"}}', id="call"),
            ),
        ),
        text=f"I am at {PHONE}", user=MAIL, truth=f'{{"phone": "{PHONE}"}}',
    )  # fmt: skip
    one, two = privacy.clean([same, changed])
    assert one is same and one.tokens
    assert two.tokens is None and two.fidelity == "renderable" and two.reward == changed.reward
    assert two.messages[1].text == two.text == "I am at [PHONE_1]"
    assert two.truth == '{"phone": "[PHONE_1]"}'
    assert two.completion.parts == (
        Reasoning(text="[EMAIL_1]?"), Text(text="Call [PHONE_1]."),
        ToolCall(name="mail", arguments='{"to": "[EMAIL_1]"}', id="call"),
    )  # fmt: skip
    assert two.user and two.user.startswith("redacted-") and two.conversation == "conversation-2"
    count = privacy.count()
    assert (count.rows_in, count.rows_out) == (2, 2)
    assert count.note.startswith("4 phone, 3 email found, in 1 row; the token ids of 1 went")


def test_what_was_cleaned_before_keeps_its_names() -> None:
    row = a_row(1, messages=(say("user", "[EMAIL_1] wrote, and now bob@example.com"),))
    (clean,) = Privacy(b"key").clean([row])
    assert clean.messages[0].text == "[EMAIL_1] wrote, and now [EMAIL_2]"
    assert list(Privacy(b"key").clean([clean])) == [clean]


def test_a_held_out_problem_has_the_form_that_rows_read_in() -> None:
    plain = Problem(environment="e", messages=(say("user", "Where is it?"),), split="heldout")
    told = Problem(
        environment="e", messages=(say("user", f"Mail {MAIL}"),), text=f"Mail {MAIL}",
        answer={"to": MAIL}, user=MAIL, split="heldout",
    )  # fmt: skip
    privacy = Privacy(b"key")
    ((of, three),) = privacy.forms([plain, told])
    assert of == told.id != three.id
    assert three.answer == {"to": "[EMAIL_1]"} and three.text == "Mail [EMAIL_1]"
    (row,) = privacy.clean([a_row(1, messages=told.messages, user=MAIL)])
    assert row.user == three.user and row.messages == three.messages
