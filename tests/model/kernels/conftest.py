"""The same tests run the kernels on a CUDA card where there is one, elsewhere under Triton's interpreter."""

from collections.abc import Callable

import pytest
import torch


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def dtype(device: str) -> torch.dtype:
    """What the kernels are made for; the interpreter's bfloat16 arithmetic is wrong, so it gets float32."""
    return torch.bfloat16 if device == "cuda" else torch.float32


@pytest.fixture
def bound(device: str) -> float:
    """Largest relative error against float64: bfloat16 operands, or float32 throughout."""
    return 1e-2 if device == "cuda" else 1e-5


@pytest.fixture
def draw(device: str) -> Callable[..., torch.Tensor]:
    """Seeded normal float32 numbers of a shape, fresh at each call."""
    generator = torch.Generator().manual_seed(20260212)
    return lambda *shape: torch.randn(*shape, generator=generator).to(device)


@pytest.fixture
def error() -> Callable[[torch.Tensor, torch.Tensor], float]:
    """Norm of the difference over the norm of the second argument; a NaN gives NaN, which passes no bound."""

    def relative(value: torch.Tensor, expected: torch.Tensor) -> float:
        expected = expected.double()
        return float((value.double() - expected).norm() / expected.norm().clamp(min=1e-30))

    return relative
