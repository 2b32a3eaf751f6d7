"""Small random shapes for the model's tests."""

import random

from model.config import ModelConfig


def small_config(seed: int = 0, **changes) -> ModelConfig:
    """A random small shape: head sizes, latents, experts and layers differ from seed to seed.

    The indexer has 16 heads, so that no score is exactly 0 (every head's ReLU off): transformers leaves ties
    open.
    """
    draw = random.Random(seed)
    experts = draw.choice([4, 6, 8])
    fields = dict(
        vocab_size=draw.randrange(60, 90), hidden_size=draw.choice([24, 32, 40]),
        num_layers=draw.choice([2, 3]), first_dense_layers=draw.choice([0, 1]),
        ffn_size=draw.choice([40, 48]), num_heads=draw.choice([2, 3, 4]),
        q_latent=draw.choice([12, 20]), kv_latent=draw.choice([10, 16]), qk_nope_dim=draw.choice([6, 8]),
        qk_rope_dim=draw.choice([4, 8]), v_dim=draw.choice([6, 10, 16]), num_experts=experts,
        experts_per_token=draw.choice([1, 2, 3]), num_shared_experts=draw.choice([1, 2]),
        expert_ffn_size=draw.choice([12, 16]), routed_scale=draw.choice([1.0, 2.5]), index_heads=16,
        index_dim=draw.choice([8, 12]), index_top_k=draw.choice([5, 9]), mtp_steps=3,
        rope_base=draw.choice([1e3, 1e4]), max_positions=64,
    )  # fmt: skip
    return ModelConfig(**{**fields, **changes})
