"""Paths: a trace's calls as training samples, one from each root to each leaf.

Enter: a trace of any shape (turns, branches, sub-agents, several choices). Leave: its paths, and
what of it is in none, with the reason. A call goes on from another exactly where its prompt's ids
begin with that one's prompt and answer: the ids decide, whatever the spans say.
Invariants: a path's ids are its last call's prompt and answer; every token that was sampled is
masked in exactly one path, the first that has it, so that what several paths share is trained once
(the mask says so, no weight; `spans` says on every path who sampled what).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flywheel.errors import BadRecord
from flywheel.experts import joined
from flywheel.records import Experts, Sampling, Span, Tokens, Trace, model_spans
from trainer.samples import Sample


class Segment(NamedTuple):
    """What one call sampled, in a path."""

    span_id: str
    choice: int
    start: int
    end: int
    """Of the path's ids, as a slice."""
    trained: bool
    """False = an earlier path trains it."""


class Path(NamedTuple):
    """All sequences are parallel to token_ids."""

    trace_id: str
    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True = sampled by the model, and trained in this path."""
    behaviour_logprobs: tuple[float | None, ...]
    """None = not sampled, or not given."""
    policy_versions: tuple[str | None, ...]
    """None = not sampled, or by several in this call and not known which."""
    spans: tuple[str | None, ...]
    """The span that sampled the token: where the value of a step lies. None = nobody sampled it."""
    segments: tuple[Segment, ...]
    """In order; what lies between them is prompts."""
    template_digest: str | None
    """None = not known, or not the same in all its calls."""
    sampling: Sampling | None
    """Of all its calls but for seed and bound; None = they differ."""
    tokenizer_digest: str | None = None
    """None = not known, or not the same in all its calls."""
    experts: Experts | None = None
    """As each token was first computed. None = not given."""


class Paths(NamedTuple):
    paths: tuple[Path, ...]
    left_out: dict[str, str]
    """Span id -> why none of its tokens, or not all of its choices', are in a path."""


class _Node(NamedTuple):
    span: Span
    choice: int
    tokens: Tokens
    ids: tuple[int, ...]
    """Prompt and answer."""


def paths_of(trace: Trace) -> Paths:
    left_out: dict[str, str] = {}
    nodes = list(_nodes(trace, left_out))
    before = _before(nodes)
    inner = {place for place in before if place is not None}
    done: set[int] = set()
    paths = []
    for leaf in range(len(nodes)):
        if leaf in inner:
            continue
        line = [leaf]
        while (earlier := before[line[-1]]) is not None:
            line.append(earlier)
        line.reverse()
        paths.append(_path(trace, [nodes[place] for place in line], [p not in done for p in line]))
        done.update(line)
    return Paths(tuple(paths), left_out)


def sample_of(path: Path, component: str = "rl", *, weight: float = 1.0, row_id: str) -> Sample:
    """The path as the trainer's unit, with `weight` on all that it trains.

    Raises:
        BadRecord: nothing of it is trained, or its template is not known.
    """
    if path.template_digest is None:
        raise BadRecord("its calls were not laid out by one known chat template", field=row_id)
    trained = [
        logprob for logprob, kept in zip(path.behaviour_logprobs, path.mask, strict=True) if kept
    ]
    known = None not in trained
    return Sample(
        row_id=row_id,
        trace_id=path.trace_id,
        rollout_id=path.trace_id,
        token_ids=path.token_ids,
        mask=path.mask,
        weights={component: tuple(weight if kept else 0.0 for kept in path.mask)},
        template_digest=path.template_digest,
        behaviour_logprobs=tuple(one or 0.0 for one in path.behaviour_logprobs) if known else None,
        policy_versions=path.policy_versions,
        sampling=path.sampling,
        experts=path.experts,
    )


