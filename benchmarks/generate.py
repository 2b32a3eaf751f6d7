"""Generating with our engine and with transformers' ``GlmMoeDsaForCausalLM.generate``: same weights, same
prompts.

    python -m benchmarks.generate --out benchmarks/results/generate_cpu.json
    python -m benchmarks.generate --shape anchor --device cuda --dtype bfloat16 --batch 16 256 \
        --prefill 8192 32768 --requests 2000 --peer-repeats 1 --limit 240 --out generate_h200.json

Random weights; greedy; every sequence as long as every other. The two are timed in turns, so that what else
the machine does meets both. Sections: ``generate`` (tokens a second, prefill included, and ours again for
each further way of ``--decode``), ``pass`` (one decode pass of ours), ``prefill`` (a prompt until its first
token), ``parity`` (log-probabilities of sampled tokens against the training forward's), ``memory`` (of the
process while ``--requests`` short requests are served). The file is written after each section, and no
section begins when ``--limit`` seconds have passed.
"""

import argparse
import json
import platform
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import torch
import transformers
from transformers import GlmMoeDsaForCausalLM

from benchmarks.train import ANCHOR
from model.config import ModelConfig, preset
from model.hub import save_folder
from model.inference.engine import Engine
from model.inference.native.build import compiler
from model.inference.request import SamplingParams
from model.transformer import Transformer
from pipeline.errors import run_command

SHAPES: dict[str, ModelConfig] = {"tiny": preset("tiny"), "anchor": ANCHOR}
Prompts = list[list[int]]


def main() -> None:
    started = time.monotonic()
    options = parse()
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    bench = Bench(SHAPES[options.shape], device, dtype, peer=options.peer_repeats > 0)
    result = {
        "date": date.today().isoformat(), "machine": machine(bench.device), "torch": torch.__version__,
        "transformers": transformers.__version__, "shape": options.shape, "dtype": options.dtype,
        "parameters": sum(p.numel() for p in bench.ours.parameters()), "sections": [], "not_run": [],
    }  # fmt: skip
    for name, run in sections(bench, options):
        if time.monotonic() - started > options.limit:
            result["not_run"].append(name)
            continue
        result["sections"].append({"section": name, **run()})
        print(f"{time.monotonic() - started:6.0f} s {json.dumps(result['sections'][-1])}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=2) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--decode", nargs="+", help="how to decode; the first is compared with transformers")
    parser.add_argument("--batch", type=int, nargs="+", default=[16])
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prefill", type=int, nargs="*", default=[1000])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer-repeats", type=int, help="of transformers, where fewer are enough")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.decode = options.decode or default_modes(options.device)
    if options.peer_repeats is None:
        options.peer_repeats = options.repeats
    return options


def default_modes(device: str) -> list[str]:
    if device == "cuda":
        return ["graphs", "padded"]
    return ["native", "plain"] if compiler() else ["plain"]


def sections(bench: "Bench", options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], dict]]]:
    repeats, peer = options.repeats, options.peer_repeats
    size = dict(length=options.prompt, tokens=options.tokens)
    for batch in options.batch:
        for mode in options.decode:
            yield f"pass {batch} {mode}", lambda b=batch, m=mode: bench.passes(b, mode=m, **size)
    yield "parity", lambda: bench.parity(16, options.prompt, 48)
    for batch in options.batch:
        yield (
            f"generate {batch}",
            lambda b=batch: bench.generate(b, **size, modes=options.decode, repeats=repeats, peer=peer),
        )
    for length in options.prefill:
        yield f"prefill {length}", lambda n=length: bench.prefill(n, repeats, peer)
    yield "memory", lambda: bench.many_requests(options.requests, options.decode[0])


def machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


