"""gk.lora: add LoRA or DoRA adapters to the layers of a model, and freeze its other parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.model_inputs import ordered_inputs
from graphkit.ir.names import Names
from graphkit.ir.origin import titled
from graphkit.ir.subgraph import inline
from graphkit.model import Model
from graphkit.signatures import typed
from graphkit.text import listed
from graphkit.train.adapter_marks import FROZEN_BY, LORA, has_adapters
from graphkit.train.adapters.adapter import Adapter
from graphkit.train.adapters.bodies import replace_nodes
from graphkit.train.adapters.layers import Layer, leaves_of, select_layers
from graphkit.train.adapters.settings import Lora
from graphkit.train.selection import matching

# `evaluated` computes arrays in groups of at most this many bytes.
_BATCH = 1 << 28


@typed("gk.lora")
def lora(
    model: Model,
    *,
    rank: int = 8,
    alpha: float = 16.0,
    layers: str | Sequence[str] = "*",
    dropout: float = 0.0,
    dora: bool = False,
    rslora: bool = False,
    train: str | Sequence[str] = (),
    seed: int | None = None,
) -> Model:
    """Return a model with LoRA or DoRA adapters, whose other parameters are frozen.

    The new model computes the same outputs, because B starts at 0. It shares the arrays of the other parameters with
    `model`. Weights may be quantised: a layer may read the result of DequantizeLinear, or of any other operators on
    parameters and constants. For float16 and bfloat16 layers, the adapter is float32.

    If several nodes apply the same weight, they share one adapter. Other nodes that read the weight, such as an
    embedding, read it without the adapter. Layers in the bodies of If, Loop and Scan get adapters like others; all
    iterations of a loop use the same adapter.

    Args:
        model: Any model.
        rank: The number of rows of A and of columns of B, see `gk.settings.Lora`.
        alpha: The scaling is alpha / rank.
        layers: Names of layers or glob patterns (default: all MatMul, Gemm and Conv with weights).
        dropout: Probability that the adapter's input is set to 0 in training.
        dora: Also train the length of each row of the weight (DoRA).
        rslora: Make the scaling alpha / sqrt(rank).
        train: Names or glob patterns of parameters that are trained as well, such as those of a new last layer. Layers
            whose weight is one of them get no adapter.
        seed: Seed of the initial values of A, uniform in +-1 / sqrt(inputs) (default: GRAPHKIT_SEED).

    Raises:
        UsageError: A pattern matches no layer that can have an adapter, for example because the layer is a grouped
            convolution; two layers have the same name; or the model has adapters already.
    """
    settings = Lora(rank=rank, alpha=alpha, layers=layers, dropout=dropout, dora=dora, rslora=rslora)
    return adapted(model, settings, (train,) if isinstance(train, str) else train, seed=seed)


def adapted(
    model: Model,
    settings: Lora,
    train: Sequence[str] = (),
    *,
    seed: int | None = None,
    owner: str = "gk.lora",
) -> Model:
    check_without_adapters(model, owner)
    graph = model.graph
    trained = _trained(graph, train, owner)
    selected = [x for x in select_layers(graph, settings.layers, owner) if trained.isdisjoint(leaves_of(x.weight))]
    if not selected:
        raise UsageError(
            f"{owner}: the weights of all layers that match layers= are trained (train=); choose other layers"
        )
    names = Names(graph.input_names)
    adapters = {layer.name: Adapter.of(layer, settings, names) for layer in selected}
    frozen = {
        v: v.like(name=graph.name_of(v), attrs={**v.attrs, "trainable": False, FROZEN_BY: LORA})
        for v in graph.inputs
        if v.role == "parameter" and v not in trained and v.attrs.get("trainable", True)
    }
    parts = {node: adapters[layer.name] for layer in selected for node in layer.nodes}
    needs = _needs(graph, selected, adapters, frozen)

    def replace(node: Node, operands: Sequence[Value | None], values: Sequence[Value]) -> Sequence[Value]:
        adapter = parts[node].inside(values)
        return (adapter.added_to(node.rebuilt(operands), values[2] if len(values) > 2 else None),)

    new = [v for adapter in adapters.values() for v in adapter.parameters]
    result = replace_nodes(graph, needs, replace, inputs=frozen, extra_inputs=new).replace(
        meta={**graph.meta, LORA: settings.to_text()}, output_names=graph.output_names
    )
    params = {**model.params.entries(), **_magnitudes(model, selected, adapters)}
    return Model.from_graph(result, params, seed=seed)


def check_without_adapters(model: Model, owner: str) -> None:
    if has_adapters(model.graph):
        raise UsageError(
            f"{owner}: {titled(model.graph, 'model')} has adapters already; merge them into its weights "
            "(gk.merge_lora), or use the model without adapters"
        )


def _needs(
    graph: Graph, layers: Sequence[Layer], adapters: Mapping[str, Adapter], inputs: Mapping[Value, Value]
) -> dict[Node, Sequence[Value]]:
    """Return the values that the layers' nodes read: A, B, and in a body the gain of DoRA.

    The gain is computed outside of loops, because it does not change between iterations. inputs: replacements of graph
    inputs.
    """
    found: dict[Node, Sequence[Value]] = {}
    outermost = set(graph.nodes)
    for layer in layers:
        adapter, gain = adapters[layer.name], []
        if adapter.magnitude is not None and not outermost.issuperset(layer.nodes):
            leaves = ordered_inputs([layer.weight])
            gain = [adapter.gain(inline(Graph(leaves, [layer.weight]), [inputs.get(v, v) for v in leaves])[0])]
        for node in layer.nodes:
            found[node] = (adapter.a, adapter.b, *(() if node in outermost else gain))
    return found


def _trained(graph: Graph, patterns: Sequence[str], owner: str) -> set[Value]:
    """Return the float parameters that match a pattern."""
    names = {graph.name_of(v): v for v in graph.inputs if v.role == "parameter" and v.dtype.is_float}
    found: set[Value] = set()
    for pattern in patterns:
        selected = matching([pattern], names)
        if not selected:
            raise UsageError(
                f"{owner}: train pattern {pattern!r} matches no parameter; there are {listed(names, len(names), 20)}"
            )
        found.update(names[n] for n in selected)
    return found


def _magnitudes(model: Model, layers: Sequence[Layer], adapters: Mapping[str, Adapter]) -> dict[str, np.ndarray]:
    lengths = {}
    for layer in layers:
        adapter = adapters[layer.name]
        if adapter.magnitude is not None:
            lengths[adapter.magnitude.name] = adapter.lengths(adapter.wide(layer.weight))
    return dict(zip(lengths, evaluated(model, list(lengths.values())), strict=True))


def evaluated(model: Model, values: Sequence[Value]) -> Iterator[np.ndarray]:
    """Yield the arrays of values that depend only on parameters and constants.

    Only one group of at most _BATCH bytes is in memory.
    """
    batch: list[Value] = []
    size = 0
    for value in values:
        nbytes = math.prod(value.tensor.static_shape) * value.dtype.numpy.itemsize
        if batch and size + nbytes > _BATCH:
            yield from _arrays(model, batch)
            batch, size = [], 0
        batch.append(value)
        size += nbytes
    if batch:
        yield from _arrays(model, batch)


def _arrays(model: Model, values: Sequence[Value]) -> list[np.ndarray]:
    graph = Graph(ordered_inputs(values), values, output_names=[str(i) for i in range(len(values))])
    params = {graph.name_of(v): model.params.entry(model.graph.name_of(v)) for v in graph.inputs}
    return list(Model.from_graph(graph, params).run({}).values())
