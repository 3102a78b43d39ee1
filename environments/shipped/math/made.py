"""Word problems of several steps, and sums, made from a seed.

Leave for each: its kind, the question, the steps of a solution, the answer. Invariant: all numbers
on the way are whole, and problem n of a seed is the same however many are made.
"""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

NAMES = ("Ada", "Bruno", "Chen", "Dalia", "Emil", "Fatima", "Goran", "Hana", "Ivo", "Jun", "Kofi")
GOODS = ("apples", "notebooks", "tickets", "bricks", "postcards", "candles", "screws", "tulips")


class Made(NamedTuple):
    kind: str
    question: str
    steps: list[str]
    answer: int


def _packs(draw: random.Random) -> Made:
    name, thing = draw.choice(NAMES), draw.choice(GOODS)
    packs, size, given = draw.randint(3, 12), draw.randint(4, 15), draw.randint(2, 11)
    left = packs * size - given
    return Made(
        "words",
        f"{name} buys {packs} packs of {size} {thing} each and gives {given} {thing} to a friend. "
        f"How many {thing} does {name} have left?",
        [f"{packs} * {size} = {packs * size}", f"{packs * size} - {given} = {left}"],
        left,
    )


def _shop(draw: random.Random) -> Made:
    name, (one, other) = draw.choice(NAMES), draw.sample(GOODS, 2)
    m, n, a, b = draw.randint(2, 9), draw.randint(2, 9), draw.randint(2, 20), draw.randint(2, 20)
    paid = m * a + n * b
    note = -(-paid // 50) * 50
    return Made(
        "words",
        f"In a shop {one} cost ${a} each and {other} cost ${b} each. {name} takes {m} {one} and "
        f"{n} {other}, and pays with ${note}. How many dollars does {name} get back?",
        [
            f"{m} * {a} = {m * a}",
            f"{n} * {b} = {n * b}",
            f"{note} - {m * a} - {n * b} = {note - paid}",
        ],
        note - paid,
    )


def _speed(draw: random.Random) -> Made:
    name, speed = draw.choice(NAMES), draw.randint(4, 30) * 2
    first, second, slower = draw.randint(2, 6), draw.randint(1, 5), draw.randint(1, 3) * 2
    far = speed * first + (speed - slower) * second
    return Made(
        "words",
        f"{name} rides {first} hours at {speed} km/h, then {second} hours {slower} km/h slower. "
        "How many kilometres is that in all?",
        [
            f"{first} * {speed} = {first * speed}",
            f"{second} * ({speed} - {slower}) = {second * (speed - slower)}",
            f"{first * speed} + {second * (speed - slower)} = {far}",
        ],
        far,
    )


def _percent(draw: random.Random) -> Made:
    price, off = draw.randint(2, 40) * 20, draw.choice((5, 10, 15, 20, 25, 30))
    count = draw.randint(2, 8)
    lower = price * (100 - off) // 100
    return Made(
        "words",
        f"A chair costs ${price}. In the sale it is {off}% cheaper. What do {count} chairs cost in "
        "the sale, in dollars?",
        [f"{price} * {100 - off} / 100 = {lower}", f"{count} * {lower} = {count * lower}"],
        count * lower,
    )


def _ages(draw: random.Random) -> Made:
    one, other = draw.sample(NAMES, 2)
    young, times, years = draw.randint(3, 15), draw.randint(2, 5), draw.randint(2, 12)
    total = young + years + young * times + years
    return Made(
        "words",
        f"{one} is {times} times as old as {other}, who is {young}. How old will the two be "
        f"together in {years} years?",
        [
            f"{times} * {young} = {times * young}",
            f"{young} + {times * young} + 2 * {years} = {total}",
        ],
        total,
    )


def _share(draw: random.Random) -> Made:
    thing, boxes, friends = draw.choice(GOODS), draw.randint(2, 9), draw.randint(2, 6)
    each = draw.randint(3, 20)
    spare = draw.randint(1, friends * each - 1)
    per_box = (each * friends + spare - 1) // boxes + 1
    left = per_box * boxes - each * friends
    return Made(
        "words",
        f"There are {boxes} boxes with {per_box} {thing} each. {friends} friends take {each} "
        f"{thing} each. How many {thing} remain in the boxes?",
        [
            f"{boxes} * {per_box} = {boxes * per_box}",
            f"{friends} * {each} = {friends * each}",
            f"{boxes * per_box} - {friends * each} = {left}",
        ],
        left,
    )


def _sum(draw: random.Random) -> Made:
    first = draw.randint(2, 99)
    text, value = str(first), first
    for _ in range(draw.randint(2, 4)):
        sign, number = draw.choice("+-"), draw.randint(2, 99)
        text, value = f"{text} {sign} {number}", value + number if sign == "+" else value - number
    times = draw.randint(2, 12)
    return Made(
        "arithmetic",
        f"What is {times} * ({text})?",
        [f"{text} = {value}", f"{times} * {value} = {times * value}"],
        times * value,
    )


KINDS: tuple[Callable[[random.Random], Made], ...] = (
    _packs,
    _sum,
    _shop,
    _speed,
    _percent,
    _sum,
    _ages,
    _share,
)


def made(count: int, seed: int) -> Iterator[Made]:
    for number in range(count):
        yield KINDS[number % len(KINDS)](random.Random(f"math {seed} {number}"))
