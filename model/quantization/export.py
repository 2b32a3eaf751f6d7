"""``quantization_config`` of config.json, as compressed-tensors, transformers and vLLM read it.

Every group says its own ``format``: left to be inferred, compressed-tensors stores the 4-bit experts one
value a byte. Weights have one scale an output channel; activations are int8 with one scale a token, found
when they are there.

Names are those of Hugging Face's modules: a weight's name without ``.weight``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

METHOD = "compressed-tensors"
FORMATS = {4: "pack-quantized", 8: "int-quantized"}
NUMBER = re.compile(r"(?<=\.)\d+(?=\\\.)")  # of a layer or an expert, in an escaped name

# For transformers alone (5.23, integrations/compressed_tensors.py). As it loads the routed experts it
# multiplies them out (``CompressedTensorsDequantize.convert``), by the first group in one of whose patterns
# "experts" stands (``get_experts_scheme``). It does so for packed integers and 8-bit floats; of experts in
# plain int8 it makes nothing, and the model is not loaded. What it does to 8-bit floats, values times scale,
# is right for int8, and floats it lets through. So where no experts are packed a folder has this group,
# which no module is in, and the word stands in no pattern of another.
NO_MODULE = "re:(?!)experts"
EXPERTS_MULTIPLIED_OUT = {
    "targets": [NO_MODULE],
    "format": "float-quantized",
    "weights": {
        "num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "group_size": None,
        "dynamic": False,
    },
    "input_activations": None,
    "output_activations": None,
}  # fmt: skip


@dataclass(frozen=True)
class Groups:
    """What a folder's quantization_config says of each module."""

    targets: tuple[tuple[str, int], ...]  # a pattern and its bits
    ignore: tuple[str, ...]

    def bits_of(self, module: str) -> int | None:
        """None for a module that stays as it is. What is to be ignored wins, as in compressed-tensors."""
        if any(matches(pattern, module) for pattern in self.ignore):
            return None
        return next((bits for pattern, bits in self.targets if matches(pattern, module)), None)


