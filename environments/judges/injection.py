"""Known ways in which a judged text speaks to its judge.

Enters: text that somebody else wrote. Leave: the names of what was found. Invariant: a finding
accuses nobody; it keeps a verdict from gating, since a judge that was spoken to may have listened.
What is not known is not found here: quotes and the check word (`quoting`) bind that as well.
"""

import re

_JUDGE = r"(?:judge|grader|evaluator|assessor|scorer|llm|ai (?:model|reviewer))"
_FULL = (
    r"(?:\d+(?:\.\d+)?\s*(?:/|out of)\s*\d+|full (?:marks|score|points)"
    r"|(?:highest|maximum|max|best|top|perfect) (?:score|marks?|grade|rating|points))"
)
_TO = r"(?:dear|attention|note to|(?:message|instructions?) (?:to|for))"
_NAMES = r"(?:ANSWER|CONTEXT|FIRST|SECOND)"
_KEYS = r"[\"'](?:check|reason)[\"']\s*:[^{}]{0,2000}"
_VERDICT = r"[\"'](?:score|better)[\"']\s*:\s*(?:\d|[\"'](?:first|second|neither)[\"'])"

PATTERNS: dict[str, str] = {
    "sets instructions aside": (
        r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}?"
        r"\b(?:previous|prior|above|earlier|preceding|all|any|your|these|those|the)\b.{0,30}?"
        r"\b(?:instructions?|prompts?|rubrics?|rules?|guidelines?|criteria)\b"
    ),
    "speaks to the judge": (
        rf"\b{_TO}\b.{{0,20}}?\b{_JUDGE}\b"
        rf"|\b(?:as|you are) (?:an? |the )?(?:impartial |fair |strict )?{_JUDGE}\b.{{0,60}}?"
        r"\b(?:must|should|give|score)\b"
    ),
    "asks for a score": (
        r"\b(?:give|assign|award|grant|rate|score|grade|mark)\b.{0,12}?"
        rf"\b(?:this|it|me|my|the|above)\b.{{0,30}}?\b{_FULL}"
        r"|\b(?:score|rating|verdict)\b.{0,12}?\b(?:must|should|has to) be\b"
    ),
    "writes the verdict": rf"{_KEYS}{_VERDICT}|{_VERDICT}\s*,\s*{_KEYS}",
    "forges a role": (
        r"<[|｜]\s*(?:im_start|im_end|start_header_id|end_header_id|eot_id|system|user|assistant"
        r"|end|endoftext)\b[^|｜]{0,20}[|｜]>|\[/?INST\]|<</?SYS>>|<start_of_turn>"
    ),
    "forges the quotes": (
        rf"<<<\s*{_NAMES}\b|\b{_NAMES} [0-9a-f]{{6,32}}>>>"
        rf"|(?-i:\bEND (?:OF )?(?:THE )?(?:{_NAMES}|MATERIAL)\b)"
    ),
}
_HIDDEN = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
"""Characters that hide a word from a pattern and from no model."""


def found_in(text: str) -> tuple[str, ...]:
    """Names of the patterns that stand in `text`."""
    seen, flags = _HIDDEN.sub("", text), re.IGNORECASE | re.DOTALL
    return tuple(name for name, pattern in PATTERNS.items() if re.search(pattern, seen, flags))


def suspicion(parts: dict[str, str]) -> str:
    """What to say of a verdict on `parts` (name -> text); "" = nothing was found."""
    found = {part: found_in(text) for part, text in parts.items()}
    return "; ".join(f"the {part} {' and '.join(names)}" for part, names in found.items() if names)
