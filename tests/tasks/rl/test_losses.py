"""Losses of reinforcement learning against values worked out by hand, and their gradients."""

import math

import pytest
import torch

from tasks.rl.losses.distillation import Distillation, teacher_advantage
from tasks.rl.losses.double_sided import DoubleSided
from tasks.rl.losses.icepop import IcePop
from tasks.rl.losses.tokens import SampledTokens, mismatch_kl


def tokens(rollout, before, advantage, weight):
    return SampledTokens(
        *(torch.tensor([row], dtype=torch.float64) for row in (rollout, before, advantage, weight))
    )


def logs(*probabilities):
    return [math.log(p) for p in probabilities]


def test_icepop_by_hand():
    # ratio to the trainer's old weights: 1.5, 0.5, 1.1; trainer to engine: 1, 1, 1.25.
    batch = tokens(logs(0.2, 0.4, 0.4), logs(0.2, 0.4, 0.5), [1.0, 1.0, -2.0], [0.25, 0.25, 0.5])
    current = torch.tensor([logs(0.3, 0.2, 0.55)], dtype=torch.float64, requires_grad=True)
    loss, values = IcePop()(current, batch)
    # min(1.5, 1.28) * 1; min(0.5, 0.8) * 1; min(-2.2, -2.2) * 1.25
    assert loss.item() == pytest.approx(-(0.25 * 1.28 + 0.25 * 0.5 + 0.5 * 1.25 * -2.2))
    assert values["off_policy/clipped"].item() == pytest.approx(2 / 3)
    assert values["off_policy/masked"].item() == 0
    loss.backward()
    # The clipped gain is flat; elsewhere d(r A)/d log pi = r A.
    assert current.grad[0].tolist() == pytest.approx([0.0, -0.25 * 0.5, 0.5 * 1.25 * 2.2])


def test_icepop_masks_what_engine_and_trainer_disagree_on():
    gaps = [-math.log(2), math.log(2), -0.7, 0.7]  # log 2 is 0.693
    batch = tokens([0.0] * 4, gaps, [1.0] * 4, [1.0] * 4)
    current = batch.before_BT.clone().requires_grad_()
    loss, values = IcePop(beta=2.0)(current, batch)
    assert loss.item() == pytest.approx(-(0.5 + 2.0)), "both ends of the band belong to it"
    assert values["off_policy/masked"].item() == 0.5
    loss.backward()
    assert current.grad[0].tolist() == pytest.approx([-0.5, -2.0, 0.0, 0.0])


def test_on_policy_the_gradient_is_that_of_reinforce():
    generator = torch.Generator().manual_seed(1)
    logprobs = -torch.rand(3, 7, generator=generator, dtype=torch.float64)
    advantage = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    weight = torch.rand(3, 7, generator=generator, dtype=torch.float64)
    batch = SampledTokens(logprobs, logprobs, advantage, weight)
    for loss_of in (IcePop(), DoubleSided()):
        current = logprobs.clone().requires_grad_()
        loss_of(current, batch)[0].backward()
        assert torch.allclose(current.grad, -weight * advantage)


def test_double_sided_by_hand():
    current = torch.tensor([logs(0.7, 1.2, 0.9, 1.5)], dtype=torch.float64, requires_grad=True)
    batch = tokens([0.0] * 4, [9.0] * 4, [1.0, 2.0, -1.0, -3.0], [1.0, 0.5, 1.0, 1.0])
    loss, values = DoubleSided()(current, batch)  # the trainer's old weights (9.0) have no part in it
    assert loss.item() == pytest.approx(-(0.5 * 1.2 * 2 * math.log(1.2) - 0.9 * math.log(0.9)))
    assert values["off_policy/masked"].item() == pytest.approx(0.5)
    loss.backward()
    assert current.grad[0].tolist() == pytest.approx([0.0, -1.2, 0.9, 0.0]), "f is a constant weight"


@pytest.mark.parametrize("band, masked", [((0.0, 0.5), 1.0), ((0.5, 0.0), 1.0), ((0.5, 0.5), 0.0)])
def test_the_ends_of_the_double_sided_band_lie_outside_it(band, masked):
    batch = tokens([-1.0], [-1.0], [1.0], [1.0])
    assert DoubleSided(*band)(batch.rollout_BT, batch)[1]["off_policy/masked"].item() == masked


def test_places_without_weight_have_no_part():
    rollout = torch.tensor([[-1.0, float("nan"), -2.0]])
    batch = SampledTokens(
        rollout, rollout.clone(), torch.tensor([[1.0, float("inf"), 1.0]]), torch.tensor([[1.0, 0.0, 1.0]])
    )
    for loss_of in (IcePop(), DoubleSided()):
        current = torch.tensor([[-1.0, float("nan"), -2.0]], requires_grad=True)
        loss, values = loss_of(current, batch)
        assert math.isfinite(loss.item()) and all(math.isfinite(value.item()) for value in values.values())


def test_micro_batches_add_up():
    generator = torch.Generator().manual_seed(2)
    rollout, before, current, advantage, weight = (torch.randn(4, 5, generator=generator) for _ in range(5))
    whole = SampledTokens(rollout, before, advantage, weight)
    for loss_of in (IcePop(), DoubleSided()):
        parts = [
            loss_of(
                current[i : i + 1],
                SampledTokens(*(x[i : i + 1] for x in (rollout, before, advantage, weight))),
            )[0]
            for i in range(4)
        ]
        assert torch.allclose(sum(parts), loss_of(current, whole)[0], atol=1e-5)


def test_mismatch_kl_is_that_of_the_two_distributions():
    generator = torch.Generator().manual_seed(3)
    engine = torch.softmax(torch.randn(1000, generator=generator, dtype=torch.float64), 0)
    trainer = torch.softmax(
        torch.randn(1000, generator=generator, dtype=torch.float64) * 0.1 + engine.log(), 0
    )
    drawn = torch.multinomial(engine, 200_000, replacement=True, generator=generator)
    batch = SampledTokens(
        engine.log()[drawn][None], trainer.log()[drawn][None], drawn[None] * 0.0, drawn[None] * 0.0 + 1
    )
    exact = (engine * (engine / trainer).log()).sum().item()
    assert mismatch_kl(batch).item() == pytest.approx(exact, rel=0.03)
    same = SampledTokens(*(engine.log()[drawn][None] for _ in range(2)), batch.advantage_BT, batch.weight_BT)
    assert mismatch_kl(same).item() == 0


def test_the_teacher_pulls_towards_itself():
    teacher = torch.tensor([logs(0.5, 0.1)])
    student = torch.tensor([logs(0.25, 0.2)], requires_grad=True)
    advantage = teacher_advantage(teacher, student)
    assert advantage[0].tolist() == pytest.approx([math.log(2), -math.log(2)]) and not advantage.requires_grad


@pytest.mark.parametrize("seed", range(3))
def test_distillation_descends_the_kl_to_the_teacher(seed):
    """On policy, over all tokens by their probability, the gradient is that of KL(student || teacher)."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.log_softmax(torch.randn(6, generator=generator, dtype=torch.float64), 0)
    student = torch.log_softmax(logits, 0)
    probability = student.exp().detach()
    before = student.detach()[None]
    batch = SampledTokens(before, before, teacher[None], probability[None])
    Distillation()(student[None], batch)[0].backward()
    by_samples = logits.grad.clone()
    logits.grad = None
    (torch.softmax(logits, 0) * (torch.log_softmax(logits, 0) - teacher)).sum().backward()
    assert torch.allclose(by_samples, logits.grad)
