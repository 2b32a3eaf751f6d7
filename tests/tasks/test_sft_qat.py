"""``sft.qat``: what the stage validated is what the stored 4-bit experts say."""

import shutil

import pytest
import torch

from model.chat.files import save_chat_files
from model.chat.tokenizer import Tokenizer
from model.hub import load_folder, save_folder
from model.loss import training_losses
from model.moe import MoE
from model.quantization.quantize import quantize_model
from model.quantization.scheme import Scheme
from model.transformer import Transformer
from pipeline import artifacts
from pipeline.recipe import load_recipe
from tasks.training.chats import read_chats
from tasks.training.setup import validation_batches
from tests.tasks.conftest import change, publish
from tests.tasks.test_training_stages import run


def test_the_experts_are_trained_as_they_will_be_stored(workspace):
    change(workspace, sft={"qat": "int4"})
    recipe = load_recipe(str(workspace))
    tokenizer = artifacts.artifact_dir("mini", "tokenizer") / "tokenizer.json"

    def write(out):
        save_folder(Transformer(recipe.model.config(), seed=3, indexer=True), out)
        shutil.copy(tokenizer, out)
        save_chat_files(out, 128)

    publish(workspace, "dsa_adapt", write)
    run("sft", workspace)
    folder = artifacts.artifact_dir("mini", "sft")
    model, metrics = load_folder(folder), artifacts.verify(folder)["metrics"]
    chats = artifacts.artifact_dir("mini", "sft_data") / "chats.jsonl"
    section = recipe.sft
    held = read_chats(
        chats, Tokenizer.load(folder), section.sequence_length, section.validation_rows
    ).validation
    batches = validation_batches(held, section.validation_rows, section.micro_batch)

    def loss() -> float:
        with torch.no_grad():
            losses = [
                training_losses(model, b.tokens_BT, b.target_BT, start_BT=b.start_BT, attention="sparse").lm
                for b in batches
            ]
        return sum(map(float, losses)) / len(losses)

    plain = loss()
    _, stored, _ = quantize_model(model, [], Scheme("minmax", rotation=False))
    with torch.no_grad():
        for number, block in enumerate(model.blocks):
            if isinstance(block.ffn, MoE):
                for name in ("gate_up", "down"):
                    weight = getattr(block.ffn, name)
                    weight.copy_(stored[f"blocks.{number}.ffn.{name}"].dequantize())
    assert loss() == pytest.approx(metrics["val/loss"], rel=1e-6)
    assert plain != pytest.approx(metrics["val/loss"], rel=1e-6)
