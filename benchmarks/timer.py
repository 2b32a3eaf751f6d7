"""Times operations on a card beside what the card could do at most: its matrix rate and its copy rate."""

import datetime
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from benchmarks.kernel_peers import Peers

Row = dict[str, object]
BF16, DEVICE = torch.bfloat16, "cuda"
LONG_MS = 300


class Bench:
    """Timer with this card's ceilings, and the peers where there is a folder of them."""

    def __init__(self, peers: "Peers | None" = None):
        self.peers = peers
        a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=BF16) for _ in range(2))
        self.bf16 = 2 * 8192**3 / self.quantiles(lambda: a @ b)[0] / 1e9
        self.fp8 = 2 * self.bf16  # the matrix unit's ratio; torch's own float8 product is not timed
        source = torch.empty(1 << 30, device=DEVICE, dtype=torch.uint8)
        target = torch.empty_like(source)
        self.bandwidth = 2 * source.numel() / self.quantiles(lambda: target.copy_(source))[0] / 1e9

    @staticmethod
    def quantiles(
        run: Callable, milliseconds: int = 200, graph: bool = False, brief: bool = False
    ) -> list[float]:
        """[median, 10 %, 90 %] in ms, after a warm-up. The cache is cleared between runs; with ``graph``
        replays of a captured graph are timed instead, in which launches cost nothing and the cache stays
        warm. Where one run takes more than ``LONG_MS`` there are three (above 2 s two), and their least and
        most are given; with ``brief`` two, of which the first is the warm-up unless the caller ran it before.
        """
        from triton.testing import do_bench, do_bench_cudagraph

        first = timed(run)
        if graph:
            return do_bench_cudagraph(run, rep=20, quantiles=[0.5, 0.1, 0.9])
        second = timed(run)
        if brief and min(first, second) > LONG_MS:
            return [(first + second) / 2, min(first, second), max(first, second)]
        if min(first, second) > LONG_MS:
            times = sorted([second, timed(run)] if second > 2000 else [second, timed(run), timed(run)])
            return [statistics.median(times), times[0], times[-1]]
        enough = max(milliseconds, 5.5 * second)  # at least five runs, for a spread
        return do_bench(run, warmup=40, rep=enough, quantiles=[0.5, 0.1, 0.9])

    def row(
        self,
        name: str,
        run: Callable,
        tflop: float,
        gigabytes: float,
        rate: str = "bf16",
        graph: bool = False,
        brief: bool = False,
        **notes,
    ) -> Row:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        workspace = (torch.cuda.max_memory_allocated() - before) / 2**20
        median, low, high = self.quantiles(run, graph=graph, brief=brief)
        floor = max(tflop / getattr(self, rate) * 1e3, gigabytes / self.bandwidth)
        return {
            "work": name,
            "ms": round(median, 4),
            "ms_10_90": [round(low, 4), round(high, 4)],
            "tflops": round(tflop / median * 1e3, 1),
            "floor_arithmetic_ms": round(tflop / getattr(self, rate) * 1e3, 4),
            "floor_bytes_ms": round(gigabytes / self.bandwidth, 4),
            "over_floor": round(median / floor, 2),
            "memory_above_inputs_mib": round(workspace),
            **notes,
        }


def timed(run: Callable) -> float:
    """Milliseconds of one run."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=BF16)


def environment(bench: Bench) -> dict[str, object]:
    import triton

    return {
        **({"peers": bench.peers.versions()} if bench.peers else {}),
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.date.today().isoformat(),
        "bf16_matmul_tflops": round(bench.bf16, 1),
        "copy_tb_per_s": round(bench.bandwidth, 3),
    }
