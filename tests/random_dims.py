"""Random expressions of dimensions."""

from __future__ import annotations

import random
from collections.abc import Sequence

from graphkit.ir import dims
from graphkit.ir.dims import Dim, symbol


def random_dim(rng: random.Random, names: Sequence[str], depth: int = 0) -> Dim:
    """Return an expression of these symbols. Divisors may be zero or negative for some of their values."""
    if depth > 3 or rng.random() < 0.3:
        return symbol(rng.choice(names)) if rng.random() < 0.7 else rng.randrange(-3, 9)
    a, b = random_dim(rng, names, depth + 1), random_dim(rng, names, depth + 1)
    divisor = b if b != 0 else 1
    match rng.randrange(8):
        case 0:
            return a + b
        case 1:
            return a - b
        case 2:
            return a * b
        case 3:
            return dims.floordiv(a, divisor)
        case 4:
            return dims.mod(a, divisor)
        case 5:
            return dims.dim_max(a, b)
        case 6:
            return dims.dim_min(a, b)
        case _:
            return dims.ceildiv(a, divisor)