class Bench:
    """Our model and, with ``peer``, transformers' with the same weights."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype, *, peer: bool):
        self.device = device
        model = Transformer(config, seed=0, indexer=True).to(dtype)
        if peer:
            with tempfile.TemporaryDirectory() as folder:
                save_folder(model, folder)
                self.theirs = GlmMoeDsaForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        self.ours = model.to(device).eval()
        self._random = random.Random(0)

    def prompts(self, count: int, length: int) -> Prompts:
        return [
            [self._random.randrange(self.ours.config.vocab_size) for _ in range(length)] for _ in range(count)
        ]

    def passes(self, batch: int, length: int, tokens: int, mode: str) -> dict:
        """Milliseconds of one decode pass of ours, all of Python included."""
        engine = self._engine(batch, length + tokens, mode)
        times = []
        for _ in range(2):  # shapes are recorded in the first round
            for prompt in self.prompts(batch, length):
                engine.add(prompt, SamplingParams(tokens, 0.0))
            while engine.has_work:
                before = engine.stats()
                started = time.perf_counter()
                engine.step()
                seconds = time.perf_counter() - started
                if engine.stats()["sampled_tokens"] - before["sampled_tokens"] == batch:
                    times.append(1e3 * seconds)
        times = sorted(times[len(times) // 2 + 1 :])
        return {
            "batch": batch, "decode": mode, "passes": len(times), "ms": spread(times),
            "ms_10_90": [times[len(times) // 10], times[-1 - len(times) // 10]],
        }  # fmt: skip

    def parity(self, batch: int, length: int, tokens: int) -> dict:
        """Log-probabilities that the engine gave to its tokens against those of the training forward."""
        prompts = self.prompts(batch, length)
        engine = self._engine(batch, length + tokens, None)
        sampled = engine.generate(prompts, SamplingParams(tokens, 1.0, seed=1))
        greedy = engine.generate(prompts, SamplingParams(tokens, 0.0))
        logprob_BTV = self._plain(prompts, [c.ids for c in sampled])
        index = torch.tensor([c.ids for c in sampled], device=self.device).unsqueeze(-1)
        ours = torch.tensor([[t.logprob for t in c.tokens] for c in sampled], dtype=torch.float64)
        gap = logprob_BTV.gather(-1, index).squeeze(-1).double().cpu() - ours
        best = self._plain(prompts, [c.ids for c in greedy]).argmax(-1).tolist()
        equal = [a == b for c, row in zip(greedy, best, strict=True) for a, b in zip(c.ids, row, strict=True)]
        return {
            "tokens": gap.numel(), "mismatch_kl": float((gap.exp() - 1 - gap).mean()),
            "largest_gap": float(gap.abs().max()), "greedy_as_plain": sum(equal) / len(equal),
            "recorded_shapes": engine.stats()["recorded_shapes"],
        }  # fmt: skip

    def generate(
        self, batch: int, length: int, tokens: int, modes: list[str], repeats: int, peer: int
    ) -> dict:
        """Tokens a second, prefill included."""
        params = SamplingParams(tokens, 0.0)
        engines = {mode: self._engine(batch, length + tokens, mode) for mode in modes}
        answers: dict[str, list] = {}

        def ours(name: str, mode: str) -> Callable[[Prompts], None]:
            def run(prompts: Prompts) -> None:
                answers[name] = [c.ids for c in engines[mode].generate(prompts, params)]

            return run

        def theirs(prompts: Prompts) -> None:
            ids = torch.tensor(prompts, device=self.device)
            out = self.theirs.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens,
                min_new_tokens=tokens, pad_token_id=0,
            )  # fmt: skip
            answers["transformers"] = out[:, length:].tolist()

        names = ["ours", *(f"ours, {mode}" for mode in modes[1:])]
        jobs = {name: (ours(name, mode), repeats) for name, mode in zip(names, modes, strict=True)}
        jobs["transformers"] = (theirs, peer)
        seconds = self._in_turns(jobs, lambda: self.prompts(batch, length))
        rates = {name: spread([batch * tokens / s for s in times]) for name, times in seconds.items()}
        result = {
            "batch": batch, "prompt": length, "new_tokens": tokens, "decode": modes[0],
            "tokens_per_s": rates,
            "cache_bytes_per_token": engines[modes[0]].stats()["cache_bytes_per_token"],
        }  # fmt: skip
        if peer:
            same = [a == b for a, b in zip(answers["ours"], answers["transformers"], strict=True)]
            result["ratio"] = rates["ours"]["median"] / rates["transformers"]["median"]
            result["same_answers_of_last_batch"] = sum(same) / len(same)
        return result

    def prefill(self, length: int, repeats: int, peer: int) -> dict:
        """A prompt until its first token: time, and on CUDA the peak of memory beside the weights."""
        engine = self._engine(1, length, None)
        peaks: dict[str, float] = {}

        def ours(prompts: Prompts) -> None:
            engine.generate(prompts, SamplingParams(1, 0.0))

        @torch.inference_mode()
        def theirs(prompts: Prompts) -> None:
            ids = torch.tensor(prompts, device=self.device)
            self.theirs(ids, logits_to_keep=1).logits.argmax(-1).tolist()

        def watched(name: str, run: Callable[[Prompts], None]) -> Callable[[Prompts], None]:
            def inner(prompts: Prompts) -> None:
                if self.device.type != "cuda":
                    return run(prompts)
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                run(prompts)
                peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**20

            return inner

        jobs = {
            "ours": (watched("ours", ours), repeats),
            "transformers": (watched("transformers", theirs), peer),
        }
        seconds = self._in_turns(jobs, lambda: self.prompts(1, length))
        result = {"prompt": length, "seconds": {name: spread(times) for name, times in seconds.items()}}
        if peer:
            result["ratio"] = (
                result["seconds"]["transformers"]["median"] / result["seconds"]["ours"]["median"]
            )
        if peaks:  # the engine's pages are allocated beforehand and counted here
            stats = engine.stats()
            peaks["ours"] += stats["cache_bytes_per_token"] * stats["pages"] * PAGE_SIZE / 2**20
            result["peak_mib"] = peaks
        return result

    def many_requests(self, count: int, mode: str) -> dict:
        """Memory of the process (CUDA: of the allocator) in MiB, at ten moments of ``count`` requests."""
        engine = Engine(self.ours, pages=1024, max_running=64, decode=mode)
        readings, served, started = [], 0, time.monotonic()
        while served < count:
            part = min(count - served, max(1, count // 10))
            prompts = [p[: self._random.randrange(1, 24)] for p in self.prompts(part, 24)]
            engine.generate(prompts, SamplingParams(4, seed=served))
            served += part
            readings.append(round(self._memory(), 1))
            seconds = time.monotonic() - started
            print(f"{served} of {count} requests, {seconds:.0f} s, {readings[-1]} MiB", file=sys.stderr)
        stats = engine.stats()
        idle = stats["pages_free"] + stats["prefix_pages_unused"] == stats["pages"]
        return {"requests": served, "mib": readings, "all_pages_back": idle, "seconds": round(seconds, 1)}

    @torch.inference_mode()
    def _plain(self, prompts: Prompts, answers: Prompts) -> torch.Tensor:
        """Log-probabilities (B, T, V) at the answers' tokens by the training forward."""
        rows = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        tokens_BT = torch.tensor(rows, device=self.device)
        hidden_BTD = self.ours(tokens_BT, attention="sparse").hidden_BTD[:, len(prompts[0]) - 1 : -1]
        return self.ours.logits(hidden_BTD).float().log_softmax(-1)

    def _engine(self, batch: int, tokens: int, mode: str | None) -> Engine:
        return Engine(
            self.ours, pages=batch * (tokens // PAGE_SIZE + 2) + 2, page_size=PAGE_SIZE, max_running=batch,
            prefill_chunk=8192, decode=mode,
        )  # fmt: skip

    def _memory(self) -> float:
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated() / 2**20
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20

    def _in_turns(
        self, jobs: dict[str, tuple[Callable[[Prompts], None], int]], inputs: Callable[[], Prompts]
    ) -> dict[str, list[float]]:
        """Seconds of each job, run in turns on fresh inputs as often as it says, and once more before."""
        seconds: dict[str, list[float]] = {name: [] for name, (_, repeats) in jobs.items() if repeats}
        for number in range(max(repeats for _, repeats in jobs.values()) + 1):
            prompts = inputs()
            for name, (run, repeats) in jobs.items():
                if not repeats or number > repeats:
                    continue
                started = time.perf_counter()
                run(prompts)
                if number:
                    seconds[name].append(time.perf_counter() - started)
        return seconds


PAGE_SIZE = 16  # tokens


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


if __name__ == "__main__":
    run_command(main)
