"""Kernels of others on the inputs of ours, for ``python -m benchmarks.kernels --peers FOLDER``.

Nothing of theirs is in this repository. FOLDER holds what there is of

    site/       packages, as wheels hold them: ``tilelang`` (0.1.15) with what it imports (``tvm_ffi``,
                ``z3``), and of vLLM's CUDA wheel (0.23) ``vllm/_flashmla_C.abi3.so``,
                ``vllm/third_party/flashmla`` and ``vllm/third_party/deep_gemm``
    tilelang/   TileLang's repository, of which ``examples/deepseek_v32`` is read

DeepGEMM and TileLang compile their kernels at the first call, with the nvcc of ``CUDA_HOME``. Before a peer
is timed its result is compared with ours: the row holds the difference, and no time where it is too large. A
peer that is not there has a row that says so.

T queries, S keys, N heads, K selected keys, C kv latent, R rope dim, X = C + R, I indexer heads, J indexer
dim.
"""

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from benchmarks.timer import Row

EXAMPLES = Path("tilelang/examples/deepseek_v32")
FLASH_MLA, DEEP_GEMM = "vllm.third_party.flashmla.flash_mla_interface", "vllm.third_party.deep_gemm"
FP8, FP8_MAX, TILE = torch.float8_e4m3fn, 448.0, 128
# Largest relative error of bfloat16 results, and largest share of selected keys that may be others: scores
# that are nearly equal are summed in another order.
RESULT, GRADIENT, SCORE, KEYS = 0.02, 0.03, 0.01, 0.01


class PeerMissing(Exception):
    """A peer's files are not in the folder."""


class Peers:
    def __init__(self, folder: Path):
        self.folder = folder
        site = folder / "site"
        sys.path.append(str(site))
        if (site / "vllm").is_dir() and "vllm" not in sys.modules:
            bare = types.ModuleType("vllm")  # its own __init__ imports a whole server
            bare.__path__ = [str(site / "vllm")]
            sys.modules["vllm"] = bare

    def flash_mla(self):
        self._require("FlashMLA", "site/vllm/_flashmla_C.abi3.so", "site/vllm/third_party/flashmla")
        return importlib.import_module(FLASH_MLA)

    def deep_gemm(self):
        self._require("DeepGEMM", "site/vllm/third_party/deep_gemm/__init__.py")
        return importlib.import_module(DEEP_GEMM)

    def tilelang(self, example: str):
        """A module of TileLang's examples."""
        self._require("TileLang", "site/tilelang/__init__.py", f"{EXAMPLES}/{example}.py")
        folder = str(self.folder / EXAMPLES)
        sys.path.insert(0, folder)  # they import one another by their bare names
        try:
            return importlib.import_module(example)
        finally:
            sys.path.remove(folder)

    def _require(self, peer: str, *files: str) -> None:
        for file in files:
            if not (self.folder / file).exists():
                raise PeerMissing(f"{peer}: {file} not found in {self.folder}")

    def versions(self) -> dict[str, str]:
        """Of those that are there and can be imported."""
        found = {}
        for name, file in (("tilelang", "tilelang"), (DEEP_GEMM, "vllm/third_party/deep_gemm")):
            if (self.folder / "site" / file / "__init__.py").exists():
                try:
                    found[name.rpartition(".")[2]] = importlib.import_module(name).__version__
                except Exception as error:
                    found[name.rpartition(".")[2]] = f"{type(error).__name__}: {error}"
        return found


def peer_row(
    bench,
    work: str,
    prepare: Callable[[], Callable],
    difference: Callable[[object], float],
    limit: float,
    tflop: float,
    gigabytes: float,
    **options,
) -> Row:
    """A row of ``bench`` for the call that ``prepare`` returns, if its result differs from ours by no more
    than ``limit``; else a row that says why it holds no times ("missing" or "failed").
    """
    row = {"work": work, "peer": True}
    try:
        run = prepare()
        found = difference(run())
        if not found <= limit:
            return {**row, "failed": f"differs from ours by {found:.2e}, more than {limit}"}
        return {
            **bench.row(work, run, tflop, gigabytes, **options),
            "peer": True, "difference_from_ours": float(f"{found:.2e}"),
        }  # fmt: skip
    except PeerMissing as error:
        return {**row, "missing": str(error)}
    except Exception as error:
        return {**row, "failed": f"{type(error).__name__}: {str(error).strip()[:500]}"}


