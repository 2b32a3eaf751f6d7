"""What decoding keeps of earlier tokens: per layer the kv latent with the rotated shared key, and the
indexer's key (paper section 2.1: 512 + 64 numbers per token and layer in GLM-5, and 128 for the indexer).

B batch, T new tokens, S tokens held, X = kv latent + rope dim, J indexer dim.
"""

import torch

from model.config import ModelConfig


class Cache:
    """Preallocated buffers for ``capacity`` tokens per row; every row holds the same number, so pad short
    rows left.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        capacity: int,
        *,
        indexer: bool,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        self.capacity = capacity
        self.length = 0

        def buffers(layers: int, width: int) -> list[torch.Tensor]:
            return [torch.empty(batch, capacity, width, device=device, dtype=dtype) for _ in range(layers)]

        self.kv = buffers(config.num_layers, config.kv_latent + config.qk_rope_dim)
        self.index_keys = buffers(config.num_layers if indexer else 0, config.index_dim)

    def append(self, layer: int, kv_BTX: torch.Tensor) -> torch.Tensor:
        """Store a layer's new latents; returns all of them (B, S, X), the new ones last."""
        return self._write(self.kv[layer], kv_BTX)

    def append_index_keys(self, layer: int, key_BTJ: torch.Tensor) -> torch.Tensor:
        """Store a layer's new indexer keys; returns all of them (B, S, J)."""
        return self._write(self.index_keys[layer], key_BTJ)

    def advance(self, tokens: int) -> None:
        """Count the new tokens, after all layers have stored theirs."""
        self.length += tokens

    def truncate(self, length: int) -> None:
        """Forget everything from position ``length`` on (a rejected speculation)."""
        self.length = min(self.length, length)

    def keep(self, rows: torch.Tensor) -> None:
        """Keep these rows of the batch only, in this order."""
        self.kv = [x.index_select(0, rows) for x in self.kv]
        self.index_keys = [x.index_select(0, rows) for x in self.index_keys]

    def _write(self, buffer: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        stop = self.length + new.shape[1]
        if stop > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens and {stop} are needed: make it larger")
        buffer[:, self.length : stop] = new
        return buffer[:, :stop]
