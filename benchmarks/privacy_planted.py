"""Texts in which personal data and secrets were planted, and texts that only look so.

A seed enters; leave texts, each with what was planted in it. Values are drawn by the rules of
whoever issues them (check digits, lengths, alphabets), not by the patterns that look for them; what
they are planted in is what people and programs write. Nothing is anybody's.

In forms `{d4}` is four digits, `{h8}` eight of hexadecimal, `{a9}` nine letters or digits, `{n}` a
small number, `{w}` a word, `{first}` and `{last}` names; `{}` is where something is planted.
"""

import base64
import json
import random
import re
import string
from collections.abc import Callable
from typing import NamedTuple


class Planted(NamedTuple):
    text: str
    kind: str
    """ "" = nothing was planted."""
    value: str


FIRST = ("Anna", "Tom", "Priya", "Wei", "Lucía", "Jürgen", "Fatima", "Noah", "Chloé", "Siobhán")
LAST = ("Schmidt", "Okafor", "García", "Nguyen", "Kowalski", "O'Neill", "Fernández", "Tanaka")
WORDS = ("order", "refund", "parcel", "invoice", "account", "ticket", "device", "server", "report")
_SETS = {"d": string.digits, "h": "0123456789abcdef", "a": string.ascii_letters + string.digits,
         "u": "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"}  # fmt: skip
_PLACE = re.compile(r"\{(?:([dhau])(\d+)|(n|w|first|last))\}")

