"""Times the Triton kernels at GLM-5's layer shapes, with torch's own operations beside them in the same call.

    python -m benchmarks.kernels --peers FOLDER --out benchmarks/results/kernels.json
    python -m benchmarks.kernels --only sparse_mla,experts

With ``--peers`` FlashMLA, DeepGEMM and TileLang stand beside ours too, on the same inputs:
``kernel_peers.py`` says what FOLDER holds. A peer's row has its difference from ours, or why it has no times;
where one failed or differs too much the exit code is 1, and 0 where one is missing.

Every row holds the median and the tenth and ninetieth percentile of many runs in milliseconds, the rate, and
the two floors under it: the arithmetic at this card's measured matrix rate, and the bytes (each input read
once, each output written once) at its measured copy rate. The ceilings are measured first, in the same call.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import torch

from benchmarks.compiled import compiled
from benchmarks.kernel_peers import (
    Peers,
    Scoring,
    causal_selection,
    decode_row,
    expert_row,
    indexer_rows,
    prefill_rows,
    training_rows,
)
from benchmarks.layer import layer
from benchmarks.timer import DEVICE, Bench, Row, environment, randn


def indexer(bench: Bench) -> Iterator[Row]:
    """Scores of 32 heads x 128 and the exact top 2048."""
    from model.kernels.indexer_topk import reference
    from model.kernels.indexer_topk.triton import indexer_topk, quantize_fp8

    for T, S, causal in ((4096, 131_072, False), (8192, 8192, True)):
        q, k = randn(1, T, 32, 128), randn(1, S, 128)
        weight = torch.randn(1, T, 32, device=DEVICE)
        last = torch.arange(1, T + 1, device=DEVICE) if causal else torch.full((T,), S, device=DEVICE)
        stop = last.int().unsqueeze(0)
        start = torch.zeros_like(stop)
        pairs = T * (T + 1) / 2 if causal else T * S
        tflop = pairs * 2 * 32 * 128 / 1e12
        size = f"{T} x {S}{' causal' if causal else ''}"
        q8, q_scale = quantize_fp8(q)
        k8, k_scale = quantize_fp8(k)
        for order in ("index", "score"):
            name = f"indexer + top-2048, {size}, order by {order}"
            bytes_bf16, bytes_fp8 = (q.numel() + k.numel()) * 2 / 1e9, (q.numel() + k.numel()) / 1e9
            out = T * 2048 * 4 / 1e9
            yield bench.row(
                f"{name}, bf16",
                lambda q=q, k=k, w=weight, a=start, b=stop, o=order: indexer_topk(
                    q, k, w, a, b, 2048, order=o
                ),
                tflop, bytes_bf16 + out,
            )  # fmt: skip
            yield bench.row(
                f"{name}, fp8",
                lambda q=q8, k=k8, w=weight * q_scale, a=start, b=stop, o=order, s=k_scale: indexer_topk(
                    q, k, w, a, b, 2048, k_scale_BS=s, order=o
                ),
                tflop, bytes_fp8 + out, rate="fp8",
            )  # fmt: skip

        def unfused(q=q, k=k, weight=weight, start=start, stop=stop, S=S):
            rows = 64 if S > 8192 else 512
            for t in range(0, q.shape[1], rows):
                cut = slice(t, t + rows)
                product = torch.einsum("btij,bsj->btis", q[:, cut], k[:, :S]).relu_()
                score = torch.einsum("btis,bti->bts", product.float(), weight[:, cut])
                seen = reference.visible_mask(start[:, cut], stop[:, cut], S)
                score.masked_fill_(~seen, float("-inf")).topk(2048, dim=-1)

        if causal:  # at the longer shape one run takes half a minute
            yield bench.row(f"torch einsum + topk in tiles, {size}, bf16", unfused, tflop, 0.0)
        if bench.peers:
            scaled = weight * q_scale
            problem = Scoring(*(x[0] for x in (q8, k8, k_scale, scaled, start, stop)))
            yield from indexer_rows(bench, problem, size, tflop, bytes_fp8)


def indexer_decode(bench: Bench) -> Iterator[Row]:
    """One query a sequence; its keys lie in pages of 64 rows anywhere in a pool."""
    from model.kernels.indexer_topk.triton import indexer_topk

    B, S = 16, 131_072
    pool, q, weight = randn(B * S, 128), randn(B, 1, 32, 128), torch.randn(B, 1, 32, device=DEVICE)
    page = torch.randperm(B * S // 64, device=DEVICE).view(B, -1, 1)
    row = (page * 64 + torch.arange(64, device=DEVICE)).flatten(1)
    stop = torch.full((B, 1), S, dtype=torch.int32, device=DEVICE)

    def copied():
        keys = pool.index_select(0, row.flatten()).view(B, S, -1)
        return indexer_topk(q, keys, weight, stop * 0, stop, 2048, order="index")

    def in_place():
        return indexer_topk(q, pool, weight, stop * 0, stop, 2048, order="index", row_BS=row)

    if not torch.equal(copied(), in_place()):
        raise RuntimeError("keys in pages and copied keys select differently")
    tflop, size = B * S * 2 * 32 * 128 / 1e12, (pool.numel() * 2 + row.numel() * 8) / 1e9
    for name, run in (("keys in pages", in_place), ("keys copied first", copied)):
        yield bench.row(
            f"indexer + top-2048, decode, batch {B} x {S}, {name}, bf16, in a graph",
            run, tflop, size, graph=True,
        )  # fmt: skip


def sparse_mla(bench: Bench) -> Iterator[Row]:
    """64 heads, latent 512 + 64, 2048 keys a query."""
    from model.kernels.sparse_mla.backward import gradients
    from model.kernels.sparse_mla.triton import attend

    def problem(T, S):
        index = torch.rand(8, S, device=DEVICE).argsort(-1)[:, :2048].int()
        index = index[torch.randint(0, 8, (T,), device=DEVICE)]
        # Rows of eight random sets, each rotated by its own amount: distinct keys, and every query another
        # set.
        index = (index + torch.randint(0, S, (T, 1), device=DEVICE, dtype=torch.int32)) % S
        return randn(1, T, 64, 576), randn(1, S, 576), index.unsqueeze(0).contiguous()

    for S in (32_768, 131_072):
        q, kv, index = problem(4096, S)
        size = (q.numel() + kv.numel() + q.numel() * 512 // 576) * 2 / 1e9 + index.numel() * 4 / 1e9
        yield bench.row(
            f"sparse MLA forward, 4096 queries x 2048 of {S}",
            lambda q=q, kv=kv, index=index: attend(q, kv, index, 0.0625, 512),
            4096 * 64 * 2048 * 2 * 1088 / 1e12, size, gathered_gb=round(4096 * 2048 * 1152 / 1e9, 2),
        )  # fmt: skip
        yield bench.row(
            f"the same of {S} with the mean of the weights over heads",
            lambda q=q, kv=kv, index=index: attend(q, kv, index, 0.0625, 512, mean=True),
            4096 * 64 * 2048 * 2 * 1088 / 1e12, size + index.numel() * 4 / 1e9,
        )  # fmt: skip
        if bench.peers:
            yield from prefill_rows(
                bench, q, kv, index, 0.0625,
                lambda q=q, kv=kv, index=index: attend(q, kv, index, 0.0625, 512)[0],
                f"4096 queries x 2048 of {S}", 4096 * 64 * 2048 * 2 * 1088 / 1e12, size,
            )  # fmt: skip
    for batch in (128, 16):
        q, kv, index = problem(batch, 131_072)
        yield bench.row(
            f"sparse MLA decode, batch {batch} x 2048 of 131072, bf16 cache, in a graph",
            lambda q=q, kv=kv, index=index: attend(q, kv, index, 0.0625, 512),
            batch * 64 * 2048 * 2 * 1088 / 1e12, batch * 2048 * 1152 / 1e9, graph=True,
        )  # fmt: skip
        if bench.peers:
            yield decode_row(
                bench, q, kv, index, 0.0625,
                lambda kv, q=q, index=index: attend(q, kv, index, 0.0625, 512)[0],
                f"batch {batch} x 2048 of 131072", batch * 64 * 2048 * 2 * 1088 / 1e12,
            )  # fmt: skip
    q, kv, index = problem(8192, 8192)
    out, lse, _ = attend(q, kv, index, 0.0625, 512)
    grad = torch.randn_like(out)
    for deterministic in (True, False):
        yield bench.row(
            f"sparse MLA backward, 8192 queries, {'fixed order' if deterministic else 'atomics'}",
            lambda d=deterministic: gradients(q, kv, index, out, lse, grad, 0.0625, 512, d),
            8192 * 64 * 2048 * 2 * 2752 / 1e12, (q.numel() * 4 + kv.numel() * 2) * 2 / 1e9,
        )  # fmt: skip
    if bench.peers:
        yield from causal_training(bench, q, kv, grad)


def causal_training(bench: Bench, q, kv, grad) -> Iterator[Row]:
    """Forward and backward where each query selects among the keys up to its own, as TileLang's kernels want
    it; ours on the same.
    """
    from model.kernels.sparse_mla.backward import gradients
    from model.kernels.sparse_mla.triton import attend

    index, theirs = causal_selection(q.shape[1], 2048, DEVICE)
    selected = int((index >= 0).sum())
    work = {
        "forward": (selected * 64 * 2 * 1088 / 1e12, (q.numel() * 2 + kv.numel()) * 2 / 1e9),
        "backward": (selected * 64 * 2 * 2752 / 1e12, (q.numel() * 4 + kv.numel() * 2) * 2 / 1e9),
    }
    out, lse, _ = attend(q, kv, index, 0.0625, 512)
    size = f"{q.shape[1]} causal queries x 2048"

    def backward():
        return gradients(q, kv, index, out, lse, grad, 0.0625, 512, False)

    yield bench.row(
        f"sparse MLA forward, {size}", lambda: attend(q, kv, index, 0.0625, 512), *work["forward"]
    )
    yield bench.row(f"sparse MLA backward, {size}, atomics", backward, *work["backward"])
    yield from training_rows(bench, q, kv, theirs, grad, 0.0625, lambda: (out, *backward()), size, work)


def masked_attention(bench: Bench) -> Iterator[Row]:
    """512 keys a query for the 16 heads of the anchor model: whole tiles in per-head form, gathered rows in
    absorbed form, and cuDNN over all keys. Forward and backward, without the projections around them.
    """
    from model.kernels.masked_attention.triton import masked_attention as in_tiles
    from model.kernels.sparse_mla.triton import sparse_mla as gathered

    for T in (4096, 8192, 16_384):
        q, k, v = (randn(1, T, 16, 256).requires_grad_() for _ in range(3))
        q_wide, kv = randn(1, T, 16, 576).requires_grad_(), randn(1, T, 576).requires_grad_()
        stop = torch.arange(1, T + 1, device=DEVICE).int().unsqueeze(0)
        seen = torch.arange(T, device=DEVICE) < stop.unsqueeze(-1)
        best = torch.rand(1, T, T, device=DEVICE).masked_fill_(~seen, -1.0).topk(512)
        index = best.indices.masked_fill(best.values < 0, -1).sort(-1).values.int()
        selected = int((index >= 0).sum())
        grad, grad_wide = torch.randn_like(q), randn(1, T, 16, 512)
        del seen, best
        pairs, moved = T * (T + 1) / 2, (q.numel() * 8 + T * 512 * 4) * 2 / 1e9

        def tiles(q=q, k=k, v=v, stop=stop, index=index, grad=grad):
            out, _ = in_tiles(q, k, v, 0.0625, stop * 0, stop, index)
            torch.autograd.grad(out, (q, k, v), grad)

        def rows(fixed, q=q_wide, kv=kv, index=index, grad=grad_wide):
            out, _, _ = gathered(q, kv, index, 0.0625, 512, deterministic=fixed)
            torch.autograd.grad(out, (q, kv), grad)

        def dense(q=q, k=k, v=v, grad=grad):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.0625)
            torch.autograd.grad(out, (q, k, v), grad.transpose(1, 2))

        core, absorbed = 16 * 2 * 256 / 1e12, 16 * 2 / 1e12
        yield bench.row(f"selection in tiles, {T} tokens causal", tiles, pairs * 7 * core, moved)
        tflop = selected * (1088 + 2752) * absorbed
        yield bench.row(f"the same gathered, {T}, atomics", lambda run=rows: run(False), tflop, 0.0)
        yield bench.row(f"the same gathered, {T}, fixed order", lambda run=rows: run(True), tflop, 0.0)
        yield bench.row(f"all keys, cuDNN, {T} tokens causal", dense, pairs * 7 * core, moved)


def indexer_loss(bench: Bench) -> Iterator[Row]:
    from model.kernels.indexer_loss.triton import dense_indexer_loss

    for T in (8192, 32_768):
        q, k = randn(1, T, 64, 256), randn(1, T, 64, 256)
        iq, ik, iw = (x.requires_grad_() for x in (randn(1, T, 32, 128), randn(1, T, 128), randn(1, T, 32)))
        stop = torch.arange(1, T + 1, device=DEVICE).int().unsqueeze(0)
        pairs = T * (T + 1) / 2

        def dense(q=q, k=k, iq=iq, ik=ik, iw=iw, stop=stop):
            torch.autograd.grad(dense_indexer_loss(q, k, 0.0625, iq, ik, iw, stop * 0, stop), (iq, ik, iw))

        tflop = pairs * 2 * (2 * 64 * 256 + 5 * 32 * 128) / 1e12
        yield bench.row(
            f"warm-up KL with gradients, {T} tokens causal", dense, tflop, (q.numel() + k.numel()) * 2 / 1e9
        )
        del q, k


def sparse_loss(bench: Bench) -> Iterator[Row]:
    T = 8192
    run, selected = dsa_core(T)
    tflop = selected * 2 * 5 * 32 * 128 / 1e12
    work = f"sparse KL with gradients, given its target, {T} tokens causal"
    run("loss")  # makes the target
    yield bench.row(work, lambda: run("loss"), tflop, 0.0)


def dsa_core(T: int) -> tuple[Callable[[str], None], int]:
    """A layer's sparse attention without its projections at T causal tokens, and the number of selected
    pairs. The function runs "all" (selection, attention, indexer loss, every gradient) or, given its target,
    the "loss" and its gradients alone.
    """
    from model.kernels.indexer_loss.triton import sparse_indexer_loss
    from model.kernels.indexer_topk.triton import indexer_topk
    from model.kernels.sparse_mla.triton import sparse_mla as attention

    q, kv = randn(1, T, 64, 576).requires_grad_(), randn(1, T, 576).requires_grad_()
    indexer_leaves = [x.requires_grad_() for x in (randn(1, T, 32, 128), randn(1, T, 128), randn(1, T, 32))]
    stop = torch.arange(1, T + 1, device=DEVICE).int().unsqueeze(0)
    start, grad = torch.zeros_like(stop), randn(1, T, 64, 512)
    index = indexer_topk(*indexer_leaves, start, stop, 2048, order="index")

    @cache
    def target() -> torch.Tensor:
        with torch.no_grad():
            return attention(q, kv, index, 0.0625, 512, mean=True)[2]

    def run(part: str) -> None:
        if part == "loss":
            loss = sparse_indexer_loss(target(), *indexer_leaves, index)
            torch.autograd.grad(loss, indexer_leaves)
            return
        selected = indexer_topk(*indexer_leaves, start, stop, 2048, order="index")
        out, _, mean = attention(q, kv, selected, 0.0625, 512, mean=True)
        loss = sparse_indexer_loss(mean, *indexer_leaves, selected)
        torch.autograd.grad((out, loss), (q, kv, *indexer_leaves), (grad, torch.ones_like(loss)))

    return run, int((index >= 0).sum())


def attention(bench: Bench, lengths=(8192, 16_384, 32_768, 65_536, 131_072)) -> Iterator[Row]:
    """Forward and backward of a layer's attention core: ours with indexer, loss and selection; torch's dense
    one.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for T in lengths:
        run, selected = dsa_core(T)
        tflop = (selected * 2 * (64 * (1088 + 2752) + 5 * 32 * 128) + T * (T + 1) * 32 * 128) / 1e12
        yield bench.row(
            f"DSA core forward + backward with loss, {T} tokens causal", lambda r=run: r("all"), tflop, 0.0
        )
        del run
        leaves = [randn(1, 64, T, 256).requires_grad_() for _ in range(3)]
        grad = randn(1, 64, T, 256)

        def dense(leaves=leaves, grad=grad):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
            torch.autograd.grad(out, leaves, grad)

        tflop = T * (T + 1) / 2 * 64 * 256 * 2 * 7 / 1e12
        yield bench.row(f"dense causal cuDNN forward + backward, {T} tokens", dense, tflop, 0.0)
        torch.cuda.empty_cache()


