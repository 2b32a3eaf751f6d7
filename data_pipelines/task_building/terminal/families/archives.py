"""Archives: restore damaged files from a backup by their checksums, collect files out of nested archives."""

import gzip
import hashlib
import io
import random
import tarfile
import zipfile

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.text import (
    EXPECTED,
    SERVICES,
    USERS,
    WORDS,
    fill,
    name_of,
    phrase,
)

HASHES = {"sha256": "sha256sum", "sha1": "sha1sum", "md5": "md5sum"}

RESTORE = """
# 1. What the manifest says against what is there.
(cd <<root>> && <<tool>> --check --quiet <<manifest>> 2>/dev/null || true) > /tmp/check
cut -d ' ' -f 3- <<root>>/<<manifest>> | LC_ALL=C sort > /tmp/listed

# 2. The backups are unpacked beside each other, the newest first.
mkdir -p /tmp/backup
for archive in $(ls -r <<store>>/*.tar.gz); do
    mkdir -p "/tmp/backup/$(basename "$archive" .tar.gz)"
    tar -xzf "$archive" -C "/tmp/backup/$(basename "$archive" .tar.gz)"
done

# 3. A damaged or missing file is taken from a backup in which its checksum is right.
: > <<out>>
while IFS= read -r name; do
    wanted=$(awk -v name="$name" '{
        hash = $1; sub(/^[^ ]+ +/, ""); if ($0 == name) print hash
    }' <<root>>/<<manifest>>)
    if [ -f "<<root>>/$name" ] && [ "$(<<tool>> < "<<root>>/$name" | cut -d ' ' -f 1)" = "$wanted" ]; then
        continue
    fi
    state=<<lost>>
    for folder in $(ls -rd /tmp/backup/*); do
        if [ -f "$folder/$name" ] && [ "$(<<tool>> < "$folder/$name" | cut -d ' ' -f 1)" = "$wanted" ]; then
            mkdir -p "$(dirname "<<root>>/$name")"
            cp "$folder/$name" "<<root>>/$name"
            state=<<restored>>
            break
        fi
    done
    echo "$state $name" >> <<out>>
done < /tmp/listed
cat <<out>>
"""
RESTORE_TESTS = (
    EXPECTED
    + """
import hashlib


def test_files_are_what_the_manifest_says():
    root = Path(EXPECTED["root"])
    for name, wanted in EXPECTED["hashes"].items():
        assert (root / name).is_file(), f"{name} is missing"
        found = hashlib.sha256((root / name).read_bytes()).hexdigest()
        assert found == wanted, f"{name} has other content"


def test_manifest_is_as_it_was():
    found = hashlib.sha256(Path(EXPECTED["manifest"]).read_bytes()).hexdigest()
    assert found == EXPECTED["manifest_hash"], "the manifest was changed"


def test_report():
    lines = Path(EXPECTED["report"]).read_text().splitlines()
    assert lines == EXPECTED["lines"], lines
"""
)


