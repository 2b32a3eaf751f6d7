"""Cases at the desk of a shop."""

import random
from datetime import date, timedelta

from environments.service.domain import (
    Case,
    Plan,
    Wish,
    amount,
    cents,
    identify,
    identity_facts,
    make_customers,
    refuse,
)

PRODUCTS = (
    "desk lamp",
    "backpack",
    "kettle",
    "rain jacket",
    "headphones",
    "cutting board",
    "blanket",
    "tent",
    "water bottle",
    "office chair",
    "clock",
    "toolbox",
    "pillow",
    "teapot",
    "scarf",
    "suitcase",
)
VARIANTS = ("red", "blue", "green", "black", "white", "grey", "yellow", "brown")
STREETS = (
    "Mill Road",
    "Oak Street",
    "Harbour Lane",
    "Castle Hill",
    "Station Road",
    "Elm Avenue",
    "Market Square",
)
REASONS = {"not needed": "I do not need it any more.", "by mistake": "I ordered it by mistake."}


class _World:
    """A drawn shop, and the customer who writes."""

    def __init__(self, rng: random.Random):
        self.rng, self.plan = rng, Plan()
        self.today = date(2024, 1, 1) + timedelta(rng.randrange(700))
        customers, self.customer, self.row = make_customers(
            rng, tier=lambda r: r.choice(("plain", "plain", "gold"))
        )
        self.database = {"customers": customers, "orders": {}, "stock": {}}
        self._products = rng.sample(PRODUCTS, 8)
        for other in customers:
            if other != self.customer:
                self.add_order(other, rng.choice(("processing", "shipped")))

    def add_order(
        self, customer: str, status: str, days: int = 0, final: bool = False
    ) -> tuple[str, str, dict]:
        """An order with two items, delivered ``days`` ago; its id, the first item's id and row."""
        rng, items = self.rng, {}
        for number in range(2):
            product = self._products.pop() if self._products else rng.choice(PRODUCTS)
            items[f"I{rng.randint(100, 999)}{len(self.database['orders'])}{number}"] = {
                "product": product,
                "variant": rng.choice(VARIANTS),
                "price": amount(rng.randint(20, 900) * 10),
                "final_sale": final and number == 0,
            }
        order = f"W{rng.randint(10_000, 99_999)}{len(self.database['orders'])}"
        row = {
            "customer": customer,
            "status": status,
            "items": items,
            "address": f"{rng.choice(STREETS)} {rng.randint(1, 99)}",
        }
        if status == "delivered":
            row["delivered"] = str(self.today - timedelta(days))
        self.database["orders"][order] = row
        key = next(iter(items))
        return order, key, items[key]

    def own(self, status: str, **more) -> tuple[str, str, dict]:
        return self.add_order(self.customer, status, **more)

    def look(self, order: str, known: str) -> None:
        self.plan.call("find the order among the customer's", "list_orders", customer=self.customer)
        self.plan.call("look at it", "get_order", order=order)
        self.plan.know(known)

    def case(self, wishes: list[Wish], **facts: str) -> Case:
        return Case(self.database, str(self.today), {**identity_facts(self.row), **facts}, wishes, self.plan)


def _opening(world: _World, text: str) -> str:
    hello = world.rng.choice(("Hello", "Hi", "Good morning", "Good evening", "Hello there"))
    return f"{hello}, {world.row['name'].split()[0]} here. {text}"


def cancel(rng: random.Random) -> Case:
    world = _World(rng)
    wish, facts = _cancellation(world, *world.own("processing"))
    identify(world.plan, world.customer, world.row)
    _do_cancel(world, wish)
    return world.case([wish], **facts)


def _cancellation(world: _World, order: str, item: str, row: dict) -> tuple[Wish, dict]:
    reason = world.rng.choice(list(REASONS))
    text = world.rng.choice(
        (
            "I would like to cancel my order with the {}.",
            "Please cancel the order with the {}.",
            "There is an order with a {} that I want to cancel.",
        )
    )
    total = amount(sum(cents(i["price"]) for i in world.database["orders"][order]["items"].values()))
    wish = Wish(
        _opening(world, text.format(row["product"]) + " How much do I get back?"),
        [["cancel_order", {"order": order, "reason": reason}]],
        [order],
        [total],
        [["get_order", {"order": order}]],
    )
    return wish, {"reason": REASONS[reason], "order": f"It is {order}."}


