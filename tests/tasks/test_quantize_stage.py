"""Stage ``quantize`` over a small workspace: what it writes loads, and says what it is."""

import json
import shutil
from types import SimpleNamespace
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from model.chat.files import save_chat_files
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT
from model.hub import load_folder, read_quantized, save_folder
from model.quantization import scheme
from model.quantization.layers import QuantizedLinear, QuantizedMoE
from model.quantization.scheme import Scheme
from model.transformer import Transformer
from pipeline import artifacts
from pipeline.errors import UserError
from pipeline.progress import Progress
from pipeline.recipe import load_recipe
from pipeline.recipe.quantization import Method, QuantizeSection
from tasks.quantization.rows import calibration_batches, chat_rows
from tasks.quantize import run, schemes_of
from tasks.training.chats import read_chats
from tests.tasks.conftest import WORDS

SECTION = {
    "method": "ssz",
    "exports": {"w8a8": "minmax"},
    "min_tokens": 8,
    "calibration": {"chats": 12, "documents": 4, "length": 32},
    "heldout": {"chats": 6, "documents": 4, "length": 48, "prompts": 2, "new_tokens": 6},
}


@pytest.fixture
def context(workspace, tmp_path):
    """What the stage is given: a random model in the place of ``distill``, real data for the rest."""
    recipe = load_recipe(str(workspace))
    inputs = {
        name: artifacts.artifact_dir("mini", name) for name in ("sft_data", "pretrain_data", "tokenizer")
    }
    inputs |= {name: tmp_path / name for name in ("distill", "eval_sets")}
    for name in ("distill", "eval_sets", "out"):
        (tmp_path / name).mkdir()
    model = Transformer(recipe.model.config(), seed=3, indexer=True)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(6 if value.dim() > 1 else 1)
    save_folder(model, inputs["distill"])
    shutil.copy(inputs["tokenizer"] / "tokenizer.json", inputs["distill"])
    save_chat_files(inputs["distill"], model.config.max_positions)
    texts = [" ".join(WORDS[n % 7 :] * 3) for n in range(9)]
    rows = [{"id": f"{n:064x}", "source": "ab"[n % 2], "text": text} for n, text in enumerate(texts)]
    pq.write_table(pa.Table.from_pylist(rows), inputs["eval_sets"] / "heldout.parquet")
    return SimpleNamespace(
        section=QuantizeSection(**SECTION), recipe=SimpleNamespace(sft=recipe.sft), seed=1, inputs=inputs,
        out=tmp_path / "out", progress=Progress(tmp_path / "scratch", "quantize"), facts={},
    )  # fmt: skip


def test_the_folders_load_and_the_figures_are_of_them(context):
    metrics = run(context)
    model, all_8 = load_folder(context.out), load_folder(context.out / "w8a8")
    for loaded, bits in ((model, 4), (all_8, 8)):
        assert isinstance(loaded.blocks[1].ffn, QuantizedMoE)
        assert isinstance(loaded.blocks[0].attention.out, QuantizedLinear)
        folder = context.out if bits == 4 else context.out / "w8a8"
        assert {p.bits for n, p in read_quantized(folder)[1].items() if ".experts." in n} == {bits}
        assert Tokenizer.load(folder).vocab_size == model.config.vocab_size
    assert model.mtp.correction is not None

    rows = {row["name"]: row for row in json.loads((context.out / "quantization.json").read_text())}
    assert list(rows) == ["float", "w4a8", "w8a8"]
    assert all(row["bytes"] == row["computed_bytes"] for row in rows.values())
    assert rows["w4a8"]["bytes"] < rows["w8a8"]["bytes"] < rows["float"]["bytes"]
    for name, change in (("w8a8", 0.02), ("w4a8", 0.1)):
        assert 0 < abs(rows[name]["perplexity_text_change"]) < change
        low, high = rows[name]["perplexity_text_interval"]
        assert low < rows[name]["perplexity_text_change"] < high
        assert 0.8 < rows[name]["router_agreement"] < 1 and 0.8 < rows[name]["topk_overlap"] < 1
    assert metrics["perplexity_chat/w4a8"] == rows["w4a8"]["perplexity_chat"]
    assert metrics["accept_length/float"] >= 1 and metrics["kurtosis/before"] > 1

    facts = json.loads((context.out / "calibration.json").read_text())["w4a8"]
    counts = facts["expert_tokens"]["blocks.1.ffn"]
    config = model.config
    assert len(counts) == config.num_experts and sum(counts) == facts["tokens"] * config.experts_per_token
    assert facts["pooled"]["blocks.1.ffn"] == [e for e, count in enumerate(counts) if count < 8]
    assert facts["scheme"]["method"] == "ssz" and facts["scheme"]["seed"] == 1
    assert context.facts["loaded_by"].keys() == {"w4a8", "w8a8"}


def test_no_chat_is_calibrated_on_and_compared(context):
    tokenizer = Tokenizer.load(context.inputs["distill"])
    path = context.inputs["sft_data"] / "chats.jsonl"
    found = chat_rows(path, tokenizer, context.recipe.sft, 1000, 20)
    room = context.recipe.sft.validation_rows * context.recipe.sft.sequence_length
    size = sum(len(row.ids) for row in found.heldout)
    assert len(found.calibration) == 20 and room - 64 < size <= room
    everything = chat_rows(path, tokenizer, context.recipe.sft, 1000, 0)
    assert [row.ids for row in everything.heldout] == [row.ids for row in found.heldout]
    assert not everything.calibration
    # Fine-tuning holds the same chats out: what it packs for validation has the same tokens.
    sft = context.recipe.sft
    packed = read_chats(path, tokenizer, sft.sequence_length, sft.validation_rows)
    kept = packed.validation.tokens[packed.validation.tokens != tokenizer.ids_by_name[END_OF_TEXT]]
    assert packed.facts["sft/validation_documents"] == len(found.heldout)
    assert sorted(kept.tolist()) == sorted(token for row in found.heldout for token in row.ids)


def test_too_little_to_calibrate_on_gets_one_sentence(context):
    tokenizer = Tokenizer.load(context.inputs["distill"])
    path = context.inputs["sft_data"] / "chats.jsonl"
    with pytest.raises(UserError, match="lower quantize.calibration.chats or raise sft_data.chats"):
        chat_rows(path, tokenizer, context.recipe.sft, 4, 10_000)
    short = context.recipe.sft.model_copy(update={"sequence_length": 2})
    with pytest.raises(
        UserError, match="no chat of at most 2 tokens to compare on: raise sft.sequence_length"
    ):
        chat_rows(path, tokenizer, short, 4, 0)
    empty = QuantizeSection(calibration={"chats": 0, "documents": 0}).calibration
    with pytest.raises(UserError, match="neither chats nor documents"):
        calibration_batches([], context.inputs["pretrain_data"], empty)


def test_the_recipe_offers_every_method():
    assert get_args(Method) == get_args(scheme.Method)


def test_a_model_of_8_bits_is_not_exported_twice():
    schemes = schemes_of(QuantizeSection(method="gptq", expert_bits=8), 0)
    assert list(schemes) == ["w8a8"] and schemes["w8a8"].method == "gptq"
    schemes = schemes_of(QuantizeSection(rotation=False, exports={"w8a8": "minmax"}), 5)
    assert list(schemes) == ["w4a8", "w8a8"]
    assert schemes["w8a8"] == Scheme("minmax", False, 8, 64, 5)