def restore_files(rng: random.Random) -> TerminalDraft:
    """Files that differ from a manifest come back from one of several backups, unless none has them."""
    kind, root, out = rng.choice(list(HASHES)), f"/app/{rng.choice(SERVICES)}", f"/app/{name_of(rng)}.txt"
    manifest, folder = f"{kind.upper()}SUMS", root.removeprefix("/app/")
    names = [
        f"{rng.choice(['', 'data/', 'data/raw/', 'img/'])}{word}.bin"
        for word in rng.sample(WORDS, rng.randint(12, 18))
    ]
    good = {name: rng.randbytes(rng.randint(60, 400)) for name in names}
    store = rng.choice(["backups", "snapshots", "copies", "archive"])
    words = rng.choice(
        [("restored", "lost"), ("recovered", "missing"), ("repaired", "broken"), ("new", "bad")]
    )
    written = dict(zip(("restored", "lost"), words, strict=True))
    days = sorted(rng.sample(range(1, 29), 3))
    backups: list[dict[str, bytes]] = [{}, {}, {}]
    present, lines, hashes = dict(good), [], {}
    for number, name in enumerate(names):
        state = (
            ["restored", "lost", "restored"][number]
            if number < 3
            else rng.choices(["fine", "restored", "lost"], [6, 3, 1])[0]
        )
        holders = rng.sample(range(3), rng.randint(1, 2)) if state != "lost" else []
        for index in range(3):
            if index in holders:
                backups[index][name] = good[name]
            elif rng.random() < 0.5:  # an older or a damaged copy: the hash tells
                backups[index][name] = _damage(rng, good[name])
        if state != "fine":
            damaged = _damage(rng, good[name])
            if rng.random() < 0.4 and state == "restored":
                del present[name]
            else:
                present[name] = damaged
            lines.append(f"{written[state]} {name}")
        content = present.get(name, b"") if state == "lost" else good[name]
        hashes[name] = hashlib.sha256(content).hexdigest()
    lines.sort(key=lambda line: line.split(" ", 1)[1])
    listing = "".join(
        f"{hashlib.new(kind, good[name]).hexdigest()}  {name}\n" for name in sorted(names)
    ).encode()
    files = {f"{folder}/{name}": content for name, content in present.items()} | {
        f"{folder}/{manifest}": listing
    }
    files |= {
        f"{store}/2025-03-{day:02}.tar.gz": _tar_gz(content)
        for day, content in zip(days, backups, strict=True)
    }
    opening = phrase(
        rng,
        f"A disk failed under {root}.",
        f"Some files in {root} were damaged by a bad copy.",
        f"Something has overwritten parts of {root}.",
    )
    instruction = (
        f"{opening} {root}/{manifest} lists the {kind.upper()} checksum of every file as it should be (the "
        f"format of `{HASHES[kind]}`, paths relative to {root}); the manifest itself is right. /app/{store} "
        f"has three archives of {root} from different days, of which each holds only some of the files, and "
        "some of those in an older or damaged version.\n\n"
        "Bring back every listed file that is missing or has another checksum, from whichever backup has "
        "the right version of it. A file of which no backup has the right version stays as it is. Files "
        "that are right stay untouched, and so does the manifest.\n\n"
        f"Write {out} with a line for each listed file that was missing or wrong: `{written['restored']} "
        f"PATH` when it is right now, else `{written['lost']} PATH`, with the path as in the manifest, "
        "sorted by PATH in byte order."
    )
    return TerminalDraft(
        title=f"Restore files by their {kind.upper()} checksums",
        instruction=instruction,
        files=files,
        tests=RESTORE_TESTS,
        solution=fill(
            RESTORE, root=root, manifest=manifest, tool=HASHES[kind], out=out, store=store, **written
        ),
        difficulty="medium",
        expected={
            "root": root,
            "hashes": hashes,
            "manifest": f"{root}/{manifest}",
            "manifest_hash": hashlib.sha256(listing).hexdigest(),
            "report": out,
            "lines": lines,
        },
    )


def _damage(rng: random.Random, content: bytes) -> bytes:
    place = rng.randrange(len(content))
    return rng.choice(
        [content[:place], content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]]
    )


def _tar_gz(contents: dict[str, bytes]) -> bytes:
    return gzip.compress(_tar(contents), mtime=0)