def relative_error(theirs: torch.Tensor, ours: torch.Tensor) -> float:
    """Norm of the difference over the norm of ours; NaN where theirs holds one."""
    return float((theirs.float() - ours.float()).norm() / ours.float().norm().clamp(min=1e-30))


def absent_share(theirs_TK: torch.Tensor, ours_TK: torch.Tensor, keys: int) -> float:
    """The share of our selected keys (-1 for none) that is not in theirs; 1 where theirs are no keys."""
    if bool(((theirs_TK < -1) | (theirs_TK >= keys)).any()):
        return 1.0
    member_TS = torch.zeros(theirs_TK.shape[0], keys + 1, dtype=torch.bool, device=theirs_TK.device)
    member_TS.scatter_(1, theirs_TK.long().masked_fill(theirs_TK < 0, keys), True)
    chosen = ours_TK >= 0
    found = member_TS.gather(1, ours_TK.long().clamp(min=0)) & chosen
    return 1.0 - float(found.sum() / chosen.sum())


@dataclass
class Scoring:
    """The indexer's inputs in float8; the queries' scales are in the weights."""

    q_TIJ: torch.Tensor
    k_SJ: torch.Tensor
    k_scale_S: torch.Tensor
    weight_TI: torch.Tensor
    start_T: torch.Tensor
    stop_T: torch.Tensor

    def scores(self) -> torch.Tensor:
        """float32 (T, S) by torch; what a query does not see is -inf."""
        k_SJ = self.k_SJ.float() * self.k_scale_S.unsqueeze(-1)
        out_TS = torch.empty(len(self.q_TIJ), len(k_SJ), device=k_SJ.device)
        key_S = torch.arange(len(k_SJ), device=k_SJ.device)
        for t in range(0, len(out_TS), 64):
            rows = slice(t, t + 64)
            dot_TIS = (self.q_TIJ[rows].float() @ k_SJ.t()).relu_()
            out_TS[rows] = (self.weight_TI[rows].unsqueeze(1) @ dot_TIS).squeeze(1)
            seen = (key_S >= self.start_T[rows, None]) & (key_S < self.stop_T[rows, None])
            out_TS[rows].masked_fill_(~seen, float("-inf"))
        return out_TS

    def difference(self, theirs_TS: torch.Tensor, ours_TS: torch.Tensor) -> float:
        """Relative error over what is seen; their other places may hold anything."""
        error = norm = 0.0
        for t in range(0, len(ours_TS), 256):
            ours = ours_TS[t : t + 256]
            hidden = ours.isinf()
            theirs = theirs_TS[t : t + 256, : ours.shape[1]].masked_fill(hidden, 0.0)
            ours = ours.masked_fill(hidden, 0.0)
            error += float((theirs - ours).double().square().sum())
            norm += float(ours.double().square().sum())
        return (error / norm) ** 0.5


def indexer_rows(bench, problem: Scoring, size: str, tflop: float, gigabytes: float) -> Iterator[Row]:
    """DeepGEMM's and TileLang's float8 scores, TileLang's selector, and the first with the last: together
    what ours does in one call.
    """
    p, peers, keys = problem, bench.peers, len(problem.k_SJ)
    top_k, written = 2048, p.q_TIJ.shape[0] * keys * 4 / 1e9
    wanted_TS = cache(p.scores)

    def deep_gemm():
        score = peers.deep_gemm().fp8_fp4_mqa_logits
        return lambda: score(
            (p.q_TIJ, None), (p.k_SJ, p.k_scale_S), p.weight_TI, p.start_T, p.stop_T, clean_logits=False
        )

    def tilelang():
        score = peers.tilelang("fp8_lighting_indexer").mqa_attn_return_logits_interface
        return lambda: score(
            p.q_TIJ, p.k_SJ, p.k_scale_S, p.weight_TI, p.start_T, p.stop_T, clean_logits=False
        )

    @cache
    def normal_TS():
        # TileLang's selector keeps at most 4096 keys that share a score's leading bits. Of an indexer's
        # scores, whose mean is not 0, more do, and it writes out of bounds; normal ones it can select from.
        return torch.randn(p.q_TIJ.shape[0], keys, device=p.q_TIJ.device)

    def selector():
        select = peers.tilelang("topk_selector").tl_topk
        return lambda: select(normal_TS(), p.start_T, p.stop_T, top_k)

    def both():
        score, select = deep_gemm(), selector()
        return lambda: (score(), select())[1]

    for name, prepare in (("DeepGEMM", deep_gemm), ("TileLang", tilelang)):
        yield peer_row(
            bench, f"{name} indexer scores alone, {size}, fp8", prepare,
            lambda theirs: p.difference(theirs, wanted_TS()), SCORE, tflop, gigabytes + written, rate="fp8",
        )  # fmt: skip

    def differing(theirs_TK):
        key_S = torch.arange(keys, device=theirs_TK.device)
        hidden = (key_S < p.start_T.unsqueeze(1)) | (key_S >= p.stop_T.unsqueeze(1))
        best = normal_TS().masked_fill(hidden, -torch.inf).topk(top_k)
        return absent_share(theirs_TK, best.indices.masked_fill(best.values == -torch.inf, -1), keys)

    wanted_TS.cache_clear()  # 2 GB at the longer shape
    yield peer_row(
        bench, f"TileLang radix selector alone, top-{top_k} of normal scores, {size}", selector, differing,
        KEYS, 0.0, written,
    )  # fmt: skip
    yield peer_row(
        bench, f"DeepGEMM scores, then TileLang selector on normal scores, {size}, fp8", both, differing,
        KEYS, tflop, gigabytes, rate="fp8",
    )  # fmt: skip


