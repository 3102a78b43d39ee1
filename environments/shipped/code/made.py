"""Small function-writing problems, made from a seed: four kinds, three levels.

Enter: how many, and a seed. Leave: for each what is asked, a solution, a near miss, and inputs with
their results. Invariant: problem n of a seed is the same however many are made; its results are
those of its solution, which is put together here from the steps that are asked for.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

KINDS = ("numbers", "words", "recurrence", "machine")
LEVELS = 3
_INPUTS = 14
ENTRY = "solve"


class Made(NamedTuple):
    kind: str
    level: int
    """1 to LEVELS."""
    head: str
    text: str
    solution: str
    near: str
    cases: list[list[Any]]
    """[arguments, result]; the first two are told to the model."""


class _Step(NamedTuple):
    words: str
    line: str
    """`value` becomes this."""


class _Task(NamedTuple):
    head: str
    text: str
    solution: str
    near: Sequence[str]
    """Wrong solutions; the first that differs on some input is kept."""
    inputs: list[list[Any]]


def made(count: int, seed: int, kinds: Sequence[str] = KINDS) -> Iterator[Made]:
    for number in range(count):
        draw = random.Random(f"code {seed} {number}")
        kind = kinds[number % len(kinds)]
        level = 1 + number // len(kinds) % LEVELS
        yield _with_results(kind, level, _TASKS[kind](draw, level))


def _with_results(kind: str, level: int, task: _Task) -> Made:
    wanted = _results(task.solution, task.inputs)
    wrong = (one for one in task.near if _results(one, task.inputs)[2:] != wanted[2:])
    near = next(wrong, f"def {ENTRY}(*arguments):\n    return None\n")
    cases = [[given, result] for given, result in zip(task.inputs, wanted, strict=True)]
    return Made(kind, level, task.head, task.text, task.solution, near, cases)


def _results(source: str, inputs: Sequence[list[Any]]) -> list[Any]:
    """What our own source gives; the arguments are copied, since it may change them."""
    space: dict[str, Any] = {}
    exec(source, space)
    return [space[ENTRY](*(_copied(one) for one in given)) for given in inputs]


def _copied(value: Any) -> Any:
    return [_copied(one) for one in value] if isinstance(value, list) else value


def _piped(argument: str, steps: Sequence[_Step], first: str = "") -> str:
    lines = [f"def {ENTRY}({argument}):", f"    value = {first or argument}"]
    lines += [f"    value = {step.line}" for step in steps]
    return "\n".join([*lines, "    return value", ""])


def _pipeline(
    draw: random.Random, level: int, pool: Sequence[Callable[[random.Random], _Step]]
) -> list[_Step]:
    chosen = draw.sample(pool, level + 1)
    return [make(draw) for make in chosen]


def _listed(steps: Sequence[_Step]) -> str:
    return "\n".join(f"{number}. {step.words}." for number, step in enumerate(steps, 1))


def _misses(argument: str, steps: Sequence[_Step], first: str = "") -> list[str]:
    """One step left out, the last ones first; then two swapped."""
    left_out = [[*steps[:at], *steps[at + 1 :]] for at in reversed(range(len(steps) - 1))]
    swapped = [steps[1], steps[0], *steps[2:]] if len(steps) > 2 else list(steps)
    return [_piped(argument, one, first) for one in (*left_out, swapped)]


_ON_NUMBERS: tuple[Callable[[random.Random], _Step], ...] = (
    lambda draw: _Step("Keep only the even numbers", "[x for x in value if x % 2 == 0]"),
    lambda draw: _Step("Turn each number into its square", "[x * x for x in value]"),
    lambda draw: _Step("Remove repeated numbers, keeping the first of each",
                       "list(dict.fromkeys(value))"),
    lambda draw: _Step("Sort from largest to smallest", "sorted(value, reverse=True)"),
    lambda draw: _Step("Replace each number by the sum of itself and all before it",
                       "[sum(value[:at + 1]) for at in range(len(value))]"),
    lambda draw: _Step("Add to each number its position, counted from 0",
                       "[x + at for at, x in enumerate(value)]"),
    lambda draw: _Step("Replace each number by the difference to the one after it (the later minus "
                       "the earlier), which leaves one number less",
                       "[b - a for a, b in zip(value, value[1:])]"),
    lambda draw: _by(draw, "Drop the numbers that {k} divides", "[x for x in value if x % {k}]"),
    lambda draw: _by(draw, "Multiply each number by {k}", "[x * {k} for x in value]"),
    lambda draw: _by(draw, "Move the first {k} numbers to the end (all of a shorter list stay)",
                     "value[{k}:] + value[:{k}]"),
    lambda draw: _by(draw, "Keep every number number {k}, {k} + {k} and so on, counted from 1",
                     "value[{k} - 1::{k}]"),
    lambda draw: _by(draw, "Limit each number to at most {k} times ten",
                     "[min(x, {k} * 10) for x in value]"),
)  # fmt: skip
_TO_ONE: tuple[_Step, ...] = (
    _Step("Return the sum", "sum(value)"),
    _Step("Return the largest number, or 0 if none is left", "max(value, default=0)"),
    _Step("Return how many are left", "len(value)"),
    _Step("Return the list", "value"),
    _Step("Return the first minus the second plus the third minus the fourth and so on, 0 if none "
          "is left", "sum(value[::2]) - sum(value[1::2])"),
    _Step("Return the product, which is 1 if none is left", "__import__('math').prod(value)"),
)  # fmt: skip


def _by(draw: random.Random, words: str, line: str) -> _Step:
    k = draw.randint(2, 5)
    return _Step(words.format(k=k), line.format(k=k))


def _numbers(draw: random.Random, level: int) -> _Task:
    steps = [*_pipeline(draw, level, _ON_NUMBERS), draw.choice(_TO_ONE)]
    inputs: list[list[Any]] = [
        [[draw.randint(-9, 30) for _ in range(length)]]
        for length in (6, 8, 0, 1, *(draw.randint(2, 14) for _ in range(_INPUTS - 4)))
    ]
    text = (
        f"It takes a list of whole numbers and does the following in this order:\n{_listed(steps)}"
    )
    return _Task(f"{ENTRY}(numbers: list[int])", text, _piped("numbers", steps),
                 _misses("numbers", steps), inputs)  # fmt: skip


_ON_WORDS: tuple[Callable[[random.Random], _Step], ...] = (
    lambda draw: _Step("Write each word backwards", "[w[::-1] for w in value]"),
    lambda draw: _Step("Sort the words by length, words of one length as they stood",
                       "sorted(value, key=len)"),
    lambda draw: _Step("Write the first letter of each word large",
                       "[w[:1].upper() + w[1:] for w in value]"),
    lambda draw: _Step("Remove repeated words, keeping the first of each",
                       "list(dict.fromkeys(value))"),
    lambda draw: _Step("Remove all vowels (a, e, i, o, u, small or large); words that have no "
                       "other letters go",
                       "[v for v in (''.join(c for c in w if c.lower() not in 'aeiou') "
                       "for w in value) if v]"),
    lambda draw: _Step("Put the words in the opposite order", "value[::-1]"),
    lambda draw: _Step("Put after each word its number of letters, such as dog3",
                       "[w + str(len(w)) for w in value]"),
    lambda draw: _Step("Turn small letters large and large letters small",
                       "[w.swapcase() for w in value]"),
    lambda draw: _by(draw, "Drop the words of fewer than {k} signs",
                     "[w for w in value if len(w) >= {k}]"),
    lambda draw: _by(draw, "Cut each word off after {k} signs", "[w[:{k}] for w in value]"),
)  # fmt: skip
_TO_TEXT: tuple[_Step, ...] = (
    _Step("Return the words joined by single spaces", "' '.join(value)"),
    _Step("Return the words joined by a dash", "'-'.join(value)"),
    _Step("Return the list of words", "value"),
    _Step("Return the number of signs of all words together", "sum(len(w) for w in value)"),
)
_VOCABULARY = (
    "stone river Apple a of the quick Brown fox over under Idea eel moon Sun sun tree ox lamp Area "
    "north wind blue Blue sky on it"
)


def _words(draw: random.Random, level: int) -> _Task:
    steps = [*_pipeline(draw, level, _ON_WORDS), draw.choice(_TO_TEXT)]
    known = _VOCABULARY.split()
    lengths = (5, 7, 0, 1, *(draw.randint(2, 10) for _ in range(_INPUTS - 4)))
    inputs: list[list[Any]] = [
        [" ".join(draw.choice(known) for _ in range(length))] for length in lengths
    ]
    text = (
        "It takes a text of words with single spaces between them (an empty text has no words) and "
        f"does the following with its words in this order:\n{_listed(steps)}"
    )
    return _Task(f"{ENTRY}(text: str)", text, _piped("text", steps, "text.split()"),
                 _misses("text", steps, "text.split()"), inputs)  # fmt: skip


def _recurrence(draw: random.Random, level: int) -> _Task:
    first, second = draw.randint(0, 5), draw.randint(1, 6)
    a, b, c = draw.randint(1, 4), draw.randint(1, 4), draw.randint(1, 9)
    modulus = draw.choice((97, 101, 1009, 10007))
    rule, words = f"{a} * y + {b} * x", f"{a} * s(n-1) + {b} * s(n-2)"
    if level > 1:
        rule, words = f"{rule} + {c} * n", f"{words} + {c} * n"
    if level > 2:
        odd = draw.randint(2, 5)
        words += f", and {odd} more where n is odd"
        rule += f" + {odd} * (n % 2)"

    def source(rule: str, begin: int) -> str:
        return (
            f"def {ENTRY}(n):\n    x, y = {first}, {second}\n    if n == 0:\n        return x\n"
            f"    for n in range({begin}, n + 1):\n        x, y = y, ({rule}) % {modulus}\n"
            "    return y\n"
        )

    text = (
        f"A sequence begins with s(0) = {first} and s(1) = {second}; for n from 2 on, s(n) is "
        f"{words}, all of it modulo {modulus}. The function returns s(n), for n up to 20,000."
    )
    inputs: list[list[Any]] = [
        [one] for one in (2, 5, 0, 1, 3, 4, 6, 10, 17, 33, 100, 999, 5000, 20_000)
    ]
    near = (source(rule, 1), source(f"{b} * y + {a} * x", 2), source(rule, 3))
    return _Task(f"{ENTRY}(n: int) -> int", text, source(rule, 2), near, inputs)


def _machine(draw: random.Random, level: int) -> _Task:
    """A small machine with a list of instructions: the model writes its interpreter."""
    push, add, double, drop = draw.sample(
        ("PUT", "SUM", "DBL", "POP", "ADD", "TWO", "GET", "OFF"), 4
    )
    swap, skip = draw.sample(("SWP", "JMP", "XCH", "HOP"), 2)
    rules = [
        (f"`{push} n` puts the number n on top", "stack.append(int(number))", push),
        (f"`{add}` replaces the top two by their sum", "stack.append(stack.pop() + stack.pop())",
         add),
        (f"`{double}` doubles the top", "stack.append(2 * stack.pop())", double),
        (f"`{drop}` removes the top", "stack.pop()", drop),
        (f"`{swap}` swaps the top two", "stack[-2:] = stack[:-3:-1]", swap),
        (f"`{skip} n` skips the next n instructions where the top is 0 (the top stays)",
         "at += int(number) if stack[-1] == 0 else 0", skip),
    ][: 3 + level]  # fmt: skip
    needs = {push: 0, add: 2, double: 1, drop: 1, swap: 2, skip: 1}

    def source(left_out: int = -1) -> str:
        lines = [f"def {ENTRY}(program):", "    stack, at = [], 0",
                 "    while at < len(program):",
                 "        name, _, number = program[at].partition(' ')",
                 "        at += 1"]  # fmt: skip
        for place, (_, line, name) in enumerate(rules):
            if place != left_out:
                lines += [f"        if name == {name!r} and len(stack) >= {needs[name]}:",
                          f"            {line}"]  # fmt: skip
        return "\n".join([*lines, "    return stack", ""])

    known = [name for _, _, name in rules]

    def instruction() -> str:
        name = draw.choice([push, push, *known])
        return f"{name} {draw.randint(0, 3)}" if name in (push, skip) else name

    lengths = (5, 8, 0, 1, *(draw.randint(3, 16) for _ in range(_INPUTS - 4)))
    inputs: list[list[Any]] = [[[instruction() for _ in range(length)]] for length in lengths]
    text = (
        "It runs a program, a list of instructions, on a stack that is empty at first, and returns "
        "the stack as a list, the top last. An instruction that needs more numbers than there are "
        "does nothing. The instructions:\n" + "\n".join(f"- {words}" for words, _, _ in rules)
    )
    near = [source(place) for place in reversed(range(1, len(rules)))]
    return _Task(f"{ENTRY}(program: list[str]) -> list[int]", text, source(), near, inputs)


_TASKS: dict[str, Callable[[random.Random, int], _Task]] = {
    "numbers": _numbers,
    "words": _words,
    "recurrence": _recurrence,
    "machine": _machine,
}