def _nodes(trace: Trace, left_out: dict[str, str]) -> Iterator[_Node]:
    """In the order of their calls' beginnings."""
    for span in model_spans(trace):
        assert span.call is not None
        if span.error is not None:
            left_out[span.id] = f"the call failed: {span.error}"
            continue
        if not span.call.choices:
            left_out[span.id] = "it has no answer"
        for number, choice in enumerate(span.call.choices):
            tokens = choice.tokens
            if tokens is None:
                left_out[span.id] = str(span.attributes.get("tokens", "no tokens were recorded"))
            elif choice.finish_reason is None:
                left_out[span.id] = "the answer was cut: its end is not recorded"
            elif not tokens.prompt_ids or not tokens.completion_ids:
                left_out[span.id] = "its prompt or its answer has no tokens"
            else:
                ids = tokens.prompt_ids + tokens.completion_ids
                yield _Node(span, number, tokens, ids)


def _before(nodes: Sequence[_Node]) -> list[int | None]:
    """For each node the one that it goes on from: the longest that its prompt begins with.

    In the order of their ids, whatever begins a prompt stands before it, so that one walk with the
    stack of beginnings finds all. Of equal ones a named parent is taken, else the latest before.
    """
    kinds = [(node.ids, 0, place) for place, node in enumerate(nodes)]
    kinds += [(node.tokens.prompt_ids, 1, place) for place, node in enumerate(nodes)]
    found: list[int | None] = [None] * len(nodes)
    stack: list[int] = []
    for ids, is_prompt, place in sorted(kinds):
        while stack and ids[: len(nodes[stack[-1]].ids)] != nodes[stack[-1]].ids:
            stack.pop()
        if not is_prompt:
            stack.append(place)
            continue
        # Who began later cannot be what this goes on from, though the ids be the same.
        earlier = [one for one in stack if one < place]
        if earlier:
            parents = nodes[place].span.parents
            length = max(len(nodes[one].ids) for one in earlier)
            longest = [one for one in earlier if len(nodes[one].ids) == length]
            found[place] = max(longest, key=lambda one: (nodes[one].span.id in parents, one))
    return found


def _path(trace: Trace, line: Sequence[_Node], fresh: Sequence[bool]) -> Path:
    ids = line[-1].ids
    mask, spans = [False] * len(ids), list[str | None]([None]) * len(ids)
    logprobs: list[float | None] = [None] * len(ids)
    versions: list[str | None] = [None] * len(ids)
    segments = []
    for node, trained in zip(line, fresh, strict=True):
        tokens, start, end = node.tokens, len(node.tokens.prompt_ids), len(node.ids)
        size = end - start
        mask[start:end] = [trained] * size
        spans[start:end] = [node.span.id] * size
        if tokens.logprobs is not None and len(tokens.logprobs) == size:
            logprobs[start:end] = tokens.logprobs
        if len(tokens.policy_versions) == 1:
            versions[start:end] = tokens.policy_versions * size
        segments.append(Segment(node.span.id, node.choice, start, end, trained))
    return Path(
        trace_id=trace.id,
        token_ids=ids,
        mask=tuple(mask),
        behaviour_logprobs=tuple(logprobs),
        policy_versions=tuple(versions),
        spans=tuple(spans),
        segments=tuple(segments),
        template_digest=_one({node.tokens.template_digest for node in line}),
        sampling=_sampling(line),
        tokenizer_digest=_one({node.tokens.tokenizer_digest for node in line}),
        experts=joined(
            [
                (node.tokens.experts, 0 if earlier is None else len(earlier.ids), len(node.ids))
                for earlier, node in zip((None, *line), line, strict=False)
            ]
        ),
    )


def _one(values: set[str | None]) -> str | None:
    return values.pop() if len(values) == 1 else None


def _sampling(line: Sequence[_Node]) -> Sampling | None:
    said = [node.span.call.sampling for node in line if node.span.call]
    first = said[0]
    kept = Sampling(
        temperature=first.temperature, top_p=first.top_p, top_k=first.top_k, other=first.other
    )
    alike = all(
        (one.temperature, one.top_p, one.top_k, one.other)
        == (kept.temperature, kept.top_p, kept.top_k, kept.other)
        for one in said
    )
    return kept if alike else None
