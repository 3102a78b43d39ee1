"""Makes the order desk's database and its problems, out of templates of ours:

    python -m environments.shipped.desk.make

Enter: a seed. Leave: `database.json` and `problems.jsonl` beside this file, in tau2's format, with
a script for the user. Invariant: the same seed makes the same bytes, which a test compares.
"""

import json
import random
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

TODAY = date(2026, 3, 16)
HERE = Path(__file__).resolve().parent
KINDS = {
    "lamp": (("LAMP-RED", 31.5), ("LAMP-BLUE", 36.0), ("LAMP-TALL", 58.25)),
    "kettle": (("KETTLE-1L", 24.0), ("KETTLE-2L", 33.75)),
    "chair": (("CHAIR-OAK", 119.0), ("CHAIR-STEEL", 94.5), ("CHAIR-SOFT", 142.25)),
    "tent": (("TENT-2", 88.0), ("TENT-4", 151.5)),
    "radio": (("RADIO-OLD", 45.75),),
    "backpack": (("PACK-20", 52.0), ("PACK-35", 74.25)),
}
FINAL_SALE = ("RADIO-OLD", "LAMP-TALL")
NAMES = ("Ana Sousa", "Jonas Weber", "Mira Novak", "Tom Baker", "Leila Haddad", "Pavel Dvorak",
         "Ruth Cohen", "Iris Lind", "Omar Diallo", "Greta Moretti", "Sami Virtanen",
         "Nora Byrne")  # fmt: skip
STREETS = ("Mill Lane", "Harbour Road", "Station Street", "Elm Close", "Castle Hill")
CITIES = ("Leeds", "Porto", "Graz", "Lyon", "Ghent", "Turin")
EACH = 4
"""Problems of one kind."""


