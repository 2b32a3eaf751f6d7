"""Attention: the forms agree with each other, and every kind of visibility with plain attention."""

import pytest
import torch
from shapes import small_config

from model.attention import mla
from model.attention.cache import Chunk
from model.attention.selection import captured_mass, random_topk, selection_mask
from model.attention.visibility import Visibility
from model.kernels.indexer_topk.reference import visible_mask
from model.kernels.masked_attention.reference import masked_attention

MODES = ["dense", "sparse", "window", "random"]


def run(model, tokens, **options):
    with torch.no_grad():
        return model.logits(model(tokens, **options).hidden_BTD)


def draw(config, *shape):
    return torch.randint(config.vocab_size, shape)


@pytest.mark.parametrize("seed", range(3))
def test_masked_dense_equals_gathered_with_gradients(make_model, monkeypatch, seed):
    config = small_config(seed)
    tokens = draw(config, 2, 30)
    results, worked_out = [], []
    head_mean = mla.head_mean
    monkeypatch.setattr(mla, "head_mean", lambda *a, **o: worked_out.append(limit) or head_mean(*a, **o))
    for limit in (1024, 0):
        monkeypatch.setattr(mla, "MASKED_DENSE_KEYS", limit)
        model = make_model(config, seed, indexer=True, dtype=torch.float64)
        out = model(tokens, attention="sparse", indexer_loss=True)
        (out.hidden_BTD.square().sum() + out.indexer_kl_L.sum()).backward()
        results.append((out.hidden_BTD, out.indexer_kl_L, [p.grad for p in model.parameters()]))
    # Gathered rows give the target of the loss along with the attention.
    assert worked_out == [1024] * config.num_layers
    (hidden, kl, grads), (gathered, gathered_kl, gathered_grads) = results
    torch.testing.assert_close(hidden, gathered)
    torch.testing.assert_close(kl, gathered_kl)
    for a, b in zip(grads, gathered_grads, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("selected", [False, True])
def test_whole_tiles_equal_the_expanded_form(make_model, selected):
    """What CUDA takes for packed documents and few keys, by its reference."""
    layer = make_model(small_config(6), dtype=torch.float64).blocks[0].attention
    q = torch.randn(2, 20, layer.heads, layer.nope + layer.rope_dim, dtype=torch.float64)
    kv = torch.randn(2, 20, layer.latent + layer.rope_dim, dtype=torch.float64)
    key = torch.arange(20, dtype=torch.int32).expand(2, -1)
    view = Visibility(key // 8 * 8, key + 1, 20, False, torch.empty(0))
    index = random_topk(view, 4, seed=1) if selected else None
    tensors = q, *layer._keys_and_values(kv)
    tiles, lse = masked_attention(*tensors, layer.scale, view.start_BT, view.stop_BT, index)
    mask = selection_mask(index, 20) if selected else view.mask_B1TS
    torch.testing.assert_close(tiles, layer.expanded(q, kv, mask))
    first = torch.einsum("bnh,bnh->bn", q[:, 8], tensors[1][:, 8]) * layer.scale
    torch.testing.assert_close(lse[:, 8], first)  # a document's first query sees one key


def test_sparse_is_dense_while_all_keys_fit(make_model):
    config = small_config(1, index_top_k=20)
    model = make_model(config, indexer=True)
    tokens = draw(config, 2, 26)
    dense, sparse = run(model, tokens), run(model, tokens, attention="sparse")
    torch.testing.assert_close(dense[:, :20], sparse[:, :20])
    assert (dense[:, 20:] - sparse[:, 20:]).abs().max() > 1e-3


def test_window_sees_the_last_keys_only(make_model):
    config = small_config(2, num_layers=1, first_dense_layers=1)
    model = make_model(config)
    tokens = draw(config, 1, 24)
    before = run(model, tokens, attention="window", top_k=6)
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % config.vocab_size
    moved = (run(model, changed, attention="window", top_k=6) - before).abs().amax(-1)[0]
    assert (moved[10:16] > 1e-6).all()
    assert (moved[:10] == 0).all() and (moved[16:] == 0).all()
    # Alone, the last six tokens give what the window gives: positions are relative.
    torch.testing.assert_close(run(model, tokens[:, -6:])[:, -1], before[:, -1], atol=1e-5, rtol=1e-4)


def test_random_selection_takes_visible_keys_once():
    start = torch.tensor([[0, 0, 0, 2, 2, 2]], dtype=torch.int32).repeat(3, 1)
    stop = torch.arange(1, 7, dtype=torch.int32).repeat(3, 1)
    view = Visibility(start, stop, 6, False, torch.empty(0))
    index = random_topk(view, 3, seed=4)
    visible = visible_mask(start, stop, 6)
    for b in range(3):
        for t in range(6):
            chosen = [i for i in index[b, t].tolist() if i >= 0]
            assert len(set(chosen)) == len(chosen) == min(3, int(visible[b, t].sum()))
            assert visible[b, t, chosen].all()
    assert torch.equal(index, random_topk(view, 3, seed=4))
    assert not torch.equal(index, random_topk(view, 3, seed=5))


@pytest.mark.parametrize("mode", MODES)
def test_packed_documents_read_as_alone(make_model, mode):
    config = small_config(3, index_top_k=7)
    model = make_model(config, indexer=True)
    lengths = [9, 21, 14]
    documents = [draw(config, 1, n) for n in lengths]
    starts = torch.cat([torch.full((1, n), sum(lengths[:i])) for i, n in enumerate(lengths)], 1)
    packed = run(model, torch.cat(documents, 1), start_BT=starts.int(), attention=mode)
    alone = torch.cat([run(model, d, attention=mode) for d in documents], 1)
    if mode == "random":  # another draw: only the first keys, where all are taken, must agree
        keep = torch.cat([torch.arange(n) < 7 for n in lengths])
        packed, alone = packed[:, keep], alone[:, keep]
    torch.testing.assert_close(packed, alone, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", ["dense", "sparse", "window"])
@pytest.mark.parametrize("pieces", [[17, *[1] * 9], [9, 8, 1, 5, 3], [10, 16]])
def test_reading_pages_equals_one_pass(make_model, mode, pieces):
    """Three sequences of different lengths, read in pieces of different sizes in the same passes."""
    config = small_config(4, index_top_k=6)
    model = make_model(config, indexer=True)
    rows = [draw(config, sum(pieces) - n) for n in (0, 3, 7)]
    cache = model.new_cache(40, 3, indexer=mode == "sparse")
    pages = torch.randperm(39)[:30].add(1).view(3, 10).tolist()  # page 0 belongs to nobody
    got, done = [[], [], []], [0, 0, 0]
    for piece in pieces:
        counts = sorted(
            (min(piece, len(row) - at), n) for n, (row, at) in enumerate(zip(rows, done, strict=True))
        )
        chunks = [Chunk(pages[n], done[n], count) for count, n in counts if count]
        tokens = torch.cat([rows[n][done[n] : done[n] + count] for count, n in counts])
        with torch.no_grad():
            view = model.paged_view(cache, chunks)
            hidden = model.read(tokens, view, mla.AttentionOptions(mode, config.index_top_k))
        for part, (count, n) in zip(hidden.split([c for c, _ in counts]), counts, strict=True):
            got[n].append(model.logits(part).detach())
            done[n] += count
    for row, parts in zip(rows, got, strict=True):
        expected = run(model, row.unsqueeze(0), attention=mode)[0]
        torch.testing.assert_close(torch.cat(parts), expected, atol=1e-5, rtol=1e-5)


def test_the_cache_holds_latents_only(make_model):
    config = small_config(5)
    model = make_model(config, indexer=True)
    latent = config.kv_latent + config.qk_rope_dim
    assert model.new_cache(3, 4).bytes_per_token == config.num_layers * latent * 4
    both = model.new_cache(3, 4, mtp=True, indexer=True)
    assert both.bytes_per_token == (config.num_layers + 1) * (latent + config.index_dim) * 4


def test_captured_mass_counts_by_hand():
    torch.manual_seed(0)
    q, k = torch.randn(1, 9, 2, 4), torch.randn(1, 9, 2, 4)
    start, stop = torch.zeros(1, 9, dtype=torch.int32), torch.arange(1, 10, dtype=torch.int32)[None]
    view = Visibility(start, stop, 9, True, torch.empty(0))
    index = random_topk(view, 3, seed=0)
    expected = torch.zeros(3, dtype=torch.float64)
    for t in range(3, 9):
        mass = torch.stack(
            [(q[0, t, n].double() @ k[0, : t + 1, n].double().T * 0.7).softmax(-1) for n in range(2)]
        ).mean(0)
        expected += (
            torch.stack([mass[index[0, t].long()].sum(), mass.topk(3).values.sum(), mass[-3:].sum()]) / 6
        )
    got = captured_mass(q, k, 0.7, index, view, 3)
    torch.testing.assert_close(got.double(), expected, atol=1e-6, rtol=1e-6)
    assert captured_mass(q, k, 0.7, index, view, 9).isnan().all()


def test_an_indexer_is_asked_for_where_it_is_missing(make_model):
    config = small_config(0)
    model = make_model(config)
    with pytest.raises(ValueError, match="add_indexer"):
        model(draw(config, 1, 30), attention="sparse")


@pytest.mark.parametrize("mode", ["dense", "sparse"])
def test_float64_gradients_of_a_whole_attention_layer(make_model, mode):
    config = small_config(
        7, num_layers=1, hidden_size=6, num_heads=2, index_top_k=3, first_dense_layers=1, q_latent=5,
        kv_latent=4, qk_nope_dim=3, qk_rope_dim=2, v_dim=3,
    )  # fmt: skip
    attention = make_model(config, indexer=True, dtype=torch.float64).blocks[0].attention
    table = torch.randn(1, 5, config.qk_rope_dim // 2, dtype=torch.float64).sin()
    start, stop = torch.zeros(1, 5, dtype=torch.int32), torch.arange(1, 6, dtype=torch.int32)[None]
    view = Visibility(start, stop, 5, True, torch.polar(torch.ones_like(table), table))
    options = mla.AttentionOptions(mode, 3)
    x = torch.randn(1, 5, 6, dtype=torch.float64, requires_grad=True)
    weights = [p for n, p in attention.named_parameters() if "indexer" not in n]
    assert torch.autograd.gradcheck(lambda x, *_: attention(x, view, options)[0], (x, *weights))
