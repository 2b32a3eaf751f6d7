"""Recording CUDA graphs: what must not happen meanwhile."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage is collected inside: ``with without_collection(), torch.cuda.graph(graph): ...``.

    A graph that is freed while another one is recorded invalidates the recording, and the collector may come
    at any allocation. ``torch.cuda.graph`` itself no longer collects beforehand (pytorch/pytorch#161037). One
    recording at a time in a process, as torch wants it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
