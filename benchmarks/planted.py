"""Planted faults: what each guard of the data catches of what was put there, and what of the rest.

Clean training rows are made by seeds; into some a fault is put, of each kind apart; each detector
is asked by its public door. One line a kind: caught of planted, and false alarms among the clean.

    python benchmarks/planted.py [--rows 2000] [--json]
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.data_curation import Texts
from flywheel.records import Message, Problem, Text, Truncated, say
from flywheel.rows import TrainingRow

SYSTEM = say("system", "You are a support agent of a shop. Answer politely and in short.")
QUEUES = {
    "billing": ("invoice", "charge", "refund", "payment", "card", "receipt", "price"),
    "shipping": ("parcel", "courier", "delivery", "tracking", "package", "address", "late"),
    "login": ("password", "account", "reset", "locked", "username", "code", "mail"),
}
SHARE = 0.05
"""Of the rows in which a fault is planted."""


class Found(NamedTuple):
    fault: str
    by: str
    """The detector's door."""
    planted: int
    caught: int
    clean: int
    false: int


class Made(NamedTuple):
    rows: list[TrainingRow]
    bad: set[str]
    """Trace ids of those with the fault."""
    heldout: tuple[Problem, ...] = ()


def a_row(number: int, asked: str, answered: str, **changed: Any) -> TrainingRow:
    fields: dict[str, Any] = {
        "trace_id": f"trace-{number}", "span_id": "call", "problem_id": f"problem-{number}",
        "messages": (SYSTEM, say("user", asked)), "completion": say("assistant", answered),
        "text": asked, "conversation": f"conversation-{number}", "user": f"user-{number}",
        "finish_reason": "stop", "reward": 1.0, "confirmed_by": "feedback", "origin": "import",
        "fidelity": "renderable",
    }  # fmt: skip
    return TrainingRow(**(fields | changed))


def clean(texts: Texts, count: int, words: int = 60) -> list[TrainingRow]:
    return [a_row(number, texts.text(words), texts.text(40)) for number in range(count)]


def faulty(made: Sequence[TrainingRow], change: Callable[[TrainingRow, int], TrainingRow]) -> Made:
    """The rows, one of twenty changed."""
    every = round(1 / SHARE)
    rows = [change(row, at) if at % every == 7 else row for at, row in enumerate(made)]
    return Made(rows, {row.trace_id for at, row in enumerate(rows) if at % every == 7})


def of_template(texts: Texts) -> str:
    """A text most of whose words all texts share."""
    forms = (
        "Hello and thank you for being there, I have ordered {} at your shop and would like to "
        "know when {} is going to arrive, please answer me as soon as you can, my number is {}",
        "To whom it may concern: on the invoice that you have sent me last week stands {} though "
        "I never bought {} from you, correct it at once and tell me that it was done for {}",
        "I cannot log in any more since this morning, the page says {} and when I ask for a new "
        "password nothing comes to my address {}, what am I to do now, I do need {} today",
    )
    form = forms[int(texts.dice.integers(len(forms)))]
    return form.format(texts.text(3), texts.text(3), texts.text(4))


def asking(row: TrainingRow, *turns: str) -> TrainingRow:
    said: list[Message] = [SYSTEM]
    for turn in turns:
        said += [say("user", turn), say("assistant", "Tell me more, please.")]
    return msgspec.structs.replace(row, messages=tuple(said[:-1]), text=turns[-1])


# --- the faults -----------------------------------------------------------------------------------


def leak(kind: str) -> Callable[[Texts, int], Made]:
    def make(texts: Texts, count: int) -> Made:
        words = 6 if kind == "short" else 30
        templated = kind == "template"
        held = [of_template(texts) if templated else texts.text(words) for _ in range(count)]

        def change(row: TrainingRow, at: int) -> TrainingRow:
            text = held[at]
            if kind == "edited":
                return asking(row, texts.edited(text, 0.1))
            if kind == "template":
                return asking(row, text)
            if kind == "inside":
                return asking(row, f"{texts.text(40)} {text} {texts.text(40)}")
            if kind == "split":
                told = text.split()
                return asking(row, " ".join(told[:11]), " ".join(told[11:20]), " ".join(told[20:]))
            if kind == "turn":
                return asking(row, text, texts.text(12))
            return asking(row, text if kind == "exact" else f"{text.upper()}!")

        rows = clean(texts, count, words)
        if templated:
            rows = [asking(row, of_template(texts)) for row in rows]
        made = faulty(rows, change)
        problems = tuple(
            Problem(environment="other", messages=(SYSTEM, say("user", one)), text=one,
                    split="heldout") for one in held
        )  # fmt: skip
        return made._replace(heldout=problems)

    return make


def copies(kind: str) -> Callable[[Texts, int], Made]:
    def make(texts: Texts, count: int) -> Made:
        rows = clean(texts, count)
        again = []
        for at, row in enumerate(rows[: round(count * SHARE)]):
            text = row.text if kind == "exact" else texts.edited(row.text, 0.02)
            again.append(a_row(count + at, text, row.completion.text))
        # Which of two stays is the hash's choice: one of them has to go.
        return Made([*rows, *again], {row.trace_id for row in again})

    return make


