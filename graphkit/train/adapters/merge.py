from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphkit.errors import InvalidModel, UsageError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.names import Names
from graphkit.ir.origin import titled
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F
from graphkit.ops.nn.conv import Conv
from graphkit.passes.core.match import first, is_op, permutation, producer
from graphkit.passes.core.sweep import rewrite
from graphkit.signatures import typed
from graphkit.train.adapter_marks import FROZEN_BY, LORA, frozen_parameters, has_adapters
from graphkit.train.adapters.adapter import MAGNITUDE, A, Adapter, B
from graphkit.train.adapters.bodies import replace_nodes, scopes
from graphkit.train.adapters.layers import KINDS, Layer
from graphkit.train.adapters.lora import evaluated
from graphkit.train.adapters.settings import Lora


def settings_of(model: Model, owner: str) -> Lora:
    """Return the settings of the adapters of a model."""
    if not has_adapters(model.graph):
        raise UsageError(f"{owner}: {titled(model.graph, 'model')} has no adapters; gk.lora adds them")
    return Lora.from_text(model.meta[LORA])


def adapters_of(graph: Graph, settings: Lora) -> dict[Node, Adapter]:
    """Return the nodes that add an adapter to a layer, with the adapter.

    Raises InvalidModel if a part of an adapter is missing or does not fit.
    """
    values = {graph.name_of(v): v for v in graph.inputs if v.role == "parameter"}
    found: dict[Node, Adapter] = {}
    for scope in scopes(graph):
        for node in scope.graph.nodes:
            name = node.meta.get(LORA)
            if name is None:
                continue
            base = _base(node)
            adapter = None if base is None else _adapter(base, scope.fixed(base.inputs[1]), name, values, settings)
            if adapter is None:
                raise InvalidModel(
                    f"{titled(graph, 'model')}: the adapter of layer {name!r} is not complete, because the graph was "
                    "changed after gk.lora; use the model as gk.lora made it"
                )
            found[node] = adapter
    return found


def _adapter(
    base: Node, weight: Value | None, name: str, values: Mapping[str, Value], settings: Lora
) -> Adapter | None:
    """Return the adapter of a layer; None if a part is missing or has a wrong shape. weight: in the outermost graph."""
    if weight is None or not weight.tensor.is_static:
        return None
    if weight.rank != 2 and not isinstance(base.op, Conv):
        return None
    layer = Layer(name, (base,), weight, ())
    parts = [values.get(f"{name}.{part}") for part in ((A, B, MAGNITUDE) if settings.dora else (A, B))]
    present = [v for v in parts if v is not None]
    if [v.type for v in present] != [v.type for v in Adapter.of(layer, settings, Names()).parameters]:
        return None
    return Adapter(
        layer, settings.scaling, settings.dropout, present[0], present[1], present[2] if settings.dora else None
    )


def _base(node: Node | None) -> Node | None:
    """Follow first operands from `node` to the first MatMul, Gemm or Conv. None if there is none."""
    current = node
    while current is not None and not is_op(current, *KINDS):
        operand = current.inputs[0] if current.inputs else None
        current = None if operand is None else operand.node
    return current


