"""The same graph in double precision, so that a numeric derivative has digits left to compare."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import FLOATS, DType, TensorType, Type, dtype_of
from graphkit.ops import Op, operator


def in_float64(graph: Graph) -> Graph:
    """Rebuild `graph` with every float32, float16 or bfloat16 input, constant and element-type attribute as float64."""
    table: dict[Value, Value] = {v: v.like(type=_wide_type(v.type)) for v in graph.inputs}
    with context.detached():
        for node in graph.nodes:
            operands = [None if v is None else table[v] for v in node.inputs]
            attributes = node.op.attributes()
            if node.op.name == "ConstantOfShape" and not node.op.domain and attributes.get("value") is None:
                attributes = {"value": Tensor(np.zeros(1, np.float32))}  # what the standard says where none is given
            changed = {k: new for k, v in attributes.items() if (new := _wide_attribute(v)) is not v}
            op = operator(node, Op)
            rebuilt = Node(
                op.replace(**changed) if changed else op,
                operands,
                node.name,
                node.meta,
                output_names=[v.name for v in node.outputs],
            )
            table.update(zip(node.outputs, rebuilt.outputs, strict=True))
    return graph.replace(
        inputs=[table[v] for v in graph.inputs],
        outputs=[table[v] for v in graph.outputs],
        updates=[(table[s], table[new]) for s, new in graph.updates],
        output_names=graph.output_names,
    )


def widened(array: np.ndarray) -> np.ndarray:
    """A float array as float64; anything else as it is."""
    return array.astype(np.float64) if dtype_of(array.dtype) in FLOATS else array


def widened_value(value: Any) -> Any:
    """Arrays of floats as float64, in sequences and optionals too."""
    if isinstance(value, (list, tuple)):
        return [widened_value(v) for v in value]
    return None if value is None else widened(np.asarray(value))


def _wide_type(type_: Type) -> Type:
    if isinstance(type_, TensorType):
        return TensorType(DType.FLOAT64, type_.shape) if type_.dtype in FLOATS else type_
    return type_.with_element(_wide_type(type_.element))


def _wide_attribute(item: Any) -> Any:
    if isinstance(item, DType):
        return DType.FLOAT64 if item in FLOATS else item
    if isinstance(item, Type):
        return _wide_type(item)
    if isinstance(item, Tensor):
        return Tensor(widened(item.array)) if item.dtype in FLOATS and item.dtype is not DType.FLOAT64 else item
    return in_float64(item) if isinstance(item, Graph) else item
