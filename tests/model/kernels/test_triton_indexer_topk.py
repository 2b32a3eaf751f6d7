"""Indexer with top-k: exact against the reference on inputs whose sums are exact, and independent of its
tiles.
"""

import pytest
import torch

pytest.importorskip("triton")

from model.kernels.indexer_topk import hopper, reference
from model.kernels.indexer_topk import triton as kernel


@pytest.fixture(autouse=True, params=["rows as they are", "lists"])
def way(request, monkeypatch):
    """Both ways of selecting, whatever the length of the rows."""
    monkeypatch.setattr(kernel, "DIRECT", 8192 if request.param == "rows as they are" else 0)


def whole_numbers(device, dtype, seed, B, T, S, I, J, size):
    """Small integers: products and sums are exact in any order, and many scores tie."""
    generator = torch.Generator().manual_seed(seed)

    def draw(limit, *shape):
        return torch.randint(-limit, limit + 1, shape, generator=generator).to(device)

    q, k, weight = draw(size, B, T, I, J).to(dtype), draw(size, B, S, J).to(dtype), draw(2, B, T, I).float()
    stop = torch.randint(0, S + 1, (B, T), generator=generator).int().to(device)
    start = torch.minimum(stop, torch.randint(0, S, (B, T), generator=generator).int().to(device))
    return q, k, weight, start, stop


