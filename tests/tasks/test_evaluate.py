"""The stage on five small checkpoints that really trained for some steps, on real documents and tasks."""

import copy
import json
import math
import random
import sysconfig
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import torch
import yaml

from environments import long_context
from environments.catalog import environments, select
from environments.interface import MODES
from environments.ruler.material import Material
from environments.ruler.tasks import make_item
from evals.policy import Chat, Result
from model.chat.files import save_chat_files
from model.chat.renderer import render
from model.chat.tokenizer import Tokenizer
from model.config import SPECIAL_TOKENS, preset
from model.hub import save_folder
from model.inference.native.build import compiler
from model.loss import next_targets, training_losses
from model.quantization.quantize import quantize_model
from model.quantization.scheme import Scheme
from model.transformer import Transformer
from pipeline import artifacts
from pipeline.errors import UserError
from pipeline.recipe import load_recipe
from pipeline.recipe.evaluation import EvaluateSection
from pipeline.stage import execute
from tasks.evaluate import run
from tasks.evaluation.arena import arena_rows, hold_arena
from tasks.evaluation.baselines import seen_windows
from tasks.evaluation.cache import checkpoint_digest
from tasks.evaluation.eval_sets import EvalSets
from tasks.evaluation.policy import LocalPolicy
from tasks.evaluation.scorecard import Scorecard
from tasks.training.batches import StreamBatches, rows_of_step
from tasks.training.stages import BASE_STAGES, CHECKPOINT_STAGES

EXAMINED = select(environments(), load_recipe("tiny").eval_sets.environments)

LENGTH, SEED = 64, 3
SECTION = {
    "checkpoints": [*CHECKPOINT_STAGES, "quantize"], "documents_per_source": 3, "length": 48,
    "long_length": 96, "long_documents": 4, "long_context_items": 1, "long_context_new_tokens": 4,
    "items_per_family": 2,
    "base_items_per_family": 1, "max_new_tokens": 6, "samples_kept": 2, "sampled_items_per_family": 1,
    "samples_per_task": 2,
}  # fmt: skip


def standard_library(count: int) -> list[str]:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    return [text for text in texts if len(text) > 4000][:count]


