"""A trace made by hand out of what a model might have said: to see what an environment makes of it.

Enter a problem and an answer: its text, or messages of the model with its tools' results between
them. Leaves a trace as a recorded one would be. Invariant: no model, harness or clock has a part in
it, so it is the same everywhere.
"""

from collections.abc import Sequence

from flywheel.records import (
    Choice,
    Message,
    ModelCall,
    Problem,
    Span,
    ToolResult,
    Trace,
    say,
    trace_id,
)

Said = str | Sequence[Message]


def trace_of(problem: Problem, said: Said, number: int = 0) -> Trace:
    """
    Args:
        number: tells apart several answers to one problem.
    """
    messages = (say("assistant", said),) if isinstance(said, str) else tuple(said)
    spans: list[Span] = []
    for at, message in enumerate(messages):
        time = len(spans) + 1
        if message.role == "assistant":
            call = ModelCall(
                input=(*problem.messages, *messages[:at]),
                tools=problem.tools,
                choices=(Choice(message=message, finish_reason=_finish(message)),),
            )
            parents = (spans[-1].id,) if spans else ()
            spans.append(Span(id=f"call-{time:04d}", kind="model", parents=parents, start=time,
                              end=time, call=call))  # fmt: skip
        else:
            spans += _tools(message, messages[:at], spans, time)
    external = f"{problem.id}/{number}"
    return Trace(
        id=trace_id(problem.environment, "golden", external),
        project=problem.environment,
        source="golden",
        external_id=external,
        origin="evaluation",
        spans=tuple(spans),
        problem_id=problem.id,
        attempt=number,
        attributes={"ended": "answered"},
    )


def _tools(
    message: Message, before: Sequence[Message], spans: Sequence[Span], time: int
) -> list[Span]:
    """The tools that a message has results of."""
    calls = {call.id: call for one in before for call in one.tool_calls}
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    return [
        Span(id=f"tool-{time + at:04d}", kind="tool", name=result.name or "",
             parents=(spans[-1].id,) if spans else (), start=time + at, end=time + at,
             tool=calls.get(result.id), result=result)
        for at, result in enumerate(results)
    ]  # fmt: skip


def _finish(message: Message) -> str:
    return "tool_calls" if message.tool_calls else "stop"
