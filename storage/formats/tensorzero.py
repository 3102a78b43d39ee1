"""TensorZero rows: chat and JSON inferences, datapoints, feedback of each kind.

An inference is a model span of its episode's trace; ids are UUIDv7 and say when. Inputs, outputs
and parameters are JSON texts inside the row. Invariant: what a prompt template was filled with
stands as an Unknown part, since the words of the prompt are not in the row.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Feedback, ModelCall, Sampling, Span, Trace, trace_id

from .feedback import kind_of
from .messages import name_of, read_sampling, read_tools
from .nested import nested
from .parsed import Context, Parsed, Rest
from .tensorzero_content import read_conversation, read_gave

SOURCE = "import:tensorzero"

_ROW = frozenset(
    (
        "id", "episode_id", "function_name", "variant_name", "input", "output", "tool_params",
        "inference_params", "processing_time_ms", "output_schema",
    )
)  # fmt: skip
_ABOUT = frozenset(("id", "target_id", "inference_id", "metric_name", "value", "target_type"))
_LONGEST = 1 << 40
"""Milliseconds that a call may take."""
_TAG = frozenset(("inference_id", "key", "value", "function_name"))


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict):
        return False
    if "function_name" in sample:
        return ("input" in sample and "output" in sample) or sample.keys() >= _TAG
    if "value" not in sample or "id" not in sample:
        return False
    if "target_id" in sample:
        return "metric_name" in sample or "target_type" in sample
    return "inference_id" in sample


def read(row: dict[str, Any], context: Context) -> Parsed:
    if "input" not in row and "function_name" in row:
        raise BadRecord("is a row of the index of tags: the inference's own row holds its tags")
    if "function_name" not in row:
        return Parsed(feedback=[_feedback(row, context)])
    return _inference(row, context)


def _inference(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    id = row.get("id")
    if not isinstance(id, str) or not id:
        raise BadRecord(f"is {name_of(id)}, not an id", field="id")
    dataset = "dataset_name" in row
    episode = row.get("episode_id")
    external = id if dataset or not isinstance(episode, str) else episode
    messages = read_conversation(nested(row.get("input")), rest)
    choices = read_gave(nested(row.get("output")), rest)
    tools, asked = _tools(row, rest)
    rest.put_others(row, _ROW, "")
    name = str(row.get("function_name") or "")
    attributes = rest.take()
    if dataset and isinstance(episode, str):
        attributes["episode_id"] = episode
    start = moment_of(id)
    took = row.get("processing_time_ms")
    end = None
    if start is not None and isinstance(took, int | float) and 0 <= took < _LONGEST:
        end = start + round(took * 1_000_000)
    model = row.get("variant_name")
    span = Span(
        id=id,
        kind="model",
        name=name,
        start=start,
        end=end,
        error=None if choices else "the row holds no output",
        call=ModelCall(
            input=messages,
            choices=choices,
            tools=tools,
            model=model if isinstance(model, str) else None,
            sampling=_sampling(row, asked),
        ),
        attributes=attributes,
    )
    trace = Trace(
        id=trace_id(context.project, SOURCE, external),
        project=context.project,
        source=SOURCE,
        external_id=external,
        origin="import",
        spans=(span,),
        raw=context.raw,
    )
    return Parsed([trace], [], rest.counts)


def _sampling(row: dict[str, Any], asked: dict[str, Any]) -> Sampling:
    parameters = nested(row.get("inference_params"))
    parameters = parameters if isinstance(parameters, dict) else {}
    inner = parameters.get("chat_completion")
    chosen = inner if isinstance(inner, dict) else parameters
    known = {"temperature", "top_p", "max_tokens", "seed", "stop_sequences"}
    others = {key: one for key, one in chosen.items() if key not in known and one is not None}
    if row.get("output_schema"):
        schema = {"schema": nested(row["output_schema"])}
        others["response_format"] = {"type": "json_schema", "json_schema": schema}
    return read_sampling({**chosen, "stop": chosen.get("stop_sequences")}, {**others, **asked})


def _tools(
    row: dict[str, Any], rest: Rest
) -> tuple[tuple[dict[str, Any], ...] | None, dict[str, Any]]:
    """The tools on offer and how they were to be chosen."""
    said = nested(row.get("tool_params"))
    if not isinstance(said, dict):
        return (), {}
    offered = said.get("tools_available", said.get("additional_tools"))
    others = {
        key: one
        for key, one in said.items()
        if key not in ("tools_available", "additional_tools") and one is not None
    }
    return read_tools(offered, rest, "tool_params.tools_available"), others


def _feedback(row: dict[str, Any], context: Context) -> Feedback:
    target = row.get("target_id", row.get("inference_id"))
    if not isinstance(target, str) or not target:
        raise BadRecord(f"is {name_of(target)}, not an id", field="target_id")
    value = row.get("value")
    shown = "inference_id" in row
    if shown:
        value = nested(value)
    name = row.get("metric_name")
    others = {key: row[key] for key in row.keys() - _ABOUT if row[key] not in (None, {}, "")}
    others["id"] = row["id"]
    tags = row.get("tags")
    by = tags.get("user") or tags.get("user_id") if isinstance(tags, dict) else None
    return Feedback(
        project=context.project,
        target=target,
        target_kind="span" if shown or row.get("target_type") == "inference" else "trace",
        name=name if isinstance(name, str) else ("demonstration" if shown else "comment"),
        value=value,
        kind="demonstration" if shown else kind_of(value),
        by=by if isinstance(by, str) else None,
        at=moment_of(row["id"]) or 0,
        attributes=others,
    )


def moment_of(id: object) -> int | None:
    """When a UUIDv7 was made, in nanoseconds."""
    if not isinstance(id, str) or len(id) != 36 or id[14] != "7":
        return None
    try:
        return int(id[:8] + id[9:13], 16) * 1_000_000
    except ValueError:
        return None
