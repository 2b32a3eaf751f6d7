"""A folder of the user's own, with everything that can be wrong in it."""

import json
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_pipelines.sources import folder
from data_pipelines.sources.files import Notes
from data_pipelines.sources.selection import take
from pipeline.errors import UserError
from pipeline.recipe.data import Source

LONG = 200 * 2**20


def read(path, **changes):
    notes = Notes()
    source = Source(**{"kind": "folder", "name": "mine", "path": str(path), **changes})
    return list(take(folder.files(source, notes, path), None, 0, notes)), notes


def test_kinds_of_files(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/a.py").write_text("x = 1\r\ny = 2\r\n")
    (tmp_path / "b.md").write_text("\ufeff# Title\n")
    (tmp_path / "c.jsonl").write_text(
        '{"text": "one", "licence": "MIT"}\n\n{"content": "two", "path": "k/z.go"}\n'
    )
    pq.write_table(pa.table({"content": ["three"], "repo_name": ["r"]}), tmp_path / "d.parquet")
    (tmp_path / ".hidden.md").write_text("no")
    documents, _ = read(tmp_path, licence="CC0-1.0")
    found = {d.text: (d.path, d.package, d.licence, d.language, d.kind) for d in documents}
    assert found == {
        "x = 1\ny = 2\n": ("lib/a.py", "mine/lib", "CC0-1.0", "python", "code"),
        "# Title\n": ("b.md", "mine", "CC0-1.0", "markdown", "prose"),
        "one": ("c.jsonl line 1", "mine", "MIT", "en", "prose"),
        "two": ("k/z.go", "mine", "CC0-1.0", "go", "code"),
        "three": ("d.parquet row 1", "r", "CC0-1.0", "en", "prose"),
    }


def test_single_bad_files_and_records_are_skipped(tmp_path):
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "binary.txt").write_bytes(b"a\0b")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG")
    records = ['{"text": "fine"}', "not json", '["list"]', '{"body": "?"}', '{"text": "\\ud800"}']
    (tmp_path / "rows.jsonl").write_text("\n".join(records))
    documents, notes = read(tmp_path)
    assert {d.text for d in documents} == {"good", "fine"}
    skipped = {reason: entry["examples"] for reason, entry in notes.skipped.items()}
    assert skipped == {
        "its bytes are not UTF-8": ["latin.txt"],
        "it is binary, not text": ["binary.txt"],
        "it is empty": ["empty.txt"],
        "files of kind .png are not read": ["photo.png"],
        "it is not JSON": ["rows.jsonl line 2"],
        "it is not a JSON object": ["rows.jsonl line 3"],
        "it has no text under the key 'text' or 'content'": ["rows.jsonl line 4"],
        "it holds half of a surrogate pair": ["rows.jsonl line 5"],
    }


def test_files_that_cannot_be_read_are_skipped(tmp_path):
    (tmp_path / "a.txt").symlink_to("/proc/self/mem")  # a regular file that nobody can read from its start
    (tmp_path / "b.jsonl").write_text("{}")
    (tmp_path / "c.txt").write_text("good")
    notes, source = Notes(), Source(kind="folder", name="mine", path=str(tmp_path))
    files = list(folder.files(source, notes, tmp_path))
    (tmp_path / "b.jsonl").unlink()
    assert [document.text for document in take(files, None, 0, notes)] == ["good"]
    assert [entry["examples"] for _, entry in sorted(notes.skipped.items())] == [["a.txt"], ["b.jsonl"]]
    assert all(reason.startswith("it cannot be read (") for reason in notes.skipped)


@pytest.mark.parametrize("name", ["long.txt", "long.jsonl"])
def test_a_line_of_200_mb_is_skipped_in_little_memory(tmp_path, name):
    good = json.dumps({"text": "good"}) + "\n"
    with open(tmp_path / name, "wb") as file:
        file.write(good.encode())
        file.truncate(LONG)
        file.seek(LONG)
        file.write(b"\n" + good.encode())
    (tmp_path / "other.txt").write_text("other")
    tracemalloc.start()
    documents, notes = read(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 2**20
    assert notes.skipped["it is longer than 8 MB"]["files"] == 1
    assert [d.text for d in documents].count("good") == (2 if name.endswith("jsonl") else 0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda f: None, "holds no text, Markdown, source code, JSON Lines or Parquet file"),
        (lambda f: (f / "a.png").write_bytes(b"1"), "holds no text"),
        (
            lambda f: (f / "a.jsonl").write_text("{}\n"),
            "a.jsonl holds no usable line (line 1: it has no text",
        ),
        (lambda f: (f / "a.jsonl").write_text(""), "a.jsonl holds no usable line (it is empty)"),
        (lambda f: (f / "a.parquet").write_bytes(b"PAR1 cut"), "a.parquet is not a readable Parquet file"),
        (lambda f: pq.write_table(pa.table({"x": [1]}), f / "a.parquet"), "a.parquet has no column 'text'"),
        (lambda f: f.rmdir(), "there is no "),
    ],
)
def test_what_is_broken_as_a_whole_stops_with_one_sentence(tmp_path, make, sentence):
    data = tmp_path / "data"
    data.mkdir()
    make(data)
    with pytest.raises(UserError) as error:
        read(data)
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_a_source_without_any_document_says_why(chain, tmp_path):
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin/a.txt").write_bytes(b"\xe9" * 300)
    made = chain([{"kind": "folder", "name": "mine", "path": str(tmp_path / "latin")}])
    with pytest.raises(UserError, match="source mine gave no document .*not UTF-8: a.txt"):
        made.run("collect")
    assert not made.folder("collect").exists()


def test_a_file_whose_name_is_no_utf8_is_skipped(chain, tmp_path):
    folder = tmp_path / "names"
    folder.mkdir()
    with open(bytes(folder) + b"/a\xff.md", "w") as file:
        file.write("never read " * 40)
    (folder / "b.md").write_text("A sentence that is kept, because its file has a name. " * 10)
    made = chain([{"kind": "folder", "name": "mine", "path": str(folder)}])
    made.run("collect")
    assert [d.path for d in read(folder)[0]] == ["b.md"]
    assert read(folder)[1].skipped["its name is not UTF-8"]["files"] == 1


def test_one_file_may_be_the_source(tmp_path):
    (tmp_path / "one.md").write_text("text")
    documents, _ = read(tmp_path / "one.md")
    assert [d.path for d in documents] == ["one.md"]
