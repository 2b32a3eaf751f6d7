"""Recipes: strictness, inheritance, and what the derived table says."""

from pathlib import Path

import pytest
import yaml

from flows.parameters import activate, override
from pipeline.errors import UserError
from pipeline.recipe import load_recipe
from pipeline.recipe.explain import default_device, derive, describe
from pipeline.recipe.load import parent_of, recipe_names

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def write(tmp_path):
    """``write(changes)``: the path of a recipe that extends tiny with ``changes``."""

    def make(**changes) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump({"extends": "tiny", **changes}))
        return str(path)

    return make


def test_a_child_changes_what_it_names_and_keeps_the_rest(write):
    tiny, mine = load_recipe("tiny"), load_recipe(write(sft={"optimizer": {"muon_lr": 0.5}}))
    assert mine.name == "mine" and mine.sft.optimizer.muon_lr == 0.5
    assert mine.sft.optimizer.adamw_lr == tiny.sft.optimizer.adamw_lr
    assert mine.pretrain == tiny.pretrain and mine.collect == tiny.collect
    assert parent_of(write()) == "tiny" and parent_of("tiny") == "tiny"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sft": {"optimizer": {"muonlr": 1}}}, "unknown key 'sft.optimizer.muonlr', did you mean 'muon_lr'"),
        ({"pretran": {}}, "unknown key 'pretran', did you mean 'pretrain'"),
        ({"sft": {"epochs": 0}}, "sft.epochs: Input should be greater than 0"),
        ({"sft": {"epochs": "many"}}, "sft.epochs: Input should be a valid number"),
        ({"model": {"hidden_sise": 3}}, "did you mean 'hidden_size'"),
        ({"extends": 3}, "the value of extends must be text"),
        ({"extends": "nothing"}, "there is no recipe recipes/nothing.yaml"),
    ],
)
def test_what_is_wrong_is_named(write, changes, sentence):
    with pytest.raises(UserError, match=sentence.replace("?", r"\?")) as caught:
        load_recipe(write(**changes))
    assert "\n" not in str(caught.value)


STEP = {"sequence_length": 640, "tokens": 320_000}


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        (
            {"tokenizer": {"vocab_size": 4096}},
            ["tokenizer.vocab_size is 4096 and model.vocab_size is 2048 (of preset tiny): make them equal"],
        ),
        (
            {"model": {"vocab_size": 1000}},
            ["tokenizer.vocab_size is 2048 and model.vocab_size is 1000: make them equal"],
        ),
        (
            {"pretrain_data": {"mix": {"stdlb": 0.5, "factbook": 0.5}}},
            ["pretrain_data.mix names 'stdlb', which collect.sources does not have: did you mean 'stdlib'?"],
        ),
        (
            {"pretrain_data": {"mix": {"wikipedia": 1.0}}},
            ["which collect.sources does not have: its sources are stdlib, packages, factbook"],
        ),
        (
            {"midtrain": {"contexts": [STEP]}, "midtrain_data": {"contexts": {256: 9, 512: 9}}},
            [
                "midtrain.contexts.0.sequence_length is 640 and midtrain_data.contexts has no sequences of "
                "that length: add 640 there, or use 512, which it has"
            ],
        ),
        ({"dsa_warmup": {"sequence_length": 300}}, ["dsa_warmup.sequence_length is 300 and midtrain_data"]),
        ({"dsa_adapt": {"sequence_length": 300}}, ["dsa_adapt.sequence_length is 300 and midtrain_data"]),
        (
            {"pretrain": {"sequence_length": 2048}, "sft": {"sequence_length": 4096}},
            [
                "pretrain.sequence_length is 2048 and the model has 1024 positions: shorten it or raise "
                "model.max_positions",
                "sft.sequence_length is 4096 and the model has 1024 positions",
            ],
        ),
    ],
)
def test_sections_that_do_not_fit_one_another(write, changes, sentences):
    with pytest.raises(UserError) as caught:
        load_recipe(write(**changes))
    text = str(caught.value)
    assert all(sentence in text for sentence in sentences), text
    assert text.count("; ") == len(sentences) - 1 and "\n" not in text