def prefill_rows(bench, q, kv, index, scale: float, ours: Callable, size: str, tflop, gigabytes):
    """FlashMLA's and TileLang's forward on q (1, T, N, X), kv (1, S, X), index (1, T, K) without -1."""
    peers, keys = bench.peers, kv.shape[1]

    def flash_mla():
        attend = peers.flash_mla().flash_mla_sparse_fwd
        return lambda: attend(q[0], kv[0].unsqueeze(1), index[0].unsqueeze(1), scale)[0]

    def tilelang():
        attend = peers.tilelang("sparse_mla_fwd_pipelined").sparse_mla_fwd_interface
        kv_group, index_group = kv.unsqueeze(2), index.unsqueeze(2)
        # It hides keys behind a query's own position; from position S on nothing is hidden.
        return lambda: attend(q, kv_group, index_group, keys, 1, sm_scale=scale)[0][0]

    ours = cache(ours)
    for name, prepare in (("FlashMLA sparse prefill", flash_mla), ("TileLang sparse MLA forward", tilelang)):
        yield peer_row(
            bench, f"{name}, {size}", prepare, lambda theirs: relative_error(theirs, ours()[0]), RESULT,
            tflop, gigabytes,
        )  # fmt: skip


def decode_row(bench, q, kv, index, scale: float, ours: Callable, size: str, tflop: float) -> Row:
    """FlashMLA's decoding of a query a sequence over a float8 cache; ``ours(kv)`` attends to what that cache
    holds.
    """
    cache_SX = pack_fp8_cache(kv[0])

    def flash_mla():
        module = bench.peers.flash_mla()
        plan, _ = module.get_mla_metadata()
        q_B1NX, index_B1K = q.transpose(0, 1).contiguous(), index.transpose(0, 1).contiguous()
        pages = cache_SX.view(-1, 64, 1, cache_SX.shape[-1])
        return lambda: module.flash_mla_with_kvcache(
            q_B1NX, pages, None, None, 512, plan, softmax_scale=scale, is_fp8_kvcache=True, indices=index_B1K
        )[0]

    def difference(theirs_B1NC):
        held = unpack_fp8_cache(cache_SX).unsqueeze(0)
        return relative_error(theirs_B1NC.transpose(0, 1), ours(held))

    gigabytes = index.shape[1] * index.shape[2] * cache_SX.shape[-1] / 1e9
    return peer_row(
        bench, f"FlashMLA sparse decode, {size}, fp8 cache, in a graph", flash_mla, difference, RESULT, tflop,
        gigabytes, graph=True,
    )  # fmt: skip


def pack_fp8_cache(kv_SX: torch.Tensor, latent: int = 512) -> torch.Tensor:
    """FlashMLA's float8 cache rows (S, 656), float8: 512 latent values, 4 float32 scales, one for each 128 of
    them, and the 64 rotated features in bfloat16. Scales are powers of two, which its kernel relies on.
    """
    tiles = kv_SX[:, :latent].float().unflatten(-1, (-1, TILE))
    scale = (tiles.abs().amax(-1) / FP8_MAX).clamp(min=1e-4).log2().ceil().exp2()
    values = (tiles / scale.unsqueeze(-1)).to(FP8).flatten(1)
    rotated = kv_SX[:, latent:].to(torch.bfloat16).contiguous()
    return torch.cat([values.view(torch.uint8), scale.view(torch.uint8), rotated.view(torch.uint8)], 1).view(
        FP8
    )


