"""A report out of an SQLite database, which comes as a dump and is loaded when the image is made."""

import random
from collections import defaultdict

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.text import (
    EXPECTED,
    REGIONS,
    USERS,
    WORDS,
    fill,
    name_of,
    phrase,
)

# Key of a group -> (how it is named, SQL expression, of a row of the drafter).
GROUPS = {
    "city": ("city of the member", "m.city", lambda row: row["city"]),
    "genre": ("genre of the book", "b.genre", lambda row: row["genre"]),
    "month": (
        "month in which the loan began (as YYYY-MM)",
        "substr(l.taken, 1, 7)",
        lambda row: row["taken"][:7],
    ),
    "member": ("name of the member", "m.name", lambda row: row["name"]),
}
MEASURES = {
    "loans": ("the number of loans", "count(*)", len),
    "books": (
        "the number of different books",
        "count(DISTINCT b.id)",
        lambda rows: len({row["book"] for row in rows}),
    ),
    "late": (
        "the number of loans that were returned after the due day or are not returned (returned is NULL)",
        "sum(l.returned IS NULL OR l.returned > l.due)",
        lambda rows: sum(row["returned"] is None or row["returned"] > row["due"] for row in rows),
    ),
    "fees": (
        "the sum of the fees in cents, a fee that is NULL counting as 0",
        "sum(coalesce(l.fee, 0))",
        lambda rows: sum(row["fee"] or 0 for row in rows),
    ),
}
SOLUTION = """
python3 - <<'END'
import csv
import sqlite3

connection = sqlite3.connect("file:<<database>>?mode=ro", uri=True)
for name, sql in connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
    print(name, "|", sql)

# Join, filter, group; groups that are too small are left out; the order is part of the question.
rows = connection.execute(
    '''
    SELECT <<expression>> AS "<<group>>", <<value>> AS "<<measure>>"
    FROM loans l JOIN members m ON m.id = l.member JOIN books b ON b.id = l.book
    WHERE <<where>>
    GROUP BY 1
    HAVING count(*) >= <<least>>
    ORDER BY 2 DESC, 1
    '''
).fetchall()
with open("<<out>>", "w", newline="") as file:
    writer = csv.writer(file, lineterminator="\\n")
    writer.writerow(["<<group>>", "<<measure>>"])
    writer.writerows(rows)
END
cat <<out>>
"""
TESTS = (
    EXPECTED
    + """
import hashlib
import sqlite3


def test_report():
    lines = Path(EXPECTED["report"]).read_text().splitlines()
    assert lines == EXPECTED["lines"], f"{lines} instead of {EXPECTED['lines']}"


def test_database_is_as_it_was():
    connection = sqlite3.connect(f"file:{EXPECTED['database']}?mode=ro", uri=True)
    dump = "\\n".join(connection.iterdump())
    assert hashlib.sha256(dump.encode()).hexdigest() == EXPECTED["dump"], "the database was changed"
"""
)


