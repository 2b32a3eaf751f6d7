"""Access logs: aggregate requests by a key, with a filter, over plain and compressed files."""

import gzip
import random
from collections import defaultdict

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.text import EXPECTED, MONTHS, USERS, fill, name_of, phrase

PATHS = "/ /login /logout /cart /api/items /api/orders /api/users /static/app /health /search /export".split()
AGENTS = ("Mozilla/5.0", "curl/8.4.0", "python-requests/2.31", "GoodBot/1.2")
# Key -> (how a person names it, awk expression on the fields of a line).
KEYS = {
    "status": ("status code", "$9"),
    "path": ("path, without the query string", "path"),
    "client": ("client address", "$1"),
    "user": ("user name (the third field; requests without a user have -, count them under -)", "$3"),
    "hour": ("hour of the day, two digits as they stand in the log", "substr($4, 14, 2)"),
    "method": ("request method", "substr($6, 2)"),
}
MEASURES = {
    "requests": ("the number of requests", "sum[key] += 1"),
    "bytes": ("the sum of the bytes sent", "sum[key] += $10"),
    "clients": (
        "the number of different client addresses",
        "if (!((key, $1) in seen)) { seen[key, $1]; sum[key] += 1 }",
    ),
}
FILTERS = {
    "all": ("", "1", lambda row: True),
    "get": ("Only GET requests count.", 'substr($6, 2) == "GET"', lambda row: row["method"] == "GET"),
    "post": ("Only POST requests count.", 'substr($6, 2) == "POST"', lambda row: row["method"] == "POST"),
    "failed": (
        "Only requests with a status of 400 or more count.",
        "$9 >= 400",
        lambda row: row["status"] >= "400",
    ),
    "fine": ("Only requests with a status below 400 count.", "$9 < 400", lambda row: row["status"] < "400"),
    "api": (
        "Only requests whose path starts with /api/ count.",
        "path ~ /^\\/api\\//",
        lambda row: row["path"].startswith("/api/"),
    ),
    "named": ("Leave out requests without a user name.", '$3 != "-"', lambda row: row["user"] != "-"),
}

SOLUTION = """
# 1. The lines of all files, the compressed ones too, in any order.
for file in logs/*; do
    case "$file" in *.gz) gzip -dc "$file" ;; *) cat "$file" ;; esac
done > /tmp/all.log

# 2. Keep the lines that have the form of a request.
form='^[0-9.]+ - [a-z-]+ \\[[^]]+\\] "[A-Z]+ [^ ]+ HTTP/1\\.1" [0-9]{3} [0-9]+ "[^"]*"$'
grep -E "$form" /tmp/all.log > /tmp/valid.log
echo "$(wc -l < /tmp/valid.log) of $(wc -l < /tmp/all.log) lines are requests"

# 3. Add up by <<key>>.
awk '{
    path = $7; sub(/\\?.*/, "", path)
    if (!(<<filter>>)) next
    key = <<expression>>
    <<measure_awk>>
} END { for (key in sum) printf "%s\\t%d\\n", key, sum[key] }' /tmp/valid.log > /tmp/sums.tsv

# 4. Largest first, equal ones by name.
LC_ALL=C sort -t "$(printf '\\t')" -k2,2nr -k1,1 /tmp/sums.tsv <<head>>> /tmp/sorted.tsv

# 5. Write the report in the form that was asked for.
<<write>>
cat <<out>>
"""
WRITE = {
    "csv": "{ echo '<<key>>,<<measure>>'; tr '\\t' ',' < /tmp/sorted.tsv; } > <<out>>",
    "tsv": "{ printf '<<key>>\\t<<measure>>\\n'; cat /tmp/sorted.tsv; } > <<out>>",
    "json": """python3 - <<'END' > <<out>>
import json

rows = [line.rstrip("\\n").split("\\t") for line in open("/tmp/sorted.tsv")]
print(json.dumps([{"<<key>>": key, "<<measure>>": int(value)} for key, value in rows], indent=1))
END""",
}
TESTS = (
    EXPECTED
    + """

def test_report():
    text = Path(EXPECTED["file"]).read_text()
    if EXPECTED["form"] == "json":
        found = [[row[EXPECTED["key"]], row[EXPECTED["measure"]]] for row in json.loads(text)]
    else:
        lines = [line.split("," if EXPECTED["form"] == "csv" else "\\t") for line in text.splitlines()]
        assert lines[0] == [EXPECTED["key"], EXPECTED["measure"]], f"first line: {lines[0]}"
        found = [[key, int(value)] for key, value in lines[1:]]
    assert found == EXPECTED["rows"], f"rows: {found[:5]} ... instead of {EXPECTED['rows'][:5]} ..."
"""
)