def _tar(contents: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in sorted(contents.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def _zip(contents: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(contents.items()):
            archive.writestr(zipfile.ZipInfo(name, (2025, 3, 1, 0, 0, 0)), content)
    return stream.getvalue()


NEST = """
# Archives are opened one layer after the other, in memory; what is no archive and is a reading is kept.
python3 - <<'END'
import gzip
import io
import tarfile
import zipfile

readings = []


def visit(name, content):
    if content[:4] == b"PK\\x03\\x04":
        archive = zipfile.ZipFile(io.BytesIO(content))
        for entry in archive.namelist():
            visit(entry, archive.read(entry))
    elif content[:2] == b"\\x1f\\x8b":
        visit(name, gzip.decompress(content))
    elif content[257:262] == b"ustar":
        archive = tarfile.open(fileobj=io.BytesIO(content))
        for entry in archive.getmembers():
            if entry.isfile():
                visit(entry.name, archive.extractfile(entry).read())
    elif name.endswith(".<<ending>>"):
        for line in content.decode().splitlines():
            day, sensor, value = line.split()
            if day >= "<<since>>":
                readings.append((sensor, day, int(value)))


visit("<<archive>>", open("<<archive>>", "rb").read())
print(len(readings), "readings")

# <<rule>> of each sensor.
best = {}
for sensor, day, value in sorted(readings):
    if sensor not in best or <<better>>:
        best[sensor] = (day, value)
with open("<<out>>", "w") as file:
    for sensor in sorted(best):
        day, value = best[sensor]
        file.write(f"{sensor} {day} {value}\\n")
END
head <<out>>
"""
NEST_TESTS = (
    EXPECTED
    + """

def test_report():
    lines = Path(EXPECTED["report"]).read_text().splitlines()
    assert lines == EXPECTED["lines"], f"{lines} instead of {EXPECTED['lines']}"
"""
)


def nested_archives(rng: random.Random) -> TerminalDraft:
    """Readings in archives within archives, under names that do not tell what they are."""
    archive, out, ending = (
        f"/app/{name_of(rng)}.bundle",
        f"/app/{name_of(rng)}.txt",
        rng.choice(["log", "obs", "dat"]),
    )
    rule = rng.choice(
        [
            "the largest value, of equal values the earliest day",
            "the smallest value, of equal values the earliest day",
            "the value of the latest day",
        ]
    )
    better = {
        "largest": "value > best[sensor][1]",
        "smallest": "value < best[sensor][1]",
        "latest": "day > best[sensor][0]",
    }
    kind = next(word for word in better if word in rule)
    since = rng.choice(
        ["2024-01-01", *(f"2024-0{month}-{day:02}" for month in range(2, 7) for day in (1, 10, 20))]
    )
    sensors, readings, level = [f"{name}-{rng.randrange(10, 99)}" for name in rng.sample(USERS, 5)], [], {}
    days = iter(rng.sample(range(365), 120))
    for depth in range(rng.randint(3, 4)):
        contents = dict(level)
        for _ in range(rng.randint(3, 5)):
            lines = []
            for _ in range(rng.randint(2, 6)):
                number = next(days)
                reading = (
                    rng.choice(sensors),
                    f"2024-{number // 31 + 1:02}-{number % 28 + 1:02}",
                    rng.randrange(-40, 60),
                )
                if all(other[:2] != reading[:2] for other in readings):
                    readings.append(reading)
                    lines.append(f"{reading[1]} {reading[0]} {reading[2]}")
            name = f"{rng.choice(WORDS)}/{rng.choice(WORDS)}{depth}{len(contents)}.{ending}"
            contents[name] = "".join(f"{line}\n" for line in lines).encode()
        contents[f"{rng.choice(WORDS)}{depth}.note"] = (
            f"2024-01-01 {sensors[0]} {rng.choice([-999, 999])}\n".encode()
        )
        packed = rng.choice([_zip, _tar, _tar_gz])(contents)
        level = {f"{rng.choice(WORDS)}{depth}{rng.choice(['', '.part', '.old'])}": packed}
    best = {}
    for sensor, day, value in sorted(reading for reading in readings if reading[1] >= since):
        now = best.get(sensor, (day, value))
        wins = {"largest": value > now[1], "smallest": value < now[1], "latest": day > now[0]}
        if sensor not in best or wins[kind]:
            best[sensor] = (day, value)
    lines = [f"{sensor} {best[sensor][0]} {best[sensor][1]}" for sensor in sorted(best)]
    early = "" if since == "2024-01-01" else f"Readings of days before {since} do not count. "
    instruction = (
        f"{archive} is an archive that holds files and further archives, and those hold archives again. They "
        "are zip, tar and gzipped tar archives, and their names do not tell which.\n\n"
        f"Files at any depth whose names end in `.{ending}` have readings, one a line: day (YYYY-MM-DD), "
        "sensor and a whole number, separated by single spaces. No sensor has two readings of the same day. "
        "All other files are to be ignored.\n\n"
        f"{early}For each sensor find {rule}. Write {out} with a line for each sensor: sensor, day and "
        "value, separated by single spaces, sorted by sensor in byte order. Sensors without readings that "
        "count are left out."
    )
    solution = fill(
        NEST,
        since=since,
        archive=archive,
        out=out,
        ending=ending,
        rule=rule[0].upper() + rule[1:],
        better=better[kind],
    )
    return TerminalDraft(
        title="Readings in nested archives",
        instruction=instruction,
        solution=solution,
        tests=NEST_TESTS,
        difficulty="hard",
        files={archive.removeprefix("/app/"): next(iter(level.values()))},
        expected={"report": out, "lines": lines},
    )
