"""Many dimensions at once have the same numbers as by substitution; assumptions of inference about names."""

from __future__ import annotations

import random

import pytest
from combinations import in_one_item
from random_dims import random_dim

from graphkit.errors import TypeMismatch
from graphkit.ir import dims, names
from graphkit.ir.dims import Dim, DimExpr, assumptions, evaluate, symbol
from graphkit.ir.sizes import SizeTable, defined_names

NAMES = ("N", "M", "a b", "__import__('os').abort()", "?7", "s", "s[0]")


@in_one_item()
@pytest.mark.parametrize("seed", range(30))
def test_the_same_as_by_substitution(seed: int) -> None:
    rng = random.Random(seed)
    table = SizeTable(NAMES)
    expressions = [random_dim(rng, NAMES) for _ in range(40)]
    places = [table.add(e) for e in expressions]
    for _ in range(5):
        sizes = {name: rng.randrange(0, 20) for name in NAMES}
        try:
            expected = [evaluate(e, sizes) for e in expressions]
        except TypeMismatch:
            with pytest.raises(TypeMismatch):
                table.values(sizes)
            continue
        values = table.values(sizes)
        assert [values[p] for p in places] == expected


def large(n: Dim, m: Dim, layers: int) -> Dim:
    """Return an expression whose text doubles with each layer."""
    x = n
    for _ in range(layers):
        x = dims.dim_max(dims.floordiv(x + 1, 2) + m, dims.mod(x, 7) + n)
    return x


def test_names_of_large_expressions_are_taken_for_these() -> None:
    n, m = symbol("N"), symbol("M")
    x, y = large(n, m, 40), large(m, n, 40)
    product = (x + 1) * (y + 2) * large(n + m, n, 9)  # which is not multiplied out
    assert isinstance(x, DimExpr)
    assert x.symbols.isdisjoint({"N", "M"})
    table = SizeTable(("N", "M"))
    places = [table.add(d) for d in (x, y, product)]
    values = table.values({"N": 4, "M": 0})
    assert [values[p] for p in places] == [
        int(large(4, 0, 40)),
        int(large(0, 4, 40)),
        (int(large(4, 0, 40)) + 1) * (int(large(0, 4, 40)) + 2) * int(large(4, 4, 9)),
    ]
    assert list(defined_names(x.symbols, ["N"])) == []
    assert set(defined_names(x.symbols, ["M", "N"])) >= x.symbols
    # A table may contain such a name itself.
    (name,) = x.symbols
    assert SizeTable((name,)).values({name: 3}) == ()


def test_names_of_somebody_else_are_none_of_ours() -> None:
    """Text may have names like those that sizes get here."""
    fresh = str(dims.fresh())
    later = dims.parse(f"?{int(fresh[1:]) + 1} + 1")
    assert isinstance(later, DimExpr)
    assert dims.fresh().symbols.isdisjoint(later.symbols)  # type: ignore[union-attr]
    x = large(symbol("N"), symbol("M"), 40)
    (name,) = x.symbols  # type: ignore[union-attr]
    assert dims.definition(name) is not None
    for text in (name, f"2*{name} + 1"):
        read = dims.parse(text)
        assert isinstance(read, DimExpr)
        assert not [n for n in read.symbols if dims.definition(n) is not None]


def test_definitions_live_as_long_as_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones are kept, those used last: a model in use keeps its own."""
    dims._anonymous._names.clear()  # those of other tests
    monkeypatch.setattr(names, "_MAX_NAMES", 100)
    n = symbol("N")
    kept = large(n, symbol("M"), 40)
    (name,) = kept.symbols  # type: ignore[union-attr]
    for other in range(150):
        large(symbol("N"), symbol("M"), 40)
        assert isinstance(n * ((1 << 65) + other), DimExpr)  # a factor that is too large
    assert large(n, symbol("M"), 40) == kept
    assert dims.definition(name) is not None
    unused = large(n, symbol("K"), 40)
    for other in range(150, 300):
        assert isinstance(n * ((1 << 65) + other), DimExpr)
    assert dims.definition(*unused.symbols) is None  # type: ignore[union-attr]


def test_names_that_nothing_defines_are_not_known() -> None:
    table = SizeTable(("N",))
    table.add(symbol("N") + dims.fresh())
    with pytest.raises(KeyError):
        table.values({"N": 1})


def test_sizes_that_do_not_broadcast_are_refused() -> None:
    table = SizeTable(("A", "B"))
    place = table.add(dims.broadcast(symbol("A"), symbol("B")))
    assert table.values({"A": 1, "B": 4})[place] == 4
    assert table.values({"A": 3, "B": 3})[place] == 3
    with pytest.raises(TypeMismatch):
        table.values({"A": 3, "B": 4})


def test_a_table_without_names() -> None:
    table = SizeTable(())
    assert table.values({}) == ()


def test_what_is_taken_for_equal_is_recorded() -> None:
    n, m = symbol("N"), symbol("M")
    assert dims.may_equal(n, m)  # not recorded
    with assumptions() as outer:
        dims.may_equal(n, n)
        dims.may_equal(n, 4)
        with assumptions() as inner:
            dims.may_equal(m, 2)
        dims.broadcast(n, 3)
        dims.broadcast(n, 1)
    table = SizeTable(("N", "M"))

    def holds(pairs: list[tuple[Dim, Dim]], **sizes: int) -> bool:
        placed = SizeTable(tuple(sizes))
        places = [(placed.add(a), placed.add(b)) for a, b in pairs]
        try:
            values = placed.values(sizes)
        except TypeMismatch:
            return False
        return all(values[a] == values[b] for a, b in places)

    assert len(outer) == 2
    assert len(inner) == 1
    assert not holds(outer[:1], N=3)
    assert holds(outer[:1], N=4)
    assert holds(inner, M=2)
    assert [holds(outer[1:], N=size) for size in (1, 3, 2)] == [True, True, False]
    assert table.add(n) == 0
