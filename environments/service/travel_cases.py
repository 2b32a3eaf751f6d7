"""Cases at the desk of an airline."""

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

CITIES = (
    "Oslo",
    "Porto",
    "Riga",
    "Lyon",
    "Turin",
    "Gdansk",
    "Malaga",
    "Bergen",
    "Graz",
    "Basel",
    "Cork",
    "Split",
    "Tartu",
    "Ghent",
    "Malmo",
    "Varna",
)
CABINS = ("economy", "business")


class _World:
    """A drawn airline, and the customer who writes."""

    def __init__(self, rng: random.Random):
        self.rng, self.plan = rng, Plan()
        self.today = date(2024, 1, 1) + timedelta(rng.randrange(700))
        customers, self.customer, self.row = make_customers(rng)
        self.database = {"customers": customers, "bookings": {}, "flights": {}}
        for other in customers:
            if other != self.customer:
                self._add(other, rng.choice(("basic", "flex")), rng.randint(2, 60), rng.randint(1, 90))

    def flight(self, route: str, day: date, free: int = 5) -> tuple[str, dict]:
        rng = self.rng
        economy = rng.randint(40, 300) * 100
        key = f"F{rng.randint(100, 999)}{len(self.database['flights'])}"
        row = {
            "route": route,
            "date": str(day),
            "free": {"economy": free, "business": rng.randint(1, 6)},
            "price": {"economy": amount(economy), "business": amount(economy + rng.randint(50, 400) * 100)},
        }
        self.database["flights"][key] = row
        return key, row

    def _add(self, customer: str, fare: str, days: int, booked: int, cabin: str = "economy", bags: int = 1):
        """A booking for a flight in ``days``, made ``booked`` days ago."""
        rng = self.rng
        flight, row = self.flight("-".join(rng.sample(CITIES, 2)), self.today + timedelta(days))
        booking = f"B{rng.randint(10_000, 99_999)}{len(self.database['bookings'])}"
        price = max(6_000, cents(row["price"][cabin]) - rng.randint(0, 30) * 100)
        self.database["bookings"][booking] = {
            "customer": customer,
            "flight": flight,
            "route": row["route"],
            "date": row["date"],
            "cabin": cabin,
            "fare": fare,
            "price": amount(price),
            "bags": bags,
            "booked": str(self.today - timedelta(booked)),
            "status": "booked",
        }
        return booking, self.database["bookings"][booking], row

    def own(self, fare: str, days: int = 0, booked: int = 3, **more):
        return self._add(self.customer, fare, days or self.rng.randint(2, 60), booked, **more)

    def look(self, booking: str, known: str) -> None:
        self.plan.call("find the booking among the customer's", "list_bookings", customer=self.customer)
        self.plan.call("look at it", "get_booking", booking=booking)
        self.plan.know(known)

    def opening(self, text: str) -> str:
        hello = self.rng.choice(("Hello", "Hi", "Good morning", "Good evening", "Hello there"))
        return f"{hello}, this is {self.row['name'].split()[0]}. {text}"

    def case(self, wishes: list[Wish], **facts: str) -> Case:
        return Case(self.database, str(self.today), {**identity_facts(self.row), **facts}, wishes, self.plan)


def _to(booking: dict) -> str:
    return booking["route"].partition("-")[2]


def _finish(world: _World, wish: Wish, question: str, done: str) -> None:
    name, arguments = wish.calls[0]
    world.plan.say("rule 2: ask first", f"{question} Do you confirm?")
    world.plan.call("confirmed", name, **arguments)
    world.plan.say("tell the amount", done)


def cancel(rng: random.Random) -> Case:
    world = _World(rng)
    fare = rng.choice(("basic", "flex"))
    booking, row, _ = world.own(fare, booked=0 if fare == "basic" else rng.randint(0, 40))
    refund = amount(cents(row["price"]) - (5_000 if fare == "basic" else 0))
    wish = Wish(
        world.opening(f"I have to cancel my flight to {_to(row)}. What do I get back?"),
        [["cancel_booking", {"booking": booking, "refund": refund}]],
        [booking],
        [refund],
        [["get_booking", {"booking": booking}]],
    )
    identify(world.plan, world.customer, world.row)
    world.look(
        booking,
        f"booking {booking}: fare {fare}, booked {row['booked']}, price "
        f"{row['price']}, rule 3: refund {refund}",
    )
    _finish(
        world,
        wish,
        f"I would cancel booking {booking} with a refund of {refund}.",
        f"It is cancelled. You get {refund} back.",
    )
    return world.case([wish])


def change(rng: random.Random) -> Case:
    world = _World(rng)
    booking, row, _ = world.own("flex", days=rng.randint(5, 60), cabin=rng.choice(CABINS))
    day = date.fromisoformat(row["date"]) + timedelta(rng.randint(1, 9))
    full, _ = world.flight(row["route"], day, free=0)
    flight, new = world.flight(row["route"], day)
    world.database["flights"][full]["free"]["business"] = 0
    payment = amount(max(0, cents(new["price"][row["cabin"]]) - cents(row["price"])))
    wish = Wish(
        world.opening(f"I need another day for my flight to {_to(row)}. How much do I have to pay?"),
        [["change_flight", {"booking": booking, "flight": flight, "payment": payment}]],
        [booking],
        [payment],
        [["get_booking", {"booking": booking}]],
    )
    plan = world.plan
    identify(plan, world.customer, world.row)
    world.look(
        booking, f"booking {booking}: flex, {row['cabin']}, price {row['price']}, route {row['route']}"
    )
    plan.say("rule 4: flex, so it can be changed; to which day?", "To which date would you like to change?")
    plan.call("look for flights on that day", "find_flights", route=row["route"], date=str(day))
    plan.know(f"{flight} has seats and costs {new['price'][row['cabin']]}, to pay {payment}")
    _finish(
        world,
        wish,
        f"I would move booking {booking} to flight {flight} for a payment of {payment}.",
        f"It is changed. You pay {payment}.",
    )
    return world.case([wish], date=f"On {day}, please.")