def experts(bench: Bench) -> Iterator[Row]:
    """64 experts of 6144 -> 2 x 2048 -> 6144, 8 of them for each of 8192 tokens."""
    from model.kernels.experts.triton import routed_experts

    M, D, E, F, K = 8192, 6144, 64, 2048, 8
    x, gate_up, down = randn(M, D), randn(E, 2 * F, D) * 0.02, randn(E, D, F) * 0.02
    index = torch.rand(M, E, device=DEVICE).topk(K, -1).indices
    weight = torch.rand(M, K, device=DEVICE)
    tflop = M * K * 2 * 3 * D * F / 1e12
    size = (2 * x.numel() + gate_up.numel() + down.numel()) * 2 / 1e9
    yield bench.row(
        "MoE forward, routing to weighted sum",
        lambda: routed_experts(x, index, weight, gate_up, down),
        tflop,
        size,
    )
    offset = torch.bincount(index.flatten(), minlength=E).cumsum(0).int()
    rows, active = randn(M * K, D), randn(M * K, F)

    def products():
        first = torch._grouped_mm(rows, gate_up.transpose(1, 2), offs=offset)
        second = torch._grouped_mm(active, down.transpose(1, 2), offs=offset)
        return first, second

    yield bench.row("torch._grouped_mm, the two products alone", products, tflop, size)
    if bench.peers:
        count = torch.bincount(index.flatten(), minlength=E)
        yield expert_row(bench, rows, active, gate_up, down, count, products, tflop, size)
    leaves = [v.requires_grad_() for v in (x, weight, gate_up, down)]
    grad = randn(M, D)

    def both():
        torch.autograd.grad(routed_experts(x, index, weight, gate_up, down), leaves, grad)

    yield bench.row("MoE forward + backward", both, 3 * tflop, 3 * size)


