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
    assert tiny.quantize.exports
    assert load_recipe(write(quantize={"exports": {}})).quantize.exports == {}  # a table is replaced whole


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


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:99999/v1", "http://host:port/v1", "http://[::1/v1", "http://", "127.0.0.1:80", ""],
)
def test_an_address_that_no_client_could_use_is_named(write, address):
    model = {"base_url": address, "model": "m"}
    for changes, key in (
        ({"search_tasks": {"filter_model": model}}, "search_tasks.filter_model"),
        ({"agent_tasks": {"drafter": {**model, "licence": "CC0-1.0"}}}, "agent_tasks.drafter"),
        ({"general_rl": {"judge": model}}, "general_rl.judge"),
    ):
        with pytest.raises(UserError) as caught:
            load_recipe(write(**changes))
        assert key in str(caught.value) and f"base_url: {address!r} is no address" in str(caught.value)


INFINITE = float("inf")
ZERO_OR_MORE, ABOVE_0 = "Input should be greater than or equal to 0", "Input should be greater than 0"
BELOW_1, FINITE = "Input should be less than 1", "Input should be a finite number"


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("name", "../../evil", "name: '../../evil' cannot be the name of a folder"),
        ("name", "a/b", "name: 'a/b' cannot be"),
        ("name", "a\\b", "name: 'a\\\\b' cannot be"),
        ("name", "..", "name: '..' cannot be"),
        ("name", ".", "name: '.' cannot be"),
        ("name", "", "name: '' cannot be"),
        ("name", "  ", "name: '  ' cannot be"),
        ("seed", -1, f"seed: {ZERO_OR_MORE}"),
        ("seed", 2**63, "seed: Input should be less than or equal to 17592186044416"),
        ("data_seed", -1, f"data_seed: {ZERO_OR_MORE}"),
        ("data_seed", 2**63, "data_seed: Input should be less than or equal to 9223372036854775807"),
        ("model.num_heads", 0, "model: num_heads is 0: it must be a finite number above 0"),
        ("model.mtp_steps", -1, "model: mtp_steps is -1: it must be a finite number 0 or more"),
        ("model.rope_base", INFINITE, "model: rope_base is inf: it must be a finite number above 0"),
        ("model.norm_eps", float("nan"), "model: norm_eps is nan: it must be"),
        ("eval_sets.long_context_lengths", [256, 0], f"eval_sets.long_context_lengths.1: {ABOVE_0}"),
        ("curate.min_characters", -1, f"curate.min_characters: {ZERO_OR_MORE}"),
        ("curate.max_line_characters", 0, f"curate.max_line_characters: {ABOVE_0}"),
        (
            "curate.minhash_permutations",
            1,
            "minhash_permutations: Input should be greater than or equal to 2",
        ),
        ("curate.minhash_permutations", 10**6, "minhash_permutations: Input should be less than or equal to"),
        ("curate.minhash_threshold", 1.0, f"curate.minhash_threshold: {BELOW_1}"),
        (
            "curate.minhash_threshold",
            0.99,
            "curate: minhash_threshold 0.99 is too near 1 for sketches of 64 minhash_permutations: lower it",
        ),
        ("curate.minhash_permutations", 4, "curate: minhash_threshold 0.8 is too near 1 for sketches of 4"),
        ("tokenizer.train_mb", INFINITE, f"tokenizer.train_mb: {FINITE}"),
        ("pretrain_data.mix", {"stdlib": 1, "factbook": -1}, f"pretrain_data.mix.factbook: {ZERO_OR_MORE}"),
        ("pretrain_data.mix", {"stdlib": INFINITE}, f"pretrain_data.mix.stdlib: {FINITE}"),
        (
            "pretrain_data.mix",
            {"stdlib": 1e308, "factbook": 1e308},
            "pretrain_data.mix: the sum of the weights",
        ),
        (
            "pretrain_data.mix",
            {"stdlib": 0, "factbook": 0},
            "pretrain_data.mix: no weight is above 0: raise one",
        ),
        ("pretrain_data.mix", {}, "pretrain_data.mix: Dictionary should have at least 1 item"),
        ("midtrain_data.contexts", {512: 0}, f"midtrain_data.contexts.512: {ABOVE_0}"),
        ("midtrain_data.contexts", {512: 9, -4: 9}, f"midtrain_data.contexts.-4.[key]: {ABOVE_0}"),
        (
            "midtrain_data",
            {"repository": 0, "long_documents": 0, "synthetic": 0},
            "midtrain_data.repository, long_documents and synthetic: no weight is above 0: raise one",
        ),
        ("sft_data.modes", {"off": 0}, "sft_data.modes: no weight is above 0"),
        (
            "sft_data.modes",
            {False: 1},
            "sft_data.modes: a name without quotes was read as true or false: quote",
        ),
        ("sft_data.families", {"string/copy": 0.0}, "sft_data.families: no weight is above 0"),
        ("reasoning_rl.families", {"code/fix": 0.0}, "reasoning_rl.families: no weight is above 0"),
        (
            "reasoning_rl.families",
            {"code/fix": 1e308, "tools/calc": 1e308},
            "reasoning_rl.families: the sum of the weights is too large",
        ),
        ("distill.modes", {"interleaved": 0, "off": 0}, "distill.modes: no weight is above 0: raise one"),
        (
            "reasoning_rl.families",
            {"code/fix": 1, "table/min": 1},
            "reasoning_rl.families names 'table/min', of which rl_tasks.families has no tasks: add it there",
        ),
        (
            "reasoning_rl.rollouts.programs",
            {"table/min": ["agent"]},
            "rollouts.programs names 'table/min', which is not among families",
        ),
        ("sft_data.families", {"string/copy": -0.5}, f"sft_data.families.string/copy: {ZERO_OR_MORE}"),
        ("sft.optimizer.muon_lr", INFINITE, f"sft.optimizer.muon_lr: {FINITE}"),
        ("sft.optimizer.adamw_lr", float("nan"), f"sft.optimizer.adamw_lr: {FINITE}"),
        ("sft.optimizer.momentum", 1.0, f"sft.optimizer.momentum: {BELOW_1}"),
        ("sft.optimizer.momentum", -0.1, f"sft.optimizer.momentum: {ZERO_OR_MORE}"),
        ("sft.optimizer.betas", [0.9, 1.0], f"sft.optimizer.betas.1: {BELOW_1}"),
        ("sft.optimizer.betas", [-0.9, 0.9], f"sft.optimizer.betas.0: {ZERO_OR_MORE}"),
        ("sft.optimizer.weight_decay", -0.1, f"sft.optimizer.weight_decay: {ZERO_OR_MORE}"),
        ("sft.optimizer.clip", 0, f"sft.optimizer.clip: {ABOVE_0}"),
        ("sft.epochs", INFINITE, f"sft.epochs: {FINITE}"),
        ("pretrain.mtp.weight", -0.1, f"pretrain.mtp.weight: {ZERO_OR_MORE}"),
        ("pretrain.balance.bias_step", -0.1, f"pretrain.balance.bias_step: {ZERO_OR_MORE}"),
        ("pretrain.balance.sequence_loss", -0.1, f"pretrain.balance.sequence_loss: {ZERO_OR_MORE}"),
        (
            "pretrain.global_batch_tokens",
            2000,
            "pretrain.global_batch_tokens is 2000, no multiple of micro_batch x sequence_length = 4 x 256 = "
            "1024: make it 2048",
        ),
        (
            "midtrain.global_batch_tokens",
            100,
            "midtrain.global_batch_tokens is 100, no multiple of micro_batch",
        ),
        (
            "sft.micro_batch",
            3,
            "sft.global_batch_tokens is 1024, no multiple of micro_batch x sequence_length",
        ),
        (
            "evaluate.checkpoints",
            ["sft", "pretran"],
            "evaluate.checkpoints names 'pretran', which is no stage with a checkpoint: did you mean "
            "'pretrain'?",
        ),
        ("evaluate.checkpoints", ["sft", "distill", "sft"], "evaluate.checkpoints names sft more than once"),
        (
            "evaluate.checkpoints",
            ["eval_sets"],
            "those are pretrain, midtrain, dsa_warmup, dsa_adapt, sft, reasoning_rl, agentic_rl, general_rl, "
            "distill, quantize",
        ),
    ],
)
def test_an_impossible_value_is_refused_with_its_place(write, path, value, sentence):
    for key in reversed(path.split(".")):
        value = {key: value}
    with pytest.raises(UserError) as caught:
        load_recipe(write(**value))
    text = str(caught.value)
    assert sentence in text, text
    assert "\n" not in text and "; " not in text, text


