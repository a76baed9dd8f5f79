"""The native table of sizes: the same numbers as by substitution, and errors instead of wrong numbers."""

from __future__ import annotations

import random

import pytest
from combinations import in_one_item
from random_dims import random_dim

from graphkit.errors import TypeMismatch
from graphkit.executor.devices.cpu import native
from graphkit.ir import dims
from graphkit.ir.dims import Dim, evaluate, symbol
from graphkit.ir.sizes import SizeTable

NAMES = ("N", "M", "a b", "?7")
N, M = symbol("N"), symbol("M")
MOST = (1 << 63) - 1


def native_values(expressions: list[Dim], sizes: dict[str, int]) -> list[int]:
    """Return the numbers that the native table computes for expressions."""
    table = SizeTable(tuple(sizes))
    places = [table.add(e) for e in expressions]
    instructions = table.instructions()
    made = native.SizeTable(len(sizes), instructions.steps, instructions.results)
    values = made.values(list(sizes.values()))
    return [values[p] for p in places]


@in_one_item()
@pytest.mark.parametrize("seed", range(60))
def test_values_equal_substitution(seed: int) -> None:
    rng = random.Random(seed)
    expressions = [random_dim(rng, NAMES) for _ in range(20)]
    for _ in range(5):
        sizes = {name: rng.randrange(20) for name in NAMES}
        for expression in expressions:
            try:
                expected = evaluate(expression, sizes)
            except TypeMismatch:
                with pytest.raises(native.Error, match="by zero"):
                    native_values([expression], sizes)
            else:
                assert native_values([expression], sizes) == [expected]


@in_one_item()
@pytest.mark.parametrize("function", [dims.floordiv, dims.ceildiv, dims.mod])
def test_division_rounds_as_in_python(function) -> None:
    expression = function(N, M)
    for a in range(-7, 8):
        for b in (-3, -2, -1, 1, 2, 3):
            assert native_values([expression], {"N": a, "M": b}) == [function(a, b)]
        with pytest.raises(native.Error, match="by zero"):
            native_values([expression], {"N": a, "M": 0})


@in_one_item()
@pytest.mark.parametrize(
    ("expression", "fits", "overflows"),
    [
        (N + M, (MOST - 1, 1), (MOST, 1)),
        (N + M, (-MOST, -1), (-MOST - 1, -1)),
        (N * M, (1 << 31, 1 << 31), (1 << 32, 1 << 31)),
        (N * M, (-(1 << 32), 1 << 31), (-(1 << 32), (1 << 31) + 1)),
        (N - M, (-MOST, 1), (-MOST, 2)),
        (dims.floordiv(N, M), (-MOST, -1), (-MOST - 1, -1)),
        (dims.ceildiv(N, M), (-MOST - 1, 1), (-MOST - 1, -1)),
    ],
)
def test_values_beyond_64_bits_raise(expression: Dim, fits: tuple[int, int], overflows: tuple[int, int]) -> None:
    sizes = dict(zip("NM", fits, strict=True))
    assert native_values([expression], sizes) == [evaluate(expression, sizes)]
    with pytest.raises(native.Error, match="64 bits"):
        native_values([expression], dict(zip("NM", overflows, strict=True)))


def test_constants_beyond_64_bits_raise() -> None:
    assert native_values([dims.dim_min(N, MOST), N + (-MOST - 1)], {"N": 3}) == [3, 3 - MOST - 1]
    with pytest.raises(TypeMismatch, match="64 bits"):
        native_values([dims.dim_min(N, MOST + 1)], {"N": 3})


def test_sizes_that_do_not_broadcast_raise() -> None:
    expression = dims.broadcast(N, M, symbol("K"))
    for sizes, expected in (((1, 1, 1), 1), ((4, 1, 4), 4), ((1, 0, 1), 0), ((1, 1, 5), 5)):
        assert native_values([expression], dict(zip("NMK", sizes, strict=True))) == [expected]
    for sizes in ((3, 4, 1), (0, 2, 1), (3, 1, 2)):
        with pytest.raises(native.Error, match="do not broadcast"):
            native_values([expression], dict(zip("NMK", sizes, strict=True)))


def test_names_of_large_expressions() -> None:
    x: Dim = N
    for _ in range(40):
        x = dims.dim_max(dims.floordiv(x + 1, 2) + M, dims.mod(x, 7) + N)
    product = (x + 1) * (x + M + 2)
    expected = SizeTable(("N", "M"))
    places = [expected.add(d) for d in (x, product)]
    for sizes in ({"N": 4, "M": 0}, {"N": 5, "M": 9}):
        values = expected.values(sizes)
        assert native_values([x, product], sizes) == [values[p] for p in places]


def test_unknown_symbols_raise() -> None:
    with pytest.raises(KeyError, match="K"):
        native_values([symbol("K") + 1], {"N": 1})


def test_instructions_are_checked() -> None:
    for steps, results in (
        ([("add", 0, 0)], [0]),
        ([("symbol", 1, 0)], [0]),
        ([("constant", 5, 0), ("add", 0, -1)], [1]),
        ([("constant", 5, 0)], [1]),
    ):
        with pytest.raises(native.Error, match="unknown operand"):
            native.SizeTable(1, steps, results)
    with pytest.raises(native.Error, match="no operation"):
        native.SizeTable(1, [("power", 0, 0)], [])
    with pytest.raises(native.Error, match="one value for each symbol"):
        native.SizeTable(1, [], []).values([])
