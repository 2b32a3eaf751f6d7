"""Hadamard matrices, also of sizes that are no powers of two (GLM-5's residual stream: 6144 = 12 x 512), and
the orthogonal matrices made of them.

Base orders come from Paley's two constructions (quadratic residues modulo a prime q): q + 1 for q = 3 mod 4,
and 2 (q + 1) for q = 1 mod 4; Sylvester's doubling does the rest. All float64 on the CPU.
"""

import torch


def hadamard(order: int) -> torch.Tensor:
    """A matrix (order, order) of +-1 with orthogonal rows. ``ValueError`` where none can be built here."""
    base = _base(order)
    if base is None:
        raise ValueError(f"no Hadamard matrix of order {order} is built here; use block_hadamard")
    matrix = _base_matrix(base)
    while matrix.shape[0] < order:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    return matrix


def largest_block(size: int) -> int:
    """The largest order that divides ``size`` and has a matrix here; ``size`` itself where it has one."""
    return max(n for n in range(1, size + 1) if size % n == 0 and _base(n) is not None)


def block_hadamard(size: int, generator: torch.Generator, *, block: int | None = None) -> torch.Tensor:
    """An orthogonal matrix: random signs, then Hadamard matrices of order ``block`` along the diagonal.

    ``block``: divides ``size``; the largest possible unless given.
    """
    block = block or largest_block(size)
    if size % block:
        raise ValueError(f"blocks of {block} do not divide {size}")
    piece = hadamard(block) / block**0.5
    return _signs(size, generator).unsqueeze(1) * torch.block_diag(*[piece] * (size // block))


def shifted_block_hadamard(
    size: int, generator: torch.Generator, *, block: int | None = None
) -> torch.Tensor:
    """Two block Hadamard matrices, the second one's blocks moved on by half a block, so that neighbouring
    blocks mix as well: cheaper to apply than a whole one and nearly as good at spreading.

    ``block``: a quarter of the largest possible unless given; where that is none of 2 or more, the largest.
    """
    if block is None:
        largest = largest_block(size)
        block = largest // 4 if largest % 8 == 0 and _base(largest // 4) is not None else largest
    first = block_hadamard(size, generator, block=block)
    second = block_hadamard(size, generator, block=block).roll((block // 2, block // 2), (0, 1))
    return first @ second


def _signs(size: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 2, (size,), generator=generator).double() * 2 - 1


def _base(order: int) -> int | None:
    """The smallest order with a construction of its own from which doubling leads to ``order``."""
    if order < 1:
        return None
    odd = order
    while odd % 2 == 0:
        odd //= 2
    base = odd
    while base <= order:
        if base == 1 or _paley(base):
            return base
        base *= 2
    return None


def _paley(order: int) -> bool:
    if order % 4:
        return False
    return _is_prime(order - 1) or _second_kind(order)


def _second_kind(order: int) -> bool:
    q = order // 2 - 1
    return _is_prime(q) and q % 4 == 1


def _base_matrix(order: int) -> torch.Tensor:
    if order == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if _is_prime(order - 1):
        # H = 1 + S with S skew, bordered by ones.
        S = torch.zeros(order, order, dtype=torch.float64)
        S[0, 1:], S[1:, 0] = 1.0, -1.0
        S[1:, 1:] = _residues(order - 1)
        return torch.eye(order, dtype=torch.float64) + S
    # H = C (x) [[1, 1], [1, -1]] + 1 (x) [[1, -1], [-1, -1]] with C symmetric, of order q + 1, zero diagonal.
    half = order // 2
    C = torch.zeros(half, half, dtype=torch.float64)
    C[0, 1:], C[1:, 0] = 1.0, 1.0
    C[1:, 1:] = _residues(half - 1)
    plus = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    minus = torch.tensor([[1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
    return torch.kron(C, plus) + torch.kron(torch.eye(half, dtype=torch.float64), minus)


def _residues(q: int) -> torch.Tensor:
    """Jacobsthal's matrix (q, q): 1 where the difference of column and row is a square modulo q, else -1."""
    symbol = -torch.ones(q, dtype=torch.float64)
    symbol[torch.tensor(sorted({x * x % q for x in range(1, q)}))] = 1.0
    symbol[0] = 0.0
    places = torch.arange(q)
    return symbol[(places.unsqueeze(0) - places.unsqueeze(1)) % q]


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))
