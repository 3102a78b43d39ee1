"""Inspect logs, .json whole and .eval sample by sample (see `storage.zip_in`).

Each sample is a trace; its scorers' own calls are a second one, named after it. Scores stand as
feedback of their scorers, not as grades of ours. What a log says of all its samples (results,
stats) is no trace's: it stays with the raw bytes, and is listed.
"""

from typing import Any

import msgspec

from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import Feedback, Span, Trace

from .episode import Episode, imported, told
from .feedback import kind_of
from .inspect_events import Events, unseen
from .inspect_values import Attachments, read_counts, read_said
from .messages import name_of
from .nested import fields_of
from .parsed import Context, Parsed, Rest

SOURCE = "import:inspect"

_SAMPLE = frozenset(("id", "epoch", "uuid", "input", "messages", "output", "scores", "score",
                     "events", "transcript", "attachments", "message_pool", "events_data", "error",
                     "target", "model_usage"))  # fmt: skip
_OF_ALL = ("results", "stats", "reductions", "summaries.json", "reductions.json", "plan", "error")


_HEAD = ("task", "model", "run_id", "eval_id", "created", "dataset")
_NOTHING: tuple[Any, ...] = (None, "", {}, [])


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict):
        return False
    if isinstance(sample.get("inspect_log"), dict):
        return True
    head = sample.get("eval")
    return isinstance(head, dict) and "status" in sample and ("task" in head or "model" in head)


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    if "inspect_log" in row:
        log = fields_of(row["inspect_log"])
        if "sample" in row:
            for key in _OF_ALL:
                if log.get(key):
                    rest.tally(f"inspect_log.{key}")
            return _all([row["sample"]], log, rest, context)
        rest.tally("inspect_log")  # of an .eval file's head; each sample has its own part of it
        rest.tally("samples")
        for key in _OF_ALL:
            if log.get(key) or row.get(key):
                rest.tally(key)
        samples: Any = None if row.get("samples") == 0 else []
    else:
        log, samples = row, row.get("samples")
        for key in _OF_ALL:
            if log.get(key):
                rest.tally(key)
    if samples is None or (samples == [] and "inspect_log" not in row):
        said = f"the log holds no samples (status {log.get('status')}): nothing was said in it"
        raise BadRecord(said, field="samples")
    if not isinstance(samples, list):
        raise BadRecord(f"is {name_of(samples)}, not a list", field="samples")
    return _all(samples, log, rest, context)


def _all(samples: list[Any], log: dict[str, Any], rest: Rest, context: Context) -> Parsed:
    parsed = Parsed(unmapped=rest.counts)
    for at, sample in enumerate(samples):
        try:
            if not isinstance(sample, dict):
                raise BadRecord(f"is {name_of(sample)}, not a sample")
            traces = _Sample(sample, fields_of(log.get("eval")), rest, context).traces()
        except BadRecord as error:
            rest.take()
            field = f"samples[{at}].{error.field or ''}".rstrip(".")
            parsed.rejects.append(BadRecord(error.reason, field=field))
            continue
        parsed.traces += traces
        parsed.feedback += _scores(sample, traces[0])
    if len(samples) == 1 and parsed.rejects:
        raise parsed.rejects[0]
    return parsed


