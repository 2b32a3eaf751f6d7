"""When does each line of a crontab run next?"""

import random
from datetime import datetime, timedelta

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.text import EXPECTED, WORDS, fill, name_of, phrase

SOLUTION = """
# Each field becomes a set of values; then minute after minute is tried, wrong days and hours being skipped.
python3 - <<'END'
from datetime import datetime, timedelta

BOUNDS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]


def values(field, bounds):
    found = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, last = bounds if span == "*" else (span.split("-") * 2)[:2]
        found.update(range(int(first), int(last) + 1, int(step or 1)))
    return found


def next_runs(fields, moment, count):
    minutes, hours, days, months, weekdays = (values(field, bounds) for field, bounds in zip(fields, BOUNDS))
    weekdays = {day % 7 for day in weekdays}
    found = []
    moment += timedelta(minutes=1)
    while len(found) < count:
        by_day, by_weekday = moment.day in days, moment.isoweekday() % 7 in weekdays
        if "*" in (fields[2], fields[4]):
            right_day = by_day and by_weekday
        else:
            right_day = by_day or by_weekday
        if moment.month not in months or not right_day:
            moment = moment.replace(hour=0, minute=0) + timedelta(days=1)
        elif moment.hour not in hours:
            moment = moment.replace(minute=0) + timedelta(hours=1)
        else:
            if moment.minute in minutes:
                found.append(moment)
            moment += timedelta(minutes=1)
    return found


lines = []
for line in open("<<crontab>>"):
    if line.strip() and not line.startswith("#"):
        *fields, command = line.split(None, 5)
        for run in next_runs(fields, datetime(<<start>>), <<count>>):
            lines.append(f"{run:%Y-%m-%d %H:%M} {command.strip()}")
lines.sort()
with open("<<out>>", "w") as file:
    file.write("\\n".join(lines) + "\\n")
END
head <<out>>
"""
TESTS = (
    EXPECTED
    + """

def test_runs():
    lines = Path(EXPECTED["out"]).read_text().splitlines()
    assert lines == EXPECTED["lines"], f"{lines} instead of {EXPECTED['lines']}"
"""
)


def cron_times(rng: random.Random) -> TerminalDraft:
    """Steps, ranges, lists, Sunday as 0 and 7, and the rule for two restricted days."""
    crontab, out, count = f"/app/{name_of(rng)}.crontab", f"/app/{name_of(rng)}.txt", rng.randint(2, 4)
    start = datetime(2025, 1, 1) + timedelta(minutes=rng.randrange(60 * 24 * 600))
    jobs = [
        (_fields(rng), f"run-{word} --{rng.choice(WORDS)}") for word in rng.sample(WORDS, rng.randint(5, 8))
    ]
    lines = sorted(
        f"{moment:%Y-%m-%d %H:%M} {command}"
        for fields, command in jobs
        for moment in _runs(fields, start, count)
    )
    text = "# minute hour day month weekday command\n" + "".join(
        f"{' '.join(fields)} {command}\n" for fields, command in jobs
    )
    opening = phrase(
        rng,
        "We are planning a maintenance window.",
        "We want to know what will run when.",
        "Please work out a schedule.",
    )
    instruction = (
        f"{opening} {crontab} has lines of the form `minute hour day month weekday command`, and comment "
        "lines that begin with `#`. A field is `*` or a list, separated by commas, of numbers and ranges "
        "`a-b`; `*` and a range may be followed by `/n`, which means every n-th value from the beginning of "
        "the range on. Weekdays are 0 to 7, 0 and 7 both being Sunday. A command runs at every minute at "
        "which minute, hour and month fit and the day fits: when neither day nor weekday is `*`, it is "
        "enough that one of the two fits, otherwise both must fit.\n\n"
        f"For each command find the first {count} times strictly after {start:%Y-%m-%d %H:%M} at which it "
        f"runs. Write them all to {out}, a line each: `YYYY-MM-DD HH:MM COMMAND` (the command as in the "
        "crontab, with its arguments), sorted in byte order."
    )
    solution = fill(
        SOLUTION,
        crontab=crontab,
        out=out,
        count=count,
        start=f"{start.year}, {start.month}, {start.day}, {start.hour}, {start.minute}",
    )
    return TerminalDraft(
        title="Next runs of a crontab",
        instruction=instruction,
        solution=solution,
        tests=TESTS,
        difficulty="hard",
        files={crontab.removeprefix("/app/"): text.encode()},
        expected={"out": out, "lines": lines},
    )


def _fields(rng: random.Random) -> list[str]:
    minute = rng.choice(["0", "*/15", "5,35", "10-50/20", str(rng.randrange(60))])
    hour = rng.choice(["*", "6", "*/6", "8-18/5", "0,12", str(rng.randrange(24))])
    day = rng.choice(["*", "*", "1", "15", "28-31", "*/10", "31"])
    month = rng.choice(["*", "*", "*", "1-6", "3,9", "*/5"])
    weekday = rng.choice(["*", "*", "0", "7", "1-5", "6,0", "2"])
    if day == "31":
        month = "*"  # 31 June never comes
    return [minute, hour, day, month, weekday]


def _fits(field: str, number: int, first: int) -> bool:
    """Whether one number fits a field."""
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        start, stop = (first, 99) if span == "*" else (int(low), int(high or low))
        if start <= number <= stop and (number - start) % int(step or 1) == 0:
            return True
    return False


def _runs(fields: list[str], start: datetime, count: int) -> list[datetime]:
    minute, hour, day, month, weekday = fields
    found, today = [], start.replace(hour=0, minute=0)
    while len(found) < count:
        number = today.isoweekday()
        fits_weekday = _fits(weekday, number, 0) or (number == 7 and _fits(weekday, 0, 0))
        both = [_fits(day, today.day, 1), fits_weekday]
        fits_day = any(both) if day != "*" and weekday != "*" else all(both)
        if fits_day and _fits(month, today.month, 1):
            hours = [number for number in range(24) if _fits(hour, number, 0)]
            minutes = [number for number in range(60) if _fits(minute, number, 0)]
            times = [today + timedelta(hours=one, minutes=other) for one in hours for other in minutes]
            found += [time for time in times if time > start]
        today += timedelta(days=1)
    return found[:count]
