"""The algebra of dimensions against integers: random expressions, random bindings."""

from __future__ import annotations

import random

import pytest
from combinations import in_one_item

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr, symbol

# Names as ONNX files have them: any string.
NAMES = ("N", "M", "?3", "seq len", "what?", "lambda", "2*N", "min", "it's", "a,b", "True", "é")


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def random_pair(rng: random.Random, depth: int, bindings: dict[str, int]) -> tuple[Dim, int]:
    """Return a random expression, and its value by integer arithmetic."""
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.3:
            number = rng.randint(0, 9)
            return number, number
        name = rng.choice(NAMES)
        return symbol(name), bindings[name]
    a, x = random_pair(rng, depth - 1, bindings)
    b, y = random_pair(rng, depth - 1, bindings)
    divisor, size = rng.choice([(k, k) for k in (1, 2, 3, 4)] + [(symbol("N"), bindings["N"])])
    return {
        "add": lambda: (a + b, x + y),
        "sub": lambda: (a - b, x - y),
        "mul": lambda: (a * b, x * y),
        "floordiv": lambda: (dims.floordiv(a, divisor), x // size),
        "ceildiv": lambda: (dims.ceildiv(a, divisor), ceildiv(x, size)),
        "mod": lambda: (dims.mod(a, divisor), x % size),
        "min": lambda: (dims.dim_min(a, b), min(x, y)),
        "max": lambda: (dims.dim_max(a, b), max(x, y)),
    }[rng.choice(["add", "sub", "mul", "floordiv", "ceildiv", "mod", "min", "max"])]()


def cases(count: int) -> list[tuple[Dim, int, dict[str, int]]]:
    found = []
    for seed in range(count):
        rng = random.Random(seed)
        bindings = {name: rng.randint(1, 12) for name in NAMES}
        found.append((*random_pair(rng, 3, bindings), bindings))
    return found


CASES = cases(3000)


def test_evaluation_is_integer_arithmetic() -> None:
    for dim, expected, bindings in CASES:
        assert dims.evaluate(dim, bindings) == expected, f"{dim} with {bindings}"


def test_partial_substitution_changes_nothing() -> None:
    for dim, expected, bindings in CASES:
        some = {k: v for k, v in bindings.items() if k in ("N", "seq len", "min")}
        assert dims.evaluate(dims.substitute(dim, some), bindings) == expected, str(dim)


def test_text_reads_back() -> None:
    for dim, _, _ in CASES:
        assert dims.parse(str(dim)) == dim, str(dim)


def test_equal_expressions_have_one_form() -> None:
    n, m = symbol("N"), symbol("M")
    assert n + n == 2 * n
    assert (4 * n) // 2 == 2 * n
    assert n - n == 0
    assert (n + m) * (n - m) == n * n - m * m
    assert hash(n + m) == hash(m + n)
    assert dims.dim_max(n, m) == dims.dim_max(m, n)
    assert dims.dim_max(n, n + 1) == n + 1
    assert dims.dim_min(n, n + 1) == n
    assert dims.floordiv(n * m, m) == n
    assert dims.mod(6 * n + 5, 3) == 2
    assert dims.ceildiv(n, 1) == n


def test_broadcast() -> None:
    n, m = symbol("N"), symbol("M")
    assert dims.broadcast(n, 1) == n
    assert dims.broadcast(1, 1) == 1
    assert dims.broadcast(n, 4) == 4
    assert dims.broadcast(n, n) == n
    assert dims.broadcast(n, m) == dims.broadcast(m, n)
    joint = dims.broadcast(n, m)
    for a, b in ((1, 5), (5, 1), (5, 5)):
        assert dims.evaluate(joint, {"N": a, "M": b}) == 5
    with pytest.raises(TypeMismatch, match="2 and 3"):
        dims.broadcast(2, n, 3)
    with pytest.raises(TypeMismatch):
        dims.evaluate(joint, {"N": 2, "M": 3})


def test_may_equal() -> None:
    n = symbol("N")
    assert dims.may_equal(n, 3)
    assert dims.may_equal(2 * n, n + n)
    assert not dims.may_equal(n, n + 1)
    assert not dims.may_equal(2, 3)


def test_unbound_name_is_named() -> None:
    with pytest.raises(TypeMismatch, match=r"^dimension M \+ N is not known: M not bound$"):
        dims.evaluate(symbol("N") + symbol("M"), {"N": 1})


def test_division_by_zero() -> None:
    with pytest.raises(TypeMismatch, match=r"^division of a dimension by zero$"):
        dims.floordiv(4, 0)
    with pytest.raises(TypeMismatch, match=r"^remainder of a dimension by zero$"):
        dims.mod(4, 0)


def test_fresh_dimensions_differ() -> None:
    a, b = dims.fresh(), dims.fresh()
    assert a != b
    assert dims.parse(str(a)) == a


@in_one_item()
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("N", symbol("N")),
        ("batch size", symbol("batch size")),
        ("7", 7),
        ("2*N + 1", 2 * symbol("N") + 1),
        ("-N", -symbol("N")),
        ("N//2", dims.floordiv(symbol("N"), 2)),
        ("ceildiv(N, 2)", dims.ceildiv(symbol("N"), 2)),
        ("max(N, 3)", dims.dim_max(symbol("N"), 3)),
        ("N**9", symbol("N**9")),
        ("__import__('os')", symbol("__import__('os')")),
        ("unk__12", symbol("unk__12")),
        ("", symbol("")),
        ("(" * 500, symbol("(" * 500)),
    ],
)
def test_parse(text: str, expected: Dim) -> None:
    assert dims.parse(text) == expected


def test_product_of_no_dimensions() -> None:
    assert dims.product(()) == 1
    assert isinstance(dims.product((symbol("N"), 3)), DimExpr)
    assert dims.product((symbol("N"), 0)) == 0


def test_large_expressions_get_a_name() -> None:
    """Each layer would mention the one before twice."""
    grown: list[Dim] = [dims.symbol("N")]
    for _ in range(40):
        grown.append(dims.dim_max(dims.floordiv(grown[-1], 3), dims.ceildiv(grown[-1], 2) - 1))
    assert max(len(str(d)) for d in grown) < 2000
    assert grown[3] == dims.dim_max(dims.floordiv(grown[2], 3), dims.ceildiv(grown[2], 2) - 1)
    # Equal expressions get the same name.
    assert grown[40] == dims.dim_max(dims.floordiv(grown[39], 3), dims.ceildiv(grown[39], 2) - 1)
    assert dims.substitute(grown[3], {"N": 100}) == 11