@typed("gk.merge_lora")
def merge_lora(model: Model) -> Model:
    """Return a model without adapters, in which the weights are W + scaling * B A.

    The result has the nodes that the model had before `gk.lora`. Parameters that `gk.lora` froze can be trained again.
    A quantised weight becomes a float weight. If another node, such as an embedding, reads the same weight, that node
    keeps the old weight, and the layer gets a new parameter.

    With float16 and bfloat16 weights, the sum is rounded to their type, so outputs differ by this rounding.

    Args:
        model: A model with adapters, from `gk.lora`, `gk.load_adapter` or `trainer.net`.

    Raises:
        UsageError: The model has no adapters.
        InvalidModel: The graph was changed after `gk.lora`, so that a part of an adapter is missing.
    """
    graph = model.graph
    adapters = adapters_of(graph, settings_of(model, "gk.merge_lora"))
    by_layer: dict[str, Adapter] = {}
    for adapter in adapters.values():
        by_layer.setdefault(adapter.layer.name, adapter)
    arrays = evaluated(model, [_stored(adapter) for adapter in by_layer.values()])
    weights = {
        layer: _merged(adapter.layer.weight, array)
        for (layer, adapter), array in zip(by_layer.items(), arrays, strict=True)
    }

    def replace(node: Node, operands: Sequence[Value | None], values: Sequence[Value]) -> Sequence[Value]:
        assert operands[0] is not None
        base = _base(operands[0].node)
        assert base is not None
        return base.rebuilt([base.inputs[0], values[0], *base.inputs[2:]]).outputs

    needs = {node: (weights[adapter.layer.name].operand,) for node, adapter in adapters.items()}
    made = replace_nodes(graph, needs, replace, extra_inputs=[w.parameter for w in weights.values()])
    read = {v for node in made.nodes for v in node.operands} | {*made.outputs, *(v for u in made.updates for v in u)}
    inputs = [v for v in graph.inputs if v.role == "data" or v in read]
    table = {
        v: v.like(name=graph.name_of(v), attrs=_unfrozen(v)) for v in frozen_parameters(graph).intersection(inputs)
    }
    table |= _named(graph, inputs, weights)
    meta = {key: text for key, text in graph.meta.items() if key != LORA}
    made = made.replace(inputs=_in_order(graph, inputs, weights), meta=meta)
    result = rewrite(made.replace(output_names=graph.output_names), lambda node, operands: None, inputs=table)
    params = {
        graph.name_of(v): model.params.entry(graph.name_of(v)) for v in inputs if v.role in ("parameter", "state")
    }
    return Model.from_graph(result, params | {table[w.parameter].name: w.array for w in weights.values()})


class _Merged(NamedTuple):
    """The merged weight of a layer.

    Attributes:
        parameter: A new parameter without a name.
        origin: The parameter that it replaces; None if the weight was computed, for example dequantised.
    """

    parameter: Value
    operand: Value
    array: np.ndarray
    origin: Value | None


def _stored(adapter: Adapter) -> Value:
    """Return the merged weight in the layout in which the model stores it."""
    merged = adapter.merged(adapter.layer.weight)
    return merged if _transpose_of(adapter.layer.weight) is None else F.transpose(merged, perm=(1, 0))


def _transpose_of(weight: Value) -> Node | None:
    node = producer(weight, "Transpose")
    return node if node is not None and permutation(node) == (1, 0) and _is_parameter(first(node)) else None


def _merged(weight: Value, array: np.ndarray) -> _Merged:
    transpose = _transpose_of(weight)
    origin = first(transpose) if transpose is not None else weight if _is_parameter(weight) else None
    attrs = {} if origin is None else _unfrozen(origin)
    parameter = Value(TensorType(weight.dtype, array.shape), role="parameter", attrs=attrs)
    return _Merged(parameter, parameter if transpose is None else transpose.rebuilt([parameter]).output, array, origin)


def _is_parameter(value: Value) -> bool:
    return value.node is None and value.role == "parameter"


def _unfrozen(value: Value) -> dict[str, object]:
    frozen = value.attrs.get(FROZEN_BY) == LORA
    return {k: x for k, x in value.attrs.items() if not frozen or k not in ("trainable", FROZEN_BY)}


def _in_order(graph: Graph, kept: Sequence[Value], weights: Mapping[str, _Merged]) -> list[Value]:
    """Return the graph inputs in order.

    Each merged weight replaces its `origin`. If another node still reads `origin`, the merged weight comes after it.
    Weights without `origin` come last.
    """
    found: list[Value] = []
    still_read = set(kept)
    merged: dict[Value | None, list[Value]] = {}
    for weight in weights.values():
        merged.setdefault(weight.origin, []).append(weight.parameter)
    for value in graph.inputs:
        found += [value] if value in still_read else []
        found += merged.get(value, [])
    return [*found, *merged.get(None, [])]


def _named(graph: Graph, kept: Sequence[Value], weights: Mapping[str, _Merged]) -> dict[Value, Value]:
    names = Names(graph.name_of(v) for v in kept)
    still_read = set(kept)
    found = {}
    for layer, weight in weights.items():
        replaces = weight.origin is not None and weight.origin not in still_read
        label = graph.name_of(weight.origin) if replaces and weight.origin is not None else f"{layer}.weight"
        found[weight.parameter] = weight.parameter.like(name=names.take(label))
    return found