CASES = {
    "below top-k": (1, 5, 40, 4, 16, 64, 3),
    "packed, two rows of a batch": (2, 4, 90, 2, 16, 16, 3),
    "several keys a group": (1, 6, 700, 4, 16, 16, 2),
    "plateau of zeros": (1, 5, 600, 4, 16, 16, 0),
    "almost a plateau": (1, 5, 600, 4, 16, 16, 1),
    "one-token documents": (1, 6, 6, 4, 16, 4, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_reference(case, device, dtype):
    B, T, S, I, J, K, size = CASES[case]
    q, k, weight, start, stop = whole_numbers(device, dtype, 5, B, T, S, I, J, size)
    if case == "one-token documents":
        start = torch.arange(T, device=device).int().expand(B, T)
        stop = start + 1
    expected = reference.indexer_topk(q.float(), k.float(), weight, start, stop, K)
    assert torch.equal(kernel.indexer_topk(q, k, weight, start, stop, K), expected)
    by_index = kernel.indexer_topk(q, k, weight, start, stop, K, order="index")
    present = expected.masked_fill(expected < 0, S).sort(-1).values
    assert torch.equal(by_index, present.masked_fill(present == S, -1))


def test_minus_zero_ties_with_zero(device, dtype):
    """Heads that are all off give -0.0 under negative weights: still a tie, so the lower index wins."""
    q = torch.ones(1, 1, 4, 16, device=device, dtype=dtype)
    k = -torch.ones(1, 50, 16, device=device, dtype=dtype)
    k[:, 20:] = 0.0
    weight = -torch.ones(1, 1, 4, device=device)
    edge = torch.tensor([[50]], device=device, dtype=torch.int32)
    index = kernel.indexer_topk(q, k, weight, edge * 0, edge, 8)
    assert index.flatten().tolist() == list(range(8))


def test_too_many_candidates(device, dtype):
    """The best keys all lie in a few stride classes, so that the first bound lets through more than fit."""
    S, K = 1280, 16
    key = torch.arange(S, device=device)
    # Classes of 64 keys: 8 classes hold large distinct values in every member, the others small ones.
    value = torch.where(key % 64 < 8, 2000 + key // 64, key % 7).float()
    k = torch.zeros(1, S, 16, device=device)
    k[0, :, 0], k[0, :, 1] = value // 64, value % 64
    q = torch.zeros(1, 1, 2, 16, device=device)
    q[..., 0], q[..., 1] = 64.0, 1.0
    weight = torch.ones(1, 1, 2, device=device)
    edge = torch.tensor([[S]], device=device, dtype=torch.int32)
    expected = reference.indexer_topk(q, k, weight, edge * 0, edge, K)
    assert torch.equal(kernel.indexer_topk(q.to(dtype), k.to(dtype), weight, edge * 0, edge, K), expected)


def test_infinite_scores_overflow_no_list(device, dtype, monkeypatch):
    """They are not below any bound, so the length of the list must end it; what lies behind it stays."""
    S, K, behind = 2000, 16, []

    def guarded(*arguments, make=kernel._buffers):
        score, group_max, candidate, *rest = make(*arguments)
        whole = torch.full((len(candidate) + 1, *candidate.shape[1:]), -7, device=candidate.device)
        behind.append(whole[-1])
        return score, group_max, whole[:-1], *rest

    monkeypatch.setattr(kernel, "_buffers", guarded)
    q, k = (torch.full(shape, 1e30, device=device).to(dtype) for shape in ((1, 1, 4, 16), (1, S, 16)))
    weight, stop = torch.ones(1, 1, 4, device=device), torch.tensor([[S]], device=device).int()
    index = kernel.indexer_topk(q, k, weight, stop * 0, stop, K)
    assert index.flatten().tolist() == list(range(K))
    assert all((rows == -7).all() for rows in behind)


def test_same_bits_for_any_tile_and_split(device, dtype, draw):
    T, S, K = 3, 300, 24
    q, k, weight = draw(1, T, 4, 32).to(dtype), draw(1, S, 32).to(dtype), draw(1, T, 4)
    start, stop = torch.zeros(1, T, device=device).int(), torch.full((1, T), S, device=device).int()
    whole = kernel.indexer_topk(q, k, weight, start, stop, K)
    assert torch.equal(whole, kernel.indexer_topk(q, k, weight, start, stop, K, block_keys=128))
    alone = [
        kernel.indexer_topk(
            q[:, t : t + 1], k, weight[:, t : t + 1], start[:, t : t + 1], stop[:, t : t + 1], K
        )
        for t in range(T)
    ]
    assert torch.equal(whole, torch.cat(alone, 1))


def test_chunks_of_queries(device, dtype, monkeypatch):
    q, k, weight, start, stop = whole_numbers(device, dtype, 3, 2, 6, 130, 32, 16, 3)
    monkeypatch.setattr(kernel, "CHUNK", 4)
    monkeypatch.setattr(kernel, "DIRECT_CHUNK", 4)
    expected = reference.indexer_topk(q.float(), k.float(), weight, start, stop, 16)
    assert torch.equal(kernel.indexer_topk(q, k, weight, start, stop, 16), expected)


def test_float8_with_key_scales(device, draw):
    """Equal to the reference on the values that float8 and its scales stand for, up to near ties."""
    q, k, weight = draw(1, 8, 4, 32), draw(1, 200, 32), draw(1, 8, 4)
    start, stop = torch.zeros(1, 8, device=device).int(), torch.full((1, 8), 200, device=device).int()
    q8, q_scale = kernel.quantize_fp8(q)
    k8, k_scale = kernel.quantize_fp8(k)
    index = kernel.indexer_topk(q8, k8, weight * q_scale, start, stop, 32, k_scale_BS=k_scale)
    meant = reference.indexer_scores(
        q8.float() * q_scale.unsqueeze(-1), k8.float() * k_scale.unsqueeze(-1), weight
    )
    chosen = meant.gather(-1, index.long())
    best = meant.sort(-1, descending=True).values[..., :32]
    assert torch.allclose(chosen, best, atol=2e-3 * float(best.abs().max()))


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["score", "index"])
@pytest.mark.parametrize("kind", ["bf16", "fp8"])
@pytest.mark.parametrize(("B", "T", "S"), [(1, 300, 300), (2, 48, 5000), (1, 7, 20_016), (3, 1, 9000)])
def test_same_bits_on_hopper(B, T, S, kind, order, draw, monkeypatch):
    """At GLM-5's head sizes: the kernel for Hopper and the plain one, in several chunks."""
    q, k, weight = draw(B, T, 32, 128).bfloat16(), draw(B, S, 128).bfloat16(), draw(B, T, 32)
    k[:, ::3] = 0.0  # a third of the scores are ties
    edge = torch.sort(torch.randint(0, S + 1, (2, B, T), device="cuda"), dim=0).values.int()
    scale = {}
    if kind == "fp8":
        (q, q_scale), (k, k_scale) = kernel.quantize_fp8(q), kernel.quantize_fp8(k)
        weight, scale = weight * q_scale, {"k_scale_BS": k_scale}
    if not hopper.fits(q, k, 64):
        pytest.skip("needs compute capability 9 and the Triton that its kernels were tested with")
    monkeypatch.setattr(kernel, "CHUNK", 16)
    monkeypatch.setattr(kernel, "DIRECT_CHUNK", 16)
    got = kernel.indexer_topk(q, k, weight, *edge, 256, order=order, **scale)
    monkeypatch.setattr(hopper, "fits", lambda *_: False)
    assert torch.equal(got, kernel.indexer_topk(q, k, weight, *edge, 256, order=order, **scale))


@pytest.mark.parametrize("order", ["score", "index"])
def test_keys_in_a_pool(order, device, dtype):
    """Decoding: a sequence's keys lie in rows anywhere in the pool, and row 0 stands behind its end."""
    B, S, I, J, K = 3, 150, 4, 16, 24
    q, k, weight, _, stop = whole_numbers(device, dtype, 8, B, 1, S, I, J, 2)
    row_BS = (torch.randperm(B * S, generator=torch.Generator().manual_seed(1)) + 1).view(B, S).to(device)
    pool = torch.full((B * S + 1, J), 3.0, device=device, dtype=dtype)
    pool[row_BS] = k
    row_BS = row_BS.masked_fill(torch.arange(S, device=device) >= stop, 0)
    start = stop * 0
    expected = kernel.indexer_topk(q, k, weight, start, stop, K, order=order)
    for operation in (kernel, reference):
        keys = pool if operation is kernel else pool.float()
        queries = q if operation is kernel else q.float()
        got = operation.indexer_topk(queries, keys, weight, start, stop, K, order=order, row_BS=row_BS)
        assert torch.equal(got, expected)


def test_float8_keys_in_a_pool(device, draw):
    S = 90
    q, k, weight = draw(1, 2, 4, 32), draw(1, S, 32), draw(1, 2, 4)
    start, stop = torch.zeros(1, 2, device=device).int(), torch.full((1, 2), S, device=device).int()
    (q8, q_scale), (k8, k_scale) = kernel.quantize_fp8(q), kernel.quantize_fp8(k)
    row_BS = (torch.randperm(S, generator=torch.Generator().manual_seed(2)) * 2).unsqueeze(0).to(device)
    pool, scale = torch.zeros(2 * S, 32, device=device).to(kernel.FP8), torch.zeros(2 * S, device=device)
    pool[row_BS[0]], scale[row_BS[0]] = k8[0], k_scale[0]
    expected = kernel.indexer_topk(q8, k8, weight * q_scale, start, stop, 16, k_scale_BS=k_scale)
    got = kernel.indexer_topk(q8, pool, weight * q_scale, start, stop, 16, k_scale_BS=scale, row_BS=row_BS)
    assert torch.equal(got, expected)


def test_bad_shapes_are_refused(device):
    edge = torch.ones(1, 1, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="powers of two"):
        kernel.indexer_topk(
            torch.zeros(1, 1, 3, 16, device=device), torch.zeros(1, 1, 16, device=device),
            torch.zeros(1, 1, 3, device=device), edge * 0, edge, 4,
        )  # fmt: skip
    with pytest.raises(ValueError, match="8192"):
        kernel.indexer_topk(
            torch.zeros(1, 1, 4, 16, device=device), torch.zeros(1, 1, 16, device=device),
            torch.zeros(1, 1, 4, device=device), edge * 0, edge, 9000,
        )  # fmt: skip
