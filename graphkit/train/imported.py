"""What a file that was written for inference lacks for training: a free batch, and weights that are parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import GraphkitError, UsageError
from graphkit.ir.dims import DimExpr, parse
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.subgraph import inline
from graphkit.ir.types import FLOATS, TensorType
from graphkit.model import Model
from graphkit.ops.constants import Constant
from graphkit.passes._base import rewrite

# Operands that layers learn, by position; those of BatchNormalization from 3 on are its statistics.
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


def free_batch(model: Model, name: str = "N") -> Model:
    """The model with `name` in place of a first dimension of 1 of every input, so that it takes batches of any size.

    Raises UsageError when an input has another first dimension, when the operators in between fix the batch (a
    Reshape to [1, ...]), or when two samples in a batch give anything else than each alone.
    """
    graph = model.graph
    table: dict[Value, Value] = {}
    for value in model.data_inputs:
        shape = value.tensor.shape
        if not shape or shape[0] != 1:
            raise UsageError(f"input {value} has no first dimension of 1 that could be freed")
        table[value] = value.like(type=TensorType(value.dtype, [parse(name), *shape[1:]]), name=graph.name_of(value))
    inputs = [table.get(v, v) for v in graph.inputs]
    try:
        outputs = inline(graph.replace(updates=()), inputs)
    except GraphkitError as error:
        raise UsageError(f"model {graph.name!r} works for a batch of 1 alone: {error}") from None
    for label, old, new in zip(graph.output_names, graph.outputs, outputs, strict=True):
        if not new.tensor.shape or new.tensor.shape[0] != parse(name):
            raise UsageError(
                f"model {graph.name!r} works for a batch of 1 alone: with {name} its output {label!r} is {new.tensor}, "
                f"after {old.tensor}"
            )
    freed = Graph(inputs, outputs, name=graph.name, output_names=graph.output_names, meta=graph.meta)
    result = Model.from_graph(freed, dict(model.params))
    _check_samples_are_separate(model, result)
    return result


def _check_samples_are_separate(single: Model, freed: Model) -> None:
    """Run two random samples together and apart, where the other dimensions are fixed and the inputs are floats."""
    types = [v.tensor for v in single.data_inputs]
    if any(t.dtype not in FLOATS or any(isinstance(d, DimExpr) for d in t.shape or ()) for t in types):
        return
    rng = np.random.default_rng(0)
    pairs = {
        n: rng.standard_normal((2, *t.static_shape[1:])).astype(t.dtype.numpy)
        for n, t in zip(single.inputs, types, strict=True)
    }
    together = freed.run(pairs)
    for i in range(2):
        alone = single.run({n: a[i : i + 1] for n, a in pairs.items()})
        for name, array in alone.items():
            scale = max(1.0, float(np.abs(array).max(initial=0)))
            if not np.allclose(together[name][i : i + 1], array, rtol=1e-3, atol=1e-3 * scale):
                raise UsageError(f"model {single.name!r} mixes the samples of a batch in output {name!r}")


def constants_to_parameters(model: Model) -> Model:
    """The model with the weights that its file has as Constant nodes made parameters (statistics: states).

    These are floating-point constants of more than one element, with at least one axis, that layers learn: weights of
    convolutions, products, recurrent layers, normalisations, tables, and operands of Add and Mul. Raises
    UsageError when there are none.
    """
    graph = model.graph
    roles: dict[Value, str] = {}
    for node in graph.nodes:
        for position in _LEARNED.get(node.op.name, ()) if not node.op.domain else ():
            value = node.inputs[position] if position < len(node.inputs) else None
            if value is not None and _is_weight(value):
                statistic = node.op.name == "BatchNormalization" and position in _STATISTICS
                roles[value] = "state" if statistic and roles.get(value) != "parameter" else "parameter"
    if not roles:
        raise UsageError(f"model {graph.name!r} has no weights among its constants")
    stored = {v: Value(TensorType(v.dtype, v.shape), graph.name_of(v), role=role) for v, role in roles.items()}

    def rule(node: Node, operands: list[Value | None]) -> Sequence[Value] | None:
        return [stored[node.outputs[0]]] if node.outputs[0] in stored else None

    opened = rewrite(graph, rule, extra_inputs=list(stored.values()))
    arrays = {opened.name_of(new): _array(old) for old, new in stored.items()}
    return Model.from_graph(opened, {**model.params, **arrays})


def _is_weight(value: Value) -> bool:
    if value.node is None or not isinstance(value.node.op, Constant) or not isinstance(value.type, TensorType):
        return False
    array = _array(value)
    return value.dtype in FLOATS and array.ndim > 0 and array.size > 1


def _array(value: Value) -> np.ndarray:
    op: Any = value.node.op if value.node is not None else None
    array: np.ndarray = op.value.array
    return array