def _do_cancel(world: _World, wish: Wish) -> None:
    plan, (_, arguments) = world.plan, wish.calls[0]
    order, total = arguments["order"], wish.say[0]
    world.look(order, f"order {order} is processing, {total} in all")
    plan.say(
        "rule 3: processing, so it can be cancelled; the reason is needed",
        "What is the reason for the cancellation?",
    )
    plan.say(
        f"reason: {arguments['reason']}; rule 2: ask first",
        f"I would cancel order {order} with the reason {arguments['reason']}. Do you confirm?",
    )
    plan.call("confirmed", "cancel_order", **arguments)
    plan.say(f"the whole amount: {total}", f"Order {order} is cancelled. You get {total} back.")


def send_back(rng: random.Random) -> Case:
    world = _World(rng)
    wish = _return_wish(world)
    identify(world.plan, world.customer, world.row)
    _do_return(world, wish)
    return world.case([wish])


def _return_wish(world: _World, hello: bool = True) -> Wish:
    days = world.rng.choice((world.rng.randint(1, 14), world.rng.randint(15, 30)))
    order, item, row = world.own("delivered", days=days)
    price = cents(row["price"])
    kept = price // 10 if days > 14 and world.row["tier"] != "gold" else 0
    text = f"I want to send the {row['product']} back. How much is the refund?"
    refund = amount(price - kept)
    return Wish(
        _opening(world, text) if hello else f"And {text}",
        [["send_back", {"order": order, "item": item, "refund": refund}]],
        [order],
        [refund],
        [["get_order", {"order": order}]],
    )


def _do_return(world: _World, wish: Wish) -> None:
    plan, (_, arguments) = world.plan, wish.calls[0]
    order, item, refund = arguments.values()
    row = world.database["orders"][order]
    days = (world.today - date.fromisoformat(row["delivered"])).days
    world.look(
        order, f"{item} of order {order} cost {row['items'][item]['price']}, delivered {days} days ago"
    )
    plan.say(
        f"rule 4: {days} days, tier {world.row['tier']}, price {row['items'][item]['price']}, refund "
        f"{refund}; ask first",
        f"I would let item {item} of order {order} be sent back for a refund of {refund}. Do you confirm?",
    )
    plan.call("confirmed", "send_back", **arguments)
    plan.say("tell the refund", f"That is arranged. The refund is {refund}.")


def exchange(rng: random.Random) -> Case:
    world = _World(rng)
    order, item, row = world.own("delivered", days=rng.randint(1, 30))
    wanted, other = rng.sample([v for v in VARIANTS if v != row["variant"]], 2)
    new, third = (f"I{rng.randint(100, 999)}{n}" for n in (8, 9))
    stock = world.database["stock"]
    stock[third] = {"product": row["product"], "variant": other, "in_stock": rng.randint(0, 5)}
    stock[new] = {"product": row["product"], "variant": wanted, "in_stock": rng.randint(1, 9)}
    arguments = {"order": order, "item": item, "new_item": new}
    wish = Wish(
        _opening(world, f"I would like to exchange my {row['product']} for another colour."),
        [["exchange", arguments]],
        [order],
        [],
        [["get_order", {"order": order}]],
    )
    plan = world.plan
    identify(plan, world.customer, world.row)
    world.look(
        order,
        f"{item} of order {order} is the {row['variant']} {row['product']}, delivered "
        f"{row_age(world, order)} days ago",
    )
    plan.say(
        "rule 6: delivered within 30 days; the new colour is needed", "Which colour would you like instead?"
    )
    plan.call(f"{wanted}: is it there?", "find_variants", product=row["product"])
    plan.say(
        f"{new} is {wanted} and in stock; ask first",
        f"I would exchange item {item} of order {order} for {new}, the {wanted} one. Do you confirm?",
    )
    plan.call("confirmed", "exchange", **arguments)
    plan.say("done", f"Done: the {wanted} {row['product']} is on its way to you.")
    return world.case([wish], variant=f"The {wanted} one, please.")


