"""What loads a quantised folder, and with which weights: ours, transformers, and vLLM as far as it goes.

    python -m benchmarks.exports --folder artifacts/tiny/quantize
    python -m benchmarks.exports --folder artifacts/tiny/quantize --vllm --out benchmarks/results/exports.json

transformers (with compressed-tensors, of requirements-test.lock) loads the folder in both its ways,
compressed and dequantised; every tensor is compared bit for bit with what the file holds. It computes the
experts in float and everything else in 8 bits, so its logits are near ours and not the same.

``--vllm`` (``make vllm``): its CPU build takes the latent of GLM-5's size alone and has no integer experts,
so exports of a random checkpoint of that size are tried: 8 bits everywhere but in the experts, 8 bits
everywhere, and 4-bit experts. Differences are of log-probabilities, in nats. Its 8-bit products are oneDNN's,
which on a processor without VNNI add pairs in 16 bits and saturate: there they are wrong by some percent,
whatever the folder holds. On a processor with AMX it takes another kernel, which refuses these float32
folders. What vLLM does not start on or refuses is recorded with its reason, and the others are tried.
"""

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
from datetime import date
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

from benchmarks.output import require_place
from benchmarks.vllm_parity import difference, random_checkpoints, served, versions
from model.hub import load_folder, read_config, read_quantized, save_folder
from model.hub.weights import split_fused
from model.inference.generate import score
from model.inference.vllm.process import PYTHON
from model.quantization.quantize import quantize_model
from model.quantization.scheme import Scheme
from pipeline.errors import UserError, run_command

SCALE = 2.5  # of random matrices: a deep network of larger ones turns every rounding into another answer
# Name, bits of the experts, dimensions of the weights that are quantised (experts are stacked in three).
VARIANTS = (
    ("float, rotated", 8, ()), ("w8a8, float experts", 8, (2,)), ("w8a8", 8, (2, 3)), ("w4a8", 4, (2, 3)),
)  # fmt: skip
CHAT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="a quantised checkpoint, for transformers")
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--python", type=Path, default=PYTHON, help="of the environment that holds vLLM")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    run_command(lambda: show(options))


def show(options: argparse.Namespace) -> int:
    if options.out:
        require_place(options.out)
    result: dict[str, Any] = {"date": date.today().isoformat(), "torch": torch.__version__}
    if options.folder:
        result["folder"] = options.folder.name
        result["transformers"] = in_transformers(options.folder)
    if options.vllm:
        if not options.python.exists():
            raise UserError(f"{options.python} is not there: run `make vllm`, or give --python")
        flags = Path("/proc/cpuinfo").read_text()
        kernels = {name: name in flags for name in ("vnni", "amx_int8")}  # on these depends which it takes
        result["vllm"] = {"versions": versions(options.python), **kernels, **in_vllm(options.python)}
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0