def test_the_ends_of_what_is_possible_are_taken(write):
    optimizer = {"momentum": 0, "betas": [0, 0.999], "weight_decay": 0}
    mine = load_recipe(
        write(
            seed=2**44, data_seed=2**63 - 1, curate={"min_characters": 0},
            model={"mtp_steps": 0, "first_dense_layers": 0},
            pretrain_data={"mix": {"stdlib": 1, "factbook": 0}},
            pretrain={"optimizer": optimizer, "mtp": {"weight": 0}, "balance": {"bias_step": 0}},
            agentic_rl={"families": {"tools/chain": 0}, "harbor": 1},
            evaluate={"checkpoints": ["sft"]},
        )
    )  # fmt: skip
    assert mine.agentic_rl.families == {"tools/chain": 0.0} and mine.agentic_rl.harbor == 1.0
    assert mine.seed == 2**44 and mine.data_seed == 2**63 - 1
    assert mine.pretrain_data.mix == {"stdlib": 1.0, "factbook": 0.0}


def test_an_unquoted_off_in_the_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: tiny\nsft_data: {modes: {interleaved: 1, off: 0}}\n")
    with pytest.raises(UserError, match='sft_data.modes: .* quote it, for instance "off"$'):
        load_recipe(str(path))


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
            {
                "midtrain": {"contexts": [STEP], "global_batch_tokens": 2560},
                "midtrain_data": {"contexts": {256: 9, 512: 9}},
            },
            [
                "midtrain.contexts.0.sequence_length is 640 and midtrain_data.contexts has no sequences of "
                "that length: add 640 there, or use 512, which it has"
            ],
        ),
        (
            {"dsa_warmup": {"sequence_length": 300, "global_batch_tokens": 1200}},
            ["dsa_warmup.sequence_length is 300 and midtrain_data"],
        ),
        (
            {"dsa_adapt": {"sequence_length": 300, "global_batch_tokens": 1200}},
            ["dsa_adapt.sequence_length is 300 and midtrain_data"],
        ),
        (
            {
                "pretrain": {"sequence_length": 2048, "global_batch_tokens": 8192},
                "sft": {"sequence_length": 4096, "global_batch_tokens": 8192},
            },
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
    changes = {
        "tokenizer": {"vocab_size": 4096},
        "sft": {"sequence_length": 4096, "global_batch_tokens": 8192},
    }
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
    path.write_text("seed: 2026-13-45\n")
    with pytest.raises(UserError, match="bad.yaml is not valid YAML: month must be in 1..12"):
        load_recipe(str(path))
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    for ask in (load_recipe, parent_of):
        with pytest.raises(UserError, match="folder.yaml is a folder: name a recipe's file"):
            ask(str(folder))


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
    assert halves[0].memory_gib == pretrain.memory_gib  # each holds the whole model


@pytest.mark.parametrize(("devices", "share"), [(1, 1), (2, 2), (3, 2), (4, 4), (100, 4)])
def test_a_device_works_on_whole_micro_batches(devices, share):
    small = load_recipe("small")
    assert small.pretrain.micro_batches(small.pretrain.sequence_length) == 4
    one, several = (derive(small, "h200", number)[0].hours for number in (1, devices))
    assert several == pytest.approx(one / share)


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
