"""Inferred types, compared with the results of the reference: with known sizes, and with symbolic dimensions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from cases import each_case

import graphkit as gk
from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.errors import GraphkitError, TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import DimExpr
from graphkit.ir.graph import Graph
from graphkit.ir.types import INTEGERS, DType, MapType, OptionalType, SequenceType, TensorType, Type, dtype_of
from graphkit.ops import F, Op, registry
from graphkit.ops.evaluate import evaluate
from graphkit.ops.linalg.matmul import Gemm

# The size of their results depends on values, whatever is known about shapes.
DATA_DEPENDENT = frozenset(
    {
        "CastMap",
        "Compress",
        "If",
        "ImageDecoder",
        "Loop",
        "NonMaxSuppression",
        "NonZero",
        "RowSparseAllReduceWait",
        "Scan",
        "StringNormalizer",
        "StringSplit",
        "Tokenizer",
        "Unique",
    }
)
# Of what is read out of a fed sequence, the types of all elements say as much as they have in common.
OUT_OF_SEQUENCES = frozenset({"ConcatFromSequence", "OptionalGetElement", "SequenceAt", "SequenceElementSizes"})

CASES = [
    make_case(cls, number, dtype)
    for cls in registry
    for number, sample in enumerate(samples_of(cls))
    for dtype in dtypes_of(cls, sample)[:1]
]


def python_type(dtype: DType) -> type:
    """Return the Python type of an element of a map."""
    return str if dtype is DType.STRING else int if dtype in INTEGERS else float


def check_type(inferred: Type, result: Any, bindings: dict[str, int], *, exact: bool) -> None:
    """The inferred type covers the array; `exact`: every dimension is an integer."""
    if isinstance(inferred, OptionalType):
        if result is not None:
            check_type(inferred.element, result, bindings, exact=False)
        return
    if isinstance(inferred, SequenceType):
        assert isinstance(result, list)
        if inferred.length is not None:
            length = dims.substitute(inferred.length, bindings)
            assert isinstance(length, DimExpr) or length == len(result)
        for item in result:
            check_type(inferred.element, item, bindings, exact=False)
        return
    if isinstance(inferred, MapType):
        assert isinstance(result, dict)
        assert isinstance(inferred.element, TensorType)
        assert {type(key) for key in result} <= {python_type(inferred.key)}
        assert {type(item) for item in result.values()} <= {python_type(inferred.element.dtype)}
        return
    array = np.asarray(result)
    assert dtype_of(array.dtype) is inferred.dtype
    if inferred.shape is None:
        assert not exact, "the rank is not inferred"
        return
    assert len(inferred.shape) == array.ndim, f"inferred {inferred}, returned shape {array.shape}"
    for axis, (dim, size) in enumerate(zip(inferred.shape, array.shape, strict=True)):
        actual = dims.substitute(dim, bindings)
        if isinstance(actual, DimExpr):
            assert not exact, f"axis {axis} is not inferred: {inferred}"
            assert any(s.startswith("?") for s in actual.symbols), f"{dim} keeps names that are bound"
        else:
            assert actual == size, f"axis {axis}: {dim} stands for {actual}, the array has {size}"
    if inferred.value is not None:
        assert len(inferred.value) == array.size
        for known, element in zip(inferred.value, array.reshape(-1).tolist(), strict=True):
            value = dims.substitute(known, bindings)
            assert isinstance(value, DimExpr) or value == int(element)


def check(case: Case, graph: Graph, results: list[Any], *, exact: bool) -> None:
    for value, result in itertools.zip_longest(graph.outputs, results):
        check_type(value.type, result, case.bindings, exact=exact)


def integers_only(case: Case) -> bool:
    sized = case.arrays[:2] if case.op.name == "OneHot" else case.arrays
    return all(a is not None and a.dtype.kind in "iu" for a in sized)


def is_open(case: Case) -> bool:
    """Whether sizes of results are not inferred although those of the operands are known."""
    if case.op.name in ("Range", "OneHot"):
        # Known elements are integers: a size that is given as a float stays open.
        return not integers_only(case)
    if case.op.name in OUT_OF_SEQUENCES:
        return not case.has_tensors_only
    return case.op.name in DATA_DEPENDENT


@each_case(CASES, group=lambda c: c.op.name[0])
def test_infer(case: Case) -> None:
    graph = case.graph()
    results = evaluate(graph, case.feeds())
    check(case, graph, results, exact=not is_open(case))
    symbolic = case.graph(symbolic=True)
    check(case, symbolic, results, exact=False)


def sizes_fix_outputs(case: Case) -> bool:
    """A Split by sizes has as many outputs as it is given sizes: it cannot be built without knowing how many."""
    return case.op.name == "Split" and len(case.arrays) > 1


@each_case([c for c in CASES if not sizes_fix_outputs(c)], group=lambda c: c.op.name[0])
def test_infer_without_constants(case: Case) -> None:
    """Axes, shapes and indices that are inputs of the graph: less is known, nothing wrong is claimed."""
    results = evaluate(case.graph(), case.feeds())
    check(case, case.graph(all_inputs=True), results, exact=False)
    check(case, case.graph(all_inputs=True, symbolic=True), results, exact=False)


def without_rank(kind: Type | None) -> Type | None:
    if kind is None or isinstance(kind, TensorType):
        return None if kind is None else TensorType(kind.dtype)
    return kind if isinstance(kind, MapType) else type(kind)(without_rank(kind.element))


@each_case(list(registry), group=lambda cls: cls.name[0], name=lambda cls: cls.name)
def test_infer_without_ranks(cls: type[Op]) -> None:
    """Operands of unknown rank: an answer, not an exception."""
    for number, sample in enumerate(samples_of(cls)):
        for dtype in dtypes_of(cls, sample)[:1]:
            case = make_case(cls, number, dtype)
            if sizes_fix_outputs(case):
                continue
            results = evaluate(case.graph(), case.feeds())
            types = case.op.infer_types([without_rank(t) for t in case.types])
            for inferred, result in itertools.zip_longest(types, results):
                check_type(inferred, result, {}, exact=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.attention(*(gk.input(n, (1, 2, 3, 4)) for n in "qkv"), scale=-0.5), "scale=-0.5"),
        (
            lambda: F.col2_im(gk.input("x", (1, 4, 4)), np.array([2, 2]), gk.input("block", (1 << 40,), "int64")),
            "1099511627776 dimensions",
        ),
    ],
)
def test_what_no_attribute_and_no_shape_can_be(call, message):
    with pytest.raises(GraphkitError, match=message):
        call()


@pytest.mark.parametrize("function", [F.sum, F.mean, F.max, F.min])
def test_operands_of_several_dtypes_are_refused(function: Any) -> None:
    x, y = gk.input("x", [3], "float64"), gk.input("y", [3], "float32")
    with pytest.raises(TypeMismatch, match=r"one dtype, not float64\[3\], float32\[3\]"):
        function(x, y)


def test_dtypes_of_operands_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    check = Gemm._check_operands
    monkeypatch.setattr(Gemm, "_accepted", set())
    monkeypatch.setattr(Gemm, "_check_operands", lambda self, types: (checked.append(types), check(self, types))[1])
    single, double = (TensorType(dtype, (2, 2)) for dtype in ("float32", "float64"))
    for _ in range(3):
        assert Gemm().infer_types([single, single]) == (single,)
    assert len(checked) == 1
    for _ in range(2):
        with pytest.raises(TypeMismatch, match="the same element type"):
            Gemm().infer_types([single, double])
    with pytest.raises(TypeMismatch, match="is missing"):
        Gemm().infer_types([single, None])
