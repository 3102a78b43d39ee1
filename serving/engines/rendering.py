"""How the trainer puts messages into tokens, for comparison with an engine that does it by itself.

`python -m serving.engines.rendering MODEL OUT` writes one JSON object: the digests of template and
tokenizer, and conversations with their ids. A process of its own, so that tokenizers and their
library stay out of the gateway's memory.
"""

import sys
from pathlib import Path
from typing import Any

import msgspec

from flywheel import children, durable
from flywheel.home import Home
from flywheel.ids import digest
from flywheel.records import Record

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Finds an order.",
        "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
    },
}
_CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"order": "A 1"}'},
}
_USER: dict[str, Any] = {"role": "user", "content": "Where is order A 1? Größe — 3, 1, 2"}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "a question": ([_USER], []),
    "a system message and a second turn": (
        [
            {"role": "system", "content": "Be short."},
            _USER,
            {"role": "assistant", "content": "On its way."},
            {"role": "user", "content": "When?"},
        ],
        [],
    ),
    "tools": ([{"role": "system", "content": "Be short."}, _USER], [_TOOL]),
    "a tool's result": (
        [
            _USER,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "lost"},
        ],
        [_TOOL],
    ),
}
"""What is compared: name -> messages and tools, as a client sends them."""


class Rendered(Record, frozen=True, kw_only=True):
    template_digest: str | None = None
    """None = the trainer has no renderer for this model."""
    tokenizer_digest: str | None = None
    ids: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """By the names of CONVERSATIONS."""
    why: str | None = None
    """Why there are no digests."""


def rendered(home: Home, model: Path) -> Rendered:
    """What this module says of `model`, from a process that does not outlive us."""
    # One file a model: an abandoned start may still write about another.
    out, log = home.engine / f"rendering-{digest(str(model))}.json", home.logs / "engine.log"
    out.unlink(missing_ok=True)
    child = children.start("serving.engines.rendering", [str(model), str(out)], log=log)
    try:
        code = child.wait()
    finally:
        if child.stdin is not None:
            child.stdin.close()
    if code:
        return Rendered(why=f"the trainer's rendering ended with {code}; see {log}")
    return msgspec.json.decode(out.read_bytes(), type=Rendered)


def main() -> int:
    children.follow_parent()
    from flywheel.errors import FlywheelError
    from serving.conversation import Offload, messages_of
    from trainer.models import load_tokenizer
    from trainer.render import renderer_for

    boundless = Offload(lambda data: "", text=2**62, inline_image=2**62)
    try:
        rendering = renderer_for(load_tokenizer(Path(sys.argv[1])))
        found = Rendered(
            template_digest=rendering.template_digest,
            tokenizer_digest=rendering.tokenizer_digest,
            ids={
                name: tuple(rendering.render_prompt(messages_of(messages, boundless), tools))
                for name, (messages, tools) in CONVERSATIONS.items()
            },
        )
    except FlywheelError as error:
        found = Rendered(why=str(error))
    durable.write(Path(sys.argv[2]), msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
