"""Problems of BFCL's categories, made from a few functions and a seed.

Enter: a number of problems and a seed. Leave: for each its category, what the user asks, the
functions on offer and the calls that are right. Invariant: problem n of a seed is the same however
many are made.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

CATEGORIES = ("simple", "multiple", "parallel", "parallel_multiple", "irrelevance")
Arguments = dict[str, list[Any]]


class Asked(NamedTuple):
    category: str
    text: str
    tools: list[dict[str, Any]]
    calls: list[dict[str, Any]]


class Function(NamedTuple):
    schema: dict[str, Any]
    ask: Callable[[random.Random], tuple[str, Arguments]]
    """A wish, without a full stop, and the values that each argument of its call may have."""


CITIES = ("Lisbon", "Oslo", "Nairobi", "Lima", "Hanoi", "Porto", "Quito", "Perth", "Graz", "Turin")
NAMES = ("Ada", "Bruno", "Chen", "Dalia", "Emil", "Fatima", "Goran", "Hana", "Ivo", "Jun")
THINGS = ("oat milk", "rye bread", "olives", "soap", "green tea", "rice", "candles", "plums")
MONEY = ("EUR", "USD", "JPY", "GBP", "CHF", "NOK")


def _weather(draw: random.Random) -> tuple[str, Arguments]:
    city, days = draw.choice(CITIES), draw.randint(1, 9)
    unit = draw.choice(("celsius", "fahrenheit", None))
    said = f"tell me the weather in {city} for the next {days} days"
    said += f", in degrees {unit}" if unit else ""
    return said, {"city": [city], "days": [days], "unit": [unit] if unit else ["", "celsius"]}


def _exchange(draw: random.Random) -> tuple[str, Arguments]:
    amount = draw.choice((draw.randint(5, 900), draw.randint(100, 9999) / 100))
    source, target = draw.sample(MONEY, 2)
    said = f"convert {amount} {source} to {target}"
    return said, {"amount": [amount], "source": [source], "target": [target]}


def _table(draw: random.Random) -> tuple[str, Arguments]:
    people, hour = draw.randint(2, 12), draw.randint(17, 22)
    half, outside = draw.choice(("00", "30")), draw.choice((True, None))
    said = f"book a table for {people} at {hour}:{half}" + (" outside" if outside else "")
    return said, {
        "people": [people],
        "time": [f"{hour}:{half}"],
        "outside": [True] if outside else ["", False],
    }


def _message(draw: random.Random) -> tuple[str, Arguments]:
    name, thing, urgent = draw.choice(NAMES), draw.choice(THINGS), draw.choice((True, None))
    said = f'send {name} the{" urgent" if urgent else ""} message "please bring {thing}"'
    return said, {
        "to": [name],
        "text": [f"please bring {thing}"],
        "urgent": [True] if urgent else ["", False],
    }


def _alarm(draw: random.Random) -> tuple[str, Arguments]:
    hour, minute = draw.randint(5, 22), draw.choice((5, 10, 15, 25, 40, 55))
    said = f"set an alarm for {hour}:{minute:02d}"
    return said, {"hour": [hour], "minute": [minute]}


def _list(draw: random.Random) -> tuple[str, Arguments]:
    things = draw.sample(THINGS, draw.randint(2, 4))
    said = f"put {', '.join(things[:-1])} and {things[-1]} on my shopping list"
    return said, {"items": [things], "list": ["shopping"]}


def _triangle(draw: random.Random) -> tuple[str, Arguments]:
    base, height = draw.randint(2, 90), draw.randint(2, 90)
    said = f"compute the area of a triangle with base {base} and height {height}"
    return said, {"base": [base], "height": [height]}


def _flight(draw: random.Random) -> tuple[str, Arguments]:
    source, target = draw.sample(CITIES, 2)
    day, cabin = draw.randint(1, 28), draw.choice(("economy", "business", None))
    date = f"2027-0{draw.randint(1, 9)}-{day:02d}"
    said = f"find flights from {source} to {target} on {date}" + (f" in {cabin}" if cabin else "")
    return said, {
        "origin": [source],
        "destination": [target],
        "date": [date],
        "cabin": [cabin] if cabin else ["", "economy"],
    }


def _schema(name: str, about: str, required: int, **properties: Any) -> dict[str, Any]:
    """`properties` are JSON schemas, or names of types; the first `required` must be given."""
    shaped = {
        key: {"type": one} if isinstance(one, str) else one for key, one in properties.items()
    }
    parameters = {
        "type": "object",
        "properties": shaped,
        "required": list(shaped)[:required],
    }
    function = {"name": name, "description": about, "parameters": parameters}
    return {"type": "function", "function": function}


def _one_of(*values: str, default: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values), "description": f"Default is {default}."}


FUNCTIONS = (
    Function(
        _schema("get_weather", "The weather forecast of a city.", 2, city="string", days="integer",
                unit=_one_of("celsius", "fahrenheit", default="celsius")), _weather),
    Function(
        _schema("convert_currency", "An amount of money in another currency.", 3, amount="number",
                source="string", target="string"), _exchange),
    Function(
        _schema("book_table", "Books a table for tonight.", 2, people="integer",
                time={"type": "string", "description": "HH:MM, 24 hours."}, outside="boolean"),
        _table),
    Function(
        _schema("send_message", "Sends a message to a person.", 2, to="string", text="string",
                urgent="boolean"), _message),
    Function(
        _schema("set_alarm", "Sets an alarm for the next such time.", 2, hour="integer",
                minute="integer"), _alarm),
    Function(
        _schema("add_to_list", "Adds items to a list of the user.", 2,
                items={"type": "array", "items": {"type": "string"}},
                list={"type": "string", "description": "Its name, such as shopping."}), _list),
    Function(
        _schema("triangle_area", "The area of a triangle.", 2, base="number", height="number"),
        _triangle),
    Function(
        _schema("search_flights", "Flights between two cities.", 3, origin="string",
                destination="string", date={"type": "string", "description": "YYYY-MM-DD."},
                cabin=_one_of("economy", "business", default="economy")), _flight),
)  # fmt: skip
OPENINGS = ("Please {}.", "Could you {}?", "I need you to {}.", "Hi! {}, thanks.", "{}.")


def asked(count: int, seed: int, categories: tuple[str, ...] = CATEGORIES) -> Iterator[Asked]:
    for number in range(count):
        draw = random.Random(f"tools {seed} {number}")
        yield _asked(categories[number % len(categories)], draw)


def _asked(category: str, draw: random.Random) -> Asked:
    several = category in ("parallel", "parallel_multiple")
    wishes = draw.randint(2, 4 if category == "parallel" else 3) if several else 1
    others = {"simple": 0, "parallel": 0}.get(category, 2)
    chosen = draw.sample(FUNCTIONS, (wishes if category == "parallel_multiple" else 1) + others)
    offered = list(chosen)
    draw.shuffle(offered)
    if category == "irrelevance":
        offered.remove(chosen[0])
    wanted = [chosen[at % (len(chosen) - others)] for at in range(wishes)]
    said, calls = [], []
    for function in wanted:
        text, arguments = function.ask(draw)
        if text not in said:
            said.append(text)
            calls.append({"name": function.schema["function"]["name"], "arguments": arguments})
    text = draw.choice(OPENINGS).format(", and also ".join(said))
    return Asked(
        category,
        text[0].upper() + text[1:],
        [function.schema for function in offered],
        [] if category == "irrelevance" else calls,
    )