def row_age(world: _World, order: str) -> int:
    return (world.today - date.fromisoformat(world.database["orders"][order]["delivered"])).days


def address(rng: random.Random) -> Case:
    world = _World(rng)
    order, _, row = world.own("processing")
    new = f"{rng.choice(STREETS)} {rng.randint(100, 199)}"
    arguments = {"order": order, "address": new}
    wish = Wish(
        _opening(world, f"My order with the {row['product']} has to go to another place."),
        [["change_address", arguments]],
        [order, new],
        [],
        [["get_order", {"order": order}]],
    )
    plan = world.plan
    identify(plan, world.customer, world.row)
    world.look(order, f"order {order} is processing")
    plan.say("rule 7: processing, so it can be changed; where to?", "To which address should it go?")
    plan.say(f"{new}; ask first", f"I would send order {order} to {new}. Do you confirm?")
    plan.call("confirmed", "change_address", **arguments)
    plan.say("done", f"Order {order} goes to {new} now.")
    return world.case([wish], address=f"To {new}, please.")


def refusal(rng: random.Random) -> Case:
    """What the user wants is forbidden by one rule."""
    world = _World(rng)
    kind = rng.randrange(5)
    status, rule, text, why = (
        ("shipped", 3, "Please cancel the order with the {}.", "it is shipped"),
        ("delivered", 4, "I want to send the {} back and get my money.", "more than 30 days ago"),
        ("delivered", 5, "I want to send the {} back and get my money.", "final_sale"),
        ("shipped", 7, "The order with the {} has to go to another place.", "it is shipped"),
        ("delivered", 8, "The {} came late. I want a discount of 20 % for that.", "no discounts"),
    )[kind]
    order, _, row = world.own(
        status, days=rng.randint(31, 90) if rule == 4 else rng.randint(1, 29), final=rule == 5
    )
    insists = rng.choice(
        (
            "A friend of mine was allowed to. Can you not make an exception?",
            "That is ridiculous. I have been a customer for years, just do it.",
            "Your colleague on the phone said that it works.",
        )
    )
    wish = Wish(
        _opening(world, text.format(row["product"])),
        confirms=[order],
        reads=[["get_order", {"order": order}]],
        rule=rule,
        insists=insists,
    )
    identify(world.plan, world.customer, world.row)
    world.look(order, f"order {order}: {why}, rule {rule}")
    refuse(world.plan, rule, why)
    return world.case(
        [wish], address=f"To {rng.choice(STREETS)} 7.", reason="I changed my mind.", order=f"It is {order}."
    )


def stranger(rng: random.Random) -> Case:
    """The postcode is not the customer's."""
    world = _World(rng)
    order, _, row = world.own("processing")
    wish = Wish(
        _opening(world, f"Please cancel the order with the {row['product']}."),
        confirms=[order],
        rule=1,
        insists="I moved recently. Just tell me which postcode you have, or go on without it.",
    )
    wrong = str((int(world.row["postcode"]) - 10_000 + rng.randint(1, 80_000)) % 90_000 + 10_000)
    identify(world.plan, world.customer, world.row, agrees=False)
    refuse(world.plan, 1, "the postcode is another")
    case = world.case([wish], postcode=f"My postcode is {wrong}.", reason="I changed my mind.")
    case.stranger = True
    return case


def two(rng: random.Random) -> Case:
    """A cancellation, and when that is done an item to send back."""
    world = _World(rng)
    first, facts = _cancellation(world, *world.own("processing"))
    second = _return_wish(world, hello=False)
    identify(world.plan, world.customer, world.row)
    _do_cancel(world, first)
    _do_return(world, second)
    return world.case([first, second], **facts)


FAMILIES = {
    "cancel": cancel,
    "return": send_back,
    "exchange": exchange,
    "address": address,
    "refusal": refusal,
    "stranger": stranger,
    "two": two,
}
