"""Integer linear layers and experts: exact against float64, and kernels equal to references to the bit."""

import pytest
import torch

pytest.importorskip("triton")

from model.kernels.experts.reference import routed_experts
from model.kernels.int8_linear import reference as linear_reference
from model.kernels.int8_linear import triton as linear
from model.kernels.int8_linear.one_token import one_token
from model.kernels.int8_linear.product import Tiling
from model.kernels.int8_linear.rows import counters, quantize
from model.kernels.w4a8_experts import reference as experts_reference
from model.kernels.w4a8_experts import triton as experts
from model.quantization.rounding import dequantize, minmax_scale, quantize_tokens, quantize_weight


def quantized(draw, *shape: int, bits: int = 8):
    """Integers and scales of a random weight, made on the CPU."""
    weight = draw(*shape).cpu() * draw(*shape[:-1], 1).cpu().abs()
    scale = minmax_scale(weight, bits)
    return quantize_weight(weight, scale, bits), scale


def stored(values: torch.Tensor, bits: int) -> torch.Tensor:
    return linear_reference.pack_int4(values) if bits == 4 else values


def layer(draw, M: int, D: int, F: int, E: int, K: int, bits: int = 4, idle: tuple[int, ...] = ()):
    """Arguments of ``w4a8_experts`` on the CPU; ``idle`` experts get nothing."""
    score = draw(M, E).cpu()
    score[:, list(idle)] = -100.0
    gate_up, gate_up_scale = quantized(draw, E, 2 * F, D, bits=bits)
    down, down_scale = quantized(draw, E, D, F, bits=bits)
    index, weight = score.topk(K, -1).indices, draw(M, K).cpu().abs()
    return (
        draw(M, D).cpu(),
        index,
        weight,
        stored(gate_up, bits),
        gate_up_scale,
        stored(down, bits),
        down_scale,
    )


def test_pack_and_unpack():
    every = torch.arange(-8, 8, dtype=torch.int8)
    pairs = torch.cartesian_prod(every, every)
    assert torch.equal(linear_reference.unpack_int4(linear_reference.pack_int4(pairs)), pairs)
    stack = torch.randint(-7, 8, (3, 5, 12), dtype=torch.int8)
    packed = linear_reference.pack_int4(stack)
    assert packed.shape == (3, 5, 6) and torch.equal(linear_reference.unpack_int4(packed), stack)
    with pytest.raises(ValueError, match="even"):
        linear_reference.pack_int4(stack[..., :11])


@pytest.mark.parametrize("columns", [48, 1100])  # sums of more than 2^24 at 1100: not float32's any more
def test_linear_reference_is_the_product_of_what_integers_mean(draw, error, columns):
    x = draw(5, columns).cpu()
    values, scale = quantized(draw, 7, columns)
    values[0] = 127
    x[1] = 3.0
    token, token_scale = quantize_tokens(x)
    total = linear_reference.integer_product(token, values)
    assert torch.equal(total.long(), token.long() @ values.long().t())
    meant = dequantize(token, token_scale).double() @ dequantize(values, scale).double().t()
    assert error(linear_reference.int8_linear(x, values, scale), meant) < 1e-6


def test_the_least_int8_of_others_is_summed_exactly():
    token = torch.full((1, 1036), 127, dtype=torch.int8)
    values = torch.full((1, 1036), -128, dtype=torch.int8)
    values[0, 0] = -127  # an odd sum beyond 2^24
    assert linear_reference.integer_product(token, values).item() == -127 * (128 * 1035 + 127)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows, split", [(1, 4), (3, 1), (17, 2)])
def test_linear_kernel(device, draw, rows, split, bits):
    x = draw(rows, 40).cpu()
    x[0, :5] = torch.tensor([0.5, 1.5, -2.5, 127.0, -126.5])  # halves, with scale 1
    x[0, 5:] = 0.0
    values, scale = quantized(draw, 21, 40, bits=bits)
    weight = stored(values, bits)
    expected = linear_reference.int8_linear(x, weight, scale)
    moved = [t.to(device) for t in (x, weight, scale)]
    assert torch.equal(linear.int8_linear(*moved).cpu(), expected)
    for again in range(2):  # the second finds the counters as the first left them
        value = linear.int8_linear(*moved, Tiling(16, 16, 32, split))
        assert torch.equal(value.cpu(), expected), again


@pytest.mark.parametrize(
    "rows, outputs, columns",
    [(20, 192, 512), (33, 64, 1280), (64, 128, 3072), (17, 256, 6144), (64, 256, 4096), (5, 128, 6144)],
)
def test_small_products(device, dtype, draw, rows, outputs, columns):
    """On Hopper a kernel of its own takes these: two in one part, one in two parts, three in four."""
    values, scale = quantized(draw, outputs, columns, bits=4)
    weight = stored(values, 4)
    for again in range(3):
        x = draw(rows, columns).cpu().to(dtype)
        expected = linear_reference.int8_linear(x, weight, scale)
        value = linear.int8_linear(*(t.to(device) for t in (x, weight, scale)))
        assert torch.equal(value.cpu(), expected), again