def matches(pattern: str, module: str) -> bool:
    """Whether compressed-tensors' pattern means the linear layer of that name."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return pattern in (module, "Linear")


def quantization_config(bits: Mapping[str, int], modules: Iterable[str], mtp_layer: int) -> dict[str, Any]:
    """The config of a folder.

    Args:
        bits: of the quantised modules, 4 or 8.
        modules: every module with a matrix, quantised or not; those without bits go to ``ignore``.
        mtp_layer: number of the layer that is the MTP block, one behind the trunk's last.

    Raises:
        ValueError: for other numbers of bits, and for modules of one kind with different ones.
    """
    wrong = sorted(set(bits.values()) - FORMATS.keys())
    if wrong:
        raise ValueError(f"exports hold weights of 4 or 8 bits, not {wrong[0]}: choose another scheme")
    mtp = rf"re:model\.layers\.{mtp_layer}\..*"
    outside = [name for name in modules if not matches(mtp, name)]
    kinds: dict[str, int] = {}
    for name, number in bits.items():
        if kinds.setdefault(_kind(name), number) != number:
            raise ValueError(f"{name} has {number} bits and its like in other layers have not")
    floats = sorted({name for name in outside if name not in bits and _kind(name) in kinds})
    ignore = sorted({_kind(name) for name in outside if _kind(name) not in kinds})
    if not any(matches(mtp, name) for name in bits):
        floats.append(mtp)
    groups = {
        f"int{number}": _group(number, sorted(kind for kind, its in kinds.items() if its == number))
        for number in sorted(set(kinds.values()))
    }
    formats = {group["format"] for group in groups.values()}
    if not any("experts" in target for group in groups.values() for target in group["targets"]):
        groups["experts_multiplied_out"] = EXPERTS_MULTIPLIED_OUT
    return {
        "quant_method": METHOD,
        "quantization_status": "compressed",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "ignore": ignore + floats,
        "config_groups": groups,
    }


def read_groups(found: Any, where: str) -> Groups:
    """Groups of a ``quantization_config`` that stands in the file ``where``.

    Raises ``ValueError`` with one sentence for anything that is not integers of 4 or 8 bits with one scale an
    output channel, and int8 activations with one scale a token.
    """
    if not isinstance(found, dict) or found.get("quant_method") != METHOD:
        method = found.get("quant_method") if isinstance(found, dict) else found
        raise ValueError(f"{where}: weights are quantised by {method!r}, and only {METHOD} is read here")
    groups, ignore = found.get("config_groups"), found.get("ignore") or []
    if not isinstance(groups, dict) or not groups or not all(isinstance(g, dict) for g in groups.values()):
        raise ValueError(f"{where}: quantization_config has no config_groups; export the folder again")
    targets = []
    for name, group in groups.items():
        if group.get("targets") == [NO_MODULE]:
            continue
        bits = _bits(group, f"{where}: quantization group {name!r}", found.get("format"))
        patterns = group.get("targets") or []
        if not isinstance(patterns, list) or not isinstance(ignore, list):
            raise ValueError(f"{where}: targets and ignore are no lists of module names; export it again")
        targets += [(pattern, bits) for pattern in patterns]
    for pattern in [*ignore, *(pattern for pattern, _ in targets)]:
        _check_pattern(pattern, where)
    return Groups(tuple(targets), tuple(ignore))


def _kind(module: str) -> str:
    """A pattern of the module in all layers and experts; of a module outside the layers, its name.

    transformers takes a group in whose patterns "experts" stands for the packed routed ones', so it may not
    stand in that of the shared ones.
    """
    pattern = NUMBER.sub(r"\\d+", re.escape(module)).replace("shared_experts", r"shared_\w+")
    return module if pattern == re.escape(module) else f"re:{pattern}$"


def _group(bits: int, targets: list[str]) -> dict[str, Any]:
    if FORMATS[bits] != "pack-quantized":
        targets = [target.replace("experts", r"expert\w") for target in targets]
    symmetric = {"type": "int", "symmetric": True}
    return {
        "targets": targets,
        "format": FORMATS[bits],
        "weights": {
            "num_bits": bits, **symmetric, "strategy": "channel", "group_size": None, "dynamic": False,
        },
        "input_activations": {"num_bits": 8, **symmetric, "strategy": "token", "dynamic": True},
        "output_activations": None,
    }  # fmt: skip


def _bits(group: dict, which: str, format_of_all: Any) -> int:
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, dict) or not isinstance(inputs, dict):
        raise ValueError(f"{which} does not say how weights and activations are quantised")
    bits = weights.get("num_bits")
    if bits not in (*FORMATS,) or weights.get("type") != "int" or not weights.get("symmetric", True):
        raise ValueError(f"{which} is not of symmetric integers of 4 or 8 bits, which are all that is read")
    size = weights.get("group_size")
    if weights.get("strategy") != "channel" or size not in (None, -1):
        kind = weights.get("strategy")
        raise ValueError(
            f"{which} has weight scales by {kind!r}{f' of {size}' if size else ''}, and only one scale an "
            "output channel is read: export it with strategy channel"
        )
    kind = [inputs.get(key) for key in ("num_bits", "strategy", "dynamic")]
    kind += [inputs.get("type", "int"), inputs.get("symmetric", True)]  # float is another 8 bits
    if kind != [8, "token", True, "int", True] or group.get("output_activations") is not None:
        raise ValueError(f"{which} has activations other than dynamic symmetric int8 with one scale a token")
    form = group.get("format") or format_of_all
    if form != FORMATS[bits]:
        raise ValueError(f"{which} stores {bits} bits as {form!r}, and {FORMATS[bits]!r} is read")
    return bits


def _check_pattern(pattern: Any, where: str) -> None:
    try:
        re.compile(pattern.removeprefix("re:"))
    except (re.error, AttributeError):
        raise ValueError(f"{where}: {pattern!r} is no pattern of module names; export it again") from None
