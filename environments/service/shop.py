"""A shop: orders are cancelled, sent back, exchanged, sent elsewhere."""

from environments.service.domain import (
    CONFIRMATION,
    FIND_CUSTOMER,
    IDENTITY,
    REFUSAL,
    Database,
    Domain,
    Tool,
    ToolError,
    row_of,
)
from environments.service.shop_cases import FAMILIES, REASONS

POLICY = f"""You work at the service desk of a shop. Today is {{today}}.
{IDENTITY}
{CONFIRMATION}
3. An order can be cancelled only while its status is "processing". The reason is "not needed" or "by \
mistake".
4. An item can be sent back only when its order was delivered, at most 30 days ago. The refund is its \
price; 10 % are kept back when the delivery is more than 14 days ago, except for customers of the tier \
"gold".
5. Items marked final_sale are neither sent back nor exchanged.
6. An item can be exchanged only when its order was delivered, at most 30 days ago, and only for \
another variant of the same product that is in stock.
7. The address of an order can be changed only while its status is "processing".
8. There are no discounts and no compensation, whatever the reason.
{REFUSAL}"""


def _list_orders(database: Database, customer: str) -> list[dict]:
    row_of(database, "customers", customer)
    return [
        {"order": key, "status": row["status"], "items": [item["product"] for item in row["items"].values()]}
        for key, row in database["orders"].items()
        if row["customer"] == customer
    ]


def _get_order(database: Database, order: str) -> dict:
    return {"order": order, **row_of(database, "orders", order)}


def _find_variants(database: Database, product: str) -> list[dict]:
    found = [{"item": key, **row} for key, row in database["stock"].items() if row["product"] == product]
    if not found:
        raise ToolError(f"there is no product {product}")
    return found


def _cancel(database: Database, order: str, reason: str) -> dict:
    row = row_of(database, "orders", order)
    if reason not in REASONS:
        raise ToolError(f"the reason is one of {', '.join(REASONS)}")
    row.update(status="cancelled", reason=reason)
    return {"order": order, "status": "cancelled"}


def _send_back(database: Database, order: str, item: str, refund: str) -> dict:
    found = row_of(database, "orders", order)["items"].get(item)
    if found is None:
        raise ToolError(f"order {order} has no item {item}")
    found.update(state="to be sent back", refund=refund)
    return {"order": order, "item": item, "refund": refund}


def _exchange(database: Database, order: str, item: str, new_item: str) -> dict:
    items = row_of(database, "orders", order)["items"]
    new = row_of(database, "stock", new_item)
    if item not in items:
        raise ToolError(f"order {order} has no item {item}")
    if new["in_stock"] < 1:
        raise ToolError(f"{new_item} is not in stock")
    new["in_stock"] -= 1
    items[item].update(state="to be exchanged", exchanged_for=new_item)
    return {"order": order, "item": item, "new_item": new_item}


def _change_address(database: Database, order: str, address: str) -> dict:
    row_of(database, "orders", order)["address"] = address
    return {"order": order, "address": address}


ORDER, ITEM = "id of the order, as W12345", "id of the item, as I123"
TOOLS = (
    FIND_CUSTOMER,
    Tool("list_orders", "All orders of a customer.", {"customer": "id of the customer"}, _list_orders),
    Tool("get_order", "All about one order.", {"order": ORDER}, _get_order),
    Tool(
        "find_variants",
        "Variants of a product and how many are in stock.",
        {"product": "its name"},
        _find_variants,
        private=False,
    ),
    Tool(
        "cancel_order",
        "Cancel an order; all that was paid is refunded.",
        {"order": ORDER, "reason": "why"},
        _cancel,
        changes=True,
    ),
    Tool(
        "send_back",
        "Let an item be sent back.",
        {"order": ORDER, "item": ITEM, "refund": "amount, as 12.50"},
        _send_back,
        changes=True,
    ),
    Tool(
        "exchange",
        "Exchange an item for another.",
        {"order": ORDER, "item": ITEM, "new_item": "id of the new item"},
        _exchange,
        changes=True,
    ),
    Tool(
        "change_address",
        "Send an order to another address.",
        {"order": ORDER, "address": "street and number"},
        _change_address,
        changes=True,
    ),
)


DOMAIN = Domain(
    "shop", POLICY, {tool.name: tool for tool in TOOLS}, tuple(tool.schema() for tool in TOOLS), FAMILIES
)