@pytest.mark.gpu
def test_products_that_follow_each_other(draw):
    """Weights' copies start before the product in front has ended: none may meet another's tokens."""
    values, scale = quantized(draw, 3, 4096, 6144, bits=4)
    weights, scales = (t.cuda() for t in (stored(values, 4), scale))
    tokens = [draw(64, 6144).bfloat16() for _ in range(6)]
    expected = [
        linear.int8_linear(x, weights[i % 3], scales[i % 3], Tiling(64, 64, 128))
        for i, x in enumerate(tokens)
    ]
    linear.int8_linear(tokens[0], weights[0], scales[0])  # compiled before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = [linear.int8_linear(x, weights[i % 3], scales[i % 3]) for i, x in enumerate(tokens)]
    for _ in range(3):
        for value in out:
            value.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(value, wanted) for value, wanted in zip(out, expected, strict=True))


def test_counters_are_kept_and_grow(device):
    kept = {}
    first = counters(kept, "a", 8, torch.device(device))
    first += 1
    assert counters(kept, "a", 5, torch.device(device)) is first
    assert counters(kept, "b", 5, torch.device(device)).tolist() == [0] * 5
    assert counters(kept, "a", 9, torch.device(device)).tolist() == [0] * 9


@pytest.mark.gpu
def test_counters_of_a_capture_are_its_own():
    """Only a replay would set them to zero, and the next product may come before one."""
    kept, graph = {}, torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        counters(kept, "a", 8, torch.device("cuda"))
    assert not kept


@pytest.mark.parametrize("bits", [4, 8])
def test_one_token(device, draw, bits):
    x = draw(1, 136).cpu()
    values, scale = quantized(draw, 21, 136, bits=bits)
    weight = stored(values, bits)
    expected = linear_reference.int8_linear(x, weight, scale)
    assert torch.equal(one_token(*(t.to(device) for t in (x, weight, scale))).cpu(), expected)


def test_tokens_are_rounded_as_everywhere(device, draw):
    x = draw(6, 50).cpu() * torch.logspace(-12, 6, 6).unsqueeze(1)
    x[2] = 0.0
    values, scale = quantize(x.to(device))
    expected, expected_scale = quantize_tokens(x)
    assert torch.equal(values.cpu(), expected) and torch.equal(scale.cpu(), expected_scale)


@pytest.mark.parametrize(
    "bits, M, K, idle", [(4, 1, 2, ()), (4, 7, 2, (0, 3)), (8, 7, 2, (0, 3)), (4, 19, 3, (4,))]
)
def test_experts_kernel(device, draw, bits, M, K, idle):
    arguments = layer(draw, M, 24, 20, 6, K, bits, idle)
    expected = experts_reference.w4a8_experts(*arguments)
    assert torch.equal(experts.w4a8_experts(*(t.to(device) for t in arguments)).cpu(), expected)


def test_experts_kernel_in_parts_and_unlike_tiles(device, draw):
    arguments = layer(draw, 9, 72, 68, 3, 2)
    expected = experts_reference.w4a8_experts(*arguments)
    tilings = Tiling(32, 16, 32, 2), Tiling(16, 32, 32, 2)
    value = experts.w4a8_experts(*(t.to(device) for t in arguments), tilings=tilings)
    assert torch.equal(value.cpu(), expected)


def test_many_choices_are_sorted_alike(device, monkeypatch):
    index = torch.rand(23, 9, generator=torch.Generator().manual_seed(3)).topk(4, -1).indices.to(device)
    groups, place = experts.route(index, 9, 16)
    monkeypatch.setattr(experts, "COUNTED", 0)
    sorted_groups, sorted_place = experts.route(index, 9, 16)
    assert torch.equal(place, sorted_place)
    for field in ("source_A", "expert_T", "stop_E"):
        assert torch.equal(getattr(groups, field), getattr(sorted_groups, field)), field
    rows = index.flatten()[groups.source_A.long()]
    assert torch.equal(rows, index.flatten().sort().values)


@pytest.mark.parametrize("bits", [4, 8])
def test_experts_reference_is_near_the_float_layer(draw, error, bits):
    """Against float64 of the rounded weights the difference is that of int8 tokens alone."""
    x, index, weight, gate_up, gate_up_scale, down, down_scale = layer(draw, 11, 64, 48, 5, 2, bits)
    value = experts_reference.w4a8_experts(x, index, weight, gate_up, gate_up_scale, down, down_scale)
    if bits == 4:
        gate_up, down = linear_reference.unpack_int4(gate_up), linear_reference.unpack_int4(down)
    wide = dequantize(gate_up, gate_up_scale).double(), dequantize(down, down_scale).double()
    assert error(value, routed_experts(x.double(), index, weight.double(), *wide)) < 0.03


def test_a_token_does_not_depend_on_its_batch(draw):
    arguments = layer(draw, 13, 40, 32, 5, 2)
    whole = experts_reference.w4a8_experts(*arguments)
    for m in range(13):
        alone = [t[m : m + 1] for t in arguments[:3]]
        assert torch.equal(experts_reference.w4a8_experts(*alone, *arguments[3:])[0], whole[m])


def test_swiglu_is_silu_times_up(draw, error):
    hidden = torch.cat([draw(50, 40).cpu() * 5, torch.tensor([[-200.0, 0.0, 90.0, 1e-20] * 10])])
    gate, up = hidden.double().chunk(2, -1)
    assert error(experts_reference.swiglu(hidden), torch.nn.functional.silu(gate) * up) < 2e-7
