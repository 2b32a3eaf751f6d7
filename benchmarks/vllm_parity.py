"""vLLM's CPU build against our engine on one checkpoint: tokens, log-probs, weight updates, and its traps.

    make vllm
    python -m benchmarks.vllm_parity --out benchmarks/results/vllm_cpu.json
    python -m benchmarks.vllm_parity --checkpoint FOLDER --other FOLDER

Without folders: random weights in GLM-5's head sizes (latent 512 + 64). "traps" starts
the same server without one setting each, and lets vLLM reload weights by itself. Differences are of
log-probabilities, in nats, from our training forward.
"""

import argparse
import json
import platform
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import httpx
import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from model.chat.files import save_chat_files
from model.config import SPECIAL_TOKENS, preset
from model.hub import load_folder, save_folder
from model.inference.engine import Engine
from model.inference.generate import score
from model.inference.request import Completion, SamplingParams
from model.inference.vllm.client import VllmClient
from model.inference.vllm.folder import check_folder, write_view
from model.inference.vllm.process import PYTHON, serving
from model.transformer import Transformer
from pipeline.errors import UserError, run_command

SHAPE = dict(
    hidden_size=256, num_layers=4, num_heads=4, q_latent=128, kv_latent=512, qk_nope_dim=192, qk_rope_dim=64,
    v_dim=256, index_heads=4, index_dim=128, index_top_k=256, max_positions=1024,
)  # fmt: skip
NEW_TOKENS = 32


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, help="default: random weights")
    parser.add_argument("--other", type=Path, help="of the same shape, for the updates")
    parser.add_argument("--dtype", default="float32", help="of random weights")
    parser.add_argument("--python", type=Path, default=PYTHON, help="of the environment that holds vLLM")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    run_command(lambda: compare(options))


def compare(options: argparse.Namespace) -> int:
    if not options.python.exists():
        raise UserError(f"{options.python} is not there: run `make vllm`, or give --python")
    result = {"date": date.today().isoformat(), "machine": platform.processor() or platform.machine()}
    result["versions"] = versions(options.python) | {"torch (ours)": torch.__version__}
    with tempfile.TemporaryDirectory() as scratch:
        if options.checkpoint:
            folders = options.checkpoint, options.other or options.checkpoint
        else:
            folders = random_checkpoints(Path(scratch), getattr(torch, options.dtype))
        parity = Parity(*folders, options.prompts)
        result |= {"dtype": str(parity.models[0].embed.weight.dtype), "context": parity.context}
        for name, part in (("as_served", parity.measure), ("traps", parity.traps)):
            result[name] = part(options.python)
            print(f"{name}: {json.dumps(result[name])}", file=sys.stderr, flush=True)  # each takes minutes
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0


def versions(python: Path) -> dict[str, str]:
    code = (
        "import json, importlib.metadata as m;"
        "print(json.dumps({n: m.version(n) for n in ('vllm-cpu', 'torch', 'transformers')}))"
    )
    return json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout)


def random_checkpoints(folder: Path, dtype: torch.dtype, scale: float = 8) -> tuple[Path, Path]:
    """Two folders of one shape with matrices ``scale`` times as large as at the start of training, by default
    so large that every path matters.
    """
    folders = folder / "first", folder / "second"
    for seed, each in enumerate(folders):
        each.mkdir(parents=True)
        byte_tokenizer().save(str(each / "tokenizer.json"))
        size = byte_tokenizer().get_vocab_size()
        model = Transformer(preset("tiny", **SHAPE, vocab_size=size), seed=seed, indexer=True)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for value in model.parameters():
                if value.dim() > 1:
                    value.mul_(scale)
            for router in model.routers():
                router.bias.copy_(0.2 * torch.randn(router.bias.shape, generator=generator))
        save_folder(model.to(dtype), each)
        save_chat_files(each, SHAPE["max_positions"])
    return folders


def byte_tokenizer() -> Tokenizer:
    """A token for every byte, and GLM's special ones."""
    letters = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(letters, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL_TOKENS])
    return tokenizer


