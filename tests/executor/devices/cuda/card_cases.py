"""Nodes that have a kernel of the card: of every sample of every operator, and every element type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from graphkit.checks.samples import dtypes_of, make_case, samples_of
from graphkit.errors import GraphkitError
from graphkit.executor.devices import cuda
from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched, rule_of
from graphkit.executor.lower.arrays.body import as_stored
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, dtype_of, type_of_array
from graphkit.ops import Op, registry

OPERATORS = [cls for cls in registry if rule_of("cuda", cls).has_kernels]


def why_not() -> str:
    """Why there is no card, or nothing."""
    try:
        cuda.load()
    except GraphkitError as error:
        return str(error)
    return ""


needs_card = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a card")


# Slices of a sample's element types.
FIRST, OTHERS = slice(1), slice(1, None)


class CardCase(NamedTuple):
    name: str
    node: Node
    arrays: list[Any]
    kernel: CardKernel


def launched(device: Any, case: CardCase) -> list[np.ndarray]:
    """Prepare and run a device's kernel as programs do; return its results."""
    stream = device.stream()
    with device.on(stream):
        fault = device.xp.zeros((1,), np.uint32) if case.kernel.fault else None
        kernel = device.prepare(case.node, case.kernel, fault)
        held = [None if a is None else as_stored(a, device.stored(dtype_of(a.dtype))) for a in case.arrays]
        inputs = [None if a is None else device.copy_in(a) for a in held]
        scratch = device.alloc(case.kernel.scratch_bytes)
        results = [
            device.view(device.alloc(v.tensor.nbytes), 0, v.tensor.static_shape, device.stored(v.dtype))
            for v in case.node.outputs
        ]
        kernel(inputs, results, scratch)
        assert fault is None or not device.copy_out(fault, None).any()
        found = [device.copy_out(y, None) for y in results]
        return [as_stored(y, v.dtype.numpy) for y, v in zip(found, case.node.outputs, strict=True)]


def node_of(op: Op, *arrays: Any) -> Node:
    """A node of an operator on operands of these arrays' types; None: left out."""
    return Node(op, [None if a is None else Value(type_of_array(a)) for a in arrays])


def cases_of(cls: type[Op], types: slice = slice(None)) -> Iterator[CardCase]:
    """Of every way that there is to compute a sample. types: which of the element types that a sample may have."""
    for number, sample in enumerate(samples_of(cls)):
        for dtype in dtypes_of(cls, sample)[types]:
            case = make_case(cls, number, dtype)
            arrays = [np.asarray(a) if isinstance(a, np.generic) else a for a in case.arrays]
            if not all(a is None or isinstance(a, np.ndarray) for a in arrays):
                continue
            node = node_of(case.op, *arrays)
            if all(isinstance(v.type, TensorType) and v.tensor.is_static for v in node.outputs):
                kernel = make_launched("cuda", node, KernelContext())
                if kernel is not None:
                    assert isinstance(kernel, CardKernel)
                    for way in kernel.alternatives:
                        yield CardCase(case.name, node, arrays, way._replace(otherwise=None))
