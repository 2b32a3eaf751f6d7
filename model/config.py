"""The shape of a GLM-5 model: one definition, with presets, free of torch.

Names follow the paper (arXiv 2602.15763, Table 10); ``model/hub.py`` maps them to Hugging Face's.
"""

from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

# Special tokens of GLM's chat format, in the order of the released vocabulary. Their ids follow the ordinary tokens.
SPECIAL_TOKENS = (
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>",
    "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>",
)  # fmt: skip


class ModelConfig(BaseModel):
    """Shape and constants of the network. Sizes are counts of features unless said otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    vocab_size: int
    hidden_size: int
    num_layers: int
    first_dense_layers: int  # leading layers with a dense FFN instead of experts
    ffn_size: int
    num_heads: int
    q_latent: int  # rank of the query compression
    kv_latent: int  # rank of the joint key-value compression: what the cache holds, with qk_rope_dim
    qk_nope_dim: int  # per head, without position
    qk_rope_dim: int  # per head for queries, shared by all heads for keys
    v_dim: int
    num_experts: int
    experts_per_token: int
    num_shared_experts: int
    expert_ffn_size: int
    routed_scale: float
    index_heads: int
    index_dim: int
    index_top_k: int  # keys that each query attends to under DeepSeek sparse attention
    mtp_steps: int  # multi-token-prediction steps in training, all on one shared block
    rope_base: float
    max_positions: int
    norm_eps: float = 1e-5
    init_std: float = 0.02

    @property
    def qk_dim(self) -> int:
        return self.qk_nope_dim + self.qk_rope_dim

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.qk_rope_dim % 2 or self.index_dim < self.qk_rope_dim:
            raise ValueError("qk_rope_dim must be even and no larger than index_dim")
        if self.experts_per_token > self.num_experts:
            raise ValueError("experts_per_token is larger than num_experts")
        if self.first_dense_layers > self.num_layers:
            raise ValueError("first_dense_layers is larger than num_layers")
        return self


PRESETS: dict[str, dict] = {
    # Learns in minutes on two CPU cores.
    "tiny": dict(
        vocab_size=2048, hidden_size=128, num_layers=4, first_dense_layers=1, ffn_size=384, num_heads=4,
        q_latent=64, kv_latent=48, qk_nope_dim=16, qk_rope_dim=16, v_dim=32,
        num_experts=8, experts_per_token=2, num_shared_experts=1, expert_ffn_size=96, routed_scale=1.0,
        index_heads=4, index_dim=32, index_top_k=64, mtp_steps=3, rope_base=10_000.0, max_positions=1024,
    ),
    # GLM-5's own head sizes on one GPU, so that its kernels apply.
    "small": dict(
        vocab_size=32_768, hidden_size=1024, num_layers=12, first_dense_layers=1, ffn_size=3072, num_heads=8,
        q_latent=512, kv_latent=512, qk_nope_dim=192, qk_rope_dim=64, v_dim=256,
        num_experts=16, experts_per_token=4, num_shared_experts=1, expert_ffn_size=512, routed_scale=2.5,
        index_heads=8, index_dim=128, index_top_k=512, mtp_steps=3, rope_base=10_000.0, max_positions=32_768,
    ),
    # One node of eight GPUs.
    "node": dict(
        vocab_size=65_536, hidden_size=2048, num_layers=24, first_dense_layers=1, ffn_size=8192, num_heads=16,
        q_latent=768, kv_latent=512, qk_nope_dim=192, qk_rope_dim=64, v_dim=256,
        num_experts=64, experts_per_token=4, num_shared_experts=1, expert_ffn_size=1024, routed_scale=1.8,
        index_heads=16, index_dim=128, index_top_k=2048, mtp_steps=3, rope_base=10_000.0, max_positions=131_072,
    ),
    # The released model (paper Table 10 and its config.json).
    "glm5": dict(
        vocab_size=154_880, hidden_size=6144, num_layers=78, first_dense_layers=3, ffn_size=12_288, num_heads=64,
        q_latent=2048, kv_latent=512, qk_nope_dim=192, qk_rope_dim=64, v_dim=256,
        num_experts=256, experts_per_token=8, num_shared_experts=1, expert_ffn_size=2048, routed_scale=2.5,
        index_heads=32, index_dim=128, index_top_k=2048, mtp_steps=3, rope_base=1_000_000.0, max_positions=202_752,
    ),
}  # fmt: skip


def preset(name: str, **changes) -> ModelConfig:
    """The preset of that name with some fields changed. Raises ``KeyError`` for an unknown name."""
    return ModelConfig(**{**PRESETS[name], **changes})
