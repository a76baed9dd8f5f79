"""Convert a graph to double precision, so that numeric derivatives are accurate enough to compare."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.origin import brief
from graphkit.ir.subgraph import inline
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import FLOATS, DType, TensorType, Type, dtype_of
from graphkit.ops import F, Op, operator

# Values of `stash_type` (the element type of statistics) that become float64: float32, float16, bfloat16.
_NARROW_CODES = (1, 10, 16)
_DOUBLE_CODE = 11


def in_float64(graph: Graph, *, narrow: bool = False) -> Graph:
    """Rebuild `graph` with every float32, float16 or bfloat16 input, constant and element-type attribute as float64.

    An operator whose results are float32 for every operand type is expanded, if it can be. `narrow`: an operator that
    does not support float64 keeps its types, between casts. Without `narrow`, such an operator raises TypeMismatch.
    """
    table: dict[Value, Value] = {v: v.like(type=_wide_type(v.type)) for v in graph.inputs}
    with context.detached():
        for node in graph.nodes:
            operands = [None if v is None else table[v] for v in node.inputs]
            table.update(zip(node.outputs, _wide_results(node, operands, narrow), strict=True))
    return graph.replace(
        inputs=[table[v] for v in graph.inputs],
        outputs=[table[v] for v in graph.outputs],
        updates=[(table[s], table[new]) for s, new in graph.updates],
        output_names=graph.output_names,
    )


def narrow_node(inputs: Iterable[Value], outputs: Iterable[Value]) -> Node | None:
    """In a float64 graph, the first node after `inputs` that reads a cast to narrower floats; None if there is none."""
    reached = set(inputs)
    casts: set[Value] = set()
    for node in topological(outputs):
        if casts.intersection(node.operands):
            return node
        if reached.intersection(node.operands):
            reached.update(node.outputs)
            casts.update(v for v in node.outputs if node.op.name == "Cast" and _is_narrow(v.type))
    return None


def _wide_results(node: Node, operands: Sequence[Value | None], narrow: bool) -> Sequence[Value]:
    """The float64 values that replace a node's outputs."""
    op, attributes = operator(node, Op), node.op.attributes()
    if op.name == "ConstantOfShape" and not op.domain and attributes.get("value") is None:
        attributes = {"value": Tensor(np.zeros(1, np.float32))}  # the standard's default
    changed = {k: new for k, v in attributes.items() if (new := _wide_attribute(v, narrow)) is not v}
    if attributes.get("stash_type") in _NARROW_CODES:
        changed["stash_type"] = _DOUBLE_CODE
    names = [v.name for v in node.outputs]
    try:
        made = Node(op.replace(**changed) if changed else op, operands, node.name, node.meta, output_names=names)
    except TypeMismatch:
        if not narrow or not all(v is None or isinstance(v.type, TensorType) for v in node.inputs):
            raise
        pairs = zip(operands, node.inputs, strict=True)
        own = [None if v is None or old is None else _cast(v, old.dtype) for v, old in pairs]
        made = node.rebuilt(own)
    if not any(_is_narrow(v.type) for v in made.outputs):
        return made.outputs
    if op.expand is not None and not op.subgraphs():
        inputs = [None if v is None else v.like() for v in node.inputs]
        with contextlib.suppress(UnsupportedError), context.expanding(node.meta, f"the expansion of {brief(node)}"):
            found = op.expand(*inputs)
            results = found if isinstance(found, tuple) else (found,)
            expansion = Graph([v for v in inputs if v is not None], results)
            return inline(in_float64(expansion, narrow=narrow), [v for v in operands if v is not None])
    return [_cast(v, DType.FLOAT64) if _is_narrow(v.type) else v for v in made.outputs]


def widened(array: np.ndarray) -> np.ndarray:
    """A float array as float64; anything else as it is."""
    return array.astype(np.float64) if dtype_of(array.dtype) in FLOATS else array


def widened_value(value: Any) -> Any:
    """Arrays of floats as float64, in sequences and optionals too."""
    if isinstance(value, (list, tuple)):
        return [widened_value(v) for v in value]
    return None if value is None else widened(np.asarray(value))


def _is_narrow(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype in FLOATS and type_.dtype is not DType.FLOAT64


def _cast(value: Value, dtype: DType) -> Value:
    made: Value = value if value.dtype is dtype else F.cast(value, to=dtype)
    return made


def _wide_type(type_: Type) -> Type:
    if isinstance(type_, TensorType):
        return TensorType(DType.FLOAT64, type_.shape) if type_.dtype in FLOATS else type_
    return type_.with_element(_wide_type(type_.element))


def _wide_attribute(item: Any, narrow: bool) -> Any:
    if isinstance(item, DType):
        return DType.FLOAT64 if item in FLOATS else item
    if isinstance(item, Type):
        return _wide_type(item)
    if isinstance(item, Tensor):
        return Tensor(widened(item.array)) if item.dtype in FLOATS and item.dtype is not DType.FLOAT64 else item
    return in_float64(item, narrow=narrow) if isinstance(item, Graph) else item
