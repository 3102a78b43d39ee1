"""What a trace can be used for, and why not for more.

trainable: the token ids that were sampled are there. renderable: its messages are whole and its
tools known, so that it can be turned into tokens. view_only: it can be looked at. Judged by the
last model call, the one whose answer is trained on.
"""

from collections.abc import Iterator

from flywheel.plain import article
from flywheel.records import (
    Choice,
    Fidelity,
    File,
    Image,
    Message,
    ModelCall,
    Reasoning,
    Refusal,
    Span,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    Truncated,
    Unknown,
    main_spans,
)
from storage.span_parts import disputed

_SOUND = frozenset((Text, Reasoning, ToolCall, ToolResult))
"""Parts that speak against nothing."""
Judgement = tuple[Fidelity, tuple[str, ...]]


def judge(trace: Trace) -> Judgement:
    """The fidelity of `trace` and the reasons why it is not higher; none where it is trainable."""
    calls = main_spans(trace)
    if not calls:
        return "view_only", ("no model call",)
    return judge_call(calls[-1], served=trace.origin == "production")


def judge_call(span: Span, *, served: bool = False) -> Judgement:
    """The same of one model call.

    Args:
        served: it went through a gateway, which always says how an answer ended; elsewhere a
            missing finish reason only means that the format has none.
    """
    call = span.call
    if call is None:
        return "view_only", ("no model call",)
    broken = tuple(dict.fromkeys(_broken(span, call, served)))
    if broken:
        return "view_only", broken
    wrong = _token_fault(call.choices[0])
    if wrong is None:
        return "trainable", ()
    unclear = tuple(dict.fromkeys(_unclear(call)))
    return ("view_only", (wrong, *unclear)) if unclear else ("renderable", (wrong,))


def _broken(span: Span, call: ModelCall, served: bool) -> Iterator[str]:
    """What no token ids can make good."""
    for name in disputed(span):
        yield f"its parts contradict each other in {name.removeprefix('call.')}"
    if not call.choices:
        yield f"no answer: {span.error or 'none was recorded'}"
        return
    choice = call.choices[0]
    if choice.finish_reason is None and (span.error or served):
        yield f"the answer was cut: {span.error or 'its end was not said'}"
    if not choice.message.parts:
        yield "the answer has no content"
    for message in (*call.input, choice.message):
        for part in message.parts:
            if type(part) not in _SOUND and isinstance(part, Truncated):
                yield f"{article(message.role)} message was truncated from {part.size} bytes"


def _token_fault(choice: Choice) -> str | None:
    tokens = choice.tokens
    if tokens is None:
        return "no token ids"
    if not tokens.prompt_ids or not tokens.completion_ids:
        return "token ids are empty"
    if tokens.logprobs is not None and len(tokens.logprobs) != len(tokens.completion_ids):
        return "log-probabilities are not parallel to token ids"
    return None


def _unclear(call: ModelCall) -> Iterator[str]:
    """What keeps messages from being turned into tokens."""
    if not call.input:
        yield "no prompt"
    choice = call.choices[0]
    ended = choice.finish_reason
    if ended in ("tool_calls", "function_call") and not _says(choice.message):
        yield f"the answer has no content: it ended by {ended}, and the calls were not recorded"
    if ended == "content_filter":
        yield "the answer is a refusal: a filter stopped it"
    elif any(isinstance(part, Refusal) for part in choice.message.parts):
        yield "the answer is a refusal"
    messages = (*call.input, choice.message)
    if call.tools is None and any(_calls_tools(message) for message in messages):
        yield "tools were not recorded though they were called"
    for message in messages:
        if not message.parts and message.role != "assistant":
            yield f"{article(message.role)} message has no content"
        for part in message.parts:
            if type(part) in _SOUND:
                continue
            if isinstance(part, Unknown):
                yield f"{article(message.role)} message has a part of unknown kind {part.kind}"
            elif isinstance(part, Image | File) and part.url is None and part.digest is None:
                what = article(type(part).__name__.lower())
                yield f"{article(message.role)} message has {what} not kept"


def _says(message: Message) -> bool:
    return any(not isinstance(part, Text) or part.text.strip() for part in message.parts)


def _calls_tools(message: Message) -> bool:
    return any(isinstance(part, ToolCall) for part in message.parts)
