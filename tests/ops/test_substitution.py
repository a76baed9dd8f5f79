"""Operators with `symbolic_inference`: types for sizes follow from symbolic types if the assumptions hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from combinations import full, in_one_item

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
    """Return the types for these sizes; None if an assumption does not hold, or if a size is negative."""
    try:
        if any(evaluate(a, sizes) != evaluate(b, sizes) for a, b in assumed):
            return None
        made = at(types, sizes)
    except TypeMismatch:
        return None
    return None if any(t is not None and min(t.static_shape, default=0) < 0 for t in made) else made


@in_one_item(group=lambda arguments: arguments["cls"].name[0])
@pytest.mark.parametrize("cls", OPERATORS, ids=lambda c: c.name)
@pytest.mark.parametrize("times", [8, full(20)])
def test_types_follow_from_names(cls: type[Op], times: int) -> None:
    rng = np.random.default_rng(0)
    kept = refused = assumes = 0
    for case in [make_case(cls, number) for number in range(len(samples_of(cls)))] * times:
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
    assert kept > times
    assert refused > times // 8 or assumes < 5


def test_some_operators_say_so() -> None:
    assert {"Conv", "MatMul", "FusedConv", "FusedMatMul", "ChannelsLastConv"} <= {cls.name for cls in OPERATORS}


def elements(rng: np.random.Generator, count: int, most: int = 4) -> TensorType:
    """A vector whose elements are numbers and sizes."""
    n, m = symbol("N"), symbol("M")
    choices: list[Dim] = [int(rng.integers(-3, most)), n, m, n - 1, n + m, n - m, 2 * n, (n + 1) // 2]
    return TensorType("int64", [count], [choices[rng.integers(len(choices))] for _ in range(count)])


def scalar(rng: np.random.Generator) -> TensorType:
    return TensorType("int64", [], elements(rng, 1).value)


def sizes(rng: np.random.Generator, rank: int) -> TensorType:
    n, m = symbol("N"), symbol("M")
    choices: list[Dim] = [0, 1, 3, n, m, n + 1, n + m]
    return TensorType("float32", [choices[rng.integers(len(choices))] for _ in range(rank)])


def slice_operands(rng: np.random.Generator) -> Operands:
    x = elements(rng, 3) if rng.random() < 0.3 else sizes(rng, 1)
    steps = TensorType("int64", [1], [int(rng.choice([1, 1, 2, -1, -2]))])
    ends = TensorType("int64", [1], [2**63 - 1]) if rng.random() < 0.2 else elements(rng, 1)
    return [x, elements(rng, 1), ends, TensorType("int64", [1], [0]), steps]


OF_ELEMENTS = {
    "Slice": slice_operands,
    "Expand": lambda rng: [sizes(rng, int(rng.integers(0, 3))), elements(rng, int(rng.integers(0, 3)))],
    "Range": lambda rng: [scalar(rng), scalar(rng), TensorType("int64", [], [int(rng.choice([1, 2, -1, -2]))])],
    "Max": lambda rng: [elements(rng, 2), elements(rng, 2)],
    "Less": lambda rng: [elements(rng, 2), elements(rng, 2)],
    "Clip": lambda rng: [elements(rng, 2), scalar(rng), scalar(rng)],
    "CumSum": lambda rng: [elements(rng, 3), TensorType("int64", [], [0])],
    "GatherND": lambda rng: [elements(rng, 3), TensorType("int64", [2, 1], rng.integers(-3, 3, 2).tolist())],
    "GatherElements": lambda rng: [elements(rng, 3), TensorType("int64", [2], rng.integers(-3, 3, 2).tolist())],
}


@pytest.mark.parametrize("name", OF_ELEMENTS)
def test_types_follow_from_elements(name: str) -> None:
    """Elements of operands that are sizes, too, such as the end of a slice, give the same types as their numbers."""
    rng = np.random.default_rng(0)
    op = registry.get("", name)()
    kept = 0
    for _ in range(300):
        operands = OF_ELEMENTS[name](rng)
        with assumptions() as assumed:
            types = inferred(op, operands)
        if types is None or any(t.shape is None for t in types):
            continue
        dims = [d for t in types for d in (*t.known_shape, *(t.value or ())) if isinstance(d, DimExpr)]
        if not {s for d in dims for s in d.symbols} <= {"N", "M"}:
            continue
        for numbers in ({"N": n, "M": m} for n in range(4) for m in range(4)):
            given, expected = promised(operands, [], numbers), promised(types, assumed, numbers)
            if given is None or expected is None:
                continue
            found = inferred(op, given)
            assert found is not None, (operands, numbers)
            for of_numbers, of_names in zip(found, expected, strict=True):
                assert of_names is not None
                assert of_numbers == of_names, (operands, numbers)
                assert of_names.value in (None, of_numbers.value), (operands, numbers)
            kept += 1
    assert kept > 500
