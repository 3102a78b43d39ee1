"""The order desk of a small shop: customers, orders, products; cancel, return, exchange, redirect.

The actions check what the shop's system checks; what the policy forbids beyond that (windows, final
sale, whose order it is) the model must know, and `_forbidden` judges.
"""

from datetime import date
from typing import Any

from environments.shipped.desk.domain import TEXT, Action, Call, Database, Domain, NotDone

WINDOW = 30
"""Days after delivery within which goods come back."""


def _order(db: Database, order_id: str) -> Any:
    if order_id not in db["orders"]:
        raise NotDone(f"There is no order {order_id}.")
    return db["orders"][order_id]


def _find(db: Database, email: str) -> Any:
    for customer in db["customers"].values():
        if customer["email"] == email.strip().lower():
            mine = (one for one in db["orders"].values() if one["customer_id"] == customer["id"])
            return {**customer, "orders": [one["id"] for one in mine]}
    raise NotDone(f"No customer has the e-mail address {email}.")


def _product(db: Database, sku: str) -> Any:
    if sku not in db["products"]:
        raise NotDone(f"There is no product {sku}.")
    return db["products"][sku]


def _cancel(db: Database, order_id: str) -> Any:
    order = _order(db, order_id)
    if order["status"] != "processing":
        raise NotDone(f"Order {order_id} is {order['status']} and cannot be cancelled.")
    order["status"] = "cancelled"
    order["refunds"].append(_total(order["items"]))
    return order


def _redirect(db: Database, order_id: str, address: str) -> Any:
    order = _order(db, order_id)
    if order["status"] not in ("processing", "shipped"):
        raise NotDone(f"Order {order_id} is {order['status']}: its address cannot be changed.")
    order["address"] = address
    return order


def _return(db: Database, order_id: str, skus: list[str]) -> Any:
    order = _order(db, order_id)
    items = [_held(order, sku) for sku in dict.fromkeys(skus)]
    for item in items:
        item["state"] = "returning"
    order["refunds"].append(_total(items))
    return order


def _exchange(db: Database, order_id: str, sku: str, new_sku: str) -> Any:
    order = _order(db, order_id)
    item, new = _held(order, sku), _product(db, new_sku)
    if new["stock"] < 1:
        raise NotDone(f"{new_sku} is out of stock.")
    new["stock"] -= 1
    item["state"] = "exchanging"
    item["exchanged_for"] = new_sku
    return {**order, "price_difference": round(new["price"] - item["price"], 2)}


def _held(order: Any, sku: str) -> Any:
    """An item that the customer has and that is on no other way."""
    if order["status"] != "delivered":
        raise NotDone(f"Order {order['id']} is {order['status']}, not delivered.")
    item = next((one for one in order["items"] if one["sku"] == sku), None)
    if item is None:
        raise NotDone(f"Order {order['id']} has no item {sku}.")
    if item["state"] != "kept":
        raise NotDone(f"Item {sku} of order {order['id']} is {item['state']} already.")
    return item


def _total(items: list[Any]) -> float:
    return float(round(sum(item["price"] for item in items), 2))


def late(db: Database, order: Any) -> bool:
    delivered = order["delivered_on"]
    passed = date.fromisoformat(db["today"]) - date.fromisoformat(delivered or db["today"])
    return passed.days > WINDOW


def _forbidden(db: Database, call: Call, before: list[Call]) -> str | None:
    order = db["orders"].get(call.arguments.get("order_id"))
    if order is None:
        return None
    asked = {one.arguments.get("email", "").strip().lower() for one in before if one.name == FIND}
    if db["customers"][order["customer_id"]]["email"] not in asked:
        return f"order {order['id']} is of a customer who was not identified"
    if call.name == "change_address":
        return "it is on its way" if order["status"] == "shipped" else None
    if call.name not in ("return_items", "exchange_item"):
        return None
    if late(db, order):
        return f"it was delivered more than {WINDOW} days ago"
    skus = call.arguments.get("skus") or [call.arguments.get("sku")]
    products = [db["products"][sku] for sku in skus if sku in db["products"]]
    if any(product["final_sale"] for product in products):
        return "it was a final sale"
    new = db["products"].get(call.arguments.get("new_sku"))
    if new is not None and any(product["kind"] != new["kind"] for product in products):
        return "it is exchanged for a product of another kind"
    return None


FIND = "find_customer"
ORDER = {"type": "string", "description": "As O1234."}
SKU = {"type": "string", "description": "As LAMP-RED."}
ORDERS = Domain(
    {
        FIND: Action("A customer, with the numbers of their orders.", {"email": TEXT}, _find),
        "get_order": Action("One order.", {"order_id": ORDER}, _order),
        "get_product": Action("One product: price, stock, kind, final sale.", {"sku": SKU},
                              _product),
        "cancel_order": Action("Cancels an order and refunds it.", {"order_id": ORDER}, _cancel,
                               writes=True),
        "change_address": Action("Changes where an order goes.",
                                 {"order_id": ORDER, "address": TEXT}, _redirect, writes=True),
        "return_items": Action("Takes items of an order back and refunds them.",
                               {"order_id": ORDER, "skus": {"type": "array", "items": SKU,
                                                            "minItems": 1}},
                               _return, writes=True),
        "exchange_item": Action("Exchanges one item of an order for a product in stock.",
                                {"order_id": ORDER, "sku": SKU, "new_sku": SKU}, _exchange,
                                writes=True),
        "transfer_to_human": Action("Hands the customer over to a human, with a summary.",
                                    {"summary": TEXT}, lambda db, summary: "Transferred."),
    },
    _forbidden,
)  # fmt: skip