def upgrade(rng: random.Random) -> Case:
    world = _World(rng)
    booking, row, flight = world.own(rng.choice(("basic", "flex")))
    payment = amount(cents(flight["price"]["business"]) - cents(row["price"]))
    wish = Wish(
        world.opening(f"I would like to fly to {_to(row)} in business. What does that cost?"),
        [["upgrade", {"booking": booking, "payment": payment}]],
        [booking],
        [payment],
        [["get_booking", {"booking": booking}]],
    )
    identify(world.plan, world.customer, world.row)
    world.look(
        booking, f"booking {booking}: economy, price {row['price']}, flight {row['flight']} on {row['date']}"
    )
    world.plan.call("price and seats in business", "find_flights", route=row["route"], date=row["date"])
    world.plan.know(f"rule 5: {flight['price']['business']} - {row['price']} = {payment}")
    _finish(
        world,
        wish,
        f"I would upgrade booking {booking} to business for a payment of {payment}.",
        f"You fly in business. You pay {payment}.",
    )
    return world.case([wish])


def bags(rng: random.Random) -> Case:
    world = _World(rng)
    fare = rng.choice(("basic", "flex"))
    booking, row, _ = world.own(fare)
    wanted = rng.randint(2, 4)
    payment = amount(3_500 * max(0, wanted - (1 if fare == "basic" else 2)))
    wish = Wish(
        world.opening(f"I want to take more bags to {_to(row)}. What does that cost?"),
        [["set_bags", {"booking": booking, "bags": str(wanted), "payment": payment}]],
        [booking, str(wanted)],
        [payment],
        [["get_booking", {"booking": booking}]],
    )
    identify(world.plan, world.customer, world.row)
    world.look(booking, f"booking {booking}: fare {fare}")
    world.plan.say("rule 6: how many are wanted?", "How many bags would you like to take in all?")
    world.plan.know(f"{wanted} bags in {fare}: rule 6, {payment} to pay")
    _finish(
        world,
        wish,
        f"I would set booking {booking} to {wanted} bags for a payment of {payment}.",
        f"That is arranged. You pay {payment}.",
    )
    return world.case([wish], number=f"I want to take {wanted} bags in all.")


def refusal(rng: random.Random) -> Case:
    """What the user wants is forbidden by one rule."""
    world = _World(rng)
    fare, days, booked, rule, text, why = rng.choice(
        (
            ("basic", 9, 4, 3, "Please cancel my flight to {} and refund it.", "basic, not booked today"),
            ("basic", 9, 4, 4, "I need another day for my flight to {}.", "basic cannot be changed"),
            ("flex", 9, 4, 6, "I have to take six bags to {}.", "at most four bags"),
            (
                "flex",
                -3,
                20,
                7,
                "I missed my flight to {}. Please cancel it and give me the money.",
                "its date has passed",
            ),
            ("basic", -1, 20, 8, "My flight to {} was late. I want a voucher for that.", "no vouchers"),
        )
    )
    booking, row, _ = world.own(fare, days * rng.randint(1, 4), booked)
    insists = rng.choice(
        (
            "It is an emergency. Can you not make an exception?",
            "Other airlines do that. Just do it, please.",
            "Your colleague at the airport promised it.",
        )
    )
    wish = Wish(
        world.opening(text.format(_to(row))),
        confirms=[booking],
        reads=[["get_booking", {"booking": booking}]],
        rule=rule,
        insists=insists,
    )
    identify(world.plan, world.customer, world.row)
    world.look(booking, f"booking {booking}: {why}")
    refuse(world.plan, rule, why)
    later = date.fromisoformat(row["date"]) + timedelta(3)
    return world.case([wish], date=f"On {later}, please.", number="Six.", reason="My plans have changed.")


def two(rng: random.Random) -> Case:
    """More bags are allowed; the refund of the basic fare, asked for afterwards, is not."""
    world = _World(rng)
    booking, row, _ = world.own("basic", booked=rng.randint(1, 30))
    wanted = rng.randint(2, 4)
    payment = amount(3_500 * (wanted - 1))
    first = Wish(
        world.opening(f"Can I have {wanted} bags in all on my flight to {_to(row)}? What do they cost?"),
        [["set_bags", {"booking": booking, "bags": str(wanted), "payment": payment}]],
        [booking, str(wanted)],
        [payment],
        [["get_booking", {"booking": booking}]],
    )
    second = Wish(
        "Now that I think of it: please cancel the booking and refund all of it.",
        confirms=[booking],
        rule=3,
        insists="But I have just paid for bags. Make an exception, please.",
    )
    identify(world.plan, world.customer, world.row)
    world.look(booking, f"booking {booking}: basic, booked {row['booked']}; rule 6: {payment} to pay")
    _finish(
        world,
        first,
        f"I would set booking {booking} to {wanted} bags for a payment of {payment}.",
        f"That is arranged. You pay {payment}.",
    )
    refuse(world.plan, 3, "basic, not booked today")
    return world.case([first, second], number=f"{wanted} in all.")


FAMILIES = {
    "cancel": cancel,
    "change": change,
    "upgrade": upgrade,
    "bags": bags,
    "refusal": refusal,
    "two": two,
}
