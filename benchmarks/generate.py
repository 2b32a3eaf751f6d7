"""Generating with our engine and with transformers' ``GlmMoeDsaForCausalLM.generate``: same weights, same
prompts.

    python -m benchmarks.generate --shape tiny --out benchmarks/results/generate_cpu.json
    python -m benchmarks.generate --shape anchor --device cuda --dtype bfloat16 --batch 16 --out ...

Random weights; greedy; every sequence as long as every other. The two are timed in turns, so that what else
the machine does meets both. Also timed: a prompt of ``--prefill`` tokens, and ``--requests`` short requests,
during which the process's memory is read.
"""

import argparse
import json
import platform
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from transformers import GlmMoeDsaForCausalLM

from benchmarks.train import ANCHOR
from model.config import ModelConfig, preset
from model.hub import save_folder
from model.inference.engine import Engine
from model.inference.request import SamplingParams
from model.transformer import Transformer
from pipeline.errors import run_command

SHAPES: dict[str, ModelConfig] = {"tiny": preset("tiny"), "anchor": ANCHOR}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prefill", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    bench = Bench(SHAPES[options.shape], torch.device(options.device), getattr(torch, options.dtype))
    result = {
        "date": date.today().isoformat(),
        "machine": machine(bench.device),
        "torch": torch.__version__,
        "shape": options.shape,
        "parameters": sum(p.numel() for p in bench.ours.parameters()),
        "dtype": options.dtype,
        "generate": bench.generate(options.batch, options.prompt, options.tokens, options.repeats),
        "prefill": bench.prefill(options.prefill, options.repeats),
        "memory": bench.many_requests(options.requests),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


class Bench:
    """Both models with the same weights."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype):
        self.device = device
        with tempfile.TemporaryDirectory() as folder:
            model = Transformer(config, seed=0, indexer=True).to(dtype)
            save_folder(model, folder)
            self.theirs = GlmMoeDsaForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        self.ours = model.to(device).eval()
        self._random = random.Random(0)

    def prompts(self, count: int, length: int) -> list[list[int]]:
        return [
            [self._random.randrange(self.ours.config.vocab_size) for _ in range(length)] for _ in range(count)
        ]

    def generate(self, batch: int, length: int, tokens: int, repeats: int) -> dict:
        """Tokens a second, prefill included."""
        params = SamplingParams(tokens, 0.0)
        engine = Engine(self.ours, pages=self._pages(batch, length + tokens))
        answers: dict[str, list] = {}

        def ours(prompts: list[list[int]]) -> None:
            answers["ours"] = [c.ids for c in engine.generate(prompts, params)]

        def theirs(prompts: list[list[int]]) -> None:
            ids = torch.tensor(prompts, device=self.device)
            out = self.theirs.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens,
                min_new_tokens=tokens, pad_token_id=0,
            )  # fmt: skip
            answers["theirs"] = out[:, length:].tolist()

        seconds = self._in_turns(
            {"ours": ours, "transformers": theirs}, lambda: self.prompts(batch, length), repeats
        )
        same = [a == b for a, b in zip(answers["ours"], answers["theirs"], strict=True)]
        rates = {name: spread([batch * tokens / s for s in times]) for name, times in seconds.items()}
        return {
            "batch": batch, "prompt": length, "new_tokens": tokens, "tokens_per_s": rates,
            "ratio": rates["ours"]["median"] / rates["transformers"]["median"],
            "same_answers_of_last_batch": sum(same) / len(same),
            "cache_bytes_per_token": engine.stats()["cache_bytes_per_token"],
        }  # fmt: skip

    def prefill(self, length: int, repeats: int) -> dict:
        """A prompt until its first token: time, and on CUDA the peak of memory beside the weights."""
        engine = Engine(self.ours, pages=self._pages(2, length), prefill_chunk=4096)
        peaks: dict[str, float] = {}

        def ours(prompts: list[list[int]]) -> None:
            engine.generate(prompts, SamplingParams(1, 0.0))

        @torch.inference_mode()
        def theirs(prompts: list[list[int]]) -> None:
            self.theirs(torch.tensor(prompts, device=self.device), logits_to_keep=1).logits.argmax(
                -1
            ).tolist()

        def watched(name: str, run: Callable) -> Callable:
            def inner(prompts: list[list[int]]) -> None:
                if self.device.type != "cuda":
                    return run(prompts)
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                run(prompts)
                peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**20

            return inner

        jobs = {"ours": watched("ours", ours), "transformers": watched("transformers", theirs)}
        seconds = self._in_turns(jobs, lambda: self.prompts(1, length), repeats)
        result = {"prompt": length, "seconds": {name: spread(times) for name, times in seconds.items()}}
        if peaks:  # the engine's pages are allocated beforehand and counted here
            peaks["ours"] += engine.stats()["cache_bytes_per_token"] * self._pages(2, length) * 16 / 2**20
            result["peak_mib"] = peaks
        return result

    def many_requests(self, count: int) -> dict:
        """Memory of the process (CUDA: of the allocator) in MiB, at ten moments of ``count`` requests."""
        engine = Engine(self.ours, pages=1024, max_running=64)
        readings, served = [], 0
        while served < count:
            part = min(count - served, max(1, count // 10))
            prompts = [p[: self._random.randrange(1, 24)] for p in self.prompts(part, 24)]
            engine.generate(prompts, SamplingParams(4, seed=served))
            served += part
            readings.append(round(self._memory(), 1))
        stats = engine.stats()
        idle = stats["pages_free"] + stats["prefix_pages_unused"] == stats["pages"]
        return {"requests": served, "mib": readings, "all_pages_back": idle}

    def _pages(self, batch: int, tokens: int) -> int:
        return batch * (tokens // 16 + 2)

    def _memory(self) -> float:
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated() / 2**20
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20

    def _in_turns(self, jobs: dict[str, Callable], inputs: Callable, repeats: int) -> dict[str, list[float]]:
        """Seconds of each job, run in turns on fresh inputs, after one run that is not counted."""
        seconds: dict[str, list[float]] = {name: [] for name in jobs}
        for number in range(repeats + 1):
            prompts = inputs()
            for name, run in jobs.items():
                started = time.perf_counter()
                run(prompts)
                if number:
                    seconds[name].append(time.perf_counter() - started)
        return seconds


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


if __name__ == "__main__":
    run_command(main)
