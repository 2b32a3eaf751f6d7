"""The shape of a GLM-5 model: one definition, with presets, free of torch.

Names follow the paper (arXiv 2602.15763, Table 10); ``model/hub`` maps them to Hugging Face's.
"""

from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

END_OF_TEXT = "<|endoftext|>"
# Special tokens of GLM's chat format, in the order of the released vocabulary. Their ids follow the ordinary
# tokens.
SPECIAL_TOKENS = (
    END_OF_TEXT, "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>",
    "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>",
)  # fmt: skip
# What transformers has to be told beside tokenizer.json: its tokenizer_config.json. A checkpoint's file adds
# the length of its context.
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END_OF_TEXT,
    "pad_token": END_OF_TEXT,
    "padding_side": "left",
    "clean_up_tokenization_spaces": False,
    "model_input_names": ["input_ids", "attention_mask"],
}


# The cache of an engine: tokens of a page, and of all pages unless one context is longer.
PAGE_TOKENS, CACHE_TOKENS = 16, 65_536


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

    def parameter_counts(self) -> dict[str, int]:
        """Parameters by part.

        ``total`` and ``active`` (per token) count as the paper's 744B and 40B do: trunk and head, for
        ``total`` the embedding too; the MTP block comes on top. ``attention`` and ``indexer`` are those of
        all trunk layers; router biases, which are no parameters, are left out.
        """
        D, layers, moe_layers = self.hidden_size, self.num_layers, self.num_layers - self.first_dense_layers
        attention, indexer = self._attention_size(), self._indexer_size()
        expert = 3 * D * self.expert_ffn_size
        always = self.num_experts * D + self.num_shared_experts * expert  # router and shared expert
        dense = self.first_dense_layers * 3 * D * self.ffn_size
        trunk = layers * (attention + indexer + 2 * D) + dense + moe_layers * always + D
        embedding = head = self.vocab_size * D
        block = attention + indexer + always + self.num_experts * expert + 2 * D
        return {
            "embedding": embedding,
            "head": head,
            "attention": layers * attention,
            "indexer": layers * indexer,
            "experts": moe_layers * self.num_experts * expert,
            "total": trunk + embedding + head + moe_layers * self.num_experts * expert,
            "active": trunk + head + moe_layers * self.experts_per_token * expert,
            "mtp": block + 3 * D + 2 * D * D if self.mtp_steps else 0,
        }

    def forward_flops_per_token(self, length: int, attention: str = "dense", indexer: bool = False) -> float:
        """FLOPs of the forward pass per token, a mean over the positions of ``length`` tokens.

        Two per active weight, and the attention of each query over the keys it sees (all before it, or the
        best ``index_top_k`` under "sparse", "window" and "random") in per-head form, whatever a kernel does
        inside. ``indexer``: its projections and its scores over all visible keys are computed (sparse
        attention always does).
        """
        counts = self.parameter_counts()
        indexed = indexer or attention == "sparse"
        weights = counts["active"] - (0 if indexed else counts["indexer"])
        keys = self._mean_keys(length, length if attention == "dense" else self.index_top_k)
        core = 2 * self.num_heads * (self.qk_dim + self.v_dim) * keys
        scores = 2 * self.index_heads * self.index_dim * self._mean_keys(length, length) if indexed else 0
        return 2 * weights + self.num_layers * (core + scores)

    def training_flops_per_token(self, length: int, attention: str = "dense", mtp: float = 0.0) -> float:
        """FLOPs of a training step per token: three times the forward pass (its backward costs two).

        ``mtp`` is the share of the tokens that pays for the MTP steps, each a block, a join and a pass of the
        head.
        """
        forward = self.forward_flops_per_token(length, attention)
        if self.mtp_steps and mtp:
            D = self.hidden_size
            expert = 3 * D * self.expert_ffn_size
            block = self._attention_size() + (self.experts_per_token + self.num_shared_experts) * expert
            keys = self._mean_keys(length, length if attention == "dense" else self.index_top_k)
            core = 2 * self.num_heads * (self.qk_dim + self.v_dim) * keys
            step = 2 * (block + 2 * D * D + self.vocab_size * D) + core
            forward += mtp * self.mtp_steps * step
        return 3 * forward

    def cache_pages(self, page_tokens: int = PAGE_TOKENS, draft_steps: int = 0) -> int:
        """Pages of an engine's cache: ``CACHE_TOKENS`` tokens, or one full context where that is longer."""
        tokens = max(CACHE_TOKENS, self.max_positions + 4 * draft_steps + page_tokens)
        return -(-tokens // page_tokens)

    def cache_bytes_per_token(self, float_bytes: int = 4, routes: bool = False) -> int:
        """Bytes that decoding keeps of a token in the trunk, see ``model/attention/cache.py``: per layer the
        key-value latent, the rotated shared key and the indexer's key. ``routes``: the experts it went to as
        well, an int16 each.
        """
        kept = self.num_layers * (self.kv_latent + self.qk_rope_dim + self.index_dim) * float_bytes
        experts = (self.num_layers - self.first_dense_layers) * self.experts_per_token
        return kept + (2 * experts if routes else 0)

    def _attention_size(self) -> int:
        D, heads = self.hidden_size, self.num_heads
        q = D * self.q_latent + self.q_latent * heads * self.qk_dim
        kv = D * (self.kv_latent + self.qk_rope_dim) + self.kv_latent * heads * (
            self.qk_nope_dim + self.v_dim
        )
        return q + kv + heads * self.v_dim * D + self.q_latent + self.kv_latent

    def _indexer_size(self) -> int:
        D, J = self.hidden_size, self.index_dim
        return self.q_latent * self.index_heads * J + D * J + 2 * J + D * self.index_heads

    @staticmethod
    def _mean_keys(length: int, most: int) -> float:
        """Mean over the positions of a causal sequence of ``min(visible keys, most)``."""
        full = min(length, most)
        return (full * (full + 1) / 2 + (length - full) * full) / length

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
        index_heads=16, index_dim=128, index_top_k=2048, mtp_steps=3, rope_base=10_000.0,
        max_positions=131_072,
    ),
    # The released model (paper Table 10 and its config.json).
    "glm5": dict(
        vocab_size=154_880, hidden_size=6144, num_layers=78, first_dense_layers=3, ffn_size=12_288,
        num_heads=64, q_latent=2048, kv_latent=512, qk_nope_dim=192, qk_rope_dim=64, v_dim=256,
        num_experts=256, experts_per_token=8, num_shared_experts=1, expert_ffn_size=2048, routed_scale=2.5,
        index_heads=32, index_dim=128, index_top_k=2048, mtp_steps=3, rope_base=1_000_000.0,
        max_positions=202_752,
    ),
}  # fmt: skip


def preset(name: str, **changes) -> ModelConfig:
    """The preset of that name with some fields changed. Raises ``KeyError`` for an unknown name."""
    return ModelConfig(**{**PRESETS[name], **changes})
