"""A new last layer for a model that was trained on other classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.errors import GraphkitError, UsageError
from graphkit.frontend import initializers
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.subgraph import inline
from graphkit.ir.types import TensorType
from graphkit.model import CLASSES, Model
from graphkit.ops import constant

# Operators after the last layer that keep the classes apart: they are walked through, operand 0 upwards.
_PASSED = frozenset(
    {"AveragePool", "Cast", "Dropout", "Flatten", "GlobalAveragePool", "GlobalMaxPool", "Identity", "MaxPool",
     "ReduceMean", "Relu", "Reshape", "Squeeze"}
)  # fmt: skip
_PROBABILITIES = frozenset({"LogSoftmax", "Sigmoid", "Softmax"})


@dataclass(frozen=True)
class Head:
    """The last layer: its node, the output that is left when probabilities are taken off, and its parameters.

    `axes` has the position of the classes in each parameter that depends on their number; the first is the weight.
    `tail` are the nodes between the layer and the logits, in order, each with the operand that comes from the layer.
    """

    node: Node
    logits: Value
    axes: dict[Value, int]
    tail: tuple[tuple[Node, Value], ...]

    @property
    def weight(self) -> Value:
        return next(iter(self.axes))

    @property
    def classes(self) -> int:
        count: int = self.weight.tensor.static_shape[self.axes[self.weight]]
        return count


def find_head(graph: Graph) -> Head:
    """The last Gemm, MatMul or Conv above the only output; raises UsageError when none can be replaced."""
    if len(graph.outputs) != 1:
        raise UsageError(f"a new head needs a model of one output; this one has {', '.join(graph.output_names)}")
    value = graph.outputs[0]
    if value.node is not None and not value.node.op.domain and value.node.op.name in _PROBABILITIES:
        value = value.node.operands[0]
    logits = value
    offsets: dict[Value, int] = {}
    tail: list[tuple[Node, Value]] = []
    while (node := value.node) is not None and not node.op.domain:
        if node.op.name in ("Gemm", "MatMul", "Conv"):
            axes = _layer_axes(node)
            if axes is None:
                break
            return Head(node, logits, axes | offsets, tuple(reversed(tail)))
        if node.op.name == "Add":
            offset = next((v for v in node.operands if _is_parameter(v)), None)
            if offset is None or not offset.rank:
                break
            offsets[offset] = offset.rank - 1
            value = next(v for v in node.operands if v is not offset)
        elif node.op.name in _PASSED:
            value = node.operands[0]
        else:
            break
        tail.append((node, value))
    above = "an input" if value.node is None else value.node.describe()
    raise UsageError(f"no layer with parameters to replace at the end of model {graph.name!r}: there is {above}")


def _is_parameter(value: Value | None) -> bool:
    return value is not None and value.node is None and value.role == "parameter"


def _layer_axes(node: Node) -> dict[Value, int] | None:
    op: Any = node.op
    _, weight, offset = [*node.inputs, None][:3]
    assert weight is not None
    axis = 0
    if op.name == "MatMul":
        axis, offset = 1, None
        if weight.node is not None and weight.node.op.name == "Transpose":
            axis, weight = 0, weight.node.operands[0]
    elif op.name == "Gemm":
        axis = 0 if op.transB else 1
    elif op.group != 1:
        return None
    if not _is_parameter(weight) or (op.name != "Conv" and weight.rank != 2):
        return None
    if offset is None:
        return {weight: axis}
    if not _is_parameter(offset) or not offset.rank:
        return None
    return {weight: axis, offset: offset.rank - 1}


def replace_head(model: Model, classes: int, *, seed: int | None = None) -> Model:
    """A model whose last layer gives `classes` logits, from fresh weights (Glorot's uniform) and zero offsets.

    Everything else, its values included, is the given model's; a Softmax, LogSoftmax or Sigmoid after the layer is
    taken off, as losses take logits. The parameters keep their names. Raises UsageError when the model does not end in
    a Gemm, MatMul or Conv with parameters of its own.
    """
    if classes < 1:
        raise UsageError(f"a head has at least one class, not {classes}")
    graph = model.graph
    head = find_head(graph)
    new: dict[Value, Value] = {}
    for old, axis in head.axes.items():
        readers = [n for n in graph.nodes if old in n.inputs]
        if len(readers) > 1:
            raise UsageError(f"the last layer shares {graph.name_of(old)!r} with {readers[0].describe()}")
        shape = list(old.tensor.static_shape)
        shape[axis] = classes
        init = "xavier_uniform" if old is head.weight else "zeros"
        attrs = {**old.attrs, "init": initializers.of(init).to_dict()}
        new[old] = old.like(type=TensorType(old.dtype, shape), name=graph.name_of(old), attrs=attrs)
    inputs = [new.get(v, v) for v in graph.inputs]
    try:
        (value,) = inline(graph.replace(outputs=[head.node.output], updates=()), inputs)
        for node, operand in head.tail:
            table: dict[Value, Value] = {**new, operand: value}
            operands = [None if v is None else table.get(v, v) for v in node.inputs]
            value = _rebuilt(node, operands, head, classes)
        # The names in the file are those of the classes before.
        meta = {key: text for key, text in graph.meta.items() if key != CLASSES}
        replaced = Graph(inputs, [value], name=graph.name, output_names=graph.output_names, meta=meta)
    except GraphkitError as error:
        raise UsageError(f"the operators after {head.node.describe()} do not take {classes} classes: {error}") from None
    kept = {name: array for name, array in model.params.items() if graph.find(name) not in new}
    return Model.from_graph(replaced, kept, seed=seed)


def _rebuilt(node: Node, operands: list[Value | None], head: Head, classes: int) -> Value:
    """A node after the layer for the new number of classes, which a Reshape to fixed sizes may name."""
    if node.op.name == "Reshape" and operands[1] is not None:
        sizes = operands[1].tensor.constants or ()
        if head.classes in sizes:
            if sizes.count(head.classes) > 1:
                raise UsageError(f"{node.describe()} keeps {head.classes} classes apart in several sizes")
            operands[1] = constant(np.array([classes if s == head.classes else s for s in sizes]))
    return node.rebuilt(operands).outputs[0]
