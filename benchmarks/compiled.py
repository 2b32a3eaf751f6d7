"""Forward and backward of the anchor model (``benchmarks.train``) with and without ``torch.compile``.

Times come from ``python -m benchmarks.kernels --only compiled``. Kernels are not traced (``registry.py``), so
each call of one breaks the graph; a row holds how many graphs there are, how many breaks and of which kinds,
the seconds of the first call, and how far loss and gradients are from the uncompiled ones and both from
float32's, as bfloat16 sends some tokens to other experts.
"""

import copy
import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.timer import Row

LENGTH = 8192


def compiled(bench) -> Iterator[Row]:
    from benchmarks.train import ANCHOR
    from model.transformer import Transformer

    model = Transformer(ANCHOR, indexer=True).to("cuda", torch.bfloat16)
    tokens = torch.randint(0, ANCHOR.vocab_size, (1, LENGTH), device="cuda")
    for attention, indexer in (("dense", False), ("sparse", True)):
        name = f"anchor model, {attention}{' + KL' if indexer else ''}, {LENGTH} tokens"
        tflop = ANCHOR.training_flops_per_token(LENGTH, attention) * LENGTH / 1e12
        step = training_step(model, tokens, attention, indexer)
        eager, exact = step(), training_step(copy.deepcopy(model).float(), tokens, attention, indexer)()
        rounded = difference(eager, exact)
        yield bench.row(f"{name}, eager", step, tflop, 0.0, difference_from_float32=rounded)
        torch.compiler.reset()
        try:
            step = training_step(model, tokens, attention, indexer, torch.compile)
            found, notes = first_call(step)
            notes["difference_from_eager"] = difference(found, eager)
            notes["difference_from_float32"] = difference(found, exact)
            yield bench.row(f"{name}, torch.compile", step, tflop, 0.0, **notes)
        except Exception as error:
            yield {"work": f"{name}, torch.compile", "failed": f"{type(error).__name__}: {str(error)[:500]}"}


def training_step(
    model, tokens_BT, attention: str, indexer: bool, wrap: Callable[[Callable], Callable] = lambda f: f
) -> Callable[[], dict[str, torch.Tensor]]:
    """A step without the optimizer; the call gives the loss and every gradient by name. ``wrap`` is applied
    to the forward pass with its losses.
    """
    from model.loss import next_targets, training_losses

    target_BT = next_targets(tokens_BT)

    def loss(tokens_BT, target_BT):
        losses = training_losses(model, tokens_BT, target_BT, attention=attention, indexer_loss=indexer)
        return losses.lm + losses.indexer_kl + 1e-4 * losses.balance

    forward = wrap(loss)

    def step():
        model.zero_grad(set_to_none=True)
        value = forward(tokens_BT, target_BT)
        value.backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        return {"loss": value.detach(), **gradients}

    return step


def first_call(step: Callable[[], dict]) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    """The results, and what the compiler did meanwhile."""
    from torch._dynamo.utils import counters

    counters.clear()
    start = time.perf_counter()
    found = step()
    breaks = counters["graph_break"]
    return found, {
        "graphs": counters["stats"]["unique_graphs"],
        "frames": dict(counters["frames"]),  # of "total" functions that it met, "ok" ones are compiled
        "graph_breaks": sum(breaks.values()),
        "breaks_by_kind": {kind.strip().splitlines()[0]: n for kind, n in breaks.items()},
        "first_call_s": round(time.perf_counter() - start, 1),
    }


def difference(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """The largest relative error of the loss and any gradient; infinite where one has another set of them."""
    if found.keys() != wanted.keys():
        return float("inf")
    errors = (
        float((found[name].double() - value.double()).norm() / value.double().norm().clamp(min=1e-12))
        for name, value in wanted.items()
    )
    return max(errors)
