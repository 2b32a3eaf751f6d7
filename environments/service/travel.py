"""Flights: bookings are cancelled, moved to another day, upgraded, given more bags."""

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
from environments.service.travel_cases import FAMILIES

POLICY = f"""You work at the service desk of an airline. Today is {{today}}.
{IDENTITY}
{CONFIRMATION}
3. A booking of the fare "flex" can always be cancelled and all of its price is refunded. A booking of \
the fare "basic" can be cancelled only on the day it was booked, and 50.00 of its price are kept back.
4. The date of a booking can be changed only in the fare "flex" and only to a flight on the same route \
with a free seat in the same cabin. The user pays the difference when the new flight is dearer and gets \
nothing back when it is cheaper.
5. A booking in economy can be upgraded to business in both fares while its flight has a free seat in \
business. The user pays the difference between the flight's price in business and what was paid.
6. One bag is free in the fare "basic" and two in "flex"; every further bag costs 35.00. There are at \
most four bags.
7. Nothing can be changed or cancelled after the date of the flight.
8. There are no vouchers and no compensation, whatever the reason.
{REFUSAL}"""


def _list_bookings(database: Database, customer: str) -> list[dict]:
    row_of(database, "customers", customer)
    return [
        {"booking": key, "route": row["route"], "date": row["date"]}
        for key, row in database["bookings"].items()
        if row["customer"] == customer
    ]


def _get_booking(database: Database, booking: str) -> dict:
    return {"booking": booking, **row_of(database, "bookings", booking)}


def _find_flights(database: Database, route: str, date: str) -> list[dict]:
    return [
        {"flight": key, **row}
        for key, row in database["flights"].items()
        if row["route"] == route and row["date"] == date
    ]


def _cancel(database: Database, booking: str, refund: str) -> dict:
    row_of(database, "bookings", booking).update(status="cancelled", refund=refund)
    return {"booking": booking, "status": "cancelled", "refund": refund}


def _take_seat(database: Database, flight: str, cabin: str) -> dict:
    row = row_of(database, "flights", flight)
    if row["free"][cabin] < 1:
        raise ToolError(f"flight {flight} has no free seat in {cabin}")
    row["free"][cabin] -= 1
    return row


def _change_date(database: Database, booking: str, flight: str, payment: str) -> dict:
    row = row_of(database, "bookings", booking)
    new = _take_seat(database, flight, row["cabin"])
    row.update(flight=flight, date=new["date"], paid_more=payment)
    return {"booking": booking, "flight": flight, "payment": payment}


def _upgrade(database: Database, booking: str, payment: str) -> dict:
    row = row_of(database, "bookings", booking)
    _take_seat(database, row["flight"], "business")
    row.update(cabin="business", paid_more=payment)
    return {"booking": booking, "cabin": "business", "payment": payment}


def _set_bags(database: Database, booking: str, bags: str, payment: str) -> dict:
    row = row_of(database, "bookings", booking)
    if bags not in ("1", "2", "3", "4"):
        raise ToolError("bags is a number from 1 to 4")
    row.update(bags=int(bags), paid_more=payment)
    return {"booking": booking, "bags": int(bags), "payment": payment}


BOOKING, PAYMENT = "id of the booking, as B12345", "what the user pays now, as 12.50"
TOOLS = (
    FIND_CUSTOMER,
    Tool("list_bookings", "All bookings of a customer.", {"customer": "id of the customer"}, _list_bookings),
    Tool("get_booking", "All about one booking.", {"booking": BOOKING}, _get_booking),
    Tool(
        "find_flights",
        "Flights of a route on a day, with prices and free seats.",
        {"route": "as Oslo-Porto", "date": "as 2024-05-31"},
        _find_flights,
        private=False,
    ),
    Tool(
        "cancel_booking",
        "Cancel a booking.",
        {"booking": BOOKING, "refund": "amount, as 12.50"},
        _cancel,
        changes=True,
    ),
    Tool(
        "change_flight",
        "Move a booking to another flight.",
        {"booking": BOOKING, "flight": "id of the flight", "payment": PAYMENT},
        _change_date,
        changes=True,
    ),
    Tool(
        "upgrade",
        "Move a booking to business.",
        {"booking": BOOKING, "payment": PAYMENT},
        _upgrade,
        changes=True,
    ),
    Tool(
        "set_bags",
        "Set the number of bags of a booking.",
        {"booking": BOOKING, "bags": "how many in all", "payment": PAYMENT},
        _set_bags,
        changes=True,
    ),
)


DOMAIN = Domain(
    "travel", POLICY, {tool.name: tool for tool in TOOLS}, tuple(tool.schema() for tool in TOOLS), FAMILIES
)