VALUES: dict[str, tuple[str, ...]] = {
    "email": ("{w}.{h4}@example.com", "{w}{n}@mail.example.org", "{w}+{w}@firma-beispiel.de",
              "{w}_{h3}@example.co.uk"),
    "phone": ("(212) 5{d2}-{d4}", "415-7{d2}-{d4}", "+1 646 3{d2} {d4}", "+49 30 9{d5}",
              "+44 20 7{d3} {d4}", "+33 6 1{d1} {d2} {d2} {d2}", "0034 91 5{d2} {d2} {d2}"),
    "ip": ("8{d1}.{n}.1{n}.2{d1}", "9.1{n}.{n}.{n}", "2001:db8:{h4}::8a2e:370:7{d3}",
           "2a02:3456:789a:1{h3}:2{h3}:3{h3}:4{h3}:5{h3}"),
    "address": ("{n} Maple Street, Springfield, IL {d5}", "{n}2 Oak Hill Road",
                "1{n} W Pine St Apt {n}",
                "Hauptstraße {n}, {d5} Hamburg", "Gartenweg {n}",
                "{n} rue de la Paix, 75{d3} Paris",
                "Calle de Alcalá, {n}, 28{d3} Madrid"),
    "birth_date": ("19{d2}-0{d1}-1{d1}", "1{d1}.11.19{d2}", "7/1{d1}/19{d2}", "March 1{d1}, 19{d2}",
                   "1{d1} October 19{d2}"),
    "name": ("{first} {last}",),
    "credential": ("admin:{a9}", "app_rw:{a14}", "deploy:{a6}"),
    "api_key": ("sk-proj-{a48}", "sk-ant-api03-{a80}", "AKIA{u16}", "ghp_{a36}", "github_pat_{a60}",
                "glpat-{a20}", "xoxb-{d12}-{a24}", "AIza{a35}", "sk_live_{a24}", "SG.{a22}.{a43}",
                "hf_{a34}", "npm_{a36}", "dapi{h32}", "gsk_{a52}", "lsv2_pt_{h32}_{h10}",
                "{d10}:AA{a33}"),
    "token": ("{a24}", "{a32}", "{a44}", "{h32}"),
    "private_key": ("-----BEGIN RSA PRIVATE KEY-----\n{a64}\n{a64}\n-----END RSA PRIVATE KEY-----",
                    "-----BEGIN PRIVATE KEY-----\n{a64}\n-----END PRIVATE KEY-----"),
    "password": ("Tr0ub4dor&{d3}", "hunter2!{d2}", "corr3ct-Horse{d3}", "S3cure#{d3}"),
}  # fmt: skip
FORMS: dict[str, tuple[str, ...]] = {
    "email": ("Please write to {}.", "From: <{}>", '{"to": "{}", "cc": null}', "{},still waiting",
              "mailto:{}?subject=x"),
    "phone": ("Call me at {} after six.", "Tel: {}", '{"phone": "{}"}', "My mobile is {}, thanks",
              "reach us: {}."),
    "card": ("My card {} was charged twice.", '{"card_number": "{}"}', "Visa: {}, exp 04/29",
             "paid with {}."),
    "iban": ("Refund to {} please.", "IBAN: {}", '{"iban": "{}"}', "Konto {} bei der Bank"),
    "national_id": ("My number is {}.", '{"id": "{}"}', "ID {} on file", "numéro {} et nom"),
    "ip": ("Requests came from {} all night.", "client={} status=200", '{"remote": "{}"}',
           "ping {} fails"),
    "address": ("Ship it to {} please", "I moved to {}.", '{"address": "{}"}', "Adresse: {}"),
    "birth_date": ("I was born on {}.", "DOB: {}", '{"date_of_birth": "{}"}',
                   "date of birth is {}"),
    "name": ("Hello, my name is {} and I wait.", "Kind regards,\n{}", '{"customer_name": "{}"}',
             "Customer name: {}", "I'm {}, from the office", "Dear {},", "Mrs. {} called"),
    "credential": ("postgres://{}@db.internal:5432/shop", 'url = "redis://{}@cache:6379"',
                   "git clone https://{}@git.example.com/x.git"),
    "api_key": ("export KEY={}", '{"key": "{}"}', "it says {} is invalid", "Client('{}')",
                "curl -H 'Authorization: Bearer {}' https://x"),
    "token": ("API_KEY={}", '{"access_token": "{}"}', "client_secret: {}",
              "Authorization: Bearer {}",
              'apiKey="{}",'),
    "jwt": ("Cookie: session={}", "token {} expired", '{"jwt": "{}"}'),
    "private_key": ("Here is my key:\n{}\nwhat is wrong?", "{}"),
    "password": ("password: {}", "my password is {}", '{"password": "{}"}', "PASSWORD={}",
                 "login with pwd = '{}'"),
}  # fmt: skip
CLEAN = (
    "Order {d12} has not come, tracking 1Z{d16}.",
    "Version {n}.{n}.{n}.{n} of the driver fails.",
    "It happened at 2026-11-{d2}T12:30:{d2}.{d6}Z.",
    "commit {h40} broke the build",
    "trace {h8}-{h4}-4{h3}-a{h3}-{h12}",
    "total {n},{d3}.{d2} for {n} items of {w}",
    "The password is wrong and my {w} is gone, please reset the token.",
    '{"max_tokens": {d5}, "temperature": 0.{d2}, "key": "{w}"}',
    "for key in keys: token = tokens[{n}]; secret = os.environ['APP_SECRET']",
    "ISBN 978-{d1}-{d4}-{d4}-{d1}, page {n}",
    "I am Happy To Help with the {w}. This is Important.",
    "std::vector<int> a({n}); ns::f(1, 2, 3, {d5});",
    "The file name is {w}_{d3}.csv and its size {d8} bytes.",
    "@{w} decorator, a@b matrix product, x @ y",
    "We meet on Monday {n} March 2027, room {d3}-{d2}.",
    "The population was {d3} {d3} {d3} in 19{d2}.",
    "api_key = <your key here>, password: ********, secret=${SECRET} {w}",
    "{n} Days Way Too Late; {n} Best Practices for {w}s",
    "id={d19} ns=1764{d15} user_id={d9}",
    '[{"name": "Coffee Maker", "product_id": "{d10}", "price": {d2}.{d2}}, {"name": "Big {w}"}]',
    "tool_call {d10} took 00.{d6}-04 s on 172.18.0.{n}, text {d8}",
    "The name of the {w} is Blue, its namespace: Default Settings Only",
)


