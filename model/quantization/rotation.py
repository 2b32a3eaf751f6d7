"""QuaRot as GLM-5 uses it: orthogonal matrices that spread outliers and change nothing else.

    rotate_model(model, seed=0)     # in place: folds every norm gain, then rotates

A feature vector x becomes x Q; whoever writes it gets ``Q^T W``, whoever reads it ``W Q``. Four places, all
offline (msModelSlim's map for GLM-5, paper section 5):

* R_res, Hadamard over the hidden size: the residual stream, with embedding and head, the router's and the
  indexer's inputs and the MTP block's halves of ``join``.
* R_q, two block Hadamards one shifted against the other, over the query latent.
* R_kv, Hadamard over the key-value latent; the rotary rows beside it stay.
* R_v, Hadamard over each head's values.

The trunk's state reaches the MTP block after the final norm, whose gain g has gone to the head. In rotated
features that gain is ``M = Q^T diag(g) Q``, a symmetric matrix, which the block applies to the trunk's states
(``MTP.correction``) and never to its own.

D hidden, C kv latent, N heads, V value dim.
"""

from dataclasses import dataclass

import torch

from model.attention.mla import MLA
from model.quantization.folding import blocks_of, fold, folds
from model.quantization.hadamard import block_hadamard, shifted_block_hadamard
from model.transformer import Block, Transformer


@dataclass(frozen=True)
class Turn:
    """A rotation with the weights (views (..., O, I)) on its two sides, by name.

    The embedding stands among the readers: its rows are the features themselves.
    """

    matrix: torch.Tensor  # float64, orthogonal
    writers: dict[str, torch.Tensor]  # become Q^T W
    readers: dict[str, torch.Tensor]  # become W Q


@torch.no_grad()
def rotate_model(model: Transformer, *, seed: int = 0) -> None:
    """Fold all gains and rotate, in place; the function stays the same up to rounding.

    Raises ``ValueError`` for a model that is rotated already, which its MTP block tells.
    """
    prepare(model)
    fold(folds(model))
    for found in turns(model, seed).values():
        turn(found)


@torch.no_grad()
def prepare(model: Transformer) -> None:
    """Give the MTP block what folding needs of it: its own head, and the trunk's gain as correction."""
    if model.mtp is None:
        return
    if model.mtp.correction is not None:
        raise ValueError("this model is rotated already: start from the checkpoint before it was quantised")
    model.mtp.separate(model.head)
    model.mtp.correction.weight.copy_(torch.diag(model.norm.weight))


def turns(model: Transformer, seed: int) -> dict[str, Turn]:
    """All rotations of a folded model."""
    generator = torch.Generator().manual_seed(seed)
    found = {"residual": residual_turn(model, generator)}
    for prefix, block in blocks_of(model).items():
        found |= attention_turns(block.attention, f"{prefix}attention.", generator)
    return found


def residual_turn(model: Transformer, generator: torch.Generator) -> Turn:
    """R_res over every weight that reads or writes the residual stream."""
    writers, readers = {}, {}
    for prefix, block in blocks_of(model).items():
        writers |= _block_writers(block, prefix)
    for name, each in folds(model).items():
        # The latents are no part of the stream.
        if not name.endswith(("q_norm", "kv_norm")):
            readers |= each.consumers
    readers["embed.weight"] = model.embed.weight.detach()
    if model.mtp is not None:
        correction = model.mtp.correction.weight.detach()
        writers |= {"mtp.join.weight": model.mtp.join.weight.detach(), "mtp.correction.weight": correction}
        readers["mtp.correction.weight"] = correction
    return Turn(block_hadamard(model.config.hidden_size, generator), writers, readers)


def attention_turns(attention: MLA, prefix: str, generator: torch.Generator) -> dict[str, Turn]:
    """R_q, R_kv and R_v of one attention."""
    C, N, V = attention.latent, attention.heads, attention.v_dim
    q_down, kv_down = attention.q_down.weight.detach(), attention.kv_down.weight.detach()
    k_up, v_up = attention.k_up.weight.detach(), attention.v_up.weight.detach()
    out_NDV = attention.out.weight.detach().unflatten(1, (N, V)).transpose(0, 1)
    q_readers = {f"{prefix}q_up.weight": attention.q_up.weight.detach()}
    if attention.indexer is not None:
        q_readers[f"{prefix}indexer.q_up.weight"] = attention.indexer.q_up.weight.detach()
    return {
        f"{prefix}q": Turn(
            shifted_block_hadamard(q_down.shape[0], generator), {f"{prefix}q_down.weight": q_down}, q_readers
        ),
        f"{prefix}kv": Turn(
            block_hadamard(C, generator),
            {f"{prefix}kv_down.weight": kv_down[:C]},
            {f"{prefix}k_up.weight": k_up, f"{prefix}v_up.weight": v_up},
        ),
        f"{prefix}v": Turn(
            block_hadamard(V, generator),
            {f"{prefix}v_up.weight": v_up.unflatten(0, (N, V))},
            {f"{prefix}out.weight": out_NDV},
        ),
    }


def turn(each: Turn) -> None:
    """Apply one rotation, in place and in float64."""
    for weight in each.writers.values():
        weight.copy_(each.matrix.T.to(weight.device) @ weight.double())
    for weight in each.readers.values():
        weight.copy_(weight.double() @ each.matrix.to(weight.device))


def _block_writers(block: Block, prefix: str) -> dict[str, torch.Tensor]:
    found = {f"{prefix}attention.out.weight": block.attention.out.weight.detach()}
    if hasattr(block.ffn, "router"):
        found[f"{prefix}ffn.down"] = block.ffn.down.detach()
        found[f"{prefix}ffn.shared.down.weight"] = block.ffn.shared.down.weight.detach()
    else:
        found[f"{prefix}ffn.down.weight"] = block.ffn.down.weight.detach()
    return found
