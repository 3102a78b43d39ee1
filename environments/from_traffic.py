"""How an environment reads recorded traffic: the hooks of mining, with what they do by default.

Enter: recorded traces with what people said later. Leave: problems with their truth, or the reason
why there is none. Invariant: feedback comes from outside and may be any JSON: what a hook cannot
read is a reason, not a crash.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from flywheel.ids import canonical
from flywheel.records import Feedback, Message, Problem, Trace, model_spans
from flywheel.reviews import states_answer


class FromTraffic:
    """The part of `environments.define.Environment` that mining and review pages call."""

    name: ClassVar[str] = ""
    """What problems are filed under; "" = the class's name in lower case."""

    def problem_of(self, trace: Trace, feedback: Sequence[Feedback]) -> Problem | None:
        """The problem that a recorded trace posed, with what people said later as its truth.

        By default the prompt of its first model call. None = this trace poses none.
        """
        calls = model_spans(trace)
        if not calls or calls[0].call is None or not calls[0].call.input:
            return None
        call = calls[0].call
        answer, reason = self._agreed(feedback)
        problem = Problem(
            environment=self.name,
            messages=call.input,
            tools=call.tools or (),
            text=self.text(call.input),
            conversation=trace.conversation,
            user=trace.user,
            trace_id=trace.id,
            answer=answer,
            truth_from=None if reason else self._from(feedback),
            attributes={"truth": reason} if reason else {},
        )
        return msgspec.structs.replace(problem, slice=self.slice(problem))

    def _agreed(self, feedback: Sequence[Feedback]) -> tuple[Any, str | None]:
        """The one answer that all feedback states, or None and why there is none. Feedback comes
        from outside and may be any JSON: what `truth` cannot read is a reason, not a crash.
        Where a reviewer looked at the answer, what other people and systems said stands back."""
        truths: dict[bytes, Any] = {}
        for item in self._reviews(feedback) or feedback:
            try:
                said = self.corrected(item) if states_answer(item) else self.truth(item)
                truths |= {} if said is None else {canonical(said): said}
            except Exception as error:
                return None, f"feedback {item.id} cannot be read: {type(error).__name__}: {error}"
        if len(truths) > 1:
            return None, f"conflicting feedback: {len(truths)} different answers"
        return next(iter(truths.values()), None), None if truths else "no known answer"

    def _reviews(self, feedback: Sequence[Feedback]) -> list[Feedback]:
        """Reviews that state a truth of this environment, or that cannot be read."""
        found = []
        for item in filter(states_answer, feedback):
            try:
                if self.corrected(item) is not None:
                    found.append(item)
            except Exception:  # _agreed meets it again and says so
                found.append(item)
        return found

    def _from(self, feedback: Sequence[Feedback]) -> str:
        return "human" if self._reviews(feedback) else "feedback"

    def corrected(self, feedback: Feedback) -> Any:
        """The right answer that a reviewer states; `value` is the whole answer as the model should
        have written it: text, or the JSON that this is. None = it states none.

        By default what `truth` reads of it.
        """
        return self.truth(feedback)

    def truth(self, feedback: Feedback) -> Any:
        """The right answer that one feedback states; None = it states none."""
        return feedback.value if feedback.kind == "demonstration" else None

    def text(self, messages: Sequence[Message]) -> str:
        """The user's own words, without what all prompts share."""
        return "\n".join(message.text for message in messages if message.role == "user")

    def slice(self, problem: Problem) -> str:
        """The group that evaluation reports by."""
        return "all"