class _Sample:
    def __init__(
        self, sample: dict[str, Any], about: dict[str, Any], rest: Rest, context: Context
    ) -> None:
        self.sample, self.about, self.rest, self.context = sample, about, rest, context
        script = fields_of(sample.get("transcript"))
        data = fields_of(sample.get("events_data"))
        self.events = sample.get("events") or script.get("events") or []
        self.pool = sample.get("message_pool") or data.get("messages") or []
        self.attachments = Attachments(sample.get("attachments"), script.get("content"))

    def traces(self) -> list[Trace]:
        if not isinstance(self.events, list):
            raise BadRecord(f"is {name_of(self.events)}, not a list", field="events")
        episode, scored = Episode(), Episode()
        external = self.external()
        root = f"sample-{digest(external)[:12]}"
        episode.parents = (root,)
        pool = self.pool if isinstance(self.pool, list) else []
        reading = Events(episode, scored, self.attachments, pool, self.rest)
        reading.all(self.events)
        said = read_said(self.sample.get("messages") or [], self.attachments, self.rest, "messages")
        if not episode.last:
            self.without_calls(episode, said)
        elif left := unseen(said, episode, scored):
            self.rest.put("messages", msgspec.to_builtins(left))
        spans = (self.root(root), *episode.spans())
        traces = [imported(SOURCE, external, spans, self.context, conversation=external)]
        if judged := scored.spans():
            name = f"{external}#scorer"
            traces.append(imported(SOURCE, name, judged, self.context, conversation=external))
        return traces

    def without_calls(self, episode: Episode, said: tuple[Any, ...]) -> None:
        """A log that kept the messages alone, and the last output."""
        output = fields_of(self.sample.get("output"))
        heard = said or read_said(
            self.sample.get("input") or [], self.attachments, self.rest, "input"
        )
        answers = [at for at, message in enumerate(heard) if message.role == "assistant"]
        known: dict[int, dict[str, Any]] = {at: {} for at in answers}
        model = output.get("model") or self.about.get("model")
        if answers and output:
            choices = Events(episode, episode, self.attachments, [], self.rest).choices(output)
            finish = choices[0].finish_reason if choices else None
            known[answers[-1]] = {
                "usage": read_counts(output.get("usage"), True),
                "finish_reason": finish,
            }
        episode.model = model if isinstance(model, str) else None
        told(episode, heard, known)

    def root(self, id: str) -> Span:
        """The sample as a whole."""
        sample, about = self.sample, self.about
        self.rest.put_others(self.attachments.restored(sample), _SAMPLE, "sample")
        self.rest.put("eval", _of_every_sample(about))
        for key in ("sample_ids", "samples", "shuffled"):
            self.rest.tally(f"eval.dataset.{key}")
        for key in ("output.choices", "output.time", "input.id", "input.source"):
            self.rest.tally(f"sample.{key}")  # the last model event's, and the first's
        own = {
            key: self.rest.bounded(value)
            for key, value in (
                ("sample_id", sample.get("id")), ("epoch", sample.get("epoch")),
                ("target", sample.get("target")), ("task", about.get("task")),
                ("model", about.get("model")), ("run_id", about.get("run_id")),
                ("eval_id", about.get("eval_id")), ("created", about.get("created")),
                ("model_usage", sample.get("model_usage")),
            )
            if value not in _NOTHING
        }  # fmt: skip
        error = fields_of(sample.get("error")).get("message") or sample.get("error")
        return Span(
            id=id, kind="agent", name=str(about.get("task") or "inspect"),
            error=str(error) if error else None, attributes={**own, **self.rest.take()},
        )  # fmt: skip

    def external(self) -> str:
        own = self.sample.get("uuid")
        if isinstance(own, str) and own:
            return own
        run = (self.about.get("eval_id"), self.about.get("run_id"), self.about.get("task_id"))
        named = ":".join(str(one) for one in run if one)
        return f"{named}:{self.sample.get('id')}:{self.sample.get('epoch')}"


def _of_every_sample(about: dict[str, Any]) -> dict[str, Any]:
    """What the log's head says of each of its samples: which run, on what, how set."""
    others = {key: one for key, one in about.items() if key not in _HEAD and one not in _NOTHING}
    kept = {key: one for key, one in fields_of(about.get("dataset")).items()
            if key in ("name", "location")}  # fmt: skip
    return {**others, "dataset": kept} if kept else others


def _scores(sample: dict[str, Any], trace: Trace) -> list[Feedback]:
    found = fields_of(sample.get("scores"))
    if not found and isinstance(sample.get("score"), dict):
        found = {"score": sample["score"]}
    said = []
    for name, score in found.items():
        value = fields_of(score).get("value") if isinstance(score, dict) else score
        if value is None:
            continue
        others = {key: one for key, one in fields_of(score).items() if key != "value" and one}
        said.append(
            Feedback(
                project=trace.project, target=trace.id, name=str(name), value=value,
                kind="category" if isinstance(value, str) else kind_of(value),
                by=f"inspect:{name}", attributes=others,
            )
        )  # fmt: skip
    return said