class Parity:
    def __init__(self, first: Path, second: Path, count: int):
        self.folders = first, second
        self.models = [load_folder(folder).eval() for folder in self.folders]
        self.context = check_folder(first).context
        rng, longest = random.Random(0), self.context - NEW_TOKENS - 1
        vocabulary = self.models[0].config.vocab_size
        self.prompts = [
            [rng.randrange(vocabulary) for _ in range(rng.randrange(1, longest))] for _ in range(count)
        ]

    def measure(self, python: Path) -> dict:
        """The server as it is meant to run."""
        with served(self.folders[0], python) as client:
            greedy = SamplingParams(NEW_TOKENS, 0.0)
            ours = Engine(self.models[0]).generate(self.prompts, greedy)
            theirs = client.generate(self.prompts, greedy)
            sampled = client.generate(self.prompts, SamplingParams(NEW_TOKENS, 1.0, seed=0))
            result = {
                "prompts": len(self.prompts),
                "greedy_same_answers": same(ours, theirs),
                "greedy_same_tokens_until_first_other": agreement(ours, theirs),
                "prompt": difference(self._prompts(client, 0)),
                "sampled": difference(self._sampled(sampled)) | {"mismatch_kl": self._kl(sampled)},
            }
            client.load_weights(self.folders[1], 1)
            result["after_update"] = difference(self._prompts(client, 1))
            client.load_weights(self.folders[0], 2)
            result["after_update_back"] = difference(self._prompts(client, 0))
        return result

    def traps(self, python: Path) -> dict:
        """Wrong without an error: how much."""
        result = {}
        with served(self.folders[0], python, "--compilation-config", "{}") as client:
            result["with_vllms_custom_operations"] = difference(self._prompts(client, 0))
        with (
            served(self.folders[0], python, VLLM_SERVER_DEV_MODE="1") as client,
            tempfile.TemporaryDirectory() as view,
        ):
            write_view(self.folders[1], view)
            body = {"method": "reload_weights", "kwargs": {"weights_path": view}}
            httpx.post(f"{client.url}/collective_rpc", json=body, timeout=600).raise_for_status()
            result["after_vllms_own_reload"] = difference(self._prompts(client, 1))
        return result

    def _prompts(self, client: VllmClient, number: int) -> np.ndarray:
        own = score(self.models[number], self.prompts, attention=mode(self.models[number]))
        return np.concatenate(client.score(self.prompts)) - np.concatenate(own)

    def _sampled(self, completions: list[Completion]) -> np.ndarray:
        rows = [p + c.ids for p, c in zip(self.prompts, completions, strict=True)]
        own = score(self.models[0], rows, attention=mode(self.models[0]))
        return np.concatenate(
            [
                np.array([token.logprob for token in c.tokens]) - values[-len(c.tokens) :]
                for c, values in zip(completions, own, strict=True)
            ]
        )

    def _kl(self, completions: list[Completion]) -> float:
        """KL(engine || trainer) by the estimator exp(-d) - 1 + d of samples, which is never negative."""
        apart = self._sampled(completions)
        return float(np.mean(np.exp(-apart) - 1 + apart))


@contextmanager
def served(folder: Path, python: Path, *options: str, **variables: str) -> Iterator[VllmClient]:
    with serving(folder, *options, python=python, **variables) as url:
        client = VllmClient(url)
        yield client
        client.close()


def mode(model: Transformer) -> str:
    return "sparse" if model.has_indexer else "dense"


def same(ours: list[Completion], theirs: list[Completion]) -> float:
    return sum(a.ids == b.ids for a, b in zip(ours, theirs, strict=True)) / len(ours)


def agreement(ours: list[Completion], theirs: list[Completion]) -> float:
    """Share of the tokens before an answer's first difference: a near tie changes all that follow."""
    total = 0
    for a, b in zip(ours, theirs, strict=True):
        pairs = zip(a.ids, b.ids, strict=False)
        total += next((n for n, (x, y) in enumerate(pairs) if x != y), len(a.ids))
    return total / sum(len(c.ids) for c in ours)


def difference(apart: np.ndarray) -> dict[str, float]:
    size = np.abs(apart)
    return {"tokens": len(size), "median": float(np.median(size)), "mean": float(size.mean()),
            "max": float(size.max())}  # fmt: skip


if __name__ == "__main__":
    main()
