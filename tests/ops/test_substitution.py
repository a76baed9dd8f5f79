"""Operators that say so: types for sizes follow from those for names by substitution, under recorded assumptions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from graphkit.checks.samples import make_case, samples_of
from graphkit.errors import GraphkitError, TypeMismatch
from graphkit.ir.dims import Dim, DimExpr, assumptions, evaluate, symbol
from graphkit.ir.types import TensorType, dtype_of, type_of_array
from graphkit.ops import Op, registry

OPERATORS = [cls for cls in registry if cls.symbolic_inference]

Operands = Sequence[TensorType | None]


def inferred(op: Op, operands: Operands) -> list[TensorType] | None:
    """The types of the results; None where the operator refuses the operands."""
    try:
        return [t for t in op.infer_types(operands) if isinstance(t, TensorType)]
    except GraphkitError:
        return None


def at(types: Operands, sizes: dict[str, int]) -> list[TensorType | None]:
    return [None if t is None else type_at(t, sizes) for t in types]


def type_at(kind: TensorType, sizes: dict[str, int]) -> TensorType:
    shape = tuple(int(evaluate(d, sizes)) for d in kind.known_shape)
    value = None if kind.value is None else tuple(int(evaluate(d, sizes)) for d in kind.value)
    return TensorType.of_sizes(kind.dtype, shape, value, kind.floats)


def promised(types: Operands, assumed: Sequence[tuple[Dim, Dim]], sizes: dict[str, int]) -> Operands | None:
    """What the types are for these sizes; None where an assumption does not hold, or a size is negative."""
    try:
        if any(evaluate(a, sizes) != evaluate(b, sizes) for a, b in assumed):
            return None
        made = at(types, sizes)
    except TypeMismatch:
        return None
    return None if any(t is not None and min(t.static_shape, default=0) < 0 for t in made) else made


@pytest.mark.parametrize("cls", OPERATORS, ids=lambda c: c.name)
def test_types_follow_from_names(cls: type[Op]) -> None:
    rng = np.random.default_rng(0)
    kept = refused = assumes = 0
    for case in [make_case(cls, number) for number in range(len(samples_of(cls)))] * 20:
        plain: dict[str, int] = {}
        named: list[TensorType | None] = []
        fixed = 1 if rng.random() < 0.5 else None  # most weights have known sizes
        for i, (array, constant) in enumerate(zip(case.arrays, case.is_constant, strict=True)):
            if array is None or (constant and rng.random() < 0.8):
                named.append(None if array is None else type_of_array(array))
                continue
            plain.update({f"d{i}_{axis}": n for axis, n in enumerate(array.shape)})
            dims = [n if i == fixed or rng.random() < 0.3 else symbol(f"d{i}_{a}") for a, n in enumerate(array.shape)]
            named.append(TensorType(dtype_of(array.dtype), dims))
        op = case.op
        with assumptions() as assumed:
            types = inferred(op, named)
        if types is None or any(t.shape is None for t in types):
            continue
        assumes += bool(assumed)
        occurring = {s for t in types for d in t.known_shape if isinstance(d, DimExpr) for s in d.symbols}
        for attempt in range(6 if occurring <= plain.keys() else 0):
            sizes = {s: int(rng.integers(0, 7)) if attempt and rng.random() < 0.4 else n for s, n in plain.items()}
            expected, found = promised(types, assumed, sizes), inferred(op, at(named, sizes))
            if expected is not None:
                assert found == expected, (op, at(named, sizes))
                assert [t.value for t in found] == [t.value for t in expected if t is not None]
                kept += 1
            refused += found is None
    assert kept > 25
    assert refused > 2 or assumes < 5


def test_some_operators_say_so() -> None:
    assert {"Conv", "MatMul", "FusedConv", "FusedMatMul", "ChannelsLastConv"} <= {cls.name for cls in OPERATORS}
