"""One name for each operation; the tensors' device picks the implementation.

CUDA tensors take ``<folder>/triton.py`` where Triton is installed and the file has the operation, all others
take ``<folder>/reference.py``. Both have the same signature; the reference's docstring is the contract.
Under autocast the operands of matrix products (positions ``narrow``) are cast as autocast casts torch's own.
``torch.compile`` does not look into an operation: it breaks the graph there and calls it as it is, since it
could not trace Gluon's kernels.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch


@cache
def _implementation(folder: str, name: str, cuda: bool) -> Callable:
    package = f"model.kernels.{folder}"
    if cuda and find_spec("triton") and find_spec(f"{package}.triton"):
        fast = getattr(import_module(f"{package}.triton"), name, None)
        if fast is not None:
            return fast
    return getattr(import_module(f"{package}.reference"), name)


def _operation(folder: str, name: str, narrow: tuple[int, ...] = ()) -> Callable:
    def run(*arguments, **options):
        device = arguments[0].device.type
        operation = _implementation(folder, name, device == "cuda")
        if not torch.is_autocast_enabled(device):
            return operation(*arguments, **options)
        dtype = torch.get_autocast_dtype(device)
        arguments = [x.to(dtype) if place in narrow else x for place, x in enumerate(arguments)]
        with torch.autocast(device, enabled=False):
            return operation(*arguments, **options)

    # ``torch.compiler.disable`` imports the compiler at once, which takes seconds; here the first call does.
    untraced = torch._disable_dynamo(run)

    def call(*arguments, **options):
        return (untraced if torch.compiler.is_compiling() else run)(*arguments, **options)

    run.__name__ = run.__qualname__ = call.__name__ = call.__qualname__ = name
    return call


indexer_topk = _operation("indexer_topk", "indexer_topk", (0, 1))
masked_attention = _operation("masked_attention", "masked_attention", (0, 1, 2))
sparse_mla = _operation("sparse_mla", "sparse_mla", (0, 1))
head_mean = _operation("sparse_mla", "head_mean", (0, 1))
dense_indexer_loss = _operation("indexer_loss", "dense_indexer_loss", (0, 1, 3, 4))
sparse_indexer_loss = _operation("indexer_loss", "sparse_indexer_loss", (1, 2))
routed_experts = _operation("experts", "routed_experts", (0, 3, 4))
linear_cross_entropy = _operation("cross_entropy", "linear_cross_entropy", (0, 1))
rotate_part = _operation("rope", "rotate_part")
int8_linear = _operation("int8_linear", "int8_linear", (0,))
w4a8_experts = _operation("w4a8_experts", "w4a8_experts", (0,))
newton_schulz = _operation("newton_schulz", "newton_schulz")
nesterov_direction = _operation("muon", "nesterov_direction")
decayed_update = _operation("muon", "decayed_update")
