"""A step's gradients against those of all its rows in one pass; the same bits on one thread and on many."""

import pytest
import torch

from model.config import preset
from model.loss import IGNORE
from model.transformer import Transformer
from pipeline.recipe.training import Balance, IndexerLoss, Mtp
from tasks.training.batches import Batch
from tasks.training.micro_batches import Accumulator, NotFinite
from tasks.training.objective import LanguageObjective


@pytest.fixture
def model():
    small = {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_experts": 4, "mtp_steps": 2}
    return Transformer(preset("tiny", **small), seed=3).double()


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def batches_of(sizes: list[int], seed: int, length: int = 13) -> list[Batch]:
    """Micro-batches of those numbers of rows, with ever more targets left out."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for number, rows in enumerate(sizes):
        tokens = torch.randint(64, (rows, length), generator=generator)
        target = tokens[:, 1:].clone()
        target[:, : 3 * number] = IGNORE
        batches.append(Batch(tokens[:, :-1].contiguous(), target, None, [f"row {number}"]))
    return batches


def objective_of(model: Transformer) -> LanguageObjective:
    return LanguageObjective(model, torch.ones(64, dtype=torch.long), Balance(sequence_loss=0.0))


def gradients(model: Transformer, batches: list[Batch]) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    model.zero_grad()
    values = Accumulator(objective_of(model), model.parameters())(batches, step=0)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, values


def test_every_target_counts_the_same_wherever_it_stands(model):
    batches = batches_of([2, 1, 3], seed=0)
    tokens = torch.cat([batch.tokens_BT for batch in batches])
    target = torch.cat([batch.target_BT for batch in batches])
    whole, at_once = gradients(model, [Batch(tokens, target, None, ["all"])])
    parts, by_parts = gradients(model, batches)
    assert parts.keys() == whole.keys() and len(parts) > 10
    for name, gradient in parts.items():
        torch.testing.assert_close(gradient, whole[name])
    assert by_parts["train/lm_loss"] == pytest.approx(at_once["train/lm_loss"])


def test_the_same_bits_on_one_thread_and_on_many(model, threads):
    batches = batches_of([1, 2, 1, 2, 1], seed=1)
    threads(1)
    alone, _ = gradients(model.float(), batches)
    for count in (2, 3):
        threads(count)
        together, _ = gradients(model, batches)
        assert torch.get_num_threads() == count
        assert all(torch.equal(alone[name], together[name]) for name in alone)


def test_experts_loads_of_all_micro_batches_are_counted(model, threads):
    threads(2)
    objective = objective_of(model)
    objective.mtp = Mtp()
    Accumulator(objective, model.parameters())(batches_of([2, 2], seed=2), step=0)
    load_LE = sum(objective.loads)
    assert load_LE[0].sum() == 4 * 12 * model.config.experts_per_token
    assert load_LE[-1].sum() == 2 * load_LE[0].sum()


def test_a_loss_that_is_not_finite_names_its_batch(model, threads):
    threads(2)
    with torch.no_grad():
        model.embed.weight[5] = torch.inf
    batches = batches_of([1, 1], seed=4)
    batches[0].tokens_BT.fill_(7)
    batches[1].tokens_BT.fill_(5)
    with pytest.raises(NotFinite, match="the loss is nan on row 1"):
        Accumulator(objective_of(model), model.parameters())(batches, step=0)


@pytest.mark.gpu
def test_replayed_graphs_give_the_gradients_of_the_same_operations():
    """Steps with and without the further losses in turn: each kind is run, recorded, then replayed."""
    small = {"vocab_size": 64, "hidden_size": 64, "num_layers": 2, "num_experts": 4, "mtp_steps": 2}
    model = Transformer(preset("tiny", **small), seed=3, indexer=True).cuda()
    objective = LanguageObjective(
        model, torch.ones(64, dtype=torch.long), Balance(), Mtp(every_steps=2), "sparse", IndexerLoss()
    )
    accumulate = Accumulator(objective, model.parameters())
    for step in range(6):
        batches = batches_of([2, 2], seed=step, length=101)
        for batch in batches:
            batch.start_BT = torch.full((2, 100), 0, dtype=torch.int32)
            batch.start_BT[:, 40:] = 40
        model.zero_grad(set_to_none=True)
        values = accumulate(batches, step)
        replayed = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        load = sum(objective.loads)
        objective.loads.clear()
        model.zero_grad(set_to_none=True)
        expected = Accumulator(objective, model.parameters())(batches, step)
        assert values == pytest.approx(expected, rel=1e-5)
        assert torch.equal(load, sum(objective.loads))
        objective.loads.clear()
        run = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        assert replayed.keys() == run.keys() and any("mtp" in name for name in run) == (step % 2 == 0)
        for name, gradient in run.items():
            torch.testing.assert_close(replayed[name], gradient, rtol=1e-4, atol=1e-6)