def planted(each: int, seed: int = 0) -> list[Planted]:
    """`each` texts of every kind, with words before and after them."""
    dice = random.Random(seed)
    found = []
    for kind, forms in FORMS.items():
        for at in range(each):
            value, form = _value(dice, kind), forms[at % len(forms)]
            text = form.replace("{}", value)
            if form[0] not in "{" and "\n" not in form:
                text = f"{text} {_expanded(dice, 'and look at the {w} again')}"
            if form[0] != "{":
                text = f"{_expanded(dice, 'please see the {w}:')} {text}"
            found.append(Planted(text, "api_key" if kind == "token" else kind, value))
    return found


def clean(each: int, seed: int = 1) -> list[Planted]:
    """`each` texts of every form that holds nothing."""
    dice = random.Random(seed)
    return [Planted(_expanded(dice, form), "", "") for form in CLEAN for _ in range(each)]


def _value(dice: random.Random, kind: str) -> str:
    drawn = DRAWN.get(kind)
    return drawn(dice) if drawn else _expanded(dice, dice.choice(VALUES[kind]))


def _expanded(dice: random.Random, form: str) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1]:
            return "".join(dice.choices(_SETS[match[1]], k=int(match[2])))
        if match[3] == "n":
            return str(dice.randint(1, 29))
        return dice.choice({"w": WORDS, "first": FIRST, "last": LAST}[match[3]])

    return _PLACE.sub(one, form)


def _card(dice: random.Random) -> str:
    """With the last digit of Luhn's check (ISO/IEC 7812)."""
    head = _expanded(dice, dice.choice(("4{d14}", "51{d13}", "55{d13}", "37{d12}", "6011{d11}")))
    doubled = [int(digit) * (2 - at % 2) for at, digit in enumerate(reversed(head))]
    number = head + str(-sum(sum(divmod(one, 10)) for one in doubled) % 10)
    parts = [number[at : at + 4] for at in range(0, len(number), 4)]
    return dice.choice((number, " ".join(parts), "-".join(parts)))


def _iban(dice: random.Random) -> str:
    """With the two digits of its check (ISO 7064, modulo 97)."""
    country, form = dice.choice((("DE", "{d18}"), ("NL", "INGB{d10}"), ("GB", "NWBK{d14}")))
    account = _expanded(dice, form)
    value = int("".join(str(int(sign, 36)) for sign in account + country + "00"))
    whole = f"{country}{98 - value % 97:02}{account}"
    parts = [whole[at : at + 4] for at in range(0, len(whole), 4)]
    return dice.choice((whole, " ".join(parts)))


def _national(dice: random.Random) -> str:
    """Of the United States, France, Spain or Brazil, each with its own check."""
    french = int(_expanded(dice, "16{d1}0775{d3}123"))
    spanish = int(_expanded(dice, "4{d7}"))
    brazilian = [dice.randint(0, 9) for _ in range(9)]
    for size in (10, 11):
        weighed = sum(one * (size - at) for at, one in enumerate(brazilian))
        brazilian.append(weighed * 10 % 11 % 10)
    flat = "".join(map(str, brazilian))
    return dice.choice(
        (
            _expanded(dice, "5{d2}-4{d1}-7{d3}"),
            f"{french}{97 - french % 97:02}",
            f"{spanish}{'TRWAGMYFPDXBNJZSQVHLCKE'[spanish % 23]}",
            f"{flat[:3]}.{flat[3:6]}.{flat[6:9]}-{flat[9:]}",
        )
    )


def _jwt(dice: random.Random) -> str:
    def packed(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    claims = {"sub": _expanded(dice, "{d8}"), "exp": 1_790_000_000}
    return f"{packed({'alg': 'HS256', 'typ': 'JWT'})}.{packed(claims)}.{_expanded(dice, '{a43}')}"


DRAWN: dict[str, Callable[[random.Random], str]] = {
    "card": _card, "iban": _iban, "national_id": _national, "jwt": _jwt,
}  # fmt: skip
"""What has a check digit, or holds something."""
