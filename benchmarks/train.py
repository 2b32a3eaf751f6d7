"""Forward and backward of the anchor model: ours, and transformers' of the same shape in the same call.

    python -m benchmarks.train --out benchmarks/results/train.json

520 M parameters (8 layers, hidden 1024, 16 heads, 32 experts top-4, indexer 8 x 128, top-k 512, vocabulary
32,768), bfloat16, one sequence, loss over all tokens. Ours runs DSA with the trunk's loss alone ("sparse"),
the same with the indexer's KL ("sparse + KL"; transformers' indexer does not train), with every layer
recomputed, and with sums in a fixed order; each started from Python and, as training does it, replayed as a
CUDA graph ("graph"). Median, tenth and ninetieth percentile in ms; memory is the peak of allocations, weights
and gradients in it, for a graph that of the same step started from Python.
"""

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

from model.config import ModelConfig

LENGTHS = (4096, 8192, 16_384)
ANCHOR = ModelConfig(
    vocab_size=32_768, hidden_size=1024, num_layers=8, first_dense_layers=1, ffn_size=3072, num_heads=16,
    q_latent=512, kv_latent=512, qk_nope_dim=192, qk_rope_dim=64, v_dim=256, num_experts=32,
    experts_per_token=4, num_shared_experts=1, expert_ffn_size=512, routed_scale=2.5, index_heads=8,
    index_dim=128, index_top_k=512, mtp_steps=0, rope_base=1e6, max_positions=32_768,
)  # fmt: skip


def measure(run: Callable[[], None], tokens: int, repeats: int) -> dict[str, object]:
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    times.sort()
    middle = statistics.median(times)
    low, high = times[len(times) // 10], times[-1 - len(times) // 10]
    return {
        "ms": round(middle, 2), "ms_10_90": [round(low, 2), round(high, 2)], "runs": repeats,
        "tokens_per_s": round(tokens / middle * 1e3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }  # fmt: skip


def ours(repeats: int, lengths: Iterable[int], only: str) -> Iterator[dict[str, object]]:
    from model.loss import next_targets, training_losses
    from model.transformer import Transformer

    model = Transformer(ANCHOR, indexer=True).to("cuda", torch.bfloat16)
    torch.utils.deterministic.fill_uninitialized_memory = False  # an aid for debugging that costs time
    for length in lengths:
        tokens = torch.randint(0, ANCHOR.vocab_size, (1, length), device="cuda")
        target = next_targets(tokens)
        for name, attention, indexer, recompute, fixed in (
            ("dense", "dense", False, False, False),
            ("sparse", "sparse", False, False, False),
            ("sparse, fixed order", "sparse", False, False, True),
            ("sparse + KL", "sparse", True, False, False),
            ("sparse, recomputed", "sparse", False, True, False),
        ):
            if only not in (name, ""):
                continue
            model.recompute = recompute
            torch.use_deterministic_algorithms(fixed, warn_only=True)

            def step(tokens=tokens, target=target, attention=attention, indexer=indexer):
                losses = training_losses(model, tokens, target, attention=attention, indexer_loss=indexer)
                (losses.lm + losses.indexer_kl).backward()
                model.zero_grad(set_to_none=True)

            flops = ANCHOR.training_flops_per_token(length, attention)
            row = {"model": f"ours, {name}", "length": length, "flops_per_token": flops}
            eager = measure(step, length, repeats)
            yield {**row, **eager}
            replayed = measure(as_graph(step), length, repeats)
            yield {**row, "model": f"ours, {name}, graph", **replayed, "peak_gib": eager["peak_gib"]}
    torch.use_deterministic_algorithms(False)


def as_graph(step: Callable[[], None]) -> Callable[[], None]:
    """The step's operations recorded once; call the result to run them again."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def peer(repeats: int, lengths: Iterable[int], only: str) -> Iterator[dict[str, object]]:
    if only:
        return
    from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

    from model.hub.config import config_json
    from model.transformer import Transformer

    with torch.device("meta"):
        config = GlmMoeDsaConfig.from_dict(config_json(Transformer(ANCHOR, indexer=True)))
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = GlmMoeDsaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    for length in lengths:
        tokens = torch.randint(0, ANCHOR.vocab_size, (1, length), device="cuda")

        def step(tokens=tokens):
            model(tokens, labels=tokens).loss.backward()
            model.zero_grad(set_to_none=True)

        yield {"model": "transformers", "length": length, **measure(step, length, max(3, repeats // 4))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="tokens, with commas")
    parser.add_argument("--only", default="", help='one of our variants and no peer, such as "sparse"')
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.train needs a CUDA device, and torch sees none", file=sys.stderr)
        return 2
    lengths = [int(length) for length in options.lengths.split(",")]
    results = {"environment": environment(), "rows": []}
    for rows in (ours, peer):
        try:
            for row in rows(options.repeats, lengths, options.only):
                results["rows"].append(row)
                print(f"{row['model']:32s} {row['length']:6d} tokens {row['ms']:9.2f} ms "
                      f"{row['tokens_per_s']:8,d} tok/s {row['peak_gib']:6.2f} GiB", flush=True)  # fmt: skip
                if options.out:
                    options.out.write_text(json.dumps(results, indent=1) + "\n")
        except (ImportError, torch.OutOfMemoryError) as error:
            print(f"{rows.__name__}: {error}", file=sys.stderr)
        torch.cuda.empty_cache()
    return 0


def environment() -> dict[str, object]:
    import triton

    found = {
        "card": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip
    try:
        import transformers
    except ImportError:
        return found
    return {**found, "transformers": transformers.__version__}


if __name__ == "__main__":
    raise SystemExit(main())
