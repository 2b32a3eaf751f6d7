"""What stands around the peers' calls in benchmarks.kernels: layouts, comparisons, rows without a peer."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from benchmarks import kernel_peers, kernels
from benchmarks.kernel_peers import (
    PeerMissing,
    Peers,
    Scoring,
    absent_share,
    causal_selection,
    pack_fp8_cache,
    padded_groups,
    peer_row,
    relative_error,
    unpack_fp8_cache,
)
from model.kernels.indexer_topk.reference import indexer_scores
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    command = [sys.executable, "-m", "benchmarks.kernels", "--peers", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert done.stderr == f"--peers: there is no folder {tmp_path / 'none'}\n"
    assert not done.stdout


def all_rows(bench):
    """Every row that a peer has, on inputs that only an absent peer can do without."""
    x, count = torch.zeros(1, 64, 1, 576), torch.tensor([2, 1])
    kv, index = torch.zeros(1, 64, 576), torch.zeros(1, 64, 64, dtype=torch.int32)
    scoring = Scoring(torch.zeros(2, 2, 128), torch.zeros(64, 128), *[torch.zeros(2)] * 4)

    def never():
        raise AssertionError("ours is computed for a peer that is not there")

    yield from kernel_peers.indexer_rows(bench, scoring, "size", 1.0, 1.0)
    yield from kernel_peers.prefill_rows(bench, x, kv, index, 1.0, never, "size", 1.0, 1.0)
    yield kernel_peers.decode_row(bench, x, kv, index, 1.0, never, "size", 1.0)
    work = {"forward": (1.0, 1.0), "backward": (1.0, 1.0)}
    yield from kernel_peers.training_rows(bench, x, kv, index, x, 1.0, never, "size", work)
    yield kernel_peers.expert_row(bench, x, x, x, x, count, never, 1.0, 1.0)


def test_each_peer_that_is_not_there_has_a_row_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    rows = list(all_rows(SimpleNamespace(peers=Peers(tmp_path))))
    assert len(rows) == 10
    for row in rows:
        peer = next(name for name in ("DeepGEMM", "TileLang", "FlashMLA") if name in row["work"])
        assert row["missing"].startswith(f"{peer}: ") and row["missing"].endswith(f"not found in {tmp_path}")
        assert not row.keys() & {"ms", "failed"}
        assert row["work"] in kernels.line(row) and row["missing"] in kernels.line(row)


def test_a_peer_that_is_there_and_broken_has_failed_and_is_not_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, kernel_peers.DEEP_GEMM, raising=False)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    package = tmp_path / "site/vllm/third_party/deep_gemm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('libnvrtc.so.13 is not there')\n")
    peers = Peers(tmp_path)
    row = peer_row(None, "work", peers.deep_gemm, relative_error, 1.0, 1.0, 1.0)
    assert row["failed"] == "ImportError: libnvrtc.so.13 is not there"
    assert peers.versions() == {"deep_gemm": row["failed"]}
    monkeypatch.delitem(sys.modules, "vllm", raising=False)


@pytest.mark.parametrize(("found", "fails"), [(0.01, False), (0.03, True), (float("nan"), True)])
def test_only_a_result_like_ours_is_timed(found, fails):
    timed = []
    bench = SimpleNamespace(row=lambda work, run, *floors: timed.append(run()) or {"work": work, "ms": 1.0})
    row = peer_row(bench, "work", lambda: lambda: "result", lambda result: found, 0.02, 1.0, 1.0)
    assert ("failed" in row) == fails and ("ms" in row) != fails
    assert timed == ([] if fails else ["result"])
    if not fails:
        assert row["difference_from_ours"] == 0.01


def test_the_row_of_a_missing_peer_is_not_a_failure():
    def prepare():
        raise PeerMissing("X: not found in Y")

    assert peer_row(None, "work", prepare, relative_error, 1.0, 1.0, 1.0) == {
        "work": "work", "peer": True, "missing": "X: not found in Y",
    }  # fmt: skip


def test_the_float8_cache_has_flashmlas_layout():
    kv = torch.randn(3, 576) * torch.tensor([1e-3, 1.0, 300.0]).unsqueeze(1)
    kv = kv.bfloat16()
    packed = pack_fp8_cache(kv)
    assert packed.shape == (3, 656) and packed.dtype == torch.float8_e4m3fn
    raw = packed.view(torch.uint8).numpy()
    for row in range(3):
        scales = raw[row, 512:528].tobytes()
        rotated = torch.frombuffer(bytearray(raw[row, 528:].tobytes()), dtype=torch.bfloat16)
        assert torch.equal(rotated, kv[row, 512:])
        for tile in range(4):
            scale = float(torch.frombuffer(bytearray(scales), dtype=torch.float32)[tile])
            part = kv[row, tile * 128 : (tile + 1) * 128].float()
            # The least power of two under which the largest value still fits.
            assert part.abs().max() <= 448 * scale and (scale < 1e-4 * 2 or part.abs().max() > 224 * scale)
            assert torch.frexp(torch.tensor(scale)).mantissa == 0.5
            held = packed[row, tile * 128 : (tile + 1) * 128].float() * scale
            assert ((held - part).abs() <= part.abs() / 16 + scale * 2**-9).all()


def test_unpacking_gives_what_the_cache_holds():
    kv = torch.randn(5, 576).bfloat16()
    held = unpack_fp8_cache(pack_fp8_cache(kv))
    assert torch.equal(held[:, 512:], kv[:, 512:])
    assert 1e-4 < relative_error(held, kv) < 0.04
    assert torch.equal(unpack_fp8_cache(pack_fp8_cache(held)), held)  # what float8 holds it keeps


def test_padded_groups_start_at_multiples():
    count = torch.tensor([3, 0, 8, 5])
    place, layout = padded_groups(count, 4)
    assert layout.tolist() == [0, 0, 0, -1] + [2] * 8 + [3] * 5 + [-1] * 3 and layout.dtype == torch.int32
    assert place.tolist() == [0, 1, 2, *range(4, 12), *range(12, 17)]
    assert torch.equal(layout[place].bincount(minlength=4), count)


def test_causal_selections_are_distinct_and_differ_where_nothing_is_seen():
    T, K = 40, 8
    ours, theirs = (x[0] for x in causal_selection(T, K, "cpu"))
    assert ours.dtype == theirs.dtype == torch.int32 and ours.shape == theirs.shape == (T, K)
    for t in range(T):
        seen = ours[t][ours[t] >= 0].tolist()
        assert len(seen) == len(set(seen)) == min(K, t + 1) and max(seen) <= t and seen == sorted(seen)
        assert ours[t].tolist() == seen + [-1] * (K - len(seen))
        assert theirs[t].tolist()[: len(seen)] == seen
        assert all(t < key < T for key in theirs[t].tolist()[len(seen) :])


def test_absent_share_counts_keys_as_sets():
    ours = torch.tensor([[1, 2, 3, 4], [7, 0, -1, -1]])
    assert absent_share(torch.tensor([[4, 3, 2, 1], [0, 7, 0, 0]]), ours, 8) == 0
    assert absent_share(torch.tensor([[4, 3, 2, 5], [0, 6, -1, -1]]), ours, 8) == pytest.approx(2 / 6)
    assert absent_share(torch.tensor([[4, 3, 2, 8], [0, 7, 0, 0]]), ours, 8) == 1


def scoring(T=70, S=90, heads=4):
    q, k = torch.randn(T, heads, 32), torch.randn(S, 32)
    q_scale, k_scale = (x.abs().amax(-1) / 448 for x in (q, k))
    q8, k8 = ((x / scale.unsqueeze(-1)).to(torch.float8_e4m3fn) for x, scale in ((q, q_scale), (k, k_scale)))
    stop = torch.arange(1, T + 1, dtype=torch.int32)
    return Scoring(q8, k8, k_scale, torch.randn(T, heads) * q_scale, stop // 3, stop)


def test_scores_are_the_references_on_what_float8_holds():
    p = scoring()
    key = p.k_SJ.double() * p.k_scale_S.double().unsqueeze(-1)
    wanted = indexer_scores(p.q_TIJ.double()[None], key[None], p.weight_TI.double()[None])[0]
    found = p.scores()
    for t in range(70):
        seen = slice(int(p.start_T[t]), int(p.stop_T[t]))
        torch.testing.assert_close(found[t, seen].double(), wanted[t, seen], rtol=1e-5, atol=1e-5)
        assert found[t].isinf().sum() == 90 - (seen.stop - seen.start)


def test_the_difference_of_scores_is_over_what_is_seen():
    p = scoring()
    ours = p.scores()
    theirs = torch.cat([ours.masked_fill(ours.isinf(), float("nan")), torch.full((70, 6), float("nan"))], 1)
    assert p.difference(theirs, ours) == 0
    assert p.difference(theirs * 1.5, ours) == pytest.approx(0.5)
