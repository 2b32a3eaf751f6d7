"""Tables: join CSV with JSON lines, and clean a messy CSV export."""

import csv
import io
import json
import random
from collections import defaultdict
from datetime import date, timedelta

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.text import (
    EXPECTED,
    MONTHS,
    REGIONS,
    SERVICES,
    USERS,
    fill,
    name_of,
    phrase,
)

# Key of the result -> (how a person names it, the function of Python that it is).
MEASURES = {
    "total": ("the sum of the amounts", sum),
    "largest": ("the largest amount", max),
    "smallest": ("the smallest amount", min),
}
JOIN = """
# Orders are joined to customers by number; amounts are whole cents, so that nothing is rounded.
python3 - <<'END'
import csv
import json
from collections import defaultdict

customers = {}
for line in open("data/customers.jsonl", encoding="utf-8"):
    customer = json.loads(line)
    customers[customer["id"]] = customer
print(len(customers), "customers")

amounts, unknown = defaultdict(list), 0
for order in csv.DictReader(open("data/orders.csv", encoding="utf-8", newline=""), delimiter="<<delimiter>>"):
    whole, _, part = order["amount"].partition(".")
    cents = int(whole) * 100 + int(part)
    if order["state"] in <<states>> or cents < <<least>>:
        continue
    customer = customers.get(int(order["customer"]))
    if customer is None:
        unknown += 1
        continue
    amounts[customer["<<group>>"]].append(cents)
print(unknown, "orders of unknown customers")

result = {"unknown_customers": unknown, "groups": []}
for name in sorted(amounts):
    cents = <<function>>(amounts[name])
    row = {"<<group>>": name, "orders": len(amounts[name]), "<<measure>>": f"{cents // 100}.{cents % 100:02}"}
    result["groups"].append(row)
with open("<<out>>", "w", encoding="utf-8") as file:
    json.dump(result, file, indent=1)
END
cat <<out>>
"""
JOIN_TESTS = (
    EXPECTED
    + """

def result():
    return json.loads(Path(EXPECTED["file"]).read_text())


def test_unknown_customers():
    assert result()["unknown_customers"] == EXPECTED["result"]["unknown_customers"]


def test_groups():
    found, wanted = result()["groups"], EXPECTED["result"]["groups"]
    assert found == wanted, f"{found} instead of {wanted}"
"""
)


def table_join(rng: random.Random) -> TerminalDraft:
    """Orders (CSV) by a property of their customers (JSON lines)."""
    group, out = rng.choice(["region", "plan", "channel"]), f"/app/{name_of(rng)}.json"
    delimiter = rng.choice([",", ";", "|"])
    dropped = sorted(rng.sample(["cancelled", "refunded", "draft"], rng.randint(1, 2)))
    values = {"region": REGIONS, "plan": ["free", "team", "pro", "site"], "channel": ["web", "shop", "phone"]}
    ids = rng.sample(range(100, 999), rng.randint(20, 40))
    people = {number: {name: rng.choice(options) for name, options in values.items()} for number in ids}
    customers = [
        json.dumps({"id": number, "name": rng.choice(USERS).title(), **people[number]}) for number in ids
    ]
    measure, least = rng.choice(list(MEASURES)), rng.choice([0, 0, 20, 50, 100, 250])
    named, function = MEASURES[measure]
    table, amounts, unknown = io.StringIO(), defaultdict(list), 0
    writer = csv.writer(table, delimiter=delimiter, lineterminator="\n")
    writer.writerow(["order", "customer", "amount", "state", "note"])
    for number in range(rng.randint(150, 300)):
        customer = rng.choice(ids) if rng.random() < 0.95 else rng.randrange(1000, 1100)
        amount, state = (
            rng.randrange(100, 99_999),
            rng.choices(["paid", "shipped", *values_of_state()], [5, 4, 1, 1, 1])[0],
        )
        note = rng.choice(["", "", f'gift, "{rng.choice(USERS)}"', "call first; ring twice", "a|b"])
        writer.writerow([number + 1, customer, f"{amount // 100}.{amount % 100:02}", state, note])
        if state in dropped or amount < 100 * least:
            continue
        if customer not in people:
            unknown += 1
            continue
        amounts[people[customer][group]].append(amount)
    result = {
        "unknown_customers": unknown,
        "groups": [
            {group: name, "orders": len(found), measure: f"{function(found) / 100:.2f}"}
            for name, found in sorted(amounts.items())
        ],
    }
    opening = phrase(
        rng,
        "Finance asks about last month's orders.",
        "Please join our orders with our customers.",
        "Two exports have to be brought together.",
    )
    small = f", and orders of less than {least}.00" if least else ""
    instruction = (
        f"{opening} /app/data/orders.csv has the columns order, customer, amount, state and note, separated "
        f"by `{delimiter}` (fields may be quoted as CSV quotes them); /app/data/customers.jsonl has one JSON "
        "object a line with id, name, region, plan and channel. `customer` of an order is the `id` of a "
        "customer.\n\n"
        f"Leave out orders whose state is {' or '.join(dropped)}{small}. Of the others, count those whose "
        f"customer is not in customers.jsonl, and put the rest together for each {group}.\n\n"
        f"Write {out}: a JSON object with `unknown_customers` (the count) and `groups`, a list of objects "
        f"`{group}`, `orders` (how many) and `{measure}` ({named} as text with exactly two decimals), sorted "
        f"by `{group}` alphabetically. Groups without orders are left out."
    )
    solution = fill(
        JOIN,
        delimiter=delimiter,
        states=repr(dropped),
        least=100 * least,
        group=group,
        out=out,
        measure=measure,
        function=function.__name__,
    )
    return TerminalDraft(
        title=f"Orders joined with customers: {measure} by {group}",
        instruction=instruction,
        solution=solution,
        tests=JOIN_TESTS,
        files={
            "data/orders.csv": table.getvalue().encode(),
            "data/customers.jsonl": ("\n".join(customers) + "\n").encode(),
        },
        expected={"file": out, "result": result},
        difficulty="medium",
    )


