"""Prepare an imported inference model for training: free its batch size, and turn weights into parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from graphkit.errors import GraphkitError, UsageError, did_you_mean
from graphkit.ir.dims import Dim, DimExpr, parse, product
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.names import Names
from graphkit.ir.origin import titled
from graphkit.ir.types import FLOATS, TensorType
from graphkit.model import Model
from graphkit.ops import constant, operator
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.captures import add_captures
from graphkit.passes.core.sweep import all_nodes, is_control, rewrite

# The operands that are weights, by operator. For BatchNormalization, 3 and 4 are statistics.
_LEARNED = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (1, 2),
    "MatMul": (0, 1),
    "BatchNormalization": (1, 2, 3, 4),
    "InstanceNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "Gather": (0,),
    "GRU": (1, 2, 3),
    "LSTM": (1, 2, 3),
    "RNN": (1, 2, 3),
    "PRelu": (1,),
    "Add": (0, 1),
    "Mul": (0, 1),
}
_STATISTICS = (3, 4)
# Operators whose constant operands may be weights, or fixed numbers such as the 0.5 of GELU.
_ELEMENTWISE = frozenset({"Add", "Mul"})
# Operators that only rearrange, select or cast elements of their first operand (Concat: all operands).
_ARRANGING = frozenset(
    {"Cast", "Concat", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)


def free_batch(model: Model, name: str = "N", axes: Mapping[str, int | None] | None = None) -> Model:
    """Return the model with a symbolic batch size `name`, for a model that was exported for a batch of 1.

    Args:
        model: Any model.
        name: Name of the new symbolic dimension.
        axes: A dict of input name to the axis that counts samples, for inputs where it is not axis 0. With None instead
            of an axis, the input does not change.

    Raises:
        UsageError: The dimension is not 1; an operator fixes the batch size (such as a Reshape to [1, ...]); or the
            results of two samples depend on whether they are in one batch.
    """
    graph = model.graph
    places = _batch_axes(model, axes or {})
    table: dict[Value, Value] = {}
    for value, axis in places.items():
        shape = list(value.tensor.shape or ())
        if axis >= len(shape) or shape[axis] != 1:
            is_free = axis < len(shape) and isinstance(shape[axis], DimExpr)
            raise UsageError(
                f"free_batch (--dynamic-batch): axis {axis} of input {value}, the batch dimension, "
                + ("is dynamic already: leave out free_batch" if is_free else "must have size 1")
            )
        shape[axis] = parse(name)
        table[value] = value.like(type=TensorType(value.dtype, shape), name=graph.name_of(value))

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        return _freed_reshape(node, operands, parse(name)) if node.op.name == "Reshape" and not node.op.domain else None

    try:
        freed = rewrite(graph.replace(updates=()), rule, inputs=table).replace(output_names=graph.output_names)
        for label, new in zip(graph.output_names, freed.outputs, strict=True):
            if parse(name) not in (new.tensor.shape or ()):
                raise UsageError(_lost_batch(label, new, parse(name)))
        result = Model.from_graph(freed, model.params.entries())
        _check_samples_are_separate(model, result, {graph.name_of(v): axis for v, axis in places.items()}, name)
    except GraphkitError as error:
        raise UsageError(f"{titled(graph, 'model')} works only for a batch of 1: {error}") from None
    return result


def _lost_batch(label: str, output: Value, batch: Dim) -> str:
    """Return the error for an output without the batch dimension.

    It names the node nearest to the output that reads a value with this dimension.
    """
    error = f"output {label!r}, {output.tensor}, does not depend on the batch size {batch}"
    pending, seen = deque([output]), {output}
    while pending:
        node = pending.popleft().node
        if node is None:
            continue
        if any(isinstance(v.type, TensorType) and batch in (v.type.shape or ()) for v in node.operands):
            return (
                f"{error}, because {node.describe()} returns a tensor without it. Export the model again with a "
                "dynamic batch dimension, or change this node"
            )
        pending += (new := [v for v in dict.fromkeys(node.operands) if v not in seen])
        seen.update(new)
    return f"{error}, because it does not depend on the inputs"


def _freed_reshape(node: Node, operands: Sequence[Value | None], batch: Dim) -> Sequence[Value] | None:
    """Return a Reshape whose constant target sizes no longer fix the batch size at 1.

    Let p be the product of the input's sizes before its batch axis. The target's batch axis is the first axis i with
    target[i] == 1 and product(target[:i]) == p. Returns None without such an axis, or if constant sizes cannot express
    a symbolic batch size.
    """
    data, target = operands[:2]
    sizes = None if target is None else target.tensor.constants
    shape = None if data is None else data.tensor.shape
    if sizes is None or shape is None or batch not in shape or 0 in sizes:
        return None
    place = shape.index(batch)
    before: Dim = product(shape[:place])
    axis = next((i for i, size in enumerate(sizes) if size == 1 and product(sizes[:i]) == before), None)
    if axis is None or -1 in sizes[:axis]:
        return None
    if axis != place and -1 in sizes:
        # A 0 would copy the size of another axis, because the batch axis has moved. A second -1 is not allowed.
        return None
    new = [(0 if axis == place else -1) if i == axis else size for i, size in enumerate(sizes)]
    return node.rebuilt([data, constant(np.array(new, np.int64))]).outputs


def _batch_axes(model: Model, axes: Mapping[str, int | None]) -> dict[Value, int]:
    for name in axes:
        if name not in model.inputs:
            raise UsageError(f"{titled(model.graph, 'model')} has no input {name!r}{did_you_mean(name, model.inputs)}")
    named = zip(model.inputs, model.data_inputs, strict=True)
    return {v: axis for n, v in named if (axis := axes.get(n, 0)) is not None}


def _check_samples_are_separate(single: Model, freed: Model, axes: Mapping[str, int], name: str) -> None:
    """Run two random samples together and separately. Raise UsageError if the results differ.

    Models with other symbolic dimensions, or inputs that are not floats, are not checked.
    """
    types = [v.tensor for v in single.data_inputs]
    if any(t.dtype not in FLOATS or any(isinstance(d, DimExpr) for d in t.shape or ()) for t in types):
        return
    rng = np.random.default_rng(0)
    pairs = {
        n: rng.standard_normal([2 if axes.get(n) == i else d for i, d in enumerate(t.static_shape)])
        for n, t in zip(single.inputs, types, strict=True)
    }
    pairs = {n: a.astype(t.dtype.numpy) for (n, a), t in zip(pairs.items(), types, strict=True)}
    places = {
        n: (v.tensor.shape or ()).index(parse(name)) for n, v in zip(freed.outputs, freed.graph.outputs, strict=True)
    }
    together = freed.run(pairs)
    for i in range(2):
        alone = single.run({n: a.take([i], axes[n]) if n in axes else a for n, a in pairs.items()})
        for label, array in alone.items():
            scale = max(1.0, float(np.abs(array).max(initial=0)))
            if not np.allclose(together[label].take([i], places[label]), array, rtol=1e-3, atol=1e-3 * scale):
                raise UsageError(f"it mixes the samples of a batch in output {label!r}")


def constants_to_parameters(model: Model, names: Sequence[str] | None = None) -> Model:
    """Turn constant weights into parameters, and constant running statistics into states. Return the new model.

    By default, these floating-point constants count as weights: the weights of convolutions, matrix products, recurrent
    layers, normalisations and embedding tables; the slopes of PRelu; and operands of Add and Mul with more than one
    element. Scalars are left out.

    Constants are also found behind operators that only rearrange them (Unsqueeze, Concat, Slice, ...). Nodes in
    subgraphs of If, Loop and Scan are searched, too.

    Args:
        model: Any model. The returned model shares its parameter arrays.
        names: Turn only these floating-point constants into parameters, by the names of their values. Scalars are
            allowed, such as a temperature. Constants in subgraphs are not allowed.

    Raises:
        UsageError: The model has no such constants.
    """
    graph = model.graph
    roles = _weight_roles(graph) if names is None else _named_roles(graph, names)
    if not roles:
        raise UsageError(f"{titled(graph, 'model')} has no weights among its constants (--constants)")
    taken = Names(graph.input_names)
    stored = {
        v: Value(TensorType(v.dtype, v.shape), taken.take(v.name or role), role=role) for v, role in roles.items()
    }
    opened = _with_inputs(graph, stored)
    arrays = {opened.name_of(new): _array(old) for old, new in stored.items()}
    return Model.from_graph(opened, {**model.params.entries(), **arrays})


def float_constants(graph: Graph) -> dict[str, Value]:
    found = (node.outputs[0] for node in graph.nodes if isinstance(node.op, Constant))
    return {graph.name_of(v): v for v in found if isinstance(v.type, TensorType) and v.dtype in FLOATS}


def _named_roles(graph: Graph, names: Sequence[str]) -> dict[Value, str]:
    known = float_constants(graph)
    for name in names:
        if name not in known:
            raise UsageError(f"{titled(graph, 'model')} has no float constant {name!r}{did_you_mean(name, known)}")
    return {known[name]: "parameter" for name in names}


def _weight_roles(graph: Graph) -> dict[Value, str]:
    roles: dict[Value, str] = {}
    for node in all_nodes(graph):
        for position in _LEARNED.get(node.op.name, ()) if not node.op.domain else ():
            value = node.inputs[position] if position < len(node.inputs) else None
            statistic = node.op.name == "BatchNormalization" and position in _STATISTICS
            for weight in _constants_behind(value):
                if _array(weight).size > 1 or node.op.name not in _ELEMENTWISE:
                    roles[weight] = "state" if statistic and roles.get(weight) != "parameter" else "parameter"
    return roles


def _constants_behind(value: Value | None) -> Iterator[Value]:
    """Yield the floating-point constants whose elements a value contains, possibly rearranged."""
    pending = [value]
    while pending:
        value = pending.pop()
        node = None if value is None else value.node
        if node is None or node.op.domain:
            continue
        if isinstance(node.op, Constant):
            found = node.output
            if isinstance(found.type, TensorType) and found.dtype in FLOATS and found.rank:
                yield found
        elif node.op.name in _ARRANGING:
            pending += node.inputs if node.op.name == "Concat" else node.inputs[:1]


def _with_inputs(graph: Graph, inputs: Mapping[Value, Value]) -> Graph:
    """Return the graph with inputs instead of constants.

    Subgraphs read these inputs, too. inputs: by constant.
    """

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if len(node.outputs) == 1 and node.output in inputs:
            return [inputs[node.output]]
        if not is_control(node):
            return None
        bodies = node.op.subgraphs()
        wanted = [v for v in inputs if any(n.outputs[0] is v for body in bodies.values() for n in all_nodes(body))]
        if not wanted:
            return None
        opened = {k: _with_inputs(g, {v: Value(v.type, v.name) for v in wanted}) for k, g in bodies.items()}
        return add_captures(node, operands, opened, [inputs[v] for v in wanted]).outputs

    return rewrite(graph, rule, extra_inputs=list(inputs.values()))


def _array(value: Value) -> np.ndarray:
    assert value.node is not None
    return operator(value.node, Constant).value.array
