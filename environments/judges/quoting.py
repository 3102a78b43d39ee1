"""Quotes text from outside, so that a judge can tell it from what is asked of it.

Enter: any text, and the seed of one question. Leave: quoted blocks and a check word. Invariants: no
quoted text holds the code that ends its block, none holds the check word, and none holds a mark
that a chat template would read as the end of a turn.
"""

import re
from collections.abc import Sequence

from flywheel.ids import digest

_MARKS = re.compile(
    r"<(?=[|｜])"
    r"|<(?=/?(?:s|bos|eos|pad|unk|think|start_of_turn|end_of_turn|system|user|assistant|tool)>)"
    r"|<(?=<\s*/?\s*SYS\s*>>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|IMG)\])",
    re.IGNORECASE,
)
"""The first character of control tokens: tokenizers find these in plain text too."""
_CUT = "\n[… {count} characters left out …]\n"


def code(seed: str, texts: Sequence[str], length: int = 16) -> str:
    """Hex digits made from `seed` that stand in none of `texts`."""
    found = digest("quote", seed)[:length]
    while any(found in text for text in texts):
        found = digest("quote", found)[:length]
    return found


def block(name: str, text: str, mark: str) -> str:
    """`text` between two lines that hold `mark`."""
    return f"<<<{name} {mark}\n{defused(text)}\n{name} {mark}>>>"


def whole(text: str) -> str:
    """`text` that any endpoint takes: without NULs and halves of characters."""
    return (
        text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")
    )


def defused(text: str) -> str:
    """`text` without control tokens: a backslash parts them."""
    return _MARKS.sub(lambda found: found[0] + "\\", text)


def shortened(text: str, longest: int) -> str:
    """`text` with its middle left out where it is longer."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return text[:half] + _CUT.format(count=len(text) - 2 * half) + text[-half:]
