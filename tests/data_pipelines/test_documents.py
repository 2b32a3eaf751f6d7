import random

import pytest

from data_pipelines import documents
from data_pipelines.documents import Document, DocumentWriter, read_documents
from pipeline.errors import UserError
from tests.data_pipelines.conftest import document


def test_what_is_written_is_read_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROW_GROUP_CHARACTERS", 5_000)
    monkeypatch.setattr(documents, "FILE_CHARACTERS", 20_000)
    rng = random.Random(1)
    made = [document("".join(rng.choices("ab ü\n🙂", k=rng.randint(1, 3_000))), str(n)) for n in range(60)]
    with DocumentWriter(tmp_path) as writer:
        for one in made:
            writer.add(one)
    assert len(list(tmp_path.glob("*.parquet"))) > 2
    assert list(read_documents(tmp_path)) == made
    assert writer.characters == sum(len(one.text) for one in made)


def test_no_documents_are_an_empty_file(tmp_path):
    with DocumentWriter(tmp_path):
        pass
    assert list(read_documents(tmp_path)) == []


def test_a_file_cut_short_is_named(tmp_path):
    with DocumentWriter(tmp_path) as writer:
        writer.add(document("text " * 1000))
    file = tmp_path / "00000.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"00000\.parquet is not a readable Parquet file"):
        list(read_documents(tmp_path))


def test_a_damaged_page_is_named(tmp_path):
    rng = random.Random(2)
    with DocumentWriter(tmp_path) as writer:
        writer.add(document("".join(rng.choices("abcdefgh", k=50_000))))
    file = tmp_path / "00000.parquet"
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 2000] = bytes(2000)
    file.write_bytes(data)
    with pytest.raises(UserError, match="00000.parquet"):
        list(read_documents(tmp_path))


def test_identity_is_the_hash_of_the_text():
    assert document("abc").id == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert Document(**{**vars(document("abc")), "path": "b"}).id == document("abc").id
