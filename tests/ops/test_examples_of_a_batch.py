"""Operators whose examples stay apart: a batch computed part by part is the batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.checks.samples import Case, all_cases
from graphkit.errors import GraphkitError
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType, TensorType, dtype_of, type_of_array
from graphkit.ops import F, Op, registry
from graphkit.ops.evaluate import run_node

_BATCH = 3

Arrays = Sequence[np.ndarray | None]


def node_on(op: Op, arrays: Arrays, known: Sequence[bool]) -> Node:
    """The operator on inputs of the arrays' types; `known` operands are constants."""
    values = [
        None if a is None else F.constant(value=a) if k else Value(TensorType(dtype_of(a.dtype), a.shape))
        for a, k in zip(arrays, known, strict=True)
    ]
    return Node(op, values)


def batches(case: Case) -> Iterator[tuple[Arrays, tuple[bool, ...]]]:
    """Yield the sample with some of its operands as batches, of one or several examples."""
    if not case.has_tensors_only:
        return
    rng = np.random.default_rng(0)
    open_to = [
        i
        for i, (a, constant) in enumerate(zip(case.arrays, case.is_constant, strict=True))
        if isinstance(a, np.ndarray) and a.ndim and len(a) and (case.op.pointwise or not constant)
    ]
    for chosen in itertools.chain.from_iterable(itertools.combinations(open_to, n) for n in (1, 2, 3)):
        arrays = list(case.arrays)
        for i in chosen:
            a = arrays[i]
            assert a is not None
            taken = a[rng.integers(0, len(a), _BATCH)]
            scale = rng.uniform(0.5, 1, (_BATCH, *[1] * (a.ndim - 1)))
            arrays[i] = (taken * scale).astype(a.dtype) if a.dtype.kind == "f" else taken
        yield arrays, tuple(i in chosen for i in range(len(arrays)))


def _assert_close(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def apart(op: Op, arrays: Arrays, batched: Sequence[bool], constant: Sequence[bool]) -> bool:
    """Return whether the operator declares examples to be independent. If so, check that they are."""
    known = [c and not b for c, b in zip(constant, batched, strict=True)]
    try:
        whole = node_on(op, arrays, known)
    except GraphkitError:
        return False
    types = [None if v is None else v.tensor for v in whole.inputs]
    if any(not isinstance(v.type, TensorType) or v.shape is None or v.shape[:1] != (_BATCH,) for v in whole.outputs):
        return False
    if op.random or (op.subgraphs() and op.name != "Fused") or not op.is_batchwise(types, batched):
        return False
    expected = run_node(whole, arrays)
    for part in (slice(0, 1), slice(1, _BATCH)):
        some = [a[part] if a is not None and b else a for a, b in zip(arrays, batched, strict=True)]
        for got, wanted in zip(run_node(node_on(op, some, known), some), expected, strict=True):
            same = np.testing.assert_array_equal if wanted.dtype.kind in "OUb" else _assert_close
            same(got, wanted[part])
    return True


@in_one_item(group=lambda arguments: arguments["cls"].name[0])
@pytest.mark.parametrize("cls", list(registry), ids=lambda c: c.name)
def test_parts_are_the_batch(cls: type[Op]) -> None:
    found = 0
    for case in all_cases(cls):
        if case.dtype in (DType.FLOAT32, DType.INT64, DType.BOOL):
            for arrays, batched in batches(case):
                found += apart(case.op, arrays, batched, case.is_constant)
    # If an operator declares itself per example, at least one sample must show it.
    if cls.per_example or cls.pointwise:
        assert found or all(len(case.arrays) == 0 for case in all_cases(cls))


def test_what_networks_for_images_consist_of() -> None:
    image, flat = TensorType("float32", (4, 8, 8, 3)), TensorType("float32", (4, 12))
    axis = [type_of_array(np.array([n])) for n in range(2)]
    weights = TensorType("float32", (12, 5))
    cases: list[tuple[str, dict[str, object], Sequence[TensorType | None], bool]] = [
        ("Transpose", {"perm": (0, 2, 1, 3)}, [image], True),
        ("Transpose", {"perm": (1, 0, 2, 3)}, [image], False),
        ("Transpose", {}, [image], False),
        ("Concat", {"axis": -1}, [image], True),
        ("Concat", {"axis": -4}, [image], False),
        ("Softmax", {"axis": 1}, [flat], True),
        ("Softmax", {"axis": -2}, [flat], False),
        ("ReduceMean", {}, [image, axis[1]], True),
        ("ReduceMean", {}, [image, axis[0]], False),
        ("ReduceMean", {}, [image, None], False),
        ("MatMul", {}, [flat, weights], True),
        ("Gemm", {}, [flat, weights], True),
        ("Gemm", {"transA": True}, [flat, weights], False),
        ("Gemm", {}, [flat, weights, TensorType("float32", (4, 5))], False),
        ("Gemm", {}, [flat, weights, TensorType("float32", (1, 5))], True),
        ("CumSum", {}, [flat, TensorType("int64", ())], False),
    ]
    for name, attributes, types, expected in cases:
        op = registry.get("", name)(**attributes)
        assert op.is_batchwise(types, [True, *[False] * (len(types) - 1)]) is expected, (name, attributes)
    add = registry.get("", "Add")()
    assert add.is_batchwise([image, TensorType("float32", (3,))], [True, False])
    assert add.is_batchwise([image, TensorType("float32", (1, 8, 8, 3))], [True, False])
    assert add.is_batchwise([image, image], [True, True])
    # A batch with another operand of the same size, and a batch at another axis.
    assert not add.is_batchwise([image, image], [True, False])
    assert not add.is_batchwise([TensorType("float32", (4, 4)), TensorType("float32", (4,))], [True, True])
