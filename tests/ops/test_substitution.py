"""Operators that say so: types for sizes follow from those for names by substitution, under recorded assumptions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from graphkit.checks.samples import samples_of
from graphkit.errors import GraphkitError, TypeMismatch
from graphkit.ir.dims import Dim, DimExpr, assumptions, evaluate, symbol
from graphkit.ir.types import TensorType
from graphkit.ops import Op, registry

OPERATORS = [cls for cls in registry if cls.substitutes]

Operands = Sequence[TensorType | None]


def shape_of(spec: object) -> tuple[int, ...]:
    return tuple(spec) if isinstance(spec, tuple) else np.shape(spec)  # type: ignore[arg-type]


def inferred(op: Op, operands: Operands) -> list[TensorType] | None:
    """The types of the results; None where the operator refuses the operands."""
    try:
        return [t for t in op.infer_types(operands) if isinstance(t, TensorType)]
    except GraphkitError:
        return None


def at(types: Operands, sizes: dict[str, int]) -> list[TensorType | None]:
    return [
        None if t is None else TensorType(t.dtype, [evaluate(d, sizes) for d in t.known_shape]) for t in types
    ]  # fmt: skip


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
    kept = refused = 0
    for sample in samples_of(cls) * 40:
        op = cls(**sample.attrs)
        plain: dict[str, int] = {}
        named: list[TensorType | None] = []
        fixed = 1 if rng.random() < 0.5 else None  # most weights have known sizes
        for i, spec in enumerate(sample.inputs):
            shape = () if spec is None else shape_of(spec)
            plain.update({f"d{i}_{axis}": n for axis, n in enumerate(shape)})
            dims = [n if i == fixed or rng.random() < 0.3 else symbol(f"d{i}_{axis}") for axis, n in enumerate(shape)]
            named.append(None if spec is None else TensorType("float32", dims))
        with assumptions() as assumed:
            types = inferred(op, named)
        if types is None or any(t.shape is None for t in types):
            continue
        occurring = {s for t in types for d in t.known_shape if isinstance(d, DimExpr) for s in d.symbols}
        for attempt in range(6 if occurring <= plain.keys() else 0):
            sizes = {s: int(rng.integers(0, 7)) if attempt and rng.random() < 0.4 else n for s, n in plain.items()}
            expected, found = promised(types, assumed, sizes), inferred(op, at(named, sizes))
            if expected is not None:
                assert found == expected, (op, at(named, sizes))
                kept += 1
            refused += found is None
    assert kept > 50
    assert refused > 5


def test_some_operators_say_so() -> None:
    assert {"Conv", "MatMul", "FusedConv", "FusedMatMul", "ChannelsLastConv"} <= {cls.name for cls in OPERATORS}
