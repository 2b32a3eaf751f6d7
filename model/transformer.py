"""GLM-5's network, top to bottom (arXiv 2602.15763, section 2 and Table 10).

    model = Transformer(preset("tiny"), seed=0)         # float32, dense attention, no indexer yet
    out = model(tokens_BT, start_BT=starts)             # Output: hidden_BTD, load_LE, balance, ...
    logits = model.logits(out.hidden_BTD)               # (B, T, V)
    losses = training_losses(model, tokens_BT, target_BT, ...)   # model/loss.py: what a training step needs
    model.add_indexer(seed=0)                           # before DSA warm-up
    model(tokens_BT, attention="sparse")                # "dense" | "sparse" | "window" | "random", per call
    model.update_balance(load_LE, bias_step)            # once per optimizer step, with the step's summed load

    hidden = model.read(new_tokens_M, view)             # decoding: only the new tokens (model/inference)

``start_BT`` is the first key that each query may see: the start of its document in a packed row, or the
number of pads left of a row; 0 for all when left out, which takes the quickest attention path. (B, 1) is
enough for one value per row. Rotary positions count from it.

``model/hub`` saves and loads; ``model/optim`` builds the optimizer. No parallelism is written here.

B batch, T tokens (queries), S keys, D hidden, N heads, H qk head dim, C kv latent, R rope dim, K top-k, I
indexer heads, J indexer dim, E experts, F ffn width, V vocabulary, L layers.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from model.attention.cache import Chunk, PagedCache, PagedView
from model.attention.indexer import Indexer
from model.attention.mla import MLA, AttentionOptions, AttentionSignals, Mode
from model.attention.rope import rope_table
from model.attention.visibility import Visibility
from model.config import ModelConfig
from model.moe import MoE, Router, RouterSignals, SwiGLU
from model.mtp import MTP, ahead
from model.norm import RMSNorm


@dataclass
class Signals:
    attention: AttentionSignals
    router: RouterSignals | None  # None for a dense layer


@dataclass
class Output:
    """What one pass gives to the head and to the losses."""

    hidden_BTD: torch.Tensor  # after the final norm
    load_LE: torch.Tensor  # int64, tokens per expert; a row per MoE layer, the MTP block's last
    balance: torch.Tensor  # scalar, sequence-wise balance loss, mean over MoE layers
    indexer_kl_L: torch.Tensor | None  # nats, a value per layer, with ``indexer_loss``
    mass_L3: torch.Tensor | None  # attention mass on [selected, best, last] K keys, with ``measure=True``


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each added to the stream."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.attention = MLA(config, layer)
        self.ffn_norm = RMSNorm(config.hidden_size, config.norm_eps)
        dense = layer < config.first_dense_layers
        self.ffn = SwiGLU(config.hidden_size, config.ffn_size) if dense else MoE(config)

    def forward(
        self,
        x_BTD: torch.Tensor,
        view: Visibility | PagedView,
        options: AttentionOptions,
        route_BTK: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, Signals]:
        attended, attention = self.attention(self.attention_norm(x_BTD), view, options)
        x_BTD = x_BTD + attended
        if isinstance(self.ffn, SwiGLU):
            return x_BTD + self.ffn(self.ffn_norm(x_BTD)), Signals(attention, None)
        routed, router = self.ffn(self.ffn_norm(x_BTD), route_BTK)
        return x_BTD + routed, Signals(attention, router)


class Transformer(nn.Module):
    """The trunk, its untied head, and the shared MTP block (where ``config.mtp_steps`` is not 0).

    Every matrix starts as normal(0, ``init_std``), head, router and embedding included, every norm as ones
    and every bias as zeros, from ``seed``. On the meta device nothing is initialised.
    """

    def __init__(self, config: ModelConfig, *, seed: int = 0, indexer: bool = False):
        super().__init__()
        self.config = config
        self.recompute = False  # activation checkpointing: keep each layer's input, compute the rest again
        embedding = torch.empty(config.vocab_size, config.hidden_size)  # nn.Embedding would draw it first
        self.embed = nn.Embedding.from_pretrained(embedding, freeze=False)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.mtp = MTP(config, Block(config, config.num_layers)) if config.mtp_steps else None
        initialise(self, config.init_std, seed)
        if indexer:
            self.add_indexer(seed)

    def forward(
        self,
        tokens_BT: torch.Tensor,
        *,
        start_BT: torch.Tensor | None = None,
        attention: Mode = "dense",
        top_k: int | None = None,
        indexer_loss: bool = False,
        measure: bool = False,
        route_LBTK: torch.Tensor | None = None,
    ) -> Output:
        """Hidden states of ``tokens_BT`` (int64) and the losses' ingredients.

        Args:
            start_BT: see the module's docstring.
            attention, top_k: how to attend; ``top_k`` is ``config.index_top_k`` unless given.
            indexer_loss: also compute every layer's indexer KL: over all visible keys under dense attention,
                inside the selection under sparse attention.
            measure: also compute the attention mass on the selected, the best possible and the last K keys.
            route_LBTK: the experts of each token, a row a MoE layer, instead of the router's choice (routing
                replay); -1 where it chooses itself.
        """
        view = self._view(tokens_BT, start_BT)
        options = AttentionOptions(attention, top_k or self.config.index_top_k, indexer_loss, measure)
        x_BTD = self.embed(tokens_BT)
        signals = []
        for number, block in enumerate(self.blocks):
            moe = number - self.config.first_dense_layers
            route_BTK = None if route_LBTK is None or moe < 0 else route_LBTK[moe]
            if self.recompute and torch.is_grad_enabled():
                # Nothing is drawn at random in a block, and a CUDA graph does not let the generator be read.
                x_BTD, signal = checkpoint(
                    block, x_BTD, view, options, route_BTK, use_reentrant=False, preserve_rng_state=False
                )
            else:
                x_BTD, signal = block(x_BTD, view, options, route_BTK)
            signals.append(signal)
        return self._output(self.norm(x_BTD), signals, options)

    def logits(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        """Next-token logits (B, T, V)."""
        return self.head(hidden_BTD)

    @property
    def draft_head(self) -> nn.Linear:
        """The head of the MTP steps: the trunk's, but in a rotated model."""
        return self.head if self.mtp is None or self.mtp.head is None else self.mtp.head

    def mtp_states(
        self,
        tokens_BT: torch.Tensor,
        hidden_BTD: torch.Tensor,
        *,
        steps: int,
        start_BT: torch.Tensor | None = None,
        attention: Mode = "dense",
        indexer_loss: bool = False,
    ) -> tuple[list[torch.Tensor], list[Signals]]:
        """The chain of MTP steps behind the trunk's ``hidden_BTD``: normed states for ``draft_head``, one
        (B, T, D) a step.

        Step k's state at t is for predicting ``tokens[t + k + 1]``; the last k positions of every document
        lack the token they would read and hold nothing of use.
        """
        view = self._view(tokens_BT, start_BT)
        options = AttentionOptions(attention, self.config.index_top_k, indexer_loss)
        key = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        first_BT = view.start_BT == key
        states, signals = [], []
        hidden_BTD = self.mtp.receive(hidden_BTD)
        for step in range(1, steps + 1):
            embedded = self.embed(ahead(tokens_BT, step, view.start_BT, fill=0))
            hidden_BTD, signal = self.mtp(hidden_BTD, embedded, first_BT, view, options)
            states.append(self.mtp.norm(hidden_BTD))
            signals.append(signal)
        return states, signals

    def read(self, tokens_M: torch.Tensor, view: PagedView, options: AttentionOptions) -> torch.Tensor:
        """Hidden states (M, D) after the final norm of new tokens, whose latents go into the view's cache."""
        x_BTD, routes = self.embed(tokens_M).unsqueeze(0), view.cache.routes
        for number, block in enumerate(self.blocks):
            x_BTD, signals = block(x_BTD, view, options)
            if routes is not None and signals.router is not None:
                layer = routes[number - self.config.first_dense_layers]
                layer.index_copy_(0, view.row_M, signals.router.index_BTK[0].to(layer.dtype))
        return self.norm(x_BTD)[0]

    def read_mtp(
        self, tokens_M: torch.Tensor, hidden_MD: torch.Tensor, view: PagedView, options: AttentionOptions
    ) -> torch.Tensor:
        """States (M, D) of the MTP block before its own norm, from the states before ``tokens_M``: its own of
        a step earlier, or the trunk's through ``mtp.receive``.
        """
        first = (view.position_M == 0).unsqueeze(0)
        return self.mtp(hidden_MD.unsqueeze(0), self.embed(tokens_M).unsqueeze(0), first, view, options)[0][0]

    def new_cache(
        self, pages: int, page_size: int, *, mtp: bool = False, indexer: bool = False, routes: bool = False
    ) -> PagedCache:
        """An empty cache of the parameters' device and dtype; its first page is not to be given out."""
        weight, layers = self.embed.weight, self.config.num_layers + mtp
        return PagedCache(
            self.config, pages, page_size, layers=layers, indexer=indexer, device=weight.device,
            dtype=weight.dtype, routes=routes,
        )  # fmt: skip

    def paged_view(self, cache: PagedCache, chunks: list[Chunk], start: int = 0) -> PagedView:
        """The view of new tokens behind ``cache``; see ``PagedView.build``."""
        return PagedView.build(cache, chunks, self._rotary, start=start)

    def next_view(self, cache: PagedCache, page_BP: torch.Tensor, slot_B: torch.Tensor) -> PagedView:
        """The view of one new token for each sequence, of fixed shapes; see ``PagedView.of_next``."""
        return PagedView.of_next(cache, page_BP, slot_B, self._rotary)

    @property
    def has_indexer(self) -> bool:
        return self.blocks[0].attention.indexer is not None

    def attentions(self) -> list[MLA]:
        """Every layer's attention, the MTP block's last."""
        return [b.attention for b in self.blocks] + ([self.mtp.block.attention] if self.mtp else [])

    def routers(self) -> list[Router]:
        """Every MoE layer's router, the MTP block's last: the rows of ``load_LE``."""
        blocks = [*self.blocks, *([self.mtp.block] if self.mtp else [])]
        return [b.ffn.router for b in blocks if isinstance(b.ffn, MoE)]

    def train_quantized(self, bits: int) -> None:
        """From now on the trunk's routed experts compute as if they had so few bits, and learn all the same
        (quantisation-aware training, paper section 2.4.3). The MTP block stays as it is, as in exports.

        Raises ``ValueError`` for a model whose experts are integers already.
        """
        for block in self.blocks:
            if isinstance(block.ffn, MoE):
                block.ffn.train_quantized(bits)

    def add_indexer(self, seed: int = 0) -> None:
        """Give every attention a fresh lightning indexer (before DSA warm-up, paper section 2.1.1)."""
        weight = self.embed.weight
        for number, attention in enumerate(self.attentions()):
            with torch.device(weight.device):
                attention.indexer = Indexer(self.config)
            initialise(attention.indexer, self.config.init_std, seed + 1000 + number)
            attention.indexer.to(weight.dtype)

    def drop_indexer(self) -> None:
        """Remove the indexers: only dense, window and random attention remain."""
        for attention in self.attentions():
            attention.indexer = None

    def set_rope_base(self, base: float) -> None:
        """Change the rotary base (raised for longer contexts, GLM-4.5 section 2.4)."""
        self.config = self.config.model_copy(update={"rope_base": base})

    def update_balance(self, load_LE: torch.Tensor, bias_step: float) -> None:
        """Move the routers' biases against the load of one optimizer step, summed over its micro-batches and
        ranks.
        """
        for router, load_E in zip(self.routers(), load_LE, strict=True):
            router.update_bias(load_E, bias_step)

    def _view(self, tokens_BT, start_BT) -> Visibility:
        return Visibility.build(*tokens_BT.shape, start_BT, self._rotary, tokens_BT.device)

    def _rotary(self, position_BT: torch.Tensor) -> torch.Tensor:
        return rope_table(position_BT, self.config.qk_rope_dim, self.config.rope_base)

    def _output(self, hidden_BTD, signals: list[Signals], options: AttentionOptions) -> Output:
        routers = [s.router for s in signals if s.router is not None]
        load = hidden_BTD.new_zeros(len(self.routers()), self.config.num_experts, dtype=torch.long)
        for row, router in enumerate(routers):
            load[row] = router.load_E
        balance = torch.stack([r.balance for r in routers]).mean() if routers else hidden_BTD.new_zeros(())
        return Output(
            hidden_BTD,
            load,
            balance,
            torch.stack([s.attention.indexer_kl for s in signals]) if options.indexer_loss else None,
            torch.stack([s.attention.mass for s in signals]) if options.measure else None,
        )


@torch.no_grad()
def initialise(module: nn.Module, std: float, seed: int) -> None:
    """Matrices normal(0, std) in the order of ``named_parameters``, norms and their biases as constructed.

    Drawn in float32 on the CPU, so that every device and dtype starts from the same numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        if parameter.dim() > 1 and not parameter.is_meta:
            draw = torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
            parameter.copy_(draw)
