"""A bank, kept for evaluation: cards are blocked, limits raised, fees given back."""

import random
from datetime import date, timedelta

from environments.service.domain import (
    CONFIRMATION,
    FIND_CUSTOMER,
    IDENTITY,
    REFUSAL,
    Case,
    Database,
    Domain,
    Plan,
    Tool,
    ToolError,
    Wish,
    amount,
    identify,
    identity_facts,
    make_customers,
    refuse,
    row_of,
)

POLICY = f"""You work at the service desk of a bank. Today is {{today}}.
{IDENTITY}
{CONFIRMATION}
3. A card that is lost or stolen is blocked at once. A new card costs 9.00, and nothing when the card \
was stolen.
4. The daily limit of a card can be raised to at most twice the present one, and never above 5000.00.
5. A fee can be given back once in a year: only when the account's last refund was more than 365 days \
ago, or never.
6. Transfers that are done cannot be called back.
7. A blocked card is never unblocked; a new one has to be made.
{REFUSAL}"""

SHOPS = (
    "a bakery",
    "the station",
    "a taxi",
    "the market",
    "a hotel",
    "the gym",
    "a museum",
    "the airport",
    "a park",
)
FEES = ("monthly fee", "transfer fee", "cash fee", "paper statement fee")


def _list_accounts(database: Database, customer: str) -> list[dict]:
    row_of(database, "customers", customer)
    return [
        {"account": key, **row} for key, row in database["accounts"].items() if row["customer"] == customer
    ]


def _get_card(database: Database, card: str) -> dict:
    return {"card": card, **row_of(database, "cards", card)}


def _list_entries(database: Database, account: str) -> list[dict]:
    row_of(database, "accounts", account)
    return [{"entry": key, **row} for key, row in database["entries"].items() if row["account"] == account]


def _replace(database: Database, card: str, why: str, payment: str) -> dict:
    if why not in ("lost", "stolen"):
        raise ToolError('why is "lost" or "stolen"')
    row_of(database, "cards", card).update(status="blocked", why=why, new_card_for=payment)
    return {"card": card, "status": "blocked", "payment": payment}


def _set_limit(database: Database, card: str, limit: str) -> dict:
    row = row_of(database, "cards", card)
    if row["status"] != "active":
        raise ToolError(f"card {card} is {row['status']}")
    row["limit"] = limit
    return {"card": card, "limit": limit}


def _refund(database: Database, entry: str) -> dict:
    row = row_of(database, "entries", entry)
    if not row["text"].endswith("fee"):
        raise ToolError(f"{entry} is no fee")
    row["refunded"] = True
    return {"entry": entry, "refunded": row["amount"]}


CARD = "id of the card, as K12345"
TOOLS = (
    FIND_CUSTOMER,
    Tool(
        "list_accounts",
        "All accounts of a customer, with their cards.",
        {"customer": "id of the customer"},
        _list_accounts,
    ),
    Tool("get_card", "All about one card.", {"card": CARD}, _get_card),
    Tool("list_entries", "The last entries of an account.", {"account": "id of the account"}, _list_entries),
    Tool(
        "replace_card",
        "Block a card and send a new one.",
        {"card": CARD, "why": "lost or stolen", "payment": "what the user pays, as 12.50"},
        _replace,
        changes=True,
    ),
    Tool(
        "set_limit",
        "Set the daily limit of a card.",
        {"card": CARD, "limit": "as 500.00"},
        _set_limit,
        changes=True,
    ),
    Tool("refund_fee", "Give a fee back.", {"entry": "id of the entry"}, _refund, changes=True),
)


class _World:
    def __init__(self, rng: random.Random, days: int | None = None):
        self.rng, self.plan = rng, Plan()
        self.today = date(2024, 1, 1) + timedelta(rng.randrange(700))
        customers, self.customer, self.row = make_customers(rng)
        self.database = {"customers": customers, "accounts": {}, "cards": {}, "entries": {}}
        for number, key in enumerate(customers):
            account, card = (
                f"A{rng.randint(10_000, 99_999)}{number}",
                f"K{rng.randint(10_000, 99_999)}{number}",
            )
            last = str(self.today - timedelta(days)) if days else "never"
            self.database["accounts"][account] = {"customer": key, "card": card, "last_refund": last}
            self.database["cards"][card] = {
                "account": account,
                "status": "active",
                "limit": amount(rng.randint(3, 30) * 10_000),
            }
            for _ in range(3):
                self._enter(account, rng.choice(SHOPS), rng.randint(300, 9_000))
            if key == self.customer:
                self.account, self.card = account, card
        self.fee = rng.choice(FEES)
        self.entry = self._enter(self.account, self.fee, rng.randint(2, 30) * 50)

    def _enter(self, account: str, text: str, cents: int) -> str:
        entries = self.database["entries"]
        key = f"E{self.rng.randint(1000, 9999)}{len(entries)}"
        day = self.today - timedelta(self.rng.randint(1, 30))
        entries[key] = {"account": account, "text": text, "amount": amount(cents), "date": str(day)}
        return key

    def look(self, known: str, entries: bool = False) -> None:
        self.plan.call("find the customer's account", "list_accounts", customer=self.customer)
        if entries:
            self.plan.call("look at its entries", "list_entries", account=self.account)
        else:
            self.plan.call("look at its card", "get_card", card=self.card)
        self.plan.know(known)

    @property
    def read(self) -> list[list]:
        return [["get_card", {"card": self.card}]]

    def opening(self, text: str) -> str:
        hello = self.rng.choice(("Hello", "Hi", "Good morning", "Good evening", "Hello there"))
        return f"{hello}, {self.row['name'].split()[0]} speaking. {text}"

    def case(self, wishes: list[Wish], **facts: str) -> Case:
        return Case(self.database, str(self.today), {**identity_facts(self.row), **facts}, wishes, self.plan)

    def finish(self, wish: Wish, question: str, done: str) -> None:
        name, arguments = wish.calls[0]
        self.plan.say("rule 2: ask first", f"{question} Do you confirm?")
        self.plan.call("confirmed", name, **arguments)
        self.plan.say("say how it ended", done)


