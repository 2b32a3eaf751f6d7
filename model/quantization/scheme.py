"""What is quantised, to how many bits and by which method. Free of torch.

GLM-5's mix (paper section 5, msModelSlim's recipe): 4-bit routed experts, 8-bit attention, dense and shared
feed-forward layers, activations of both in 8 bits a token. Left as they are: the key-value up-projections,
the indexer's key and head weights, the router, embedding, head, norms and the whole MTP block.
"""

import re
from dataclasses import asdict, dataclass
from typing import Literal, get_args

Method = Literal["minmax", "ssz", "smoothquant", "awq", "flex_awq_ssz", "gptq"]

# Names of a trunk block's weights as in ``Transformer.state_dict()``.
EXPERTS = re.compile(r"blocks\.\d+\.ffn\.(gate_up|down)")
DENSE = re.compile(
    r"blocks\.\d+\.(attention\.(q_down|q_up|kv_down|out|indexer\.q_up)|ffn\.(shared\.)?(gate_up|down))\.weight"
)
# What makes queries and keys, and is not clipped: an error of one is multiplied by the other's
# (mit-han-lab/llm-awq, auto_clip.py).
QUERIES_AND_KEYS = re.compile(r"blocks\.\d+\.attention\.(q_down|q_up|kv_down|indexer\.q_up)\.weight")

DENSE_BITS = 8


@dataclass(frozen=True)
class Scheme:
    """How a model is quantised.

    method: "minmax" rounds to nearest with the row's largest magnitude; "ssz" searches the experts' scales;
        "smoothquant", "awq" and "flex_awq_ssz" move weight between activations and weights first, and "awq"
        clips weights then; "gptq" searches scales and makes up for each column's error in the later ones.
        The last four need calibration tokens.
    rotation: QuaRot before everything else.
    expert_bits: 2 to 8; 8 is W8A8, since everything else that is quantised has ``DENSE_BITS``.
    min_tokens: an expert that fewer calibration tokens choose is calibrated on all tokens of its layer.
    seed: of the rotations' signs.
    """

    method: Method = "flex_awq_ssz"
    rotation: bool = True
    expert_bits: int = 4
    min_tokens: int = 64
    seed: int = 0

    def __post_init__(self):
        if self.method not in get_args(Method):
            raise ValueError(f"no quantisation method {self.method!r}: choose {', '.join(get_args(Method))}")
        if not 2 <= self.expert_bits <= 8:
            raise ValueError(f"weights are quantised to 2 to 8 bits, not {self.expert_bits}")

    @property
    def needs_tokens(self) -> bool:
        return self.method not in ("minmax", "ssz")

    def bits(self, name: str) -> int | None:
        """Bits of the weight of that name in ``Transformer.state_dict()``; None where it stays as it is."""
        if EXPERTS.fullmatch(name):
            return self.expert_bits
        return DENSE_BITS if DENSE.fullmatch(name) else None

    def facts(self) -> dict:
        """For records."""
        return asdict(self)
