"""One name for each operation; the tensors' device picks the implementation.

CUDA tensors take ``<folder>/triton.py`` where Triton is installed and the file has the operation, all others
take ``<folder>/reference.py``. Both have the same signature; the reference's docstring is the contract.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec


@cache
def _implementation(folder: str, name: str, cuda: bool) -> Callable:
    package = f"model.kernels.{folder}"
    if cuda and find_spec("triton") and find_spec(f"{package}.triton"):
        fast = getattr(import_module(f"{package}.triton"), name, None)
        if fast is not None:
            return fast
    return getattr(import_module(f"{package}.reference"), name)


def _operation(folder: str, name: str) -> Callable:
    def run(first, *arguments, **options):
        return _implementation(folder, name, first.is_cuda)(first, *arguments, **options)

    run.__name__ = run.__qualname__ = name
    return run


indexer_topk = _operation("indexer_topk", "indexer_topk")
sparse_mla = _operation("sparse_mla", "sparse_mla")
dense_indexer_loss = _operation("indexer_loss", "dense_indexer_loss")
sparse_indexer_loss = _operation("indexer_loss", "sparse_indexer_loss")
routed_experts = _operation("experts", "routed_experts")
linear_cross_entropy = _operation("cross_entropy", "linear_cross_entropy")
newton_schulz = _operation("newton_schulz", "newton_schulz")
