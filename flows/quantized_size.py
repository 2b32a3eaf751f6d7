"""The size of what stage ``quantize`` writes, for ``glm5 explain``."""

import importlib.util
import json

from flows.talk import ask
from pipeline.recipe import Recipe

FLOAT_BYTES = 4  # what is not quantised stays in the float32 of its parent
EXPORT_BITS = {"w8a8": 8}  # of the experts


def describe_sizes(recipe: Recipe) -> list[str]:
    """A line a folder. The sizes are computed as the stage's own figures are, by ``model``: with PyTorch, and
    therefore in a process of its own.
    """
    if importlib.util.find_spec("torch") is None:
        return ["quantize    its size is computed with PyTorch, which is not installed"]
    section = recipe.quantize
    bits = {f"w{section.expert_bits}a8": section.expert_bits}
    bits |= {name: EXPORT_BITS[name] for name in section.exports if name not in bits}
    schemes = [{"rotation": section.rotation, "expert_bits": number} for number in bits.values()]
    asked = [(None, FLOAT_BYTES), (None, 2), *((scheme, FLOAT_BYTES) for scheme in schemes)]
    parent, bfloat16, *sizes = _sizes(recipe, asked)
    return [
        f"quantize    {name}: {size:,} bytes of tensors, {size / parent:.2f} of its parent's in float32, "
        f"{size / bfloat16:.2f} of bfloat16's"
        for name, size in zip(bits, sizes, strict=True)
    ]


def _sizes(recipe: Recipe, asked: list[tuple[dict | None, int]]) -> list[int]:
    sizes = [{"scheme": scheme, "float_bytes": number} for scheme, number in asked]
    question = {"config": recipe.model.config().model_dump(), "sizes": sizes}
    done = ask("model.quantization.size", json.dumps(question))
    if done.returncode:
        raise RuntimeError(f"the size of a quantised model was not computed: {done.stderr}")
    return json.loads(done.stdout)