@pytest.fixture(scope="module")
def tokenizer_json() -> str:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=512 - len(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(standard_library(20), trainer)
    made.add_special_tokens(list(SPECIAL_TOKENS))
    return made.to_str()


@pytest.fixture(scope="module")
def stream(tokenizer_json) -> np.ndarray:
    tokenizer = Tokenizer(tokenizer_json)
    end = tokenizer.ids_by_name["<|endoftext|>"]
    return np.array(
        [i for ids in tokenizer.encode_batch(standard_library(12)) for i in [*ids, end]], np.uint16
    )


@pytest.fixture(scope="module")
def models(stream) -> dict[str, Transformer]:
    """Trained a few steps; the later ones with an indexer that has learned a little too."""
    config = preset(
        "tiny", vocab_size=512, hidden_size=48, num_layers=2, ffn_size=96, num_heads=2, q_latent=32,
        kv_latent=24, num_experts=4, expert_ffn_size=32, index_heads=2, index_dim=16, index_top_k=16,
        mtp_steps=0,
    )  # fmt: skip
    made = {}
    model = Transformer(config, seed=SEED)
    for name, steps, indexer in (("pretrain", 30, False), ("midtrain", 10, False), ("dsa_adapt", 15, True)):
        if indexer:
            model.add_indexer(SEED)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        rng = np.random.default_rng(len(made))
        for _ in range(steps):
            at = rng.integers(0, len(stream) - LENGTH, 8)
            tokens = torch.from_numpy(np.stack([stream[i : i + LENGTH] for i in at]).astype(np.int64))
            losses = training_losses(model, tokens, next_targets(tokens), indexer_loss=indexer)
            optimizer.zero_grad()
            (losses.lm + losses.indexer_kl).backward()
            optimizer.step()
        made[name] = Transformer(config, indexer=indexer)
        made[name].load_state_dict(model.state_dict())
    return {**dict.fromkeys(CHECKPOINT_STAGES, made["dsa_adapt"]), **made}


def eval_sets(folder: Path) -> None:
    texts = standard_library(40)[30:]
    rows = [
        {"id": artifacts.digest_of(text), "source": ("one", "two")[n % 2], "text": text}
        for n, text in enumerate(texts)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "heldout.parquet")
    tasks = [
        {**environment.make_task(family, number, heldout=True).to_record(), "mode": mode}
        for environment in EXAMINED.values()
        for family in environment.families[:2]
        for mode in MODES
        for number in range(2)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    lines = [line for text in texts for line in text.splitlines() if 20 < len(line) < 120]
    items = []
    for number, task in enumerate(("needle", "multi_value")):
        item = long_context.make_item(task, random.Random(number), lines, len, 200, heldout=True)
        items.append(
            {"id": task, "task": task, "length": 200, "prompt": item.prompt, "answers": item.answers}
        )
    (folder / "longcontext.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    material, asked = Material.read(lines, texts), []
    for task in ("niah_single_2", "vt", "qa_1"):
        for number in range(2):
            item = make_item(task, random.Random(f"{task}/{number}"), material, len, 500)
            asked.append({"id": f"{task}/{number}", "length": 500, **asdict(item)})
    (folder / "ruler.jsonl").write_text("".join(json.dumps(item) + "\n" for item in asked))
    (folder / "humaneval.jsonl").write_text("")


def publish(root: Path, stage: str, fill, **record) -> None:
    draft = root / f"draft-{stage}"
    draft.mkdir(parents=True)
    fill(draft)
    final = root / "artifacts" / "evaluated" / stage
    final.parent.mkdir(parents=True, exist_ok=True)
    artifacts.publish(draft, final, {"stage": stage, "identity": stage, "metrics": {}, **record})


def write_checkpoint(folder: Path, model: Transformer, tokenizer_json: str, integers=None) -> None:
    save_folder(model, folder, integers)
    (folder / "tokenizer.json").write_text(tokenizer_json)
    save_chat_files(folder, model.config.max_positions)


@pytest.fixture
def root(tmp_path, monkeypatch, tokenizer_json, stream, models) -> Path:
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    (tmp_path / "evaluated.yaml").write_text(yaml.safe_dump({"extends": "tiny", "evaluate": SECTION}))
    publish(tmp_path, "eval_sets", eval_sets)

    def write_stream(folder: Path) -> None:
        stream.tofile(folder / "tokens.bin")
        (folder / "meta.json").write_text(json.dumps({"dtype": "uint16", "tokens": len(stream)}))

    publish(tmp_path, "pretrain_data", write_stream)
    section = {"sequence_length": LENGTH, "global_batch_tokens": 4 * LENGTH, "tokens": 30 * 4 * LENGTH + 5}
    for name in CHECKPOINT_STAGES:
        publish(
            tmp_path, name, lambda folder, name=name: write_checkpoint(folder, models[name], tokenizer_json),
            sections={"pretrain": section}, inputs={"pretrain_data": "content"}, seed=SEED,
        )  # fmt: skip
    floats, integers, _ = quantize_model(models["distill"], [], Scheme("minmax", rotation=False))
    publish(
        tmp_path, "quantize", lambda folder: write_checkpoint(folder, floats, tokenizer_json, integers),
        sections={}, inputs={"distill": "content"}, seed=SEED,
    )  # fmt: skip
    return tmp_path


def evaluate(root: Path) -> tuple[dict, dict]:
    execute("evaluate", run, str(root / "evaluated.yaml"), force=True)
    folder = root / "artifacts" / "evaluated" / "evaluate"
    return json.loads((folder / "scores.json").read_text()), artifacts.verify(folder)


def test_scores_every_checkpoint_and_computes_only_what_is_missing(root, models, tokenizer_json, monkeypatch):
    scores, record = evaluate(root)
    rows = {(row["checkpoint"], row["suite"], row["name"]): row for row in scores["rows"]}
    for row in scores["rows"]:
        if row["low"] is not None:
            assert row["low"] <= row["value"] + 1e-9 and row["value"] <= row["high"] + 1e-9
    for name in SECTION["checkpoints"]:
        assert {row["suite"] for row in scores["rows"] if row["checkpoint"] == name} == {
            "bits_per_byte", "sparse_attention", "long_context", "ruler", "environments",
            *(() if name in BASE_STAGES else ("answers", "sampled", "arena")),
        }  # fmt: skip
    assert ("pretrain", "sparse_attention", "indexer_kl") not in rows
    assert ("sft", "sparse_attention", "topk_recall") in rows
    assert rows["3-gram", "bits_per_byte", "all"]["value"] < rows["unigram", "bits_per_byte", "all"]["value"]
    assert record["metrics"]["eval/pretrain/bpb"] == rows["pretrain", "bits_per_byte", "all"]["value"]
    scripted = {(row["checkpoint"], row["suite"], row["name"]): row["value"] for row in scores["scripted"]}
    for suite, name in (("environments", "exact/off"), ("long_context", "dense/all"), ("ruler", "dense/all")):
        assert scripted["oracle", suite, name] == 1.0 and scripted["nop", suite, name] == 0.0
    # Two items of a RULER task, where a checkpoint is asked one: "random" takes another item's answer.
    asked = {row["n"] for row in scores["scripted"] if (row["suite"], row["name"]) == ("ruler", "dense/all")}
    assert asked == {6} and rows["sft", "ruler", "dense/all"]["n"] == 3
    assert {r["name"] for r in scores["arena"]["ratings"]} == set(SECTION["checkpoints"]) - set(BASE_STAGES)
    assert (
        scores["arena"]["wins"]["sft"]["distill"] == scores["arena"]["wins"]["distill"]["sft"]
    )  # same weights
    beside = {(row["suite"], row["name"]): row for row in scores["beside_parent"]}
    assert {(row["before"], row["after"]) for row in beside.values()} == {("distill", "quantize")}
    for suite in ("bits_per_byte", "answers"):
        assert 0 < abs(beside[suite, "perplexity"]["change"]) < 0.5
        assert beside[suite, "perplexity"]["low"] < beside[suite, "perplexity"]["high"]
    # Base checkpoints are asked fewer tasks, and scores of different items are not compared.
    compared = {(change["after"], change["suite"]) for change in scores["changes"]}
    assert ("dsa_adapt", "environments") in compared and ("sft", "environments") not in compared
    assert ("pretrain", "bits_per_byte") in compared  # against the 3-gram model
    # All stages but two have the same weights: the results of the one that came first serve all.
    cached = {(s["checkpoint"], s["suite"]): s["cached"] for s in record["facts"]["seconds_by_suite"]}
    equal = [cached[name, "bits_per_byte"] for name in CHECKPOINT_STAGES[2:]]
    assert not cached["pretrain", "bits_per_byte"] and equal.count(False) == 1
    decoded = record["facts"]["decode"]  # of integers too
    needed = "native" if compiler() else "plain: decoding in native code needs a C++ compiler"
    assert decoded["pretrain"].startswith(needed) and decoded["quantize"].startswith(needed)

    with monkeypatch.context() as patch:
        patch.setattr(
            LocalPolicy, "load", lambda *_: pytest.fail("a model was loaded although nothing is missing")
        )
        again, _ = evaluate(root)
    assert again == scores

    final = root / "artifacts" / "evaluated" / "midtrain"
    before = artifacts.read_record(final)
    publish(root, "midtrain", lambda f: write_checkpoint(f, models["pretrain"], tokenizer_json), **{
        key: before[key] for key in ("sections", "inputs", "seed")
    })  # fmt: skip
    _, record = evaluate(root)
    assert all(entry["cached"] for entry in record["facts"]["seconds_by_suite"])  # its weights are pretrain's


def test_an_arena_in_which_nothing_was_judged_is_left_out_with_its_reason():
    card, asked = Scorecard(), {"task": "t", "mode": "off", "valid": True, "language": 1.0, "repetition": 1.0}
    for name, reward in (("sft", None), ("distill", 1.0)):
        card.results[name, "environments"] = Result([], [], [{**asked, "reward": reward}])
        card.protocols[name, "environments"] = "same"
    assert hold_arena(card, ["sft"]) == (None, {})
    arena, why_not = hold_arena(card, ["pretrain", "sft", "distill"])
    assert arena is None and why_not["arena"].startswith("sft and distill answered no prompt in common")
    assert arena_rows(arena) == []


def test_bits_per_byte_equal_a_plain_forward_pass(root, models, tokenizer_json):
    tokenizer, model = Tokenizer(tokenizer_json), models["pretrain"]
    suite = EvalSets(root / "artifacts" / "evaluated" / "eval_sets", EvaluateSection(**SECTION)).suites(
        "pretrain"
    )[0]
    bits = size = 0.0
    for document in suite.documents:
        ids = [tokenizer.ids_by_name["<|endoftext|>"], *tokenizer.encode(document.text)[: SECTION["length"]]]
        with torch.no_grad():
            logits = model.logits(model(torch.tensor([ids])).hidden_BTD)[0].double().log_softmax(-1)
        bits -= sum(float(logits[t, ids[t + 1]]) for t in range(len(ids) - 1)) / math.log(2)
        size += sum(len(tokenizer.token_bytes(i)) for i in ids[1:])
    measured = suite.run(LocalPolicy(model, tokenizer)).scores[0]
    assert measured.name == "all" and measured.value == pytest.approx(bits / size, rel=1e-5)


def test_baselines_are_fitted_on_the_windows_that_training_saw(root):
    folder = root / "artifacts" / "evaluated" / "pretrain_data"
    fit = {"length": LENGTH, "rows_per_step": 4, "steps": 30, "seed": SEED}
    stream = StreamBatches(folder, LENGTH)
    wanted = set()
    for step in range(30):
        batch = stream.take(rows_of_step(stream.rows, 4, SEED, step))
        joined = torch.cat([batch.tokens_BT, batch.target_BT[:, -1:]], 1)
        wanted |= {tuple(row) for row in joined.tolist()}
    assert {tuple(row) for row in seen_windows(folder, fit).tolist()} == wanted


def test_the_policy_measures_the_indexer_and_marks_what_is_sampled(models, tokenizer_json):
    policy = LocalPolicy(models["dsa_adapt"], Tokenizer(tokenizer_json))
    for quality in policy.indexer_quality(standard_library(3), 80):
        assert len(quality.kl) == 2 and min(quality.kl) > 0
        for held, best, window in zip(quality.held, quality.best, quality.window, strict=True):
            assert 0 < held <= best + 1e-6 and 0 < window <= best + 1e-6
            assert best < 1
    chat = Chat(
        [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2", "reasoning_content": "t"}]
    )
    segments = policy.segments(chat, "interleaved")
    assert [text for text, trained in segments if trained] == ["t</think>2"]
    rendered = render(policy.tokenizer, chat.messages, None, "interleaved")
    with torch.no_grad():
        logits = policy.model.logits(policy.model(torch.tensor([rendered.ids])).hidden_BTD)[0].log_softmax(-1)
    wanted = [-float(logits[t - 1, rendered.ids[t]]) for t, on in enumerate(rendered.train) if on]
    assert policy.chat_nats([chat], "interleaved")[0] == pytest.approx(wanted, rel=1e-4)
    dense = policy.logprobs(["import os\n" * 20], 40, "dense")[0].nats
    window = policy.logprobs(["import os\n" * 20], 40, "window")[0].nats
    assert np.allclose(dense[:15], window[:15], atol=1e-5) and not np.allclose(dense, window, atol=1e-3)


def test_a_policy_says_why_it_does_not_decode_in_native_code(models, tokenizer_json):
    narrow = copy.deepcopy(models["pretrain"]).bfloat16()
    assert LocalPolicy(narrow, Tokenizer(tokenizer_json)).decode.startswith(
        "plain: native code decodes float32"
    )


def test_an_unknown_checkpoint_is_named(root):
    path = root / "evaluated.yaml"
    path.write_text(yaml.safe_dump({"extends": "tiny", "evaluate": {**SECTION, "checkpoints": ["nowhere"]}}))
    with pytest.raises(UserError, match="nowhere"):
        execute("evaluate", run, str(path), force=True)


def test_curves_do_not_change_a_checkpoint_but_weights_do():
    record = {"files": {"model.safetensors": [1, "a"], "config.json": [1, "b"], "curves.csv": [1, "c"]}}
    other = {"files": {**record["files"], "curves.csv": [2, "d"], "w8a8/model.safetensors": [1, "f"]}}
    changed = {"files": {**record["files"], "model.safetensors": [1, "e"]}}
    assert checkpoint_digest(record) == checkpoint_digest(other) != checkpoint_digest(changed)