def test_sections_that_fit_after_both_were_changed(write):
    shape = {"vocab_size": 4096, "max_positions": 4096}
    changes = {"tokenizer": {"vocab_size": 4096}, "sft": {"sequence_length": 4096}}
    mine = load_recipe(write(model=shape, pretrain={"tokens": 10**9}, **changes))
    assert mine.pretrain.tokens > mine.pretrain_data.tokens  # the loop goes over the data again


def test_a_file_that_is_no_recipe(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("a: [1\n")
    with pytest.raises(UserError, match="bad.yaml is not valid YAML"):
        load_recipe(str(path))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="bad.yaml"):
        load_recipe(str(path))
    path.write_text("- 1\n")
    with pytest.raises(UserError, match="must hold sections"):
        load_recipe(str(path))


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_the_repository_loads_and_can_be_explained(name):
    recipe = load_recipe(name)
    text = describe(recipe, *default_device(recipe))
    resolved = yaml.safe_load(text.partition("# derived")[0])
    assert resolved["sft"] == recipe.sft.model_dump(mode="json")
    assert f"{recipe.model.config().parameter_counts()['total']:,} in all" in text


def test_the_derived_table_of_tiny():
    recipe = load_recipe("tiny")
    rows = {row.phase: row for row in derive(recipe, "cpu", 1)}
    pretrain = rows["pretrain"]
    assert pretrain.steps == recipe.pretrain.tokens // recipe.pretrain.global_batch_tokens
    # Six FLOPs an active parameter and token at least; attention and MTP come on top.
    active = recipe.model.config().parameter_counts()["active"]
    assert 6 * 0.9 * active < pretrain.flops_per_token < 12 * active
    assert pretrain.hours == pytest.approx(pretrain.tokens * pretrain.flops_per_token / 6e10 / 3600)
    assert rows["midtrain"].memory_gib > pretrain.memory_gib  # a longer micro-batch
    halves = derive(recipe, "cpu", 2)
    assert halves[0].hours == pytest.approx(pretrain.hours / 2)


def test_an_override_is_checked_before_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    source = (REPOSITORY / "recipes/tiny.yaml").read_text()
    path = tmp_path / "recipes/tiny.yaml"
    path.write_text(source)
    (tmp_path / "params.yaml").write_text("# active\nrecipes:\n  tiny: {extends: tiny}\n")
    with pytest.raises(UserError, match="recipes/tiny.yaml, with the overrides: sft.optimizer.muon_lr"):
        override("tiny", ["sft.epochs=3", "optimizer.muon_lr=-1"], "sft")
    assert path.read_text() == source
    before = yaml.safe_load(source)["sft"]["optimizer"]["muon_lr"]
    messages = override("tiny", ["sft.epochs=3", "optimizer.muon_lr=1e-3", "seed=0"], "sft")
    assert messages == [
        "recipes/tiny.yaml: sft.epochs 1.0 -> 3",
        f"recipes/tiny.yaml: sft.optimizer.muon_lr {before} -> 0.001",
    ]
    changed = load_recipe("tiny")
    assert changed.sft.epochs == 3 and changed.sft.optimizer.muon_lr == 0.001
    pairs = zip(source.splitlines(), path.read_text().splitlines(), strict=True)
    assert sum(before != after for before, after in pairs) == 2
    (tmp_path / "dvc.yaml").write_text((REPOSITORY / "dvc.yaml").read_text())
    (tmp_path / "recipes/mine.yaml").write_text("extends: tiny\nsft: {epochs: 2} # twice\n")
    resolved = load_recipe("mine")
    named, active = activate("mine")
    assert named.startswith("recipes/mine.yaml now names what it takes from tiny: data_seed, collect, ")
    assert active == "recipe mine is now active in params.yaml"
    assert activate("mine") == []
    assert load_recipe("mine") == resolved
    text = (tmp_path / "recipes/mine.yaml").read_text()
    assert text.startswith("extends: tiny\nsft: {epochs: 2} # twice\n") and "\nmidtrain: {}\n" in text
    text = (tmp_path / "params.yaml").read_text()
    assert text.startswith("# active\n")
    assert yaml.safe_load(text) == {"recipes": {"tiny": {"extends": "tiny"}, "mine": {"extends": "tiny"}}}
