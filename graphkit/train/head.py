"""Give a model a new last layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphkit.errors import GraphkitError, UsageError, did_you_mean
from graphkit.frontend import initializers
from graphkit.frontend import layers as nn
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.names import Names
from graphkit.ir.origin import titled
from graphkit.ir.types import TensorType
from graphkit.model import CLASSES, Model
from graphkit.mxnet_io.output_heads import HEADS
from graphkit.ops import F, constant
from graphkit.ops.linalg.matmul import Gemm, MatMul
from graphkit.ops.nn.conv import Conv

# Operators that may follow the last layer: they do not mix classes. The search follows their first operand.
_PASSED = frozenset(
    {"AveragePool", "Cast", "Dropout", "Flatten", "GlobalAveragePool", "GlobalMaxPool", "Identity", "MaxPool",
     "ReduceMean", "Reshape", "Squeeze"}
)  # fmt: skip
# Operators after the last layer that are removed: losses take logits.
_ACTIVATIONS = frozenset(
    {"Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "LogSoftmax", "Mish", "Relu", "Selu", "Sigmoid",
     "Softmax", "Softplus", "Softsign", "Swish", "Tanh"}
)  # fmt: skip
POOLS = ("mean", "first", "none")


@dataclass(frozen=True)
class Head:
    """The last layer: its node, and the operands that depend on the number of classes.

    `axes` maps each operand to its axis of classes; the first operand is the weight. `tail` contains the nodes on the
    path from the layer to the output, in order, each with its operand on this path. Activations are left out.
    """

    node: Node
    axes: dict[Value, int]
    tail: tuple[tuple[Node, Value], ...]

    @property
    def weight(self) -> Value:
        return next(iter(self.axes))

    @property
    def classes(self) -> int:
        count: int = self.weight.tensor.static_shape[self.axes[self.weight]]
        return count


def find_head(graph: Graph, output: Value) -> Head:
    """Return the last Gemm, MatMul or Conv before an output. Raises UsageError if none can be replaced."""
    value = output
    weights = _WeightValues()
    biases: dict[Value, int] = {}
    tail: list[tuple[Node, Value]] = []
    while (node := value.node) is not None and not node.op.domain:
        if isinstance(node.op, (Gemm, MatMul, Conv)):
            axes = _layer_axes(node, weights)
            if axes is None:
                break
            return Head(node, axes | biases, tuple(reversed(tail)))
        if node.op.name in _ACTIVATIONS:
            value = node.operands[0]
            continue
        if node.op.name == "Add":
            bias = next((v for v in node.operands if weights.contains(v)), None)
            if bias is None or not bias.rank:
                break
            biases[bias] = bias.rank - 1
            value = next(v for v in node.operands if v is not bias)
        elif node.op.name in _PASSED:
            value = node.operands[0]
        else:
            break
        tail.append((node, value))
    above = "an input" if value.node is None else value.node.describe()
    raise UsageError(
        f"no layer with parameters to replace at the end of {titled(graph, 'model')}: found {above}. Name the value "
        "that the new head reads: replace_head(..., at=NAME), --head-at NAME"
    )


class _WeightValues:
    def __init__(self) -> None:
        self._known: dict[Value, bool] = {}

    def contains(self, value: Value | None) -> bool:
        if value is None:
            return False
        if value not in self._known:
            nodes = list(topological([value]))
            leaves = [value, *(v for n in nodes for v in n.operands)]
            # Before `bind_rng`, random operators have no operand with random state.
            fixed = all(not getattr(n.op, "random", False) for n in nodes)
            self._known[value] = fixed and all(v.role in ("parameter", "state") for v in leaves if v.node is None)
        return self._known[value]


def _layer_axes(node: Node, weights: _WeightValues) -> dict[Value, int] | None:
    """Return the axis of the classes in weight and bias; None if the layer cannot be replaced."""
    op = node.op
    data, weight, bias = [*node.inputs, None][:3]
    assert weight is not None
    axis = 0
    if isinstance(op, Gemm):
        axis = 0 if op.transB else 1
    elif not isinstance(op, Conv):
        axis, bias = 1, None
    elif op.group != 1:
        return None
    if weights.contains(data) or not weights.contains(weight) or (not isinstance(op, Conv) and weight.rank != 2):
        return None
    if bias is None:
        return {weight: axis}
    if not weights.contains(bias) or not bias.rank:
        return None
    return {weight: axis, bias: bias.rank - 1}


def replace_head(
    model: Model, classes: int, *, seed: int | None = None, output: str | None = None, at: str | None = None,
    pool: str | None = None,
) -> Model:  # fmt: skip
    """Return a model with a new last layer for `classes` logits. The new weights are Glorot uniform, the new biases 0.

    All other layers and their weights are those of `model`. Activations after the layer (Softmax, Sigmoid, Relu, ...)
    are removed, because losses take logits. Parameters keep their names.

    Args:
        model: Any model.
        classes: Number of classes.
        seed: Seed of the new weights (default: GRAPHKIT_SEED).
        output: If the model has several outputs, the one whose layer is replaced. The other outputs stay unchanged.
        at: Name of an internal value. A new layer called `head` reads this value, and its logits become the only
            output.
        pool: With `at`: how to reduce axis T of a sequence [N, T, F], or axes H and W of images [N, F, H, W]. "mean" is
            the default for images. "first" takes the first token of a sequence. "none" gives logits for each position.

    Raises:
        UsageError: The output does not come from a Gemm, MatMul or Conv with parameters, or there is no value `at`.
    """
    if classes < 1:
        raise UsageError(f"a head needs at least one class, not {classes}")
    if pool is not None and pool not in POOLS:
        raise UsageError(f"pool must be {', '.join(map(repr, POOLS[:-1]))} or {POOLS[-1]!r}, not {pool!r}")
    if pool is not None and at is None:
        raise UsageError(f"pool={pool!r} (--head pool={pool}) only works for a head at a value (at=, --head-at)")
    # Drop metadata of the old layer.
    meta = {key: text for key, text in model.graph.meta.items() if key not in (CLASSES, HEADS)}
    if at is not None:
        if output is not None:
            raise UsageError(
                "the logits of a head at a value (at=, --head-at) become the only output: leave out output= "
                "(--output-name)"
            )
        value = _new_layer(model.value(at), at, classes, pool)
        return _with_outputs(model, {"logits": value}, {}, meta, seed)
    graph = model.graph
    name = _chosen_output(graph, output)
    head = find_head(graph, graph.outputs[graph.output_names.index(name)])
    fresh = _fresh(graph, head, classes)
    try:
        operands = [None if v is None else fresh.get(v, v) for v in head.node.inputs]
        value = head.node.rebuilt(operands).outputs[0]
        for node, operand in head.tail:
            table: dict[Value, Value] = {**fresh, operand: value}
            value = _rebuilt(node, [None if v is None else table.get(v, v) for v in node.inputs], head, classes)
    except GraphkitError as error:
        raise UsageError(f"the operators after {head.node.describe()} do not take {classes} classes: {error}") from None
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True)) | {name: value}
    return _with_outputs(model, outputs, {v.name: v for v in fresh.values()}, meta, seed)


def _chosen_output(graph: Graph, output: str | None) -> str:
    names = graph.output_names
    if output is None and len(names) != 1:
        raise UsageError(
            f"the model has several outputs, {', '.join(names)}: choose one for the new head (output=, --output-name), "
            "or put the head on a value (at=, --head-at)"
        )
    if output is not None and output not in names:
        raise UsageError(f"the model has no output {output!r}{did_you_mean(output, names)}")
    return names[0] if output is None else output


def _fresh(graph: Graph, head: Head, classes: int) -> dict[Value, Value]:
    inside = {head.node, *(node for node, _ in head.tail)}
    for old in head.axes:
        inside.update(topological([old]))
    readers = {v for n in graph.nodes if n not in inside for v in n.operands} | set(graph.outputs)
    readers |= {v for pair in graph.updates for v in pair}
    names = Names(graph.name_of(v) for v in graph.inputs if v.role == "data" or v in readers)
    fresh: dict[Value, Value] = {}
    for old, axis in head.axes.items():
        shape = list(old.tensor.static_shape)
        shape[axis] = classes
        roots = [v for v in _leaves(old) if v.role == "parameter"]
        label = graph.name_of(roots[0]) if len(roots) == 1 else graph.name_of(old)
        init = initializers.of("xavier_uniform" if old is head.weight else "zeros").to_dict()
        attrs = {**(roots[0].attrs if len(roots) == 1 else {}), "init": init}
        fresh[old] = Value(TensorType(old.dtype, shape), names.take(label), role="parameter", attrs=attrs)
    return fresh


def _leaves(value: Value) -> Iterator[Value]:
    if value.node is None:
        yield value
    for node in topological([value]):
        yield from (v for v in node.operands if v.node is None)


def _with_outputs(
    model: Model, outputs: dict[str, Value], fresh: dict[str, Value], meta: dict[str, str], seed: int | None
) -> Model:
    """Return a model with these outputs and the inputs that they need. It shares the parameters that it keeps."""
    needed = {v for n in topological(outputs.values()) for v in n.operands if v.node is None}
    needed |= {v for v in outputs.values() if v.node is None}
    graph = model.graph
    made = set(fresh.values())
    kept = [v for v in graph.inputs if v in needed]
    new = [v for v in needed if v not in set(kept) and v.role != "data"]
    inputs = [*kept, *sorted(new, key=lambda v: v.serial)]
    names = {**{v: graph.name_of(v) for v in kept}}
    replaced = Graph(inputs, list(outputs.values()), name=graph.name, output_names=list(outputs), meta=meta)
    params = {
        names[v]: model.params.entry(names[v]) for v in kept if v.role in ("parameter", "state") and v not in made
    }
    return Model.from_graph(replaced, params, seed=seed)


def _new_layer(value: Value, at: str, classes: int, pool: str | None) -> Value:
    kind = value.tensor
    if not kind.dtype.is_float or kind.rank not in (2, 3, 4):
        raise UsageError(f"a head needs a float value [N, F], [N, T, F] or [N, F, H, W]; {at!r} is {kind}")
    if kind.rank == 3 and pool is None:
        raise UsageError(
            f"{at!r} is {kind}, a sequence of features: choose pool='mean', 'first' or 'none' (--head pool=...)"
        )
    if kind.rank == 4 and pool == "first":
        raise UsageError(f"{at!r} is {kind}, an image: pool must be 'mean' or 'none'")
    if kind.rank == 4:
        if pool == "none":
            return nn.conv2d(value, classes, kernel=1, init="xavier_uniform", bias_init="zeros", name="head")
        value = F.flatten(F.global_average_pool(value))
    elif kind.rank == 3 and pool == "first":
        value = F.gather(value, np.int64(0), axis=1)
    elif kind.rank == 3 and pool == "mean":
        value = F.reduce_mean(value, np.array([1]), keepdims=False)
    return nn.linear(value, classes, init="xavier_uniform", bias_init="zeros", name="head")


def _rebuilt(node: Node, operands: list[Value | None], head: Head, classes: int) -> Value:
    if node.op.name == "Reshape" and operands[1] is not None:
        sizes = operands[1].tensor.constants or ()
        if head.classes in sizes:
            if sizes.count(head.classes) > 1:
                raise UsageError(
                    f"{node.describe()}: more than one of its sizes is {head.classes}, so the size that counts "
                    "classes is unknown. Put the new head on a value before this node (at=, --head-at)"
                )
            operands[1] = constant(np.array([classes if s == head.classes else s for s in sizes]))
    return node.rebuilt(operands).outputs[0]
