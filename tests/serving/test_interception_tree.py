"""Which call a call goes on from, by what its messages say."""

from typing import Any

import pytest

from flywheel.records import Message, Reasoning, Text, ToolCall, ToolResult, Unknown, say
from serving.interception_tree import Found, Node, Tree, line_of, tools_key

ONE, TWO, SAID = say("user", "one"), say("user", "two"), say("assistant", "said")
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def node(name: str, tools: Any = ()) -> Node:
    return Node(name, tools_key(tools), None)


def add(tree: Tree, name: str, *messages: Message, tools: Any = ()) -> None:
    *asked, answer = messages
    line = line_of(asked)
    tree.asked(line, name)
    tree.answered(line, answer, node(name, tools))


def find(tree: Tree, *messages: Message, tools: Any = (), said: Any = ()) -> Found:
    return tree.find(line_of(messages), messages, tools_key(tools), said)


def test_the_longest_history_wins() -> None:
    tree = Tree()
    add(tree, "a", ONE, SAID)
    add(tree, "b", ONE, SAID, TWO, SAID)
    assert find(tree, ONE, SAID, TWO, SAID, ONE) == Found(("b",), node("b"), 4)
    assert find(tree, ONE, SAID, ONE) == Found(("a",), node("a"), 2)
    assert find(tree, ONE) == find(tree, TWO, SAID, ONE) == Found()
    # All of it was said already: a child of that call, but nothing to go on with.
    assert find(tree, ONE, SAID) == Found(("a",))


def test_of_the_same_answers_the_same_tools_then_the_named_then_the_latest() -> None:
    tree = Tree()
    for name, tools in (("a", ()), ("b", TOOLS), ("c", TOOLS), ("d", ())):
        add(tree, name, ONE, SAID, tools=tools)
    asked = ONE, SAID, TWO
    assert find(tree, *asked).parents == ("d",)
    assert find(tree, *asked, tools=TOOLS).parents == ("c",)
    assert find(tree, *asked, tools=TOOLS, said=["b"]) == Found(("b",), node("b", TOOLS), 2)
    assert find(tree, *asked, said=["agent", "agent"]).parents == ("agent", "d")


def test_an_answer_in_other_words_goes_on_from_the_call_on_a_branch() -> None:
    tree = Tree()
    add(tree, "a", ONE, SAID)
    add(tree, "b", ONE, SAID, TWO, SAID)
    other = say("assistant", "edited")
    assert find(tree, ONE, other, TWO) == Found(("a",))
    assert find(tree, ONE, SAID, TWO, other, ONE) == Found(("b",))
    assert find(tree, ONE, TWO) == Found()


CALL = ToolCall(name="f", arguments='{"a": 1}', id="x")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((Text(text="a"),), (Reasoning(text="hm"), Text(text="a")), True),
        ((CALL,), (Text(text=""), ToolCall(name="f", arguments='{"a":1}', id="y")), True),
        ((Text(text="ab"),), (Text(text="a"), Text(text="b")), True),
        ((Text(text="a"),), (Text(text="a"), Unknown(kind="message.audio", raw={})), True),
        ((Text(text="a"),), (Text(text="a "),), False),
        ((CALL,), (ToolCall(name="f", arguments='{"a": 2}'),), False),
        ((ToolCall(name="f", arguments="{"),), (ToolCall(name="f", arguments="{ "),), False),
        ((CALL,), (CALL, CALL), False),
        ((Text(text="a"),), (Text(text="a"), Unknown(kind="video", raw={})), False),
    ],
)
def test_an_assistants_message_is_what_it_says(one: Any, other: Any, same: bool) -> None:
    lines = [line_of([Message(role="assistant", parts=parts)]) for parts in (one, other)]
    assert (lines[0] == lines[1]) is same


def test_other_messages_are_compared_as_they_are_and_held_once() -> None:
    result = Message(role="tool", parts=(ToolResult(content="r", id="x"),))
    other = Message(role="tool", parts=(ToolResult(content="r", id="y"),))
    assert line_of([result]) != line_of([other]) and line_of([ONE]) != line_of([TWO])
    tree, again = Tree(), say("user", "one")
    thought = Message(role="assistant", parts=(Reasoning(text="hm"), Text(text="said")))
    first = tree.same(line_of([ONE, thought]), [ONE, thought])
    second = tree.same(line_of([again, SAID]), [again, SAID])
    assert second[0] is first[0] is ONE and second == (ONE, SAID)
