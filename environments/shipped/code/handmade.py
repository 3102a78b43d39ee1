"""Problems written by hand: each with a solution, a near miss and cases with their results.

The first two cases of each are told to the model; the others are what it is graded by.
"""

from typing import Any, NamedTuple


class Handmade(NamedTuple):
    entry: str
    head: str
    text: str
    solution: str
    near: str
    """A solution that forgets something."""
    cases: tuple[tuple[list[Any], Any], ...]


HANDMADE = (
    Handmade(
        "merge",
        "merge(intervals: list[list[int]]) -> list[list[int]]",
        "Given intervals [start, end] in any order, merge those that overlap or touch, and return "
        "them by their start.",
        """
def merge(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged
""",
        """
def merge(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start < merged[-1][1]:
            merged[-1][1] = end
        else:
            merged.append([start, end])
    return merged
""",
        (
            ([[[1, 3], [2, 5], [8, 9]]], [[1, 5], [8, 9]]),
            ([[[1, 2], [2, 4]]], [[1, 4]]),
            ([[]], []),
            ([[[5, 9], [1, 20], [30, 31]]], [[1, 20], [30, 31]]),
            ([[[4, 4]]], [[4, 4]]),
            ([[[7, 8], [1, 2], [3, 6], [2, 3]]], [[1, 6], [7, 8]]),
        ),
    ),
    Handmade(
        "roman",
        "roman(numeral: str) -> int",
        "Return the value of a Roman numeral, such as 4 for IV. Return -1 for a text that is no "
        "numeral in its usual shortest form, such as IIII, or the empty text.",
        """
def roman(numeral):
    table = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
             (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    def written(value):
        text = ""
        for worth, letters in table:
            while value >= worth:
                text += letters
                value -= worth
        return text
    worth = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
    if not numeral or any(letter not in worth for letter in numeral):
        return -1
    values = [worth[letter] for letter in numeral]
    total = 0
    for here, after in zip(values, values[1:] + [0]):
        total += -here if here < after else here
    return total if written(total) == numeral else -1
""",
        """
def roman(numeral):
    worth = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
    values = [worth[letter] for letter in numeral]
    total = 0
    for here, after in zip(values, values[1:] + [0]):
        total += -here if here < after else here
    return total
""",
        (
            (["XIV"], 14),
            (["IIII"], -1),
            ([""], -1),
            (["MCMXCIV"], 1994),
            (["IC"], -1),
            (["ABC"], -1),
            (["CDXLIV"], 444),
            (["VX"], -1),
        ),
    ),
    Handmade(
        "unfold",
        "unfold(text: str) -> str",
        "A number before a letter, or before a part in brackets, says how often it stands there: "
        "3a is aaa, 2(b2c) is bccbcc. Return the text unfolded. Brackets may lie in brackets.",
        """
def unfold(text):
    stack, count = [("", 1)], ""
    for sign in text:
        if sign.isdigit():
            count += sign
        elif sign == "(":
            stack.append(("", int(count or 1)))
            count = ""
        elif sign == ")":
            part, times = stack.pop()
            before, outer = stack[-1]
            stack[-1] = (before + part * times, outer)
        else:
            before, outer = stack[-1]
            stack[-1] = (before + sign * int(count or 1), outer)
            count = ""
    return stack[0][0]
""",
        """
def unfold(text):
    result, count = "", 1
    for sign in text:
        if sign.isdigit():
            count = int(sign)
        elif sign not in "()":
            result += sign * count
            count = 1
    return result
""",
        (
            (["3a"], "aaa"),
            (["2(b2c)"], "bccbcc"),
            ([""], ""),
            (["12x"], "x" * 12),
            (["a2(b3(c)d)e"], "abcccdbcccde"),
            (["(z)"], "z"),
            (["0q"], ""),
        ),
    ),
    Handmade(
        "spiral",
        "spiral(grid: list[list[int]]) -> list[int]",
        "Return the numbers of a rectangular grid clockwise from the outside in, beginning at the "
        "top left.",
        """
def spiral(grid):
    rows, found = [list(row) for row in grid], []
    while rows:
        found += rows.pop(0)
        rows = [list(row) for row in zip(*rows)][::-1]
    return found
""",
        """
def spiral(grid):
    found = []
    for number, row in enumerate(grid):
        found += row if number % 2 == 0 else row[::-1]
    return found
""",
        (
            ([[[1, 2], [4, 3]]], [1, 2, 3, 4]),
            ([[[1, 2, 3], [8, 9, 4], [7, 6, 5]]], [1, 2, 3, 4, 5, 6, 7, 8, 9]),
            ([[]], []),
            ([[[1], [2], [3]]], [1, 2, 3]),
            ([[[1, 2, 3, 4], [10, 11, 12, 5], [9, 8, 7, 6]]], list(range(1, 13))),
        ),
    ),
    Handmade(
        "calculate",
        "calculate(expression: str) -> int",
        "Evaluate whole numbers with + - * and brackets, the usual precedence, spaces anywhere. A "
        "minus may stand before a number or a bracket. Do not use eval or exec.",
        """
def calculate(expression):
    signs = [sign for sign in expression if sign != " "] + ["end"]
    at = 0
    def factor():
        nonlocal at
        if signs[at] == "-":
            at += 1
            return -factor()
        if signs[at] == "(":
            at += 1
            value = total()
            at += 1
            return value
        digits = ""
        while signs[at].isdigit():
            digits += signs[at]
            at += 1
        return int(digits)
    def product():
        nonlocal at
        value = factor()
        while signs[at] == "*":
            at += 1
            value *= factor()
        return value
    def total():
        nonlocal at
        value = product()
        while signs[at] in "+-":
            at += 1
            value = value + product() if signs[at - 1] == "+" else value - product()
        return value
    return total()
""",
        """
def calculate(expression):
    value, sign, digits = 0, "+", ""
    for one in expression.replace(" ", "") + "+":
        if one.isdigit():
            digits += one
        else:
            number = int(digits or 0)
            value = {"+": value + number, "-": value - number, "*": value * number}[sign]
            sign, digits = one, ""
    return value
""",
        (
            (["2 + 3 * 4"], 14),
            (["(2 + 3) * -4"], -20),
            (["7"], 7),
            (["10 - 2 - 3"], 5),
            (["2*(3+(4-1)*2)-1"], 17),
            (["-(-5)"], 5),
            (["1 2 + 1"], 13),
        ),
    ),
    Handmade(
        "change",
        "change(coins: list[int], amount: int) -> int",
        "Return the least number of coins that make the amount, each coin as often as you like; "
        "-1 where none do.",
        """
def change(coins, amount):
    best = [0] + [amount + 1] * amount
    for here in range(1, amount + 1):
        for coin in coins:
            if coin <= here:
                best[here] = min(best[here], best[here - coin] + 1)
    return best[amount] if best[amount] <= amount else -1
""",
        """
def change(coins, amount):
    count = 0
    for coin in sorted(coins, reverse=True):
        count += amount // coin
        amount %= coin
    return -1 if amount else count
""",
        (
            ([[1, 2, 5], 11], 3),
            ([[2], 3], -1),
            ([[1, 3, 4], 6], 2),
            ([[7], 0], 0),
            ([[5, 9], 13], -1),
            ([[4, 9], 12], 3),
            ([[1, 15, 25], 30], 2),
        ),
    ),
)