def in_transformers(folder: Path) -> dict[str, Any]:
    """Load the folder with transformers, compressed and dequantised, and compare every tensor."""
    if find_spec("compressed_tensors") is None:
        raise UserError("compressed-tensors is not installed: pip install -r requirements-test.lock")
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    try:
        plain, parts = read_quantized(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load {folder}: {error}") from error
    if not parts:
        raise UserError(f"{folder} is not quantised: give --folder what stage quantize left, or its w8a8/")
    mtp = re.compile(rf"model\.layers\.{read_config(folder)[0].num_layers}\.")
    result = {name: metadata.version(name) for name in ("transformers", "compressed-tensors")}
    tokens = torch.randint(
        plain["lm_head.weight"].shape[0], (1, 40), generator=torch.Generator().manual_seed(0)
    )
    with torch.inference_mode():
        ours = load_folder(folder).eval()
        expected = ours.logits(ours(tokens, attention="sparse").hidden_BTD)
    for way, config in (("compressed", None), ("dequantised", CompressedTensorsConfig(dequantize=True))):
        options = {"quantization_config": config} if config else {}
        try:
            model, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
        except RuntimeError as error:  # plain int8 experts alone, see model/quantization/export.py
            result[way] = {"loaded": False, "reason": str(error).split("!")[0]}
            continue
        state = split_fused(dict(model.state_dict()))
        with torch.inference_mode():
            apart = (model(tokens).logits - expected).abs().mean().item()
        unexpected = [name for name in found["unexpected_keys"] if not mtp.match(name)]
        result[way] = {
            "loaded": True,
            "missing_keys": sorted(found["missing_keys"]),
            "mismatched_keys": sorted(map(str, found["mismatched_keys"])),
            "unexpected_keys": sorted(unexpected),
            "keys_of_the_mtp_block_left_out": len(found["unexpected_keys"]) - len(unexpected),
            **compare(state, plain, parts, mtp),
            "mean_logit_difference_from_ours": apart,
            "mean_logit": expected.abs().mean().item(),
        }
    return result


def compare(state: dict, plain: dict, parts: dict, mtp: re.Pattern) -> dict[str, Any]:
    """How many of transformers' tensors are, bit for bit, what the file stands for; the names of others."""
    counts, other = {"float": 0, "integers": 0, "dequantised": 0}, []
    for name, value in plain.items():
        if not mtp.match(name):
            same = name in state and torch.equal(state[name], value)
            counts["float"] += same
            other += [] if same else [name]
    for name, part in parts.items():
        if state[name].dtype == torch.int8:
            kind = "integers"
            same = torch.equal(state[name], part.values) and torch.equal(state[f"{name}_scale"], part.scale)
        else:
            kind, same = "dequantised", torch.equal(state[name], part.dequantize(state[name].dtype))
        counts[kind] += same
        other += [] if same else [name]
    return {"equal_bit_for_bit": counts, "different": other}


def in_vllm(python: Path) -> dict[str, Any]:
    """Exports of a random checkpoint of GLM-5's head sizes under vLLM's CPU build: unquantised but rotated, 8
    bits everywhere but in the experts, 8 bits everywhere, 4-bit experts.
    """
    result = {}
    with tempfile.TemporaryDirectory() as scratch:
        parent, _ = random_checkpoints(Path(scratch), torch.float32, SCALE)
        model = load_folder(parent).eval()
        rng = random.Random(0)
        vocabulary = model.config.vocab_size
        prompts = [[rng.randrange(vocabulary) for _ in range(rng.randrange(20, 200))] for _ in range(8)]
        plain = np.concatenate(score(model, prompts, attention="sparse"))
        for name, bits, dimensions in VARIANTS:
            floats, tensors, _ = quantize_model(model, [], Scheme("minmax", True, bits))
            tensors = {key: tensor for key, tensor in tensors.items() if tensor.values.dim() in dimensions}
            folder = Path(scratch) / f"export{len(result)}"
            folder.mkdir()
            save_folder(floats, folder, tensors)
            for file in CHAT_FILES:
                shutil.copyfile(parent / file, folder / file)
            own = np.concatenate(score(load_folder(folder).eval(), prompts, attention="sparse"))
            result[name] = {"ours_from_float": difference(own - plain)} | serve(folder, python, prompts, own)
            print(f"{name}: {json.dumps(result[name])}", file=sys.stderr, flush=True)  # each takes minutes
    return result


def serve(folder: Path, python: Path, prompts: list[list[int]], own: np.ndarray) -> dict[str, Any]:
    """Likelihoods from vLLM beside ours, or why it does not start, refuses or ends."""
    try:
        with served(folder, python) as client:
            theirs = np.concatenate(client.score(prompts))
    except (RuntimeError, ValueError, httpx.TransportError) as error:
        causes = getattr(error, "__notes__", [])  # of the server's log
        reason = str(error).partition("; the end of")[0]
        return {"served": False, "reason": " ".join([reason, *(f"({cause})" for cause in causes)])}
    return {"served": True, "vllm_from_ours": difference(theirs - own)}


if __name__ == "__main__":
    main()
