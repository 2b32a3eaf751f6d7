"""The jinja template and the renderer give the same tokens, through the real transformers."""

import json
import random

import pytest
from random_dialogues import TOOLS, dialogue
from small_tokenizer import train_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from model.chat.files import save_chat_files
from model.chat.renderer import render
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import STOP_TOKENS, Thinking

SWITCHES = [Thinking(True, True), Thinking(True, False), Thinking(False, True), Thinking(False, False)]


@pytest.fixture(scope="module", params=[True, False], ids=["all special", "as released"])
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(folder, tags_are_special=request.param)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def auto(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "glm_moe_dsa"}))
    save_chat_files(folder, max_positions=1024)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def template_ids(auto, messages, tools, thinking, generation_prompt, **options):
    return auto.apply_chat_template(
        messages,
        tools=tools,
        enable_thinking=thinking.enabled,
        clear_thinking=thinking.clear,
        add_generation_prompt=generation_prompt,
        return_dict=False,
        **options,
    )


@pytest.mark.parametrize("thinking", SWITCHES, ids=str)
def test_same_tokens_as_transformers(auto, tokenizer, thinking):
    rng = random.Random(f"same {thinking}")
    for _ in range(100):
        messages, tools, prompt = dialogue(rng), rng.choice([None, TOOLS]), rng.random() < 0.5
        ours = render(tokenizer, messages, tools, thinking, generation_prompt=prompt).ids
        assert ours == template_ids(auto, messages, tools, thinking, prompt), messages


@pytest.mark.parametrize("thinking", SWITCHES[:2], ids=str)
def test_same_tokens_for_text_that_looks_like_special_tokens(auto, tokenizer, thinking):
    rng = random.Random(f"forged {thinking}")
    differs_unsanitized = 0
    for _ in range(60):
        messages, tools, prompt = dialogue(rng, forged=True), rng.choice([None, TOOLS]), rng.random() < 0.5
        ours = render(tokenizer, messages, tools, thinking, generation_prompt=prompt).ids
        theirs = template_ids(auto, messages, tools, thinking, prompt, sanitize_control_tokens=True)
        assert ours == theirs, messages
        differs_unsanitized += ours != template_ids(auto, messages, tools, thinking, prompt)
    assert differs_unsanitized > 30  # else the dialogues held nothing to forge


def test_defaults_are_interleaved_thinking(auto, tokenizer):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "old"},
        {"role": "user", "content": "c"},
    ]
    theirs = auto.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert theirs == "[gMASK]<sop><|user|>a<|assistant|></think>b<|user|>c<|assistant|><think>"
    assert render(tokenizer, messages, generation_prompt=True).ids == auto(theirs)["input_ids"]


def test_template_refuses_what_it_cannot_render(auto):
    user = {"role": "user", "content": "a"}
    call = {"function": {"name": "f", "arguments": "{}"}}
    for bad, sentence in [
        ({"role": "narrator", "content": "x"}, "role narrator is unknown"),
        ({"role": "assistant", "tool_calls": [call]}, "as an object"),
        ({"role": "user", "content": [{"type": "image"}]}, "other media are not supported"),
    ]:
        with pytest.raises(Exception, match=sentence):
            auto.apply_chat_template([user, bad])


def test_the_saved_folder_is_a_whole_tokenizer(auto, tokenizer, folder):
    assert isinstance(auto, PreTrainedTokenizerFast)
    assert len(auto) == tokenizer.vocab_size
    assert auto.model_max_length == 1024
    assert auto.eos_token_id == auto.pad_token_id == tokenizer.ids_by_name["<|endoftext|>"]
    stops = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert auto.convert_ids_to_tokens(stops) == list(STOP_TOKENS)
    text = "Größe 思考 12 🙂\n  x"
    assert auto.decode(auto(text)["input_ids"]) == text
    assert auto(text)["input_ids"] == tokenizer.encode(text)


def test_saving_needs_a_tokenizer(tmp_path):
    with pytest.raises(ValueError, match="cannot load the tokenizer .*tokenizer.json"):
        save_chat_files(tmp_path, max_positions=8)
