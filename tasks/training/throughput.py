"""Tokens per second and MFU: training FLOP/s over what plain matrix products reach on the run's devices."""

import time
from functools import cache

import torch

from tasks.training import ranks

WINDOW_SECONDS = 5.0


class Throughput:
    """Rates over the last seconds; pauses for validation and saving are left out."""

    def __init__(self, device: torch.device):
        self.peak = matmul_flops(device.type) * ranks.world_size()
        self._recent: list[tuple[float, int, float]] = []  # (seconds, tokens, FLOPs) of recent steps
        self._mark = time.perf_counter()

    def skip(self) -> None:
        """Leave out the time since the last step."""
        self._mark = time.perf_counter()

    def add(self, tokens: int, flops_per_token: float) -> dict[str, float]:
        """Count one optimizer step and return the current rates."""
        now = time.perf_counter()
        self._recent.append((now - self._mark, tokens, tokens * flops_per_token))
        self._mark = now
        while len(self._recent) > 1 and sum(seconds for seconds, _, _ in self._recent[1:]) > WINDOW_SECONDS:
            self._recent.pop(0)
        seconds, tokens, flops = (sum(column) for column in zip(*self._recent, strict=True))
        return {"perf/tokens_per_s": tokens / seconds, "perf/mfu": flops / seconds / self.peak}


@cache
def matmul_flops(device: str) -> float:
    """FLOP/s of a square matrix product on the device: float32 on CPU, bfloat16 on CUDA. Best of five."""
    size, dtype = (1024, torch.float32) if device == "cpu" else (8192, torch.bfloat16)
    a = torch.randn(size, size, dtype=dtype, device=device)
    best = 0.0
    for _ in range(5):
        started = time.perf_counter()
        a @ a
        if device != "cpu":
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - started))
    return best