def values_of_state() -> list[str]:
    return ["cancelled", "refunded", "draft"]


CLEAN = """
# The rules, one after the other, on every row; a later row of the same id takes the place of an earlier one.
python3 - <<'END'
import csv
from datetime import datetime

FORMS = ("%Y-%m-%d", "%d.%m.%Y", "%b %d, %Y")


def read_date(text):
    for form in FORMS:
        try:
            return datetime.strptime(text, form).date().isoformat()
        except ValueError:
            continue
    raise ValueError(text)


rows, broken = {}, 0
with open("<<source>>", encoding="utf-8", newline="") as file:
    for row in csv.DictReader(file):
        row = {name.strip(): " ".join((value or "").split()) for name, value in row.items()}
        if not row["<<key>>"] or not row["<<when>>"]:
            broken += 1
            continue
        row["<<when>>"] = read_date(row["<<when>>"])
        row["email"] = row["email"].lower()
        rows[row["<<key>>"]] = row
print(broken, "rows dropped,", len(rows), "kept")

with open("<<out>>", "w", encoding="utf-8", newline="") as file:
    writer = csv.DictWriter(file, ["<<key>>", "name", "email", "<<when>>"], lineterminator="\\n")
    writer.writeheader()
    writer.writerows(sorted(rows.values(), key=lambda row: <<order>>))
END
head -n 5 <<out>>
"""
CLEAN_TESTS = (
    EXPECTED
    + """
import csv


def rows():
    with open(EXPECTED["file"], encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_header():
    assert rows()[0] == EXPECTED["rows"][0], rows()[0]


def test_rows():
    found, wanted = rows()[1:], EXPECTED["rows"][1:]
    assert len(found) == len(wanted), f"{len(found)} rows instead of {len(wanted)}"
    for one, other in zip(found, wanted):
        assert one == other, f"{one} instead of {other}"
"""
)


def table_clean(rng: random.Random) -> TerminalDraft:
    """White space, three forms of dates, upper-case addresses, rows without a key, repeated rows."""
    service = rng.choice(SERVICES)
    source, out = f"/app/export/{service}.csv", f"/app/{name_of(rng)}.csv"
    key, when = rng.choice(["id", "account", "badge"]), rng.choice(["joined", "born", "renewed"])
    by_date = rng.random() < 0.5
    raw, clean = io.StringIO(), {}
    writer = csv.writer(raw, lineterminator=rng.choice(["\n", "\r\n"]))
    writer.writerow([f" {key}", "name ", " email", when])
    for _ in range(rng.randint(80, 160)):
        number, user, other = (
            f"{rng.choice('KLMN')}{rng.randrange(100, 160)}",
            rng.choice(USERS),
            rng.choice(USERS),
        )
        day = date(2015, 1, 1) + timedelta(days=rng.randrange(3600))
        name, email = f"{user.title()} {other.title()}", f"{user}@{service}.example"
        cells = [number, name, rng.choice([email, email.upper(), email.title()]), _written(rng, day)]
        missing = rng.choices([None, 0, 3], [90, 5, 5])[0]
        if missing is not None:
            cells[missing] = rng.choice(["", "  "])
        else:
            clean[number] = [number, name, email, day.isoformat()]
        writer.writerow([_loose(rng, cell) for cell in cells])
    rows = sorted(clean.values(), key=(lambda row: (row[3], row[0])) if by_date else (lambda row: row[0]))
    order = f"by `{when}`, earliest first, and then by `{key}`" if by_date else f"by `{key}`"
    instruction = (
        f"{source} was exported by hand and is a mess. Please write a clean copy to {out} (UTF-8, "
        f"comma-separated, lines that end with a line feed) with the header `{key},name,email,{when}`:\n\n"
        "- no white space at the ends of cells or column names, and single spaces within\n"
        f"- `{when}` as YYYY-MM-DD; the export has dates such as 2019-07-04, 04.07.2019 (day first) and Jul "
        "4, 2019\n"
        "- `email` in lower case\n"
        f"- rows without `{key}` or without `{when}` are dropped\n"
        f"- where a `{key}` comes more than once, the last of its rows that was not dropped counts\n"
        f"- sorted {order} (byte order)\n"
    )
    solution = fill(
        CLEAN,
        source=source,
        out=out,
        key=key,
        when=when,
        order=f'(row["{when}"], row["{key}"])' if by_date else f'row["{key}"]',
    )
    return TerminalDraft(
        title=f"Clean the {service} export",
        instruction=instruction,
        solution=solution,
        tests=CLEAN_TESTS,
        files={source.removeprefix("/app/"): raw.getvalue().encode()},
        difficulty="medium",
        expected={"file": out, "rows": [[key, "name", "email", when], *rows]},
    )


def _written(rng: random.Random, day: date) -> str:
    return rng.choice(
        [day.isoformat(), day.strftime("%d.%m.%Y"), f"{MONTHS[day.month - 1]} {day.day}, {day.year}"]
    )


def _loose(rng: random.Random, text: str) -> str:
    if rng.random() < 0.2:
        text = text.replace(" ", "  ")
    return rng.choice(["", "", " ", "\t"]) + text + rng.choice(["", "", " "])
