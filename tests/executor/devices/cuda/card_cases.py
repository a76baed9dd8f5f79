"""Nodes that have a kernel of the card: of every sample of every operator, and every element type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import graphkit.executor.devices.cuda  # noqa: F401 - registers the kernels
from graphkit.checks.samples import dtypes_of, make_case, samples_of
from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import has_factory, make_launched
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, type_of_array
from graphkit.ops import Op, registry

OPERATORS = [cls for cls in registry if has_factory("cuda", cls.domain, cls.name)]


class CardCase(NamedTuple):
    name: str
    node: Node
    arrays: list[Any]
    kernel: CardKernel


def node_of(op: Op, *arrays: Any) -> Node:
    """A node of an operator on operands of these arrays' types; None: left out."""
    return Node(op, [None if a is None else Value(type_of_array(a)) for a in arrays])


def cases_of(cls: type[Op]) -> Iterator[CardCase]:
    for number, sample in enumerate(samples_of(cls)):
        for dtype in dtypes_of(cls, sample):
            case = make_case(cls, number, dtype)
            arrays = [np.asarray(a) if isinstance(a, np.generic) else a for a in case.arrays]
            if not all(a is None or isinstance(a, np.ndarray) for a in arrays):
                continue
            node = node_of(case.op, *arrays)
            if all(isinstance(v.type, TensorType) and v.tensor.is_static for v in node.outputs):
                kernel = make_launched("cuda", node, KernelContext())
                if kernel is not None:
                    assert isinstance(kernel, CardKernel)
                    yield CardCase(case.name, node, arrays, kernel)
