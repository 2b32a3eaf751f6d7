"""Multi-head latent attention with DeepSeek sparse attention (paper section 2.1; DeepSeek-V3.2).

Queries and key-values pass through low-rank latents; positions ride on a small part of each head, and that
part of the key is one for all heads. Two forms compute the same numbers:

* expanded: keys and values per head, for training and prefill;
* absorbed: W_UK moved to the query and W_UV behind the attention, so that all heads share the cached latent
  row. For decoding, and for the sparse kernels.

B batch, T queries, S keys, D hidden, N heads, H qk head dim, C kv latent, R rope dim, X = C + R, K top-k.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from model.attention.cache import PagedView
from model.attention.indexer import Indexer
from model.attention.paged import MASKED_DENSE_KEYS, attend_pages
from model.attention.rope import rotate
from model.attention.selection import captured_mass, random_topk, selection_mask
from model.attention.visibility import Visibility
from model.config import ModelConfig
from model.kernels.registry import (
    dense_indexer_loss,
    head_mean,
    indexer_topk,
    masked_attention,
    rotate_part,
    sparse_indexer_loss,
    sparse_mla,
)
from model.norm import RMSNorm

Mode = Literal["dense", "sparse", "window", "random"]

# Both latent norms keep this epsilon in the released model, whatever the other norms use.
LATENT_NORM_EPS = 1e-6
# Up to this many keys of a document a CUDA device computes whole tiles of them quicker than it gathers the
# selected ones.
EXPANDED_KEYS = 4096


@dataclass(frozen=True)
class AttentionOptions:
    """How one forward pass attends, the same in all layers."""

    mode: Mode = "dense"
    top_k: int = 0  # keys per query under every mode but "dense"
    indexer_loss: bool = False
    measure: bool = False

    @property
    def needs_indexer(self) -> bool:
        return self.mode == "sparse" or self.indexer_loss or self.measure


@dataclass
class AttentionSignals:
    indexer_kl: torch.Tensor | None = None  # scalar
    mass: torch.Tensor | None = None  # (3,), see captured_mass


class MLA(nn.Module):
    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.layer = layer
        self.heads, self.nope, self.rope_dim = config.num_heads, config.qk_nope_dim, config.qk_rope_dim
        self.v_dim, self.latent, self.scale = config.v_dim, config.kv_latent, config.qk_dim**-0.5
        self.q_down = nn.Linear(config.hidden_size, config.q_latent, bias=False)
        self.q_norm = RMSNorm(config.q_latent, LATENT_NORM_EPS)
        self.q_up = nn.Linear(config.q_latent, self.heads * config.qk_dim, bias=False)
        self.kv_down = nn.Linear(config.hidden_size, self.latent + self.rope_dim, bias=False)
        self.kv_norm = RMSNorm(self.latent, LATENT_NORM_EPS)
        self.k_up = nn.Linear(self.latent, self.heads * self.nope, bias=False)
        self.v_up = nn.Linear(self.latent, self.heads * self.v_dim, bias=False)
        self.out = nn.Linear(self.heads * self.v_dim, config.hidden_size, bias=False)
        self.indexer: Indexer | None = None

    def forward(
        self, x_BTD: torch.Tensor, view: Visibility | PagedView, options: AttentionOptions
    ) -> tuple[torch.Tensor, AttentionSignals]:
        """Attention output (B, T, D) and what the losses need; ``ValueError`` where an indexer is missing."""
        q_BTNH, kv_BSX, index_inputs = self._project(x_BTD, view, options)
        if isinstance(view, PagedView):
            out_BTNV = attend_pages(self, q_BTNH, kv_BSX, index_inputs, options, view)
            return self.out(out_BTNV.flatten(2)), AttentionSignals()
        index_BTK = self.select(view, options, index_inputs)
        if options.mode == "window":
            view = view.window(options.top_k)
        out_BTNV, lse_BTN, mean_BTK = self._attend(q_BTNH, kv_BSX, index_BTK, view, mean=options.indexer_loss)
        signals = AttentionSignals()
        if options.indexer_loss:
            signals.indexer_kl = self._indexer_loss(
                q_BTNH, kv_BSX, index_inputs, index_BTK, view, lse_BTN, mean_BTK
            )
        if options.measure:
            signals.mass = self._measure(q_BTNH, kv_BSX, index_inputs, view, options.top_k)
        return self.out(out_BTNV.flatten(2)), signals

    def _project(self, x_BTD: torch.Tensor, view: Visibility | PagedView, options: AttentionOptions):
        """Queries per head, latent rows, and the indexer's three inputs where any of it is needed."""
        q_latent = self.q_norm(self.q_down(x_BTD))
        q = self.q_up(q_latent).unflatten(-1, (self.heads, self.nope + self.rope_dim))
        q_BTNH = rotate_part(q, view.turn_BTR, self.nope)
        latent, k_rope = self._split(self.kv_down(x_BTD))
        kv_BSX = torch.cat([self.kv_norm(latent).to(q.dtype), rotate(k_rope, view.turn_BTR)], -1)
        index_inputs = None
        if options.needs_indexer:
            if self.indexer is None:
                raise ValueError("this needs an indexer, and the model has none: call add_indexer() first")
            index_inputs = self.indexer(x_BTD, q_latent, view.turn_BTR)
        return q_BTNH, kv_BSX, index_inputs

    def select(
        self, view: Visibility, options: AttentionOptions, index_inputs, row_BS: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """The keys each query attends to; None where that is all visible ones, as it is while all of them
        fit. With ``row_BS`` the indexer's keys are a pool's rows.
        """
        if options.mode not in ("sparse", "random") or view.widest <= options.top_k:
            return None
        if options.mode == "random":
            return random_topk(view, options.top_k, seed=self.layer)
        start, stop = view.start_BT, view.stop_BT
        return indexer_topk(*index_inputs, start, stop, options.top_k, order="any", row_BS=row_BS)

    def _attend(self, q_BTNH, kv_BSX, index_BTK, view: Visibility, *, mean: bool):
        """Attention-weighted values (B, T, N, v), by the form that is quickest here, and where that form
        gives them (else None) the scores' lse and, with ``mean``, the weights' mean over heads.
        """
        cuda = q_BTNH.is_cuda
        plain = index_BTK is None and view.causal
        # A packed row of twice the length holds no longer documents, as a rule.
        few = view.keys <= (EXPANDED_KEYS if view.causal else 2 * EXPANDED_KEYS)
        if cuda and not plain and (index_BTK is None or few):
            k_BSNH, v_BSNV = self._keys_and_values(kv_BSX)
            ranges = view.start_BT, view.stop_BT, index_BTK
            return *masked_attention(q_BTNH, k_BSNH, v_BSNV, self.scale, *ranges), None
        if index_BTK is None:
            return self.expanded(q_BTNH, kv_BSX, None if view.causal else view.mask_B1TS), None, None
        if cuda or view.keys > MASKED_DENSE_KEYS:
            up_NHC = self.k_up.weight.view(self.heads, self.nope, self.latent)
            again = partial(_by_head, tail=self.rope_dim), (q_BTNH.detach(), up_NHC.detach())
            context_BTNC, lse_BTN, mean_BTK = sparse_mla(
                self.absorb(q_BTNH), kv_BSX, index_BTK, self.scale, self.latent, again=again, mean=mean
            )
            return self.values(context_BTNC), lse_BTN, mean_BTK
        return self.expanded(q_BTNH, kv_BSX, selection_mask(index_BTK, view.keys)), None, None

    def _keys_and_values(self, kv_BSX: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, S, N, H) and (B, S, N, v)."""
        latent_BSC, k_rope_BSR = self._split(kv_BSX)
        k_BSNH = self._keys(latent_BSC, k_rope_BSR)
        return k_BSNH, self.v_up(latent_BSC).unflatten(-1, (self.heads, self.v_dim))

    def _keys(self, latent_BSC: torch.Tensor, k_rope_BSR: torch.Tensor) -> torch.Tensor:
        """(B, S, N, H): every head's own part, and the rotated part that all share."""
        own = self.k_up(latent_BSC).unflatten(-1, (self.heads, self.nope))
        shared = k_rope_BSR.to(own.dtype).unsqueeze(2).expand(-1, -1, self.heads, -1)
        return torch.cat([own, shared], -1)

    def _split(self, kv_BSX: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return kv_BSX.split([self.latent, self.rope_dim], -1)

    def expanded(self, q_BTNH, kv_BSX, mask_B1TS: torch.Tensor | None) -> torch.Tensor:
        """Keys and values per head; no mask means plain causal attention, for which SDPA has its quickest
        path.
        """
        k_BSNH, v_BSNV = self._keys_and_values(kv_BSX)
        q, k, v = q_BTNH.transpose(1, 2), k_BSNH.transpose(1, 2), v_BSNV.transpose(1, 2)
        causal = mask_B1TS is None
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_B1TS, is_causal=causal, scale=self.scale)
        return out.transpose(1, 2)

    def absorb(self, q_BTNH: torch.Tensor) -> torch.Tensor:
        """Queries (B, T, N, X) that meet the latent row itself."""
        up_NHC = self.k_up.weight.view(self.heads, self.nope, self.latent)
        return _by_head(q_BTNH, up_NHC, tail=self.rope_dim)

    def values(self, context_BTNC: torch.Tensor) -> torch.Tensor:
        """Values per head (B, T, N, v) of attention-weighted latents."""
        up_NVC = self.v_up.weight.view(self.heads, self.v_dim, self.latent)
        return _by_head(context_BTNC, up_NVC.transpose(1, 2))

    def _indexer_loss(
        self, q_BTNH, kv_BSX, index_inputs, index_BTK, view: Visibility, lse_BTN, mean_BTK
    ) -> torch.Tensor:
        """KL of the main attention to the indexer, a scalar: inside the selection, or over all visible keys
        without one. ``lse_BTN`` and ``mean_BTK`` are the attention's, where it gave them.
        """
        if index_BTK is None:
            with torch.no_grad():
                k_BSNH = self._keys(*self._split(kv_BSX))
            return dense_indexer_loss(q_BTNH, k_BSNH, self.scale, *index_inputs, view.start_BT, view.stop_BT)
        if mean_BTK is None:
            with torch.no_grad():
                q_BTNX = self.absorb(q_BTNH)
            mean_BTK = head_mean(q_BTNX, kv_BSX, index_BTK, self.scale, lse_BTN=lse_BTN)
        return sparse_indexer_loss(mean_BTK, *index_inputs, index_BTK)

    @torch.no_grad()
    def _measure(self, q_BTNH, kv_BSX, index_inputs, view: Visibility, top_k: int) -> torch.Tensor:
        index_BTK = indexer_topk(*index_inputs, view.start_BT, view.stop_BT, top_k)
        k_BSNH = self._keys(*self._split(kv_BSX))
        return captured_mass(q_BTNH, k_BSNH, self.scale, index_BTK, view, top_k)


def _by_head(x_BTNH: torch.Tensor, weight_NHC: torch.Tensor, tail: int = 0) -> torch.Tensor:
    """Each head's part of ``x`` times the head's matrix, (B, T, N, C); the last ``tail`` features of x are
    not multiplied and come behind the product.
    """
    if x_BTNH.is_cuda:
        return _HeadProduct.apply(x_BTNH, weight_NHC.to(x_BTNH.dtype), tail)
    x_NMH = x_BTNH[..., : weight_NHC.shape[1]].flatten(0, 1).transpose(0, 1)
    product = torch.bmm(x_NMH, weight_NHC).transpose(0, 1).unflatten(0, x_BTNH.shape[:2])
    return torch.cat([product, x_BTNH[..., -tail:]], -1) if tail else product


class _HeadProduct(torch.autograd.Function):
    """``_by_head`` whose products write to where they are wanted: nothing is transposed or joined after."""

    @staticmethod
    def forward(ctx, x_BTNH, weight_NHC, tail):
        H, C = weight_NHC.shape[1:]
        out = x_BTNH.new_empty(*x_BTNH.shape[:-1], C + tail)
        torch.bmm(_heads_first(x_BTNH[..., :H]), weight_NHC, out=_heads_first(out[..., :C]))
        out[..., C:] = x_BTNH[..., H:]
        ctx.save_for_backward(x_BTNH, weight_NHC)
        return out

    @staticmethod
    def backward(ctx, grad):
        x_BTNH, weight_NHC = ctx.saved_tensors
        H, C = weight_NHC.shape[1:]
        grad_x = grad.new_empty(x_BTNH.shape)
        grad_NMC = _heads_first(grad[..., :C])
        torch.bmm(grad_NMC, weight_NHC.transpose(1, 2), out=_heads_first(grad_x[..., :H]))
        grad_x[..., H:] = grad[..., C:]
        return grad_x, torch.bmm(_heads_first(x_BTNH[..., :H]).transpose(1, 2), grad_NMC), None


def _heads_first(x_BTNH: torch.Tensor) -> torch.Tensor:
    """(N, B T, H): a view, which a batched product reads and writes in place."""
    return x_BTNH.flatten(0, 1).transpose(0, 1)
