"""W4A8 at GLM-5's shapes: exactness against the reference, and times with peers beside them in the same call.

    python -m benchmarks.w4a8 --out benchmarks/results/w4a8.json
    python -m benchmarks.w4a8 --only exact,linear --peers torch

``exact`` compares kernels on the card with the integer reference on the CPU, to the bit. ``expert`` times one
expert's matrices (INT4 weights, rounding of the tokens included) beside bf16 cuBLAS and ``torch._int_mm``,
and ``humming`` the same by Humming where humming-kernels can be imported. ``layer`` times layers of 256
experts beside the bf16 layer over ``torch._grouped_mm``, ``even`` eight experts of as many rows each, and
``linear`` int8 attention and dense matrices.

Every time is of replayed CUDA graphs that go through several copies of the weights, so that the L2 cache
holds none: the median, and the tenth and ninetieth percentile of repeats.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.timer import BF16, DEVICE, Bench, Row, environment

D, F, E, K = 6144, 2048, 256, 8  # GLM-5: hidden, expert width, experts, experts per token
ROWS = (1, 16, 64, 256, 2048)
EXPERT_SHAPES = ((2 * F, D), (D, F))  # gate and up, down
LINEAR_SHAPES = {
    "q_a": (2048, D),
    "q_b": (64 * 256, 2048),
    "o": (D, 64 * 256),
    "dense gate and up": (24_576, D),
}
CACHE = 130 * 2**20  # bytes of weights in turn: twice the L2 cache


def time_in_turn(calls: list[Callable], repeats: int = 25) -> dict[str, object]:
    """Microseconds of a call: a graph of all calls is replayed ``repeats`` times."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) * 1e3 / len(calls) for a, b in zip(events, events[1:], strict=False)]
    median, low, high = torch.tensor(times).quantile(torch.tensor([0.5, 0.1, 0.9])).tolist()
    return {"us": round(median, 2), "us_10_90": [round(low, 2), round(high, 2)]}


def in_turn(weights: list, call: Callable) -> list[Callable]:
    """At least 16 calls that take turns with the weights."""
    return [partial(call, weights[n % len(weights)]) for n in range(max(16, len(weights)))]


def times(x: torch.Tensor) -> Callable:
    return lambda weight: x @ weight.t()


def applied(x: torch.Tensor) -> Callable:
    return lambda layer: layer(x)


def int_mm(token: torch.Tensor) -> Callable:
    return lambda weight: torch._int_mm(token, weight.t())


def integers(x: torch.Tensor, scale: torch.Tensor) -> Callable:
    from model.kernels.int8_linear.triton import int8_linear

    return lambda weight: int8_linear(x, weight, scale)