def database_report(rng: random.Random) -> TerminalDraft:
    """Loans of a library, grouped and measured, with a filter."""
    import hashlib
    import sqlite3

    database, out = f"/app/{name_of(rng)}.db", f"/app/{name_of(rng)}.csv"
    group, measure, least = rng.choice(list(GROUPS)), rng.choice(list(MEASURES)), rng.randint(2, 5)
    connection = sqlite3.connect(":memory:")
    rows = _library(rng, connection)
    city, genre, year = rng.choice(REGIONS), rng.choice(WORDS[:6]), rng.choice([2023, 2024])
    where, condition, accepts = rng.choice(
        [
            (f"m.city <> '{city}'", f"Leave out members from {city}.", lambda row: row["city"] != city),
            (
                f"b.genre <> '{genre}'",
                f"Leave out books of genre {genre}.",
                lambda row: row["genre"] != genre,
            ),
            (
                f"l.taken LIKE '{year}-%'",
                f"Only loans that began in {year} count.",
                lambda row: row["taken"].startswith(str(year)),
            ),
            ("m.active = 1", "Only active members (active is 1) count.", lambda row: row["active"] == 1),
        ]
    )
    groups = defaultdict(list)
    for row in rows:
        if accepts(row):
            groups[GROUPS[group][2](row)].append(row)
    found = [(name, MEASURES[measure][2](rows)) for name, rows in groups.items() if len(rows) >= least]
    lines = [
        f"{group},{measure}",
        *(f"{name},{value}" for name, value in sorted(found, key=lambda pair: (-pair[1], pair[0]))),
    ]
    dump = "\n".join(connection.iterdump())
    opening = phrase(
        rng,
        "The library asks for a list.",
        "Please answer a question from our library's database.",
        "We need numbers for the library's yearly report.",
    )
    instruction = (
        f"{opening} {database} is an SQLite database (there is no sqlite3 program here, but Python has the "
        "module) with the tables `members` (id, name, city, active), `books` (id, title, genre) and `loans` "
        "(id, member, book, taken, due, returned, fee), where `member` and `book` are ids of the other "
        "tables and days are texts like 2024-03-09.\n\n"
        f"For each {GROUPS[group][0]}, give {MEASURES[measure][0]}. {condition} Leave out groups with fewer "
        f"than {least} loans (of those that count). A loan whose member or book is not in its table does not "
        "count.\n\n"
        f"Write {out}: CSV with the header `{group},{measure}`, the largest `{measure}` first, equal ones by "
        f"`{group}` in byte order. Do not change the database."
    )
    load = (
        'python3 -c "import sqlite3; '
        f"sqlite3.connect('{database}').executescript(open('/app/dump.sql').read())\"\n"
        "rm /app/dump.sql"
    )
    solution = fill(
        SOLUTION,
        database=database,
        expression=GROUPS[group][1],
        group=group,
        value=MEASURES[measure][1],
        measure=measure,
        where=where,
        least=least,
        out=out,
    )
    return TerminalDraft(
        title=f"Library: {measure} by {group}",
        instruction=instruction,
        solution=solution,
        tests=TESTS,
        difficulty="medium",
        files={"dump.sql": dump.encode()},
        setup=load,
        expected={
            "report": out,
            "lines": lines,
            "database": database,
            "dump": hashlib.sha256(dump.encode()).hexdigest(),
        },
    )


def _library(rng: random.Random, connection) -> list[dict]:
    """Fill the tables; the loans whose member and book are there, with what those tables say."""
    connection.executescript(
        "CREATE TABLE members (id INTEGER PRIMARY KEY, name TEXT, city TEXT, active INTEGER);CREATE TABLE "
        "books (id INTEGER PRIMARY KEY, title TEXT, genre TEXT);CREATE TABLE loans (id INTEGER PRIMARY KEY, "
        "member INTEGER, book INTEGER, taken TEXT, due TEXT, returned TEXT, fee INTEGER);"
    )
    members = {
        number: (name, rng.choice(REGIONS), rng.choice([0, 1, 1]))
        for number, name in enumerate(rng.sample(USERS, 12), 1)
    }
    books = {
        number: (f"The {rng.choice(WORDS)} and the {rng.choice(WORDS)}", rng.choice(WORDS[:6]))
        for number in range(1, 31)
    }
    connection.executemany(
        "INSERT INTO members VALUES (?, ?, ?, ?)", [(number, *rest) for number, rest in members.items()]
    )
    connection.executemany(
        "INSERT INTO books VALUES (?, ?, ?)", [(number, *rest) for number, rest in books.items()]
    )
    rows = []
    for number in range(1, rng.randint(120, 220)):
        member, book = rng.randint(1, 13), rng.randint(1, 32)  # some are in no table
        year, month, day = rng.choice([2023, 2024]), rng.randint(1, 11), rng.randint(1, 28)
        taken, due = f"{year}-{month:02}-{day:02}", f"{year}-{month + 1:02}-{day:02}"
        returned = rng.choice([None, f"{year}-{month + 1:02}-{rng.randint(1, 28):02}", due])
        fee = rng.choice([None, 0, rng.randrange(50, 900)])
        connection.execute(
            "INSERT INTO loans VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, member, book, taken, due, returned, fee),
        )
        if member in members and book in books:
            name, city, active = members[member]
            rows.append(
                {
                    "name": name,
                    "city": city,
                    "active": active,
                    "book": book,
                    "genre": books[book][1],
                    "taken": taken,
                    "due": due,
                    "returned": returned,
                    "fee": fee,
                }
            )
    connection.commit()
    return rows