def unpack_fp8_cache(cache_SX: torch.Tensor, latent: int = 512) -> torch.Tensor:
    """The bfloat16 rows (S, X) that the cache holds."""
    values, scale, rotated = (
        x.contiguous()
        for x in cache_SX.view(torch.uint8).tensor_split([latent, latent + latent // TILE * 4], 1)
    )
    tiles = values.view(FP8).float().unflatten(-1, (-1, TILE)) * scale.view(torch.float32).unsqueeze(-1)
    return torch.cat([tiles.flatten(1).bfloat16(), rotated.view(torch.bfloat16)], 1)


def causal_selection(T: int, K: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Random selections of causal queries, int32 (1, T, K): ours with -1 where fewer than K keys are seen,
    and TileLang's with keys there that its mask hides, since it reads every row that it is given.
    """
    key_T = torch.arange(T, device=device)
    best = torch.rand(T, T, device=device).masked_fill_(key_T > key_T.unsqueeze(-1), -1.0).topk(K)
    slot_TK = (best.indices + T * (best.values < 0)).sort(-1).values.unsqueeze(0)
    return slot_TK.masked_fill(slot_TK >= T, -1).int(), (slot_TK % T).int()


def training_rows(bench, q, kv, index, grad, scale: float, ours: Callable, size: str, work: dict):
    """TileLang's forward and backward of causal queries, on its own selection ``index`` (see
    ``causal_selection``). ``ours()`` gives (out, dq, dkv); ``work``: (TFLOP, GB) of "forward" and "backward".
    """
    kv_group, index_group = kv.unsqueeze(2), index.unsqueeze(2)
    ours = cache(ours)

    def forward():
        attend = bench.peers.tilelang("sparse_mla_fwd").sparse_mla_fwd_interface
        return lambda: attend(q, kv_group, index_group, sm_scale=scale)

    def backward():
        module = bench.peers.tilelang("sparse_mla_bwd")
        out, lse = forward()()
        return lambda: module.sparse_mla_bwd(q, kv_group, out, grad, index_group, lse, sm_scale=scale)

    yield peer_row(
        bench, f"TileLang sparse MLA forward, {size}", forward,
        lambda theirs: relative_error(theirs[0], ours()[0]), RESULT, *work["forward"],
    )  # fmt: skip

    def gradients_differ(theirs):
        dq, dkv = theirs
        return max(relative_error(dq, ours()[1]), relative_error(dkv.squeeze(2), ours()[2]))

    yield peer_row(
        bench, f"TileLang sparse MLA backward, {size}, atomics", backward, gradients_differ, GRADIENT,
        *work["backward"],
    )  # fmt: skip


def expert_row(
    bench, rows, active, gate_up, down, count, ours: Callable, tflop: float, gigabytes: float
) -> Row:
    """DeepGEMM's two grouped products on rows (M, D) and (M, F) in the order of their experts, ``count`` (E)
    of each; every expert's rows are padded to the multiple that it asks for.
    """
    place = None

    def deep_gemm():
        nonlocal place
        module = bench.peers.deep_gemm()
        place, layout = padded_groups(count, module.get_m_alignment_for_contiguous_layout())
        wide, narrow = (x.new_zeros(len(layout), x.shape[1]).index_copy_(0, place, x) for x in (rows, active))
        outs = wide.new_empty(len(layout), gate_up.shape[1]), wide.new_empty(len(layout), down.shape[1])

        def run():
            module.m_grouped_bf16_gemm_nt_contiguous(wide, gate_up, outs[0], layout)
            module.m_grouped_bf16_gemm_nt_contiguous(narrow, down, outs[1], layout)
            return outs

        return run

    def difference(theirs):
        return max(relative_error(x[place], y) for x, y in zip(theirs, ours(), strict=True))

    return peer_row(
        bench, "DeepGEMM grouped bf16, the two products alone, groups padded", deep_gemm, difference, RESULT,
        tflop, gigabytes,
    )  # fmt: skip


def padded_groups(count_E: torch.Tensor, multiple: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each row goes when every group starts at a multiple (int64, as many as rows), and the group of
    every place (int32, -1 for padding).
    """
    count = count_E.tolist()
    place, layout, start = [], [], 0
    for group, rows in enumerate(count):
        padding = -rows % multiple
        place.append(torch.arange(start, start + rows))
        layout += [torch.full((rows,), group), torch.full((padding,), -1)]
        start += rows + padding
    device = count_E.device
    return torch.cat(place).to(device), torch.cat(layout).to(device, torch.int32)