def copies(size: int) -> int:
    """How many weights of ``size`` bytes do not fit into the cache together."""
    return max(2, -(-CACHE // size))


def exact() -> Iterator[Row]:
    from model.kernels.int8_linear import reference as linear_reference
    from model.kernels.int8_linear import triton as linear
    from model.kernels.w4a8_experts import reference, triton
    from model.quantization.rounding import minmax_scale, quantize_weight

    def weight(*shape: int, bits: int):
        values = torch.randn(*shape, device=DEVICE)
        scale = minmax_scale(values, bits)
        values = quantize_weight(values, scale, bits).cpu()
        return linear_reference.pack_int4(values) if bits == 4 else values, scale.cpu()

    for N, width, bits in (*((*shape, 4) for shape in EXPERT_SHAPES), (*LINEAR_SHAPES["q_a"], 8)):
        values, scale = weight(N, width, bits=bits)
        for M in (1, 3, 16, 17, 64, 65, 200):
            x = torch.randn(M, width).to(BF16)
            expected = linear_reference.int8_linear(x, values, scale)
            value = linear.int8_linear(x.to(DEVICE), values.to(DEVICE), scale.to(DEVICE)).cpu()
            yield {"work": f"w{bits}a8 {N} x {width}, {M} rows", "equal": torch.equal(value, expected)}
    for bits, experts, M in ((4, 12, 1), (4, 12, 33), (4, 16, 64), (4, 9, 300), (8, 9, 21)):
        gate_up, gate_up_scale = weight(experts, 2 * F, D, bits=bits)
        down, down_scale = weight(experts, D, F, bits=bits)
        score = torch.randn(M, experts)
        score[:, 1] = -100.0  # one expert without tokens
        arguments = [
            torch.randn(M, D).to(BF16), score.topk(K, -1).indices, torch.rand(M, K), gate_up, gate_up_scale,
            down, down_scale,
        ]  # fmt: skip
        value = triton.w4a8_experts(*(t.to(DEVICE) for t in arguments)).cpu()
        equal = torch.equal(value, reference.w4a8_experts(*arguments))
        yield {"work": f"w{bits}a8 layer of {experts} experts, {M} tokens", "equal": equal}


def expert(peers: set[str]) -> Iterator[Row]:
    from model.kernels.int8_linear.rows import quantize

    for N, width in EXPERT_SHAPES:
        size = N * width
        bf16 = [torch.randn(N, width, device=DEVICE, dtype=BF16) for _ in range(copies(2 * size))]
        packed = [random_bytes(N, width // 2) for _ in range(copies(size // 2))]
        int8 = [random_bytes(N, width).view(torch.int8) for _ in range(copies(size))]
        scale = torch.rand(N, 1, device=DEVICE)
        for M in ROWS:
            x = torch.randn(M, width, device=DEVICE, dtype=BF16)
            runs = {"bf16 cuBLAS": in_turn(bf16, times(x)), "ours, w4a8": in_turn(packed, integers(x, scale))}
            if M > 16:
                token = quantize(x)[0]
                runs["torch._int_mm, without rounding and scales"] = in_turn(int8, int_mm(token))
            for name, calls in runs.items():
                yield {"shape": [N, width], "rows": M, "work": name, **time_in_turn(calls)}


def humming(peers: set[str]) -> Iterator[Row]:
    """The same matrices by Humming's own layers, which compile themselves."""
    if "humming" not in peers or find_spec("humming") is None:
        return
    from humming.layer import HummingLayer

    for N, width in EXPERT_SHAPES:
        for name, group in (("per channel", {}), ("groups of 128", {"group_size": 128})):
            layers = []
            for _ in range(copies(N * width // 2)):
                layer = HummingLayer(
                    shape_n=N, shape_k=width, weight_config={"dtype": "int4", **group},
                    input_config={"dtype": "int8"}, torch_dtype=BF16,
                ).cuda()  # fmt: skip
                layer.load_from_unquantized(torch.randn(N, width, device=DEVICE, dtype=BF16))
                layer.transform()
                layers.append(layer)
            for M in ROWS:
                x = torch.randn(M, width, device=DEVICE, dtype=BF16)
                row = {"shape": [N, width], "rows": M, "work": f"Humming, {name}"}
                yield row | time_in_turn(in_turn(layers, applied(x)))


def layer(peers: set[str]) -> Iterator[Row]:
    """Routing, both products and the weighted sum, of one layer's 256 experts."""
    from model.kernels.experts.triton import routed_experts
    from model.kernels.w4a8_experts.triton import w4a8_experts

    packed = random_bytes(E, 2 * F, D // 2), random_bytes(E, D, F // 2)
    scales = torch.rand(E, 2 * F, 1, device=DEVICE) * 1e-3, torch.rand(E, D, 1, device=DEVICE) * 1e-3
    gate_up = torch.empty(E, 2 * F, D, device=DEVICE, dtype=BF16).normal_(0, 0.02)
    down = torch.empty(E, D, F, device=DEVICE, dtype=BF16).normal_(0, 0.02)
    for M in (1, 4, 16, 64, 256, 2048, 8192):
        x = torch.randn(M, D, device=DEVICE, dtype=BF16)
        weight = torch.rand(M, K, device=DEVICE)
        chosen = [torch.rand(M, E, device=DEVICE).topk(K, -1).indices for _ in range(16 if M < 16 else 2)]
        own = weight, packed[0], scales[0], packed[1], scales[1]
        runs = {"ours, w4a8 layer": (w4a8_experts, own)}
        if "torch" in peers:
            runs["bf16 layer, torch._grouped_mm"] = routed_experts, (weight, gate_up, down)
        for name, (run, rest) in runs.items():
            calls = [partial(run, x, index, *rest) for index in chosen]
            with torch.no_grad():
                yield {"experts": E, "tokens": M, "work": name, **time_in_turn(calls, 10)}


def even(peers: set[str]) -> Iterator[Row]:
    """Eight experts of M rows each: the layer's arithmetic at a given number of rows an expert."""
    from model.kernels.experts.triton import routed_experts
    from model.kernels.w4a8_experts.triton import w4a8_experts

    packed = random_bytes(K, 2 * F, D // 2), random_bytes(K, D, F // 2)
    scales = torch.rand(K, 2 * F, 1, device=DEVICE) * 1e-3, torch.rand(K, D, 1, device=DEVICE) * 1e-3
    gate_up, down = (
        torch.randn(*shape, device=DEVICE, dtype=BF16) * 0.02 for shape in ((K, 2 * F, D), (K, D, F))
    )
    for M in ROWS:
        x, weight = torch.randn(M, D, device=DEVICE, dtype=BF16), torch.rand(M, K, device=DEVICE)
        index = torch.rand(M, K, device=DEVICE).argsort(-1)
        runs = {
            "ours, w4a8": partial(w4a8_experts, x, index, weight, packed[0], scales[0], packed[1], scales[1]),
            "bf16, torch._grouped_mm": partial(routed_experts, x, index, weight, gate_up, down),
            "bf16 cuBLAS, expert by expert": partial(one_by_one, x, gate_up, down),
        }
        for name, run in runs.items():
            with torch.no_grad():
                yield {"experts": K, "rows of each": M, "work": name, **time_in_turn([run] * 4)}


def one_by_one(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> list[torch.Tensor]:
    """The products and SwiGLU alone: no sorting, no weighted sum."""
    from model.kernels.experts.triton import swiglu

    return [swiglu(x @ gate_up[e].t()) @ down[e].t() for e in range(len(down))]


def linear(peers: set[str]) -> Iterator[Row]:
    for name, (N, width) in LINEAR_SHAPES.items():
        bf16 = [torch.randn(N, width, device=DEVICE, dtype=BF16) for _ in range(copies(2 * N * width))]
        int8 = [random_bytes(N, width).view(torch.int8) for _ in range(copies(N * width))]
        scale = torch.rand(N, 1, device=DEVICE)
        for M in (1, 16, 64, 2048):
            x = torch.randn(M, width, device=DEVICE, dtype=BF16)
            runs = {"bf16 cuBLAS": in_turn(bf16, times(x)), "ours, w8a8": in_turn(int8, integers(x, scale))}
            for work, calls in runs.items():
                yield {"matrix": name, "shape": [N, width], "rows": M, "work": work, **time_in_turn(calls)}


def random_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, device=DEVICE, dtype=torch.uint8)


SUITES = {"expert": expert, "even": even, "layer": layer, "linear": linear, "humming": humming}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(["exact", *SUITES]), help="suites, with commas")
    parser.add_argument("--peers", default="torch,humming", help="torch, humming or both")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.w4a8 needs a CUDA device, and torch sees none", file=sys.stderr)
        return 2
    names, peers = options.only.split(","), set(options.peers.split(","))
    if unknown := set(names) - {"exact", *SUITES}:
        print(f"no suite {', '.join(sorted(unknown))}; there are exact, {', '.join(SUITES)}", file=sys.stderr)
        return 2
    results = {"environment": environment(Bench()), "rows": []}
    for name in names:
        for row in exact() if name == "exact" else SUITES[name](peers):
            results["rows"].append({"suite": name, **row})
            print(json.dumps(row), flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1) + "\n")
        torch.cuda.empty_cache()
    return 0 if all(row.get("equal", True) for row in results["rows"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