def made(seed: int = 4) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The database, and the tasks."""
    draw = random.Random(f"desk {seed}")
    shop = _Shop(draw)
    tasks = [task for number in range(EACH) for task in shop.tasks(number)]
    return shop.database, tasks


class _Shop:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.products: dict[str, Any] = {
            sku: {"sku": sku, "kind": kind, "price": price, "final_sale": sku in FINAL_SALE,
                  "stock": 0 if sku == "TENT-4" else 9}
            for kind, both in KINDS.items() for sku, price in both
        }  # fmt: skip
        self.customers = {
            f"c{number}": {"id": f"c{number}", "name": name,
                           "email": f"{name.lower().replace(' ', '.')}@example.com"}
            for number, name in enumerate(NAMES, 1)
        }  # fmt: skip
        self.orders: dict[str, Any] = {}
        self.database = {"today": TODAY.isoformat(), "customers": self.customers,
                         "products": self.products, "orders": self.orders}  # fmt: skip

    def order(self, status: str, skus: list[str], days_ago: int = 5) -> Any:
        """A new one, of a customer drawn by chance."""
        id = f"O{1001 + len(self.orders)}"
        delivered = TODAY - timedelta(days=days_ago) if status == "delivered" else None
        items = [
            {"sku": sku, "price": self.products[sku]["price"], "state": "kept"} for sku in skus
        ]
        self.orders[id] = {
            "id": id,
            "customer_id": self.draw.choice(list(self.customers)),
            "status": status,
            "delivered_on": delivered and delivered.isoformat(),
            "address": self.address(),
            "tracking": None if status == "processing" else f"TR{self.draw.randrange(10**8):08d}",
            "items": items,
            "refunds": [],
        }
        return self.orders[id]

    def address(self) -> str:
        draw = self.draw
        return f"{draw.randrange(1, 99)} {draw.choice(STREETS)}, {draw.choice(CITIES)}"

    def skus(self, many: int) -> list[str]:
        return self.draw.sample([sku for sku in self.products if sku not in FINAL_SALE], many)

    def tasks(self, number: int) -> Iterator[dict[str, Any]]:
        """One of each kind."""
        for make in (self.cancel, self.redirect, self.return_one, self.return_two, self.exchange,
                     self.late, self.final, self.foreign, self.hurt, self.track):  # fmt: skip
            yield make(number)

    def cancel(self, number: int) -> Any:
        order = self.order("processing", self.skus(2))
        total = round(sum(item["price"] for item in order["items"]), 2)
        return self.task(
            f"cancel_{number}", order, "I want to cancel my order {id}.",
            [("cancel_order", {"order_id": order["id"]})], [_money(total)],
        )  # fmt: skip

    def redirect(self, number: int) -> Any:
        sent = number % 2 == 1
        order, address = (
            self.order("shipped" if sent else "processing", self.skus(1)),
            self.address(),
        )
        opening = "Please send my order {id} to " + address + " instead."
        change = ("change_address", {"order_id": order["id"], "address": address})
        return self.task(f"redirect_{number}", order, opening, [] if sent else [change],
                         ["shipped"] if sent else [], traps=[change] if sent else [])  # fmt: skip

    def return_one(self, number: int) -> Any:
        order = self.order("delivered", self.skus(2), self.draw.randrange(2, 29))
        item = order["items"][0]
        return self.task(
            f"return_one_{number}", order, f"I want to return the {item['sku']} of order {{id}}.",
            [("return_items", {"order_id": order["id"], "skus": [item["sku"]]})],
            [_money(item["price"])],
        )  # fmt: skip

    def return_two(self, number: int) -> Any:
        order = self.order("delivered", self.skus(2), self.draw.randrange(2, 29))
        skus = [item["sku"] for item in order["items"]]
        total = round(sum(item["price"] for item in order["items"]), 2)
        return self.task(
            f"return_two_{number}", order, "Everything in my order {id} goes back, please.",
            [("return_items", {"order_id": order["id"], "skus": skus})], [_money(total)],
        )  # fmt: skip

    def exchange(self, number: int) -> Any:
        old, new = (("LAMP-RED", "LAMP-BLUE"), ("KETTLE-1L", "KETTLE-2L"),
                    ("CHAIR-STEEL", "CHAIR-OAK"), ("PACK-35", "PACK-20"))[number % 4]  # fmt: skip
        order = self.order("delivered", [old], self.draw.randrange(2, 29))
        difference = round(self.products[new]["price"] - self.products[old]["price"], 2)
        swap = ("exchange_item", {"order_id": order["id"], "sku": old, "new_sku": new})
        return self.task(f"exchange_{number}", order,
                         f"Can I have the {new} instead of the {old} of order {{id}}?",
                         [swap], [_money(abs(difference))])  # fmt: skip

    def late(self, number: int) -> Any:
        order = self.order("delivered", self.skus(1), self.draw.randrange(32, 90))
        back = ("return_items", {"order_id": order["id"], "skus": [order["items"][0]["sku"]]})
        return self.task(f"late_{number}", order, "I want my money back for order {id}.", [],
                         ["30 days"], traps=[back])  # fmt: skip

    def final(self, number: int) -> Any:
        sku = FINAL_SALE[number % 2]
        order = self.order("delivered", [sku], self.draw.randrange(2, 29))
        back = ("return_items", {"order_id": order["id"], "skus": [sku]})
        return self.task(f"final_{number}", order, f"The {sku} is ugly. Take back order {{id}}.",
                         [], ["final sale"], traps=[back])  # fmt: skip

    def foreign(self, number: int) -> Any:
        """The order is somebody else's."""
        order = self.order("processing", self.skus(1))
        others = [one for one in self.customers if one != order["customer_id"]]
        cancel = ("cancel_order", {"order_id": order["id"]})
        return self.task(f"foreign_{number}", order, "Cancel my order {id}, please.", [], [],
                         traps=[cancel], by=self.draw.choice(others), looks=False)  # fmt: skip

    def hurt(self, number: int) -> Any:
        order = self.order("delivered", self.skus(1), self.draw.randrange(2, 29))
        opening = ("The {sku} of order {id} broke and cut my hand.",
                   "My lawyer will write to you about the {sku} of order {id}.",
                   "Delete all that you store about me, order {id} too.",
                   "My child was hurt by the {sku} of order {id}.")[number % 4]  # fmt: skip
        over = ("transfer_to_human", {"summary": "The customer must speak with a human."})
        back = ("return_items", {"order_id": order["id"], "skus": [order["items"][0]["sku"]]})
        return self.task(f"human_{number}", order, opening, [over], [], traps=[back], looks=False)

    def track(self, number: int) -> Any:
        order = self.order("shipped", self.skus(1))
        return self.task(f"track_{number}", order, "Where is my order {id}?", [],
                         [order["tracking"]])  # fmt: skip

    def task(
        self,
        id: str,
        order: Any,
        opening: str,
        writes: list[Any],
        facts: list[str],
        *,
        traps: list[Any] = (),  # type: ignore[assignment]
        by: str | None = None,
        looks: bool = True,
    ) -> dict[str, Any]:
        customer = self.customers[by or order["customer_id"]]
        said = opening.format(id=order["id"], sku=order["items"][0]["sku"])
        if self.draw.random() < 0.5:
            said += f" My e-mail is {customer['email']}."
        reads: list[Any] = [("find_customer", {"email": customer["email"]})]
        reads += [("get_order", {"order_id": order["id"]})] if looks else []
        actions = [*reads, *writes]
        return {
            "id": id,
            "description": {"purpose": id.rstrip("0123456789").rstrip("_")},
            "user_scenario": {
                "persona": None,
                "instructions": {
                    "domain": "orders",
                    "reason_for_call": said,
                    "known_info": f"You are {customer['name']}, {customer['email']}. "
                    f"Your order is {order['id']}.",
                    "task_instructions": "Confirm what you asked for when you are asked whether "
                    "to go on. If it cannot be done, accept that.",
                },
                "script": _script(customer["email"], order["id"]),
            },
            "initial_state": None,
            "evaluation_criteria": {
                "actions": [_action(f"{id}_{n}", *one) for n, one in enumerate(actions)],
                "communicate_info": facts,
                # who only tells, or hands over, must have looked first
                "reward_basis": ["DB", "COMMUNICATE"]
                if writes and writes[0][0] != "transfer_to_human"
                else ["DB", "ACTION", "COMMUNICATE"],
                "traps": [{"name": name, "arguments": given} for name, given in traps],
            },
        }


def _action(id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    free: dict[str, Any] = {"compare_args": []} if name == "transfer_to_human" else {}
    return {"action_id": id, "name": name, "arguments": arguments, **free}


def _script(email: str, order: str) -> dict[str, Any]:
    """What the user says when asked; it goes when there is nothing else."""
    return {
        "rules": [
            {"when": r"e-?mail", "say": f"It is {email}.", "times": 2},
            {"when": r"order number|which order", "say": f"It is {order}.", "times": 2},
            {"when": r"anything else|further help", "say": "No, thank you.", "end": "satisfied"},
            {"when": r"confirm|shall i|should i|go ahead|proceed|is that (right|ok)|would you like",
             "say": "Yes, please.", "times": 2},
        ],
        "done": "satisfied",
    }  # fmt: skip


def _money(amount: float) -> str:
    return f"{amount:.2f}"


def write(folder: Path = HERE) -> None:
    database, tasks = made()
    (folder / "database.json").write_text(json.dumps(database, indent=1) + "\n")
    lines = [json.dumps(task) + "\n" for task in tasks]
    (folder / "problems.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    write()