def cross_entropy(bench: Bench) -> Iterator[Row]:
    from model.kernels.cross_entropy.triton import linear_cross_entropy

    M, D, V = 8192, 6144, 154_880
    x, weight = randn(M, D).requires_grad_(), (randn(V, D) * 0.02).requires_grad_()
    target = torch.randint(0, V, (M,), device=DEVICE)
    tflop = 3 * 2 * M * D * V / 1e12

    def ours():
        torch.autograd.grad(linear_cross_entropy(x, weight, target).sum(), (x, weight))

    def plain():
        loss = torch.nn.functional.cross_entropy((x @ weight.t()).float(), target, reduction="sum")
        torch.autograd.grad(loss, (x, weight))

    size = (2 * x.numel() + 2 * weight.numel()) * 2 / 1e9
    yield bench.row(f"linear cross-entropy forward + backward, {M} x {V}", ours, tflop, size)
    yield bench.row("torch, logits in float32", plain, tflop, size)


def newton_schulz(bench: Bench) -> Iterator[Row]:
    """Newton-Schulz alone, and whole steps of Muon beside torch's on the same parameters."""
    from model.kernels.newton_schulz.reference import newton_schulz as reference
    from model.kernels.newton_schulz.triton import newton_schulz as ours

    for L, A, B in ((24, 2048, 2048), (12, 2048, 8192), (64, 448, 512), (64, 256, 2048)):
        x = torch.randn(L, A, B, device=DEVICE)
        tflop, size = newton_schulz_tflop(L, A, B), (2 * x.numel() * 4) / 1e9
        yield bench.row(f"Newton-Schulz {L} x {A} x {B}", lambda x=x: ours(x), tflop, size)
        yield bench.row("the same, torch batched products", lambda x=x: reference(x), tflop, size)
    yield from muon_steps(
        bench, "24 x 2048^2 + 12 x 2048 x 8192", [(2048, 2048)] * 24 + [(2048, 8192)] * 12, 1
    )
    yield from muon_steps(bench, "one of 64 heads x 448 x 512", [(64 * 448, 512)], 64)


