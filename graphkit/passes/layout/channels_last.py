"""Layout assignment: run convolutional parts of a graph, and their gradients, with the layout [N, *spatial, C].

Vectors of channels are then contiguous. Convolutions, pools and the pointwise operators between them all use this
layout, so there is never a conversion between two convolutions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.collector import without_gc
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import BYTES, FLOATS, DType, TensorType, Type
from graphkit.named_tuples import NamedTuple
from graphkit.ops import DOMAIN, F, Op, operator, registry
from graphkit.ops._op import number_of
from graphkit.ops.internal.channels_last import to_first, to_last
from graphkit.ops.internal.fused_conv import FusedConv
from graphkit.ops.nn.conv import ConvGradInput, ConvGradWeight, Convolution, ConvTranspose
from graphkit.ops.tensor.layout import Transpose
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import SharedConstants, array_of, first, ints, is_op, permutation, producer
from graphkit.passes.core.sweep import cached_use_counts, is_control, map_bodies, use_counts
from graphkit.passes.layout.standard_order import as_product, is_product, keeps_order

# Most graphs use few of these operators. Their modules are imported only when needed.
if TYPE_CHECKING:
    from graphkit.ops.image.resize import Resize
    from graphkit.ops.math.reduce import Reduction
    from graphkit.ops.nn.norm import BatchNormalization, BatchNormGrad
    from graphkit.ops.nn.pool import MaxPool, Pooling
    from graphkit.ops.nn.softmax import AlongAxis
    from graphkit.ops.tensor.concat import Concat, Split
    from graphkit.ops.tensor.shape import Shape

# Operators on quantised numbers, which `quantised_last` converts.
_INTEGER_CONVOLUTIONS = ("ConvInteger", "QLinearConv")
_QUANTISED = (
    "QLinearAdd", "QLinearMul", "QLinearGlobalAveragePool", "TableLookup", "QuantizeLinear", "DequantizeLinear",
)  # fmt: skip
_CONVOLUTIONS = frozenset(
    {"Conv", "FusedConv", "ConvTranspose", "ConvGradInput", "ConvGradWeight", *_INTEGER_CONVOLUTIONS}
)
# Kernels store an index within the window in one byte, so it may have at most this many elements.
_MOST_ELEMENTS = 256

_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare")


def channels_first(graph: Graph, kinds: Collection[DType] = frozenset({DType.FLOAT32})) -> Node | None:
    """Return a convolution of known rank, of float types in `kinds`, whose channels are not last; None if there is
    none.
    """
    names = {("", "Conv"), ("", "ConvTranspose"), (DOMAIN, "FusedConv")}
    convolutions = (node for node in graph.nodes if (node.op.domain, node.op.name) in names)
    ranked = (node for node in convolutions if not any(map(_unranked, node.operands)))
    found = [node for node in ranked if _is_convolution(node, kinds)]
    if not found:
        return None
    is_returned = _only_returned(graph, use_counts(graph))
    return next((node for node in found if not keeps_order(node, is_returned)), None)


@graph_pass(
    requires=[Property.HALVES_WIDENED, Property.RANKS_KNOWN, Property.CONVOLUTIONS_FUSED, Property.POINTWISE_APART],
    ensures=[Property.CHANNELS_LAST],
    check=channels_first,
    at=_CONVOLUTIONS,
)
def channels_last(
    graph: Graph, *, kinds: Collection[DType] = frozenset({DType.FLOAT32, *BYTES}), filters_last: bool = False
) -> Graph:
    """Convert convolutions and the operators after them to the channels-last layout, with transposes at the borders.

    A channels-last part of the graph begins at convolutions of known rank and of types in `kinds`, and at their
    gradients. Pools, batch normalisation, pointwise operators, concatenations, reductions, resizing and their gradients
    are converted if they read values of this part. Without `filters_last`, convolutions with few channels whose results
    are only outputs of the graph stay as they are. Takes linear time.

    filters_last: Whether the filters of float convolutions have the channels last, too.
    """
    if any(node.op.name in _CONVOLUTIONS or node.op.subgraphs() for node in graph.nodes):
        return _Sweep(graph, kinds, filters_last=filters_last).result()
    return graph


def _is_convolution(node: Node, kinds: Collection[DType]) -> bool:
    """Return whether a convolution has known rank and a float type in `kinds`."""
    x, w = node.operands[:2]
    rank, dtype = x.rank, x.dtype
    return rank is not None and 3 <= rank <= 5 and w.rank == rank and dtype in kinds and dtype in FLOATS


def _only_returned(graph: Graph, uses: Mapping[Value, int]) -> Callable[[Value], bool]:
    """Whether a value is an output of the graph, and nothing else reads it."""
    returned = Counter(graph.outputs)
    return lambda value: 0 < uses[value] == returned[value]


class _Sweep:
    """Builds the new graph. `_standard` and `_last` map old values to new ones with the standard order and channels
    last.

    `_converted_values` contains the old values whose new nodes compute with channels last.
    """

    def __init__(self, graph: Graph, kinds: Collection[DType], *, filters_last: bool):
        self._graph = graph
        self._kinds, self._filters_last = kinds, filters_last
        self._uses = cached_use_counts(graph)
        self._is_returned = _only_returned(graph, self._uses)
        self._standard: dict[Value, Value] = {v: v for v in graph.inputs}
        representatives = {id(v.type): v for v in graph.values}  # one value of each type
        self._has_unranked = any(map(_unranked, representatives.values()))
        # The values that the new graph contains as they are; None for absent operands.
        self._unchanged: set[Value | None] = {None, *graph.inputs}
        self._last: dict[Value, Value] = {}
        self._converted_values: set[Value] = set()
        self._constants = SharedConstants()
        # Needed for gradients: `_pools` maps the indices of a MaxPool to (gradient operator, new indices). `_norms`
        # contains the batch normalisations of each value.
        self._gradients_read = _read_by_pool_gradients(graph)
        self._pools: dict[Value, tuple[Any, Value]] = {}
        self._norms: dict[Value, list[_Norm]] = {}
        # The channels-last operators, by name and number of the operator that they replace.
        self._operators: dict[tuple[str, int], Op] = {}
        # The types with the channels last, by the identity of the graph's types.
        self._types: dict[int, TensorType | None] = {}

    @without_gc
    def result(self) -> Graph:
        graph = self._graph
        with context.detached():
            for node in graph.nodes:
                if not self._converted(node):
                    self._keep(node)
            outputs = [self._standard_order(v) for v in graph.outputs]
            updates = [(state, self._standard_order(new)) for state, new in graph.updates]
        return Graph(
            graph.inputs, outputs, updates, graph.name, output_names=graph.output_names, meta=graph.meta
        )  # fmt: skip

    def _keep(self, node: Node) -> None:
        if self._unchanged.issuperset(node.inputs) and not is_control(node):
            self._unchanged.update(node.outputs)
            self._standard.update(zip(node.outputs, node.outputs, strict=True))
            return
        operands = [None if v is None else self._standard_order(v) for v in node.inputs]
        if is_control(node):
            options: Any = dict(kinds=self._kinds, filters_last=self._filters_last)
            kept = map_bodies(node, operands, partial(channels_last, **options))
        else:
            kept = node.rebuilt(operands)
        self._standard.update(zip(node.outputs, kept.outputs, strict=True))
        if kept is node:
            self._unchanged.update(node.outputs)

    def _standard_order(self, value: Value) -> Value:
        """Return the new value with the standard order of axes."""
        if value not in self._standard:
            moved = self._last[value]
            self._standard[value] = _transposed(moved, to_first(_rank(moved)), value.name)
        return self._standard[value]

    def _channels_last(self, value: Value) -> Value:
        """Return the new value with the channels last."""
        if value not in self._last:
            spread = producer(value, "Expand")
            if spread is not None and _has_equal_ranks(spread):
                # Transpose the smaller tensor before the Expand.
                sizes = F.gather(self._standard_order(spread.operands[1]), ints(*to_last(_rank(value))))
                self._last[value] = F.expand(self._channels_last(first(spread)), sizes)
            else:
                self._last[value] = _transposed(self._standard[value], to_last(_rank(value)))
        return self._last[value]

    def _converted(self, node: Node) -> bool:
        """Convert a node to channels last if possible. Return whether it was converted."""
        is_convolution = node.op.name in _CONVOLUTIONS and node.op.domain in ("", DOMAIN)
        if not is_convolution and self._converted_values.isdisjoint(node.inputs):
            return False
        if not isinstance(node.op, Op) or node.op.subgraphs():
            return False
        if self._has_unranked and any(map(_unranked, node.operands)):
            return False
        results: Sequence[Value] | None = None
        if is_convolution:
            results = self._convolution(node)
        else:
            rule = {"": _RULES, DOMAIN: _GRADIENTS}.get(node.op.domain, {}).get(node.op.name)
            if node.op.name == "Transpose" and not node.op.domain:
                return self._transpose(node)
            if node.op.name == "ControlDependency" and node.op.domain == DOMAIN:
                return self._control_dependency(node)
            if node.op.pointwise and len(node.outputs) == 1:
                results = self._pointwise(node)
            elif rule is not None and (node.op.domain or node.inputs[0] in self._converted_values):
                results = rule(self, node, node.op)
        if results is None:
            return False
        replaced = dict(zip(node.outputs, results, strict=False))
        self._last.update(replaced)
        self._converted_values.update(replaced)
        return True

    def _node(self, node: Node, op: Op, operands: Sequence[Value | None]) -> Sequence[Value]:
        names = [v.name for v in node.outputs]
        return Node(op, operands, node.name, node.meta, output_names=names).outputs

    def _moved(self, node: Node, op: Op, operands: Sequence[Value | None]) -> Sequence[Value]:
        """Return the results of a node that computes those of `node` with the channels last, in the same order.

        Their types are not inferred: they are the types of the old results with the axes moved.
        """
        types = [self._type_last(v.type) for v in node.outputs[: len(op.outputs)]]
        known = [kind for kind in types if kind is not None]
        if len(known) < len(types):
            return self._node(node, op, operands)
        if len(known) == len(node.outputs):
            return node.with_types(operands, known, op, scope=context.current()).outputs
        names = [v.name for v in node.outputs]
        return Node(op, operands, node.name, node.meta, output_names=names, types=known).outputs

    def _type_last(self, kind: Type) -> TensorType | None:
        if id(kind) not in self._types:
            self._types[id(kind)] = _type_last(kind)
        return self._types[id(kind)]

    def _convolution(self, node: Node) -> Sequence[Value] | None:
        if node.op.name in _INTEGER_CONVOLUTIONS:
            from graphkit.passes.layout.quantised_last import channels_last_convolution, is_integer_convolution

            if node.operands[0].dtype not in self._kinds or not is_integer_convolution(node):
                return None
            integers = channels_last_convolution(node, self._channels_last, self._standard_order)
            return self._node(node, integers.op, integers.operands)
        if not _is_convolution(node, self._kinds):
            return None
        if self._is_alone(node) and keeps_order(node, self._is_returned):
            return None
        if self._is_alone(node) and is_product(node):
            given = [None if v is None else self._standard_order(v) for v in node.inputs]
            self._standard[node.output] = as_product(node, given)
            return ()
        op = operator(node, Convolution)
        if isinstance(op, ConvGradInput):
            return self._conv_grad_input(node, op)
        if isinstance(op, ConvGradWeight):
            return self._conv_grad_weight(node, op)
        made = self._operator("ChannelsLastConvTranspose" if isinstance(op, ConvTranspose) else "ChannelsLastConv", op)
        places = [self._channels_last, self._filters, self._standard_order, self._channels_last]
        operands = [None if v is None else place(v) for v, place in zip(node.inputs, places, strict=False)]
        return self._moved(node, made, operands)

    def _is_alone(self, node: Node) -> bool:
        """Return whether neither the operand nor the result of a convolution has the channels last for other nodes."""
        reads_last = node.inputs[0] in self._converted_values
        return not self._filters_last and not reads_last and self._is_returned(node.output)

    def _operator(self, name: str, op: Convolution) -> Op:
        """Return the channels-last operator of this name that corresponds to `op`. Equal convolutions share it."""
        key = name, number_of(op)
        if key not in self._operators:
            fields: dict[str, Any] = {**op.related(), "filters_last": self._filters_last}
            if isinstance(op, ConvTranspose):
                fields |= {"output_padding": op.output_padding, "output_shape": op.output_shape}
            elif isinstance(op, FusedConv):
                fields |= op.epilogue()
            self._operators[key] = registry.get(DOMAIN, name)(**fields)
        return self._operators[key]

    def _filters(self, w: Value) -> Value:
        return self._channels_last(w) if self._filters_last else self._standard_order(w)

    def _pointwise(self, node: Node) -> Sequence[Value] | None:
        given, converted, last = node.inputs, self._converted_values, self._last
        ranks = [None if v is None else v.rank for v in given]
        rank = max([r for v, r in zip(given, ranks, strict=True) if r is not None and v in converted])
        operands: list[Value | None] = []
        for value, own in zip(given, ranks, strict=True):
            if value is None or own == 0:
                operands.append(None if value is None else self._standard_order(value))
            elif own == rank:
                operands.append(last[value] if value in last else self._channels_last(value))
            elif own is not None and own < rank:
                operands.append(self._aligned(value, rank))
            else:
                return None
        return self._moved(node, operator(node, Op), operands)

    def _aligned(self, value: Value, rank: int) -> Value:
        """Return a value of lower rank that broadcasts with values of this rank, with the channels last."""
        standard = self._standard_order(value)
        shape = value.tensor.known_shape
        padded = [1] * (rank - len(shape)) + [d for d in shape if isinstance(d, int)]
        # A vector of channels keeps its order.
        if len(padded) == rank and 0 not in padded and sum(d != 1 for d in padded) <= 1:
            from graphkit.ops.tensor.shape import Reshape

            return Node(Reshape(), (standard, self._constants.ints([padded[i] for i in to_last(rank)]))).output
        return _transposed(F.unsqueeze(standard, ints(*range(rank - len(shape)))), to_last(rank))

    def _transpose(self, node: Node) -> bool:
        """Merge a Transpose with the conversion to the standard order. The result may need no transpose at all."""
        (x,) = node.operands
        order = permutation(node)
        if order is None:
            return False
        placed = to_last(_rank(x))
        joint = tuple(placed.index(axis) for axis in order)
        self._standard[node.output] = _transposed(self._last[x], joint, node.output.name)
        return True

    def _control_dependency(self, node: Node) -> bool:
        """Convert a ControlDependency. Its token may have either layout, because its elements are not read."""
        x, token = node.operands
        op = operator(node, Op)
        seen = self._last[token] if token in self._converted_values else self._standard_order(token)
        if x in self._converted_values:
            self._last[node.output] = self._node(node, op, [self._last[x], seen])[0]
            self._converted_values.add(node.output)
        else:
            self._standard[node.output] = self._node(node, op, [self._standard_order(x), seen])[0]
        return True

    # --- operators that see axes ------------------------------------------------------------------

    def _quantised(self, node: Node, op: Op) -> Sequence[Value] | None:
        from graphkit.passes.layout.quantised_last import channels_last_quantised

        found = channels_last_quantised(node, self._channels_last, self._standard_order)
        return None if found is None else self._node(node, found.op, found.operands)

    def _max_pool(self, node: Node, op: MaxPool) -> Sequence[Value] | None:
        reads_indices = any(self._uses[v] for v in node.outputs[1:])
        return self._pool_with_indices(node, op) if reads_indices else self._pool(node, op)

    def _pool(self, node: Node, op: Pooling) -> Sequence[Value]:
        made = registry.get(DOMAIN, f"ChannelsLast{op.name}")
        fields = {k: v for k, v in op.related().items() if k in made.fields}
        return self._moved(node, made(**fields), [self._channels_last(node.operands[0])])

    def _global_pool(self, node: Node, op: Op) -> Sequence[Value]:
        x = self._channels_last(node.operands[0])
        reduce = F.reduce_mean if op.name == "GlobalAveragePool" else F.reduce_max
        return [reduce(x, ints(*range(1, _rank(x) - 1)), keepdims=True, name=node.name)]

    def _along_axis(self, node: Node, op: Concat | Split | AlongAxis) -> Sequence[Value] | None:
        """Convert operators with an attribute `axis` whose data operands all have the same rank."""
        rank = _rank(node.operands[0])
        if op.name == "Split":
            operands = [self._channels_last(node.operands[0]), *(self._standard_order(v) for v in node.operands[1:])]
        elif any(v.rank != rank for v in node.operands):
            return None
        else:
            operands = [self._channels_last(v) for v in node.operands]
        moved = op.replace(axis=_place(op.axis, rank))
        # A Split of the op's class declares one variadic result.
        return (self._node if op.name == "Split" else self._moved)(node, moved, operands)

    def _reduction(self, node: Node, op: Reduction) -> Sequence[Value] | None:
        x = node.operands[0]
        axes = () if len(node.operands) < 2 else node.operands[1].tensor.constants
        rank = _rank(x)
        if axes == () and not op.noop_with_empty_axes:
            axes = tuple(range(rank))
        if not axes:
            return None
        wanted = {int(a) % rank for a in axes}
        operands = [self._channels_last(x), F.constant(value=ints(*sorted(_place(a, rank) for a in wanted)))]
        if not op.keepdims:
            # If the channels or all spatial axes are reduced, the remaining axes are already in standard order.
            if 1 not in wanted and not wanted >= set(range(2, rank)):
                return None
            results = self._node(node, op, operands)
            self._standard[node.output] = results[0]
            return ()
        return self._node(node, op, operands)

    def _batch_norm(self, node: Node, op: BatchNormalization) -> Sequence[Value] | None:
        if op.training_mode:
            return self._trained_batch_norm(node, op)
        x, *vectors = node.operands
        if any(self._uses[v] for v in node.outputs[1:]) or any(v.dtype is not x.dtype for v in vectors):
            return None
        scale, bias, mean, variance = map(self._standard_order, vectors)
        factor = F.div(scale, F.sqrt(F.add(variance, float(op.epsilon))))
        return [F.add(F.mul(self._channels_last(x), factor), F.sub(bias, F.mul(mean, factor)), name=node.name)]

    def _shape(self, node: Node, op: Shape) -> Sequence[Value]:
        x = self._channels_last(node.operands[0])
        wanted = to_first(_rank(x))[op.start : op.end]
        self._standard[node.output] = F.gather(F.shape(x), ints(*wanted), name=node.name)
        return ()

    def _resize(self, node: Node, op: Resize) -> Sequence[Value] | None:
        x, *settings = node.inputs
        assert x is not None
        rank = _rank(x)
        if op.axes is not None or (settings and settings[0] is not None and settings[0].tensor.shape != (0,)):
            return None
        operands: list[Value | None] = [self._channels_last(x), None]
        for value in settings[1:]:
            array = None if value is None else array_of(self._standard_order(value))
            if value is not None and (array is None or array.size not in (0, rank)):
                return None
            given = array is not None and array.size == rank
            operands.append(F.constant(value=array[list(to_last(rank))]) if given and array is not None else None)
        return self._node(node, op, operands)

    def _with_axes(self, node: Node, op: Op) -> Sequence[Value] | None:
        """Slice and Pad: only the operand that lists axes changes."""
        position = 3
        x, *others = node.inputs
        assert x is not None
        assert others[0] is not None
        rank = _rank(x)
        listed = node.inputs[position] if len(node.inputs) > position else None
        if listed is not None:
            axes = listed.tensor.constants
        else:
            length = others[0].tensor.known_shape[0] if others[0].rank == 1 else None
            count = length if op.name == "Slice" or not isinstance(length, int) else length // 2
            axes = tuple(range(count)) if isinstance(count, int) else None
        if axes is None:
            return None
        kind = np.int32 if listed is not None and listed.dtype is DType.INT32 else others[0].dtype.numpy
        placed = np.array([_place(int(a), rank) for a in axes], kind if op.name == "Slice" else np.int64)
        operands = [self._channels_last(x), *(None if v is None else self._standard_order(v) for v in others)]
        operands += [None] * (position + 1 - len(operands))
        operands[position] = F.constant(value=placed)
        return self._node(node, op, operands)

    # --- training ---------------------------------------------------------------------------------

    def _conv_grad_input(self, node: Node, op: Convolution) -> Sequence[Value]:
        dy, w, x = node.operands
        made = self._operator("ChannelsLastConvGradInput", op)
        return self._moved(node, made, [self._channels_last(dy), self._filters(w), self._channels_last(x)])

    def _conv_grad_weight(self, node: Node, op: Convolution) -> Sequence[Value]:
        x, dy, w = node.operands
        made = self._operator("ChannelsLastConvGradWeight", op)
        (dw,) = self._node(node, made, [self._channels_last(x), self._channels_last(dy), self._filters(w)])
        # Readers of this gradient work on weights, not images: do not convert them.
        (self._last if self._filters_last else self._standard)[node.output] = dw
        return ()

    def _trained_batch_norm(self, node: Node, op: BatchNormalization) -> Sequence[Value] | None:
        x, *vectors = node.operands
        if x.dtype not in self._kinds or any(v.dtype is not x.dtype for v in vectors):
            return None
        made = registry.get(DOMAIN, "ChannelsLastBatchNorm").shared(epsilon=op.epsilon, momentum=op.momentum)
        operands = [self._channels_last(x), *(self._standard_order(v) for v in vectors)]
        names = [v.name for v in node.outputs]
        y, running_mean, running_var, *statistics = Node(
            made, operands, node.name, node.meta, output_names=[*names, "", ""]
        ).outputs
        self._standard.update(zip(node.outputs[1:], (running_mean, running_var), strict=True))
        self._norms.setdefault(x, []).append(_Norm(op.epsilon, vectors[0], (*operands[:3], *statistics)))
        return [y]

    def _batch_norm_grad(self, node: Node, op: BatchNormGrad) -> Sequence[Value] | None:
        dy, x, scale = node.operands
        known = [n.operands for n in self._norms.get(x, ()) if n.epsilon == op.epsilon and n.scale is scale]
        if not known and (x not in self._converted_values or x.dtype is not DType.FLOAT32):
            return None
        operands = known[0] if known else self._with_statistics(self._last[x], self._standard_order(scale), op.epsilon)
        names = [*(v.name for v in node.outputs), ""]
        gradient = registry.get(DOMAIN, "ChannelsLastBatchNormGrad").shared()
        made = Node(gradient, [self._channels_last(dy), *operands], node.name, node.meta, output_names=names)
        self._standard.update(zip(node.outputs[1:], made.outputs[1:3], strict=True))
        return [made.outputs[0]]

    def _with_statistics(self, x: Value, scale: Value, epsilon: float) -> tuple[Value, ...]:
        """Return the operands of the gradient after dy, for an x whose statistics no normalisation has computed."""
        axes = ints(*range(_rank(x) - 1))
        mean = F.reduce_mean(x, axes, keepdims=False)
        centred = F.sub(x, mean)
        spread = F.reduce_mean(F.mul(centred, centred), axes, keepdims=False)
        # Without an activation, the kernel does not read b: pass any vector of the right size.
        return x, scale, scale, mean, F.reciprocal(F.sqrt(F.add(spread, epsilon)))

    def _pool_with_indices(self, node: Node, op: MaxPool) -> Sequence[Value] | None:
        """Convert a MaxPool whose indices are read only by its gradients."""
        indices = node.outputs[1]
        if indices not in self._gradients_read or op.storage_order:
            return None
        if op.kernel_shape is None or math.prod(op.kernel_shape) > _MOST_ELEMENTS:
            return None
        with_indices = registry.get(DOMAIN, "ChannelsLastMaxPoolIndices")
        fields = {k: v for k, v in op.related().items() if k in with_indices.fields}
        operands = [self._channels_last(node.operands[0])]
        made = Node(with_indices(**fields), operands, node.name, node.meta,
                    output_names=[node.outputs[0].name, ""])  # fmt: skip
        self._pools[indices] = (registry.get(DOMAIN, "ChannelsLastMaxPoolGrad")(**fields), made.outputs[1])
        return [made.outputs[0]]

    def _max_pool_grad(self, node: Node, op: Op) -> Sequence[Value] | None:
        dy, indices, x = node.operands
        if indices not in self._pools:
            return None
        made, chosen = self._pools[indices]
        return self._node(node, made, [self._channels_last(dy), chosen, self._channels_last(x)])

    def _reduce_to_shape(self, node: Node, op: Op) -> Sequence[Value] | None:
        x, like = node.operands
        if x not in self._converted_values or like.rank != _rank(x):
            return None
        return self._node(node, op, [self._channels_last(x), self._channels_last(like)])

    def _average_pool_grad(self, node: Node, op: Pooling) -> Sequence[Value] | None:
        dy, x = node.operands
        if x not in self._converted_values:
            return None
        made = registry.get(DOMAIN, "ChannelsLastAveragePoolGrad")(**op.related())
        return self._node(node, made, [self._channels_last(dy), self._channels_last(x)])


class _Norm(NamedTuple):
    """A batch normalisation in training: its scale in the old graph; x, scale, b, mean and deviation in the new one."""

    epsilon: float
    scale: Value
    operands: tuple[Value, ...]


_Rule = Callable[[_Sweep, Node, Any], Sequence[Value] | None]

_RULES: dict[str, _Rule] = {
    "MaxPool": _Sweep._max_pool,
    "AveragePool": _Sweep._pool,
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool"), _Sweep._global_pool),
    **dict.fromkeys(("Concat", "Split", "Softmax", "LogSoftmax"), _Sweep._along_axis),
    **dict.fromkeys(_REDUCTIONS, _Sweep._reduction),
    **dict.fromkeys(("Slice", "Pad"), _Sweep._with_axes),
    "BatchNormalization": _Sweep._batch_norm,
    "Resize": _Sweep._resize,
    "Shape": _Sweep._shape,
    **dict.fromkeys(_QUANTISED, _Sweep._quantised),
}

# Rules for graphkit's own operators. They apply if any operand has its channels last.
_GRADIENTS: dict[str, _Rule] = {
    "BatchNormGrad": _Sweep._batch_norm_grad,
    "MaxPoolGrad": _Sweep._max_pool_grad,
    "AveragePoolGrad": _Sweep._average_pool_grad,
    "ReduceToShapeOf": _Sweep._reduce_to_shape,
    **dict.fromkeys(_QUANTISED, _Sweep._quantised),
}


def _has_equal_ranks(expand: Node) -> bool:
    """Return whether operand, target shape and result of an Expand have the same rank."""
    x, target = expand.operands
    return x.rank is not None and x.rank == expand.output.rank and target.tensor.shape == (x.rank,)


def _read_by_pool_gradients(graph: Graph) -> set[Value]:
    """Return the MaxPool indices that are read only by gradients of the same MaxPool."""
    if "MaxPoolGrad" not in graph.operators:
        return set()
    found: set[Value] = set()
    elsewhere = {*graph.outputs, *(new for _, new in graph.updates)}
    for node in graph.nodes:
        pool = producer(node.operands[1], "MaxPool") if is_op(node, "MaxPoolGrad", domain=DOMAIN) else None
        if pool is not None and first(pool) is node.operands[2]:
            found.add(node.operands[1])
            elsewhere.update((node.operands[0], node.operands[2]))
        else:
            elsewhere.update(node.operands)
    return found - elsewhere


def _type_last(kind: Type) -> TensorType | None:
    """Return the type with the channels last; None if it contains more than an element type and a shape."""
    if not isinstance(kind, TensorType) or kind.shape is None or kind.value is not None or kind.floats is not None:
        return None
    shape = kind.shape
    return TensorType(kind.dtype, (shape[0], *shape[2:], shape[1])) if len(shape) > 1 else None


def _unranked(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape is None


def _rank(value: Value) -> int:
    rank = value.rank
    assert rank is not None
    return rank


def _place(axis: int, rank: int) -> int:
    """Return the position of an axis when the channels are last."""
    return to_last(rank).index(axis % rank)


def _transposed(value: Value, order: Sequence[int], name: str = "") -> Value:
    if tuple(order) == tuple(range(len(order))):
        return value
    return Node(Transpose(perm=order), (value,), output_names=[name]).output