def log_report(rng: random.Random) -> TerminalDraft:
    """Requests, bytes or clients by status, path, user, hour ... of two to four log files."""
    key, measure, kind = rng.choice(list(KEYS)), rng.choice(list(MEASURES)), rng.choice(list(FILTERS))
    if (key, measure) == ("client", "clients"):
        measure = "bytes"
    form, top = rng.choice(list(WRITE)), rng.choice([None, 3, 5, 10])
    out = f"/app/{name_of(rng)}.{form}"
    files, rows = _logs(rng)
    text, filter_awk, accepts = FILTERS[kind]
    expected = _aggregate([row for row in rows if accepts(row)], key, measure)[:top]
    shape = {
        "csv": f"CSV with the header line `{key},{measure}`",
        "tsv": f"tab-separated values with a header line of the two names `{key}` and `{measure}`",
        "json": f"a JSON list of objects with the keys `{key}` (text) and `{measure}` (number)",
    }[form]
    limit = f"Only the first {top} rows are wanted." if top else "All rows are wanted."
    opening = phrase(
        rng,
        "The folder /app/logs has the access logs of our web server.",
        "Please make a small report from the access logs in /app/logs.",
        "We need a table from the web server's access logs, which lie in /app/logs.",
    )
    instruction = (
        f"{opening} Some are compressed with gzip (`.gz`); all of them belong together. A request is a line "
        "like\n\n"
        f"    {_line(rows[0])}\n\n"
        "(client address, a dash, user, time, request line, status, bytes sent, user agent). Other lines "
        "are noise from a crashed process: ignore them.\n\n"
        f"For each {KEYS[key][0]}, give {MEASURES[measure][0]}. {text}\n\n"
        f"Write {out} as {shape}. Sort by `{measure}`, largest first, and rows with equal values by `{key}` "
        f"in byte order. {limit} Leave the logs as they are."
    )
    solution = fill(
        SOLUTION,
        key=key,
        filter=filter_awk,
        expression=KEYS[key][1],
        measure_awk=MEASURES[measure][1],
        out=out,
        head=f"| head -n {top} " if top else "",
        write=fill(WRITE[form], key=key, measure=measure, out=out).strip(),
    )
    return TerminalDraft(
        title=f"Access logs: {measure} by {key}",
        instruction=instruction,
        files=files,
        solution=solution,
        tests=TESTS,
        difficulty="easy",
        expected={"file": out, "form": form, "key": key, "measure": measure, "rows": expected},
    )


def _logs(rng: random.Random) -> tuple[dict[str, bytes], list[dict]]:
    """Files by name, some compressed, and the requests in them."""
    users = rng.sample(USERS, rng.randint(4, 8))
    clients = [
        f"10.{rng.randrange(4)}.{rng.randrange(8)}.{rng.randrange(1, 255)}" for _ in range(rng.randint(8, 25))
    ]
    files, rows = {}, []
    day, month = rng.randint(1, 25), rng.choice(MONTHS)
    for number in range(rng.randint(2, 4)):
        lines = []
        for _ in range(rng.randint(120, 260)):
            row = {
                "client": rng.choice(clients),
                "user": rng.choice([*users, "-"]),
                "hour": f"{rng.randrange(24):02}",
                "day": f"{day + number:02}",
                "month": month,
                "minute": f"{rng.randrange(60):02}",
                "method": rng.choices(["GET", "POST", "DELETE", "PUT"], [70, 20, 5, 5])[0],
                "path": rng.choice(PATHS),
                "query": rng.choice(["", "", f"?page={rng.randrange(9)}"]),
                "status": rng.choices("200 201 301 403 404 500 503".split(), [60, 8, 6, 6, 12, 5, 3])[0],
                "bytes": rng.randrange(100, 20_000),
                "agent": rng.choice(AGENTS),
            }
            rows.append(row)
            lines.append(_line(row))
            if rng.random() < 0.02:
                lines.append(
                    rng.choice(
                        [
                            "Traceback (most recent call last):",
                            "",
                            "*** worker 3 restarted ***",
                            lines[-1][:40],
                        ]
                    )
                )
        content = ("\n".join(lines) + "\n").encode()
        name = "logs/access.log" if number == 0 else f"logs/access.log.{number}"
        if number and rng.random() < 0.6:
            name, content = name + ".gz", gzip.compress(content, mtime=0)
        files[name] = content
    return files, rows


def _line(row: dict) -> str:
    time = f"{row['day']}/{row['month']}/2025:{row['hour']}:{row['minute']}:07 +0000"
    request = f"{row['method']} {row['path']}{row['query']} HTTP/1.1"
    return (
        f'{row["client"]} - {row["user"]} [{time}] "{request}" {row["status"]} {row["bytes"]} '
        f'"{row["agent"]}"'
    )


def _aggregate(rows: list[dict], key: str, measure: str) -> list[list]:
    groups = defaultdict(list)
    for row in rows:
        groups[row[key]].append(row)
    of = {
        "requests": len,
        "bytes": lambda group: sum(row["bytes"] for row in group),
        "clients": lambda group: len({row["client"] for row in group}),
    }[measure]
    return sorted(([name, of(group)] for name, group in groups.items()), key=lambda pair: (-pair[1], pair[0]))
