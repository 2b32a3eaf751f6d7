"""The data stages one after the other on a small real corpus: what is promised about what they write."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from data_pipelines.documents import SCHEMA, read_documents
from model.config import SPECIAL_TOKENS
from pipeline import artifacts
from tests.data_pipelines.conftest import STAGES

VOCABULARY = 1024


@pytest.fixture(scope="module")
def made(corpus, tmp_path_factory):
    """The stages run twice, below two roots."""
    from tests.data_pipelines.conftest import ROOT, Chain

    patch = pytest.MonkeyPatch()
    patch.chdir(ROOT)
    contents = []
    for _ in range(2):
        root = tmp_path_factory.mktemp("root")
        patch.setenv("GLM5_ROOT", str(root))
        chain = Chain(root, [{"kind": "folder", "name": "files", "path": str(corpus), "licence": "PSF-2.0"}])
        chain.run(*STAGES)
        contents.append({stage: artifacts.verify(chain.folder(stage))["files"] for stage in STAGES})
    yield chain, contents
    patch.undo()


def test_same_inputs_give_the_same_bytes(made):
    _, (first, second) = made
    assert first == second


def test_documents_keep_where_they_came_from(made, corpus):
    chain, _ = made
    folder = chain.folder("collect") / "documents"
    assert pq.read_schema(next(folder.glob("*.parquet"))).equals(SCHEMA)
    documents = {document.path: document for document in read_documents(folder)}
    one = documents["json/decoder.py"]
    assert one.text == (corpus / "json/decoder.py").read_text()
    assert (one.package, one.licence, one.language, one.kind) == ("files/json", "PSF-2.0", "python", "code")
    summary = json.loads((chain.folder("collect") / "sources.json").read_text())["sources"][0]
    assert summary["skipped"]["its bytes are not UTF-8"]["examples"] == ["copied/latin.md"]
    assert summary["documents"] == len(documents)


def test_nothing_held_out_is_trained_on(made):
    chain, _ = made
    heldout = {document.id for document in read_documents(chain.folder("eval_sets") / "heldout.parquet")}
    kept = {document.id for document in read_documents(chain.folder("curate") / "documents")}
    collected = list(read_documents(chain.folder("collect") / "documents"))
    assert heldout and not heldout & kept
    size = sum(len(d.text) for d in collected if d.id in heldout) / sum(len(d.text) for d in collected)
    assert 0.03 <= size < 0.12


def test_funnel_adds_up_and_names_the_planted_faults(made):
    chain, _ = made
    funnel = json.loads((chain.folder("curate") / "funnel.json").read_text())
    collected = list(read_documents(chain.folder("collect") / "documents"))
    assert sum(row["documents"] for row in funnel["rows"]) == len(collected)
    assert sum(row["characters"] for row in funnel["rows"]) == sum(len(d.text) for d in collected)
    dropped = {sample["path"]: sample["reason"] for sample in funnel["samples"]}
    assert dropped["copied/broken.py"] == "quality: does not parse"
    kept = [document.path for document in read_documents(chain.folder("curate") / "documents")]
    twins = {"copied/same.py", "json/decoder.py"}
    assert len(twins & set(kept)) <= 1 and "copied/nearly.py" not in set(kept) or not twins & set(kept)


def test_transformers_loads_the_tokenizer(made):
    from transformers import AutoTokenizer

    chain, _ = made
    tokenizer = AutoTokenizer.from_pretrained(chain.folder("tokenizer"))
    assert len(tokenizer) == VOCABULARY
    first = VOCABULARY - len(SPECIAL_TOKENS)
    assert [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS] == list(
        range(first, VOCABULARY)
    )
    assert tokenizer.eos_token == tokenizer.pad_token == "<|endoftext|>"
    text = "x = 12345\n\n  naïve – 你好 \t🙂 <|user|>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("2026")["input_ids"]) == 4
    assert set(tokenizer("x")) == {"input_ids", "attention_mask"}  # what the model takes


def test_pretraining_tokens_are_the_curated_documents(made):
    chain, _ = made
    folder = chain.folder("pretrain_data")
    meta = json.loads((folder / "meta.json").read_text())
    tokens = np.fromfile(folder / "tokens.bin", dtype=meta["dtype"])
    offsets = np.load(folder / "offsets.npy")
    assert len(tokens) == meta["tokens"] == 60_000 and meta["dtype"] == "<u2" and offsets.dtype == np.int64
    tokenizer = Tokenizer.from_file(str(chain.folder("tokenizer") / "tokenizer.json"))
    texts = {document.text for document in read_documents(chain.folder("curate") / "documents")}
    read = [_original(tokenizer, part) for part in np.split(tokens, offsets[1:])]
    assert sum(text in texts for text in read) == len(read) - 1  # the last one drawn is cut
    assert sum(any(whole.startswith(text) for whole in texts) for text in read) >= len(read) - 1
    validation = np.fromfile(folder / "validation.bin", dtype=meta["dtype"])
    assert len(validation) == meta["validation"]["tokens"] > 0
    starts = np.load(folder / "validation_offsets.npy")
    for part in np.split(validation, starts[1:]):
        text = tokenizer.decode(part.tolist())
        assert any(whole.startswith(text) for whole in texts) and not any(w.startswith(text) for w in read)
    assert meta["sources"]["files"]["fill_in_the_middle"] > 0


def _original(tokenizer: Tokenizer, tokens: np.ndarray) -> str:
    """The text of a document, put back in order when it was cut for fill-in-the-middle."""
    marks = [tokenizer.token_to_id(f"<|code_{name}|>") for name in ("prefix", "suffix", "middle")]
    if tokens[0] != marks[0]:
        return tokenizer.decode(tokens.tolist())
    middle, suffix = np.flatnonzero(tokens == marks[2]), np.flatnonzero(tokens == marks[1])
    if not len(middle):
        return tokenizer.decode(tokens[1 : suffix[0] if len(suffix) else None].tolist())
    prefix = tokens[1 : suffix[0]]
    parts = (prefix, tokens[middle[0] + 1 :], tokens[suffix[0] + 1 : middle[0]])
    return "".join(tokenizer.decode(part.tolist()) for part in parts)


def test_midtraining_rows_keep_the_bounds_of_documents(made):
    chain, _ = made
    folder = chain.folder("midtrain_data")
    meta = json.loads((folder / "meta.json").read_text())["contexts"]["512"]
    tokens = np.load(folder / "seq_512.tokens.npy")
    starts = np.load(folder / "seq_512.starts.npy")
    assert tokens.shape == starts.shape == (meta["rows"], 512) and starts.dtype == np.int32
    assert meta["tokens"] == 60_000 and meta["efficiency"] > 0.95
    places = np.arange(512)
    assert (starts <= places).all()
    assert (np.take_along_axis(starts, starts.astype(np.int64), axis=1) == starts).all()
    end = VOCABULARY - len(SPECIAL_TOKENS)
    inside = starts[:, 1:] == starts[:, :-1]
    assert not (tokens[:, :-1][inside] == end).any()  # a document ends nowhere but at its end
    tokenizer = Tokenizer.from_file(str(chain.folder("tokenizer") / "tokenizer.json"))
    text = "\n".join(tokenizer.decode(row.tolist(), skip_special_tokens=False) for row in tokens)
    assert "# file: " in text


def test_finished_stages_are_not_run_again(made, capsys):
    chain, _ = made
    chain.run("collect", "curate")
    assert capsys.readouterr().err.splitlines() == ["collect: up to date", "curate: up to date"]


def test_long_items_ask_for_what_stands_in_them(made):
    chain, _ = made
    lines = (chain.folder("eval_sets") / "longcontext.jsonl").read_text().splitlines()
    items = [json.loads(line) for line in lines]
    assert len({item["id"] for item in items}) == len(items) > 0
    for item in items:
        assert all(answer in item["prompt"] for answer in item["answers"]) and 0 <= item["depth"] <= 1
    tasks = [
        json.loads(line) for line in (chain.folder("eval_sets") / "tasks.jsonl").read_text().splitlines()
    ]
    assert {task["mode"] for task in tasks} == {"interleaved", "preserved", "off"}
    assert all(task["heldout"] for task in tasks)
    asked = [(task["environment"], task["family"], task["mode"], str(task["messages"])) for task in tasks]
    assert len(set(asked)) == len(asked)