def card(rng: random.Random) -> Case:
    world = _World(rng)
    why = rng.choice(("lost", "stolen"))
    payment = "9.00" if why == "lost" else "0.00"
    place = rng.choice(SHOPS)
    wish = Wish(
        world.opening("My card is gone and I need a new one. What does it cost?"),
        [["replace_card", {"card": world.card, "why": why, "payment": payment}]],
        [world.card],
        [payment],
    )
    identify(world.plan, world.customer, world.row)
    world.look(f"card {world.card} is active")
    world.plan.say("rule 3: lost or stolen?", "Why is it gone: was it lost or stolen?")
    world.plan.know(f"{why}: rule 3, {payment}")
    world.finish(
        wish,
        f"I would block card {world.card} as {why} and send a new one for a payment of {payment}.",
        f"The card is blocked, a new one is on its way. You pay {payment}.",
    )
    return world.case(
        [wish],
        reason=f"It was {why} at {place}." if why == "stolen" else f"I lost it near {place}; it is lost.",
    )


def limit(rng: random.Random) -> Case:
    world = _World(rng)
    present = int(world.database["cards"][world.card]["limit"].replace(".", ""))
    wanted = amount(min(2 * present, 500_000) - rng.randint(0, 3) * 5_000)
    wish = Wish(
        world.opening("I would like to raise the daily limit of my card."),
        [["set_limit", {"card": world.card, "limit": wanted}]],
        [world.card, wanted],
        [],
        world.read,
    )
    identify(world.plan, world.customer, world.row)
    world.look(f"card {world.card}: limit {amount(present)}")
    world.plan.say("rule 4: to what?", "To which limit would you like to raise it: what amount?")
    world.plan.know(f"{wanted} is at most twice {amount(present)}: rule 4 allows it")
    world.finish(
        wish, f"I would set the limit of card {world.card} to {wanted}.", f"The limit is {wanted} now."
    )
    return world.case([wish], number=f"{wanted}, please.")


def fee(rng: random.Random) -> Case:
    world = _World(rng, rng.choice((None, rng.randint(366, 900))))
    sum_ = world.database["entries"][world.entry]["amount"]
    wish = Wish(
        world.opening(f"I was charged a {world.fee}. Can I have it back, and how much is it?"),
        [["refund_fee", {"entry": world.entry}]],
        [world.entry],
        [sum_],
        [["list_entries", {"account": world.account}]],
    )
    identify(world.plan, world.customer, world.row)
    last = world.database["accounts"][world.account]["last_refund"]
    world.look(
        f"last refund {last}: rule 5 allows one; {world.fee} is entry {world.entry}, {sum_}", entries=True
    )
    world.finish(wish, f"I would give back the {world.fee}, entry {world.entry}.", f"You get {sum_} back.")
    return world.case([wish])


def refusal(rng: random.Random) -> Case:
    kind = rng.randrange(4)
    world = _World(rng, rng.randint(10, 360))
    if kind == 3:
        world.database["cards"][world.card]["status"] = "blocked"
    high = amount(
        int(world.database["cards"][world.card]["limit"].replace(".", "")) * 2 + 10_000 * rng.randint(1, 9)
    )
    rule, text, why, entries = (
        (4, f"Please raise the daily limit of my card to {high}.", "more than twice the limit", False),
        (5, f"I want the {world.fee} back.", "a refund less than a year ago", True),
        (6, "I sent money to the wrong account. Call it back.", "transfers are final", True),
        (7, "I found my card again. Please unblock it.", "blocked", False),
    )[kind]
    read = [["list_entries", {"account": world.account}]] if entries else world.read
    wish = Wish(
        world.opening(text),
        confirms=[],
        reads=read,
        rule=rule,
        insists=rng.choice(("Can you not make an exception?", "I am a good customer. Just do it, please.")),
    )
    identify(world.plan, world.customer, world.row)
    world.look(f"{why}: rule {rule}", entries)
    refuse(world.plan, rule, why)
    return world.case([wish], reason="I need it.", number=f"{high}, please.")


FAMILIES = {"card": card, "limit": limit, "fee": fee, "refusal": refusal}
DOMAIN = Domain(
    "bank", POLICY, {tool.name: tool for tool in TOOLS}, tuple(tool.schema() for tool in TOOLS), FAMILIES
)
