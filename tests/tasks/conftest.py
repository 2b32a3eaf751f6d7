"""A small workspace with real artifacts of the data stages, made of random text, for the training stages."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from model.config import SPECIAL_TOKENS
from pipeline import artifacts
from pipeline.graph import load_graph
from pipeline.recipe import load_recipe
from pipeline.stage import identity_of

WORDS = "def return if else for in range len print value total count name list self x y z 0 1 2 3".split()
CHANGES = {
    "extends": "tiny",
    "model": {
        "vocab_size": 400, "hidden_size": 32, "num_layers": 2, "ffn_size": 64, "num_heads": 2,
        "q_latent": 16, "kv_latent": 16, "qk_nope_dim": 8, "qk_rope_dim": 8, "v_dim": 8,
        "num_experts": 4, "expert_ffn_size": 16, "index_heads": 2, "index_dim": 16, "index_top_k": 8,
        "mtp_steps": 2, "max_positions": 128,
    },
    "tokenizer": {"vocab_size": 400},
    "midtrain_data": {"contexts": {64: 4096}},
    "pretrain": {
        "sequence_length": 32, "micro_batch": 2, "global_batch_tokens": 128, "tokens": 1536,
        "save_every_steps": 2, "validate_every_steps": 4, "validation_rows": 4,
    },
    "midtrain": {
        "contexts": [{"sequence_length": 64, "tokens": 512}], "micro_batch": 2, "global_batch_tokens": 128,
        "validation_rows": 2,
    },
    "dsa_warmup": {
        "sequence_length": 64, "tokens": 512, "micro_batch": 2, "global_batch_tokens": 128,
        "validation_rows": 2,
    },
    "dsa_adapt": {
        "sequence_length": 64, "tokens": 512, "micro_batch": 2, "global_batch_tokens": 128,
        "validation_rows": 2,
    },
    "sft": {
        "sequence_length": 64, "micro_batch": 2, "global_batch_tokens": 128, "validation_rows": 2,
    },
}  # fmt: skip


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """Path of a recipe whose data artifacts are finished; ``GLM5_ROOT`` is a temporary folder."""
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for models this small a second thread only costs
    recipe = tmp_path / "mini.yaml"
    recipe.write_text(yaml.safe_dump(CHANGES))
    rng = random.Random(7)
    text = [" ".join(rng.choices(WORDS, k=40)) for _ in range(200)]
    tokenizer = publish(recipe, "tokenizer", lambda out: write_tokenizer(out, text))
    publish(recipe, "pretrain_data", lambda out: write_stream(out, tokenizer, text))
    publish(recipe, "midtrain_data", lambda out: write_packed(out, tokenizer, text))
    publish(recipe, "sft_data", lambda out: write_chats(out, rng))
    yield recipe
    torch.set_num_threads(threads)


def change(recipe: Path, **sections) -> None:
    """Change sections of the workspace's recipe file."""
    values = yaml.safe_load(recipe.read_text())
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
    recipe.write_text(yaml.safe_dump(values))


def publish(recipe: Path, stage: str, write) -> Path:
    final = artifacts.artifact_dir(recipe.stem, stage)
    draft = final.with_name(f".{stage}.draft")
    draft.mkdir(parents=True)
    write(draft)
    parts = identity_of(load_graph()[stage], load_recipe(str(recipe)), {})
    artifacts.publish(draft, final, {"stage": stage, "identity": artifacts.digest_of(parts), "metrics": {}})
    return final


def write_tokenizer(out: Path, text: list[str]) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400 - len(SPECIAL_TOKENS), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    noise = ["".join(random.Random(i).choices("abcdefghij", k=6)) for i in range(3000)]
    tokenizer.train_from_iterator([*text, *noise], trainer)
    assert tokenizer.get_vocab_size() == 400 - len(SPECIAL_TOKENS)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(out / "tokenizer.json"))


def write_stream(out: Path, tokenizer: Path, text: list[str]) -> None:
    encode = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode
    ids = np.array([i for line in text for i in encode(line).ids], dtype="<u2")
    ids[:-400].tofile(out / "tokens.bin")
    ids[-400:].tofile(out / "validation.bin")
    (out / "meta.json").write_text(json.dumps({"dtype": "<u2"}))


def write_packed(out: Path, tokenizer: Path, text: list[str]) -> None:
    encode = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode
    rows = [encode(a + " " + b).ids[:64] for a, b in zip(text[::2], text[1::2], strict=True)]
    tokens = np.array([row for row in rows if len(row) == 64], dtype=np.uint16)
    starts = np.zeros(tokens.shape, dtype=np.int32)
    starts[::2, 40:] = 40  # every other row holds two documents
    np.save(out / "seq_64.tokens.npy", tokens)
    np.save(out / "seq_64.starts.npy", starts)


def write_chats(out: Path, rng: random.Random) -> None:
    with open(out / "chats.jsonl", "w") as file:
        for number in range(120):
            a, b = rng.randrange(10), rng.randrange(10)
            mode = rng.choice(["interleaved", "preserved", "off"])
            answer = {"role": "assistant", "content": str(a + b)}
            if mode != "off":
                answer["reasoning_content"] = f"{a} and {b}"
            chat = {
                "id": str(number), "environment": "arithmetic", "family": "sum", "mode": mode,
                "messages": [{"role": "user", "content": f"{a}+{b}"}, answer],
            }  # fmt: skip
            file.write(json.dumps(chat) + "\n")