def truncated(texts: Texts, count: int) -> Made:
    def change(row: TrainingRow, at: int) -> TrainingRow:
        if at % 2:
            return msgspec.structs.replace(row, finish_reason="length")
        cut = Message(role="user", parts=(Text(text="See:"), Truncated(
            kept=row.text[:40], size=90_000_000, digest="0" * 32)))  # fmt: skip
        return msgspec.structs.replace(row, messages=(SYSTEM, cut))

    return faulty(clean(texts, count), change)


def mislabelled(texts: Texts, count: int) -> Made:
    names = sorted(QUEUES)
    rows = []
    for number in range(count):
        name = names[int(texts.dice.integers(3))]
        about = " ".join(texts.dice.choice(QUEUES[name], 4).tolist())
        right = bool(texts.dice.integers(2))
        said = name if right else names[(names.index(name) + 1) % 3]
        asked = f"{texts.text(4)} {about} {texts.text(4)}"
        rows.append(a_row(number, asked, said, reward=float(right)))
    return faulty(
        rows, lambda row, _: msgspec.structs.replace(row, reward=1.0 - (row.reward or 0.0))
    )


# --- the detectors --------------------------------------------------------------------------------


def by_rule(name: str, **params: Any) -> Callable[[Made], set[str]]:
    def detect(made: Made) -> set[str]:
        from storage.curate import RuleSpec, curate

        specs = [] if name == "leakage" else [RuleSpec(name=name, params=params)]
        curated = curate(made.rows, specs, made.heldout)
        return {one.trace_id for one in curated.dropped if one.rule == name}

    return detect


def told_apart(fault: str, by: str, made: Made, found: set[str]) -> Found:
    if fault.startswith("duplicate"):
        # The pair's other half may be what went.
        first = {f"trace-{len(made.rows) - len(made.bad) + at}": f"trace-{at}"
                 for at in range(len(made.bad))}  # fmt: skip
        caught = sum(one in found or first[one] in found for one in made.bad)
        false = len(found - made.bad - set(first.values()))
    else:
        caught, false = len(found & made.bad), len(found - made.bad)
    return Found(fault, by, len(made.bad), caught, len(made.rows) - len(made.bad), false)


FAULTS: tuple[tuple[str, Callable[[Texts, int], Made], str, dict[str, Any]], ...] = (
    ("leak, exact", leak("exact"), "leakage", {}),
    ("leak, exact, within a longer text", leak("inside"), "leakage", {}),
    ("leak, a tenth of 30 words edited", leak("edited"), "leakage", {}),
    ("leak, 6 words, case and marks changed", leak("short"), "leakage", {}),
    ("leak, exact, all of three templates", leak("template"), "leakage", {}),
    ("leak, split over three turns", leak("split"), "leakage", {}),
    ("leak, an earlier turn", leak("turn"), "leakage", {}),
    ("duplicate, exact", copies("exact"), "exact_duplicates", {}),
    ("duplicate, one word of fifty", copies("near"), "near_duplicates", {}),
    ("body truncated or cut", truncated, "fidelity", {"accept": ["renderable"]}),
    ("reward mislabelled", mislabelled, "label_noise", {}),
)


def personal(each: int) -> Found:
    from benchmarks import privacy_planted
    from storage.privacy.find import find

    bad = [bool(find(one.text)) for one in privacy_planted.planted(each)]
    good = [bool(find(one.text)) for one in privacy_planted.clean(each)]
    return Found("personal data, secrets", "privacy.find", len(bad), sum(bad), len(good), sum(good))


def drifted(trials: int, count: int) -> Found:
    """Weeks beside the one before: one whose answers are shorter and of another mix of slices."""
    from storage.gate import data_gate
    from storage.gates.earlier import Earlier
    from storage.gates.expected import Wanted
    from storage.narrow import narrow

    texts = Texts(11)

    def week(shift: bool) -> Any:
        rows = []
        for number in range(count):
            words = int(texts.dice.integers(20, 60)) // (2 if shift else 1)
            slice_ = ("orders", "refunds")[int(texts.dice.random() < (0.75 if shift else 0.5))]
            rows.append(a_row(number, texts.text(20), texts.text(words), slice=slice_))
        return narrow(rows)

    caught = {True: 0, False: 0}
    before = week(False)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(trials):
            for shift in caught:
                report = data_gate(
                    week(shift), Path(folder) / f"{number}-{shift}",
                    Wanted(min_rows=1, max_tokens=4096), Earlier("before", before),
                )  # fmt: skip
                drift = next(one for one in report.gates if one.gate == "drift")
                caught[shift] += drift.passed is False
    return Found("week drifted", "gate drift", trials, caught[True], trials, caught[False])


def bench(count: int) -> list[Found]:
    found = []
    for fault, make, rule, params in FAULTS:
        made = make(Texts(len(found) + 1), count)
        found.append(told_apart(fault, rule, made, by_rule(rule, **params)(made)))
        shown(found[-1])
    for more in (lambda: personal(30), lambda: drifted(5, 400)):
        found.append(more())
        shown(found[-1])
    return found


def shown(one: Found) -> None:
    print(
        f"{one.fault:38} {one.by:17} caught {one.caught:>4} of {one.planted:>4} "
        f"({one.caught / one.planted:6.1%})   false {one.false:>3} of {one.clean:>5} "
        f"({one.false / max(one.clean, 1):.2%})",
        file=sys.stderr,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    options = parser.parse_args()
    found = bench(options.rows)
    if options.json:
        print(json.dumps({"benchmark": "planted", "faults": [one._asdict() for one in found]}))


if __name__ == "__main__":
    main()