def muon_steps(bench: Bench, name: str, shapes: list[tuple[int, int]], heads: int) -> Iterator[Row]:
    """Ours orthogonalises every head; torch's gets the heads as parameters of their own."""
    from model.optim.muon import Muon

    parameters = [torch.nn.Parameter(torch.randn(*shape, device=DEVICE)) for shape in shapes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    pieces = parameters
    if heads > 1:
        pieces = [torch.nn.Parameter(w.clone()) for p in parameters for w in p.detach().chunk(heads)]
        for p in pieces:
            p.grad = torch.randn_like(p)
    ours = Muon([(p, heads) for p in parameters], lr=1e-3, momentum=0.95, weight_decay=0.1)
    peer = torch.optim.Muon(pieces, lr=1e-3, momentum=0.95, weight_decay=0.1)
    tflop = sum(newton_schulz_tflop(1, *sorted(p.shape)) for p in pieces)
    # Gradient, momentum and weight read, momentum and weight written, the direction in bfloat16 both.
    size = sum(p.numel() for p in pieces) * 24 / 1e9
    yield bench.row(f"our Muon step, {name}", ours.step, tflop, size)
    yield bench.row(f"torch.optim.Muon step, {name}", peer.step, tflop, size)


def newton_schulz_tflop(L: int, A: int, B: int) -> float:
    """The fewer operations of two ways, symmetric products counted by half: five steps one by one; three and
    two steps on A x A matrices, with X X^T before and a product with X after each.
    """
    return L * min(5 * (3 * A * A * B + A**3), 6 * A * A * B + 14 * A**3) / 1e12


SUITES = {f.__name__: f for f in (
    indexer, indexer_decode, sparse_mla, masked_attention, indexer_loss, sparse_loss, attention, layer,
    experts, cross_entropy, newton_schulz, compiled,
)}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(SUITES), help="suites, with commas")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="others' kernels, see kernel_peers.py")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    refusal = refuse(options)
    if refusal:
        print(refusal, file=sys.stderr)
        return 2
    bench = Bench(Peers(options.peers) if options.peers else None)
    results = {"environment": environment(bench), "rows": []}
    for name in options.only.split(","):
        for row in SUITES[name](bench):
            results["rows"].append({"suite": name, **row})
            print(line(row), flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1) + "\n")
            if "failed" in row and not card_answers():
                print("the card answers no more since that row: stopped", file=sys.stderr)
                return 1
        torch.cuda.empty_cache()
    return int(any("failed" in row for row in results["rows"]))


def refuse(options: argparse.Namespace) -> str | None:
    """Why these options cannot be run, in a sentence."""
    unknown = set(options.only.split(",")) - set(SUITES)
    if unknown:
        return f"no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}"
    if options.peers and not options.peers.is_dir():
        return f"--peers: there is no folder {options.peers}"
    if not torch.cuda.is_available():
        return "benchmarks.kernels needs a CUDA device, and torch sees none"
    return None


def line(row: Row) -> str:
    why = [f"{word}: {row[word]}" for word in ("missing", "failed") if word in row]
    if why:
        return f"{row['work']:75s} {why[0]}"
    off = f"  differs by {row['difference_from_ours']:.1e}" if "difference_from_ours" in row else ""
    return (
        f"{row['work']:75s} {row['ms']:9.3f} ms {row['tflops']:7.0f} TFLOP/s {row['over_floor']:5.2f} x floor"
        + off
    )


def card_answers() -> bool:
    """Whether the card still computes: an illegal access ends its context for this process."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
