"""The shapes and element types of a symbol's data inputs. A file does not contain them: they are deduced from the
operators that read an input, and from their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from graphkit.ir.dims import Dim, symbol
from graphkit.ir.types import DType, dtype_of
from graphkit.mxnet_io.attributes import Attributes
from graphkit.mxnet_io.symbol import Symbol, SymbolNode

# Operators whose first operand has the shape of the result.
_SAME_SHAPE = frozenset({
    "Activation", "BatchNorm", "BatchNorm_v1", "BlockGrad", "Cast", "Dropout", "LRN", "LeakyReLU",
    "SoftmaxActivation", "_contrib_quantize", "_contrib_quantize_v2", "_copy", "_contrib_SyncBatchNorm",
    "_div_scalar", "_minus_scalar", "_mul_scalar", "_plus_scalar", "abs", "amp_cast", "broadcast_div",
    "broadcast_mul", "broadcast_sub", "cast", "clip", "identity", "relu", "sigmoid", "tanh",
})  # fmt: skip
# Operators whose first operand has the element type of the result. Those that convert types do not belong here.
_SAME_TYPE = (_SAME_SHAPE - {"Cast", "_contrib_quantize", "_contrib_quantize_v2", "amp_cast", "cast"}) | {
    "Flatten", "Pad", "Pooling", "Reshape", "SwapAxis", "UpSampling", "_contrib_AdaptiveAvgPooling2D",
    "_contrib_BilinearResize2D", "expand_dims", "flatten", "pad", "reshape", "slice_axis", "squeeze", "swapaxes",
    "transpose",
}  # fmt: skip
_JOINING = frozenset({"Concat", "L2Normalization", "_rnn_param_concat", "concat"})
# (operator, position of an operand) whose element type is that of the weight, the second operand. A normalisation
# does not belong here: next to float16 data, its parameters are float32.
_TYPE_OF_WEIGHT = frozenset({
    ("Convolution", 0), ("Convolution_v1", 0), ("Deconvolution", 0), ("FullyConnected", 0), ("RNN", 0), ("RNN", 2),
    ("RNN", 3),
})  # fmt: skip
_FUSED = frozenset({"_sg_mkldnn_conv", "_sg_mkldnn_fully_connected"})
_SPATIAL = {1: ("T",), 2: ("H", "W"), 3: ("D", "H", "W")}
_Shape: TypeAlias = tuple[int | str, ...]


def _image(attributes: Attributes, channels: int | str) -> _Shape | None:
    axes = len(attributes.integers("kernel"))
    if axes not in _SPATIAL or attributes.text("layout", "NC")[:2] != "NC":
        return None
    return ("N", channels, *_SPATIAL[axes])


def _of_convolution(attributes: Attributes, weight: tuple[int, ...] | None) -> _Shape | None:
    channels = "C" if weight is None else weight[1] * attributes.integer("num_group", 1)
    return _image(attributes, channels)


def _of_deconvolution(attributes: Attributes, weight: tuple[int, ...] | None) -> _Shape | None:
    return _image(attributes, "C" if weight is None else weight[0])


def _of_pooling(attributes: Attributes, weight: tuple[int, ...] | None) -> _Shape | None:
    return _image(attributes, "C")


def _of_fully_connected(attributes: Attributes, weight: tuple[int, ...] | None) -> _Shape | None:
    features = "C" if weight is None else weight[1]
    return ("N", features) if attributes.flag("flatten", True) else None


def _of_embedding(attributes: Attributes, weight: tuple[int, ...] | None) -> _Shape | None:
    return ("N", "T")


def _of_rnn(attributes: Attributes, weight: tuple[int, ...] | None) -> _Shape | None:
    return ("T", "N", "C")


def _of_lengths(attributes: Attributes, weight: tuple[int, ...] | None) -> _Shape | None:
    return ("N",)


# (operator, position of an operand) -> its shape, given the attributes and the shape of the weight.
_RULES: dict[tuple[str, int], Callable[[Attributes, tuple[int, ...] | None], _Shape | None]] = {
    ("Convolution", 0): _of_convolution,
    ("Convolution_v1", 0): _of_convolution,
    ("Deconvolution", 0): _of_deconvolution,
    ("Embedding", 0): _of_embedding,
    ("FullyConnected", 0): _of_fully_connected,
    ("Pooling", 0): _of_pooling,
    ("RNN", 0): _of_rnn,
    ("SequenceLast", 1): _of_lengths,
    ("SequenceMask", 1): _of_lengths,
    ("SequenceReverse", 1): _of_lengths,
}


class Readers:
    """Finds the operators that read a value of a symbol."""

    def __init__(self, graph: Symbol, arrays: Mapping[str, Any]) -> None:
        """arrays: the parameters, by name."""
        self._graph = graph
        self._arrays = arrays
        self._readers: dict[int, list[tuple[int, int]]] = {}
        for index, node in enumerate(graph.nodes):
            for position, (source, _) in enumerate(node.inputs):
                self._readers.setdefault(source, []).append((index, position))

    def shape(self, variable: int) -> _Shape | None:
        """Return the shape that the first operator with a rule needs; None if no operator has one."""
        for index, position in self._reached(variable, _SAME_SHAPE):
            node = self._graph.nodes[index]
            first = _first(node)
            rule = _RULES.get((first.op, position))
            weight = self._weight(node)
            shape = None if weight is None else tuple(weight.shape)
            found = None if rule is None else rule(Attributes(first.attributes), shape)
            if found is not None:
                return found
        return None

    def dtype(self, variable: int) -> DType | None:
        """Return the element type of the first weight that the variable is multiplied by; None if there is none."""
        for index, position in self._reached(variable, _SAME_TYPE):
            node = self._graph.nodes[index]
            weight = self._origin(node.inputs[1][0]) if (node.op, position) in _TYPE_OF_WEIGHT else None
            if weight is not None and dtype_of(weight.dtype).is_float:
                return dtype_of(weight.dtype)
        return None

    def _reached(self, variable: int, passing: frozenset[str]) -> Iterator[tuple[int, int]]:
        """Yield the readers of a variable, then those of the results of `passing` operators: (node, position)."""
        pending, seen = [variable], {variable}
        for source in pending:
            for index, position in self._readers.get(source, ()):
                yield index, position
                if position == 0 and self._graph.nodes[index].op in passing and index not in seen:
                    seen.add(index)
                    pending.append(index)

    def _origin(self, index: int) -> Any:
        """Return the parameter that a weight is computed from, such as the parts of a fused RNN's; None if unknown."""
        node = self._graph.nodes[index]
        while node.inputs and node.op in _SAME_TYPE | _JOINING:
            node = self._graph.nodes[node.inputs[0][0]]
        return self._arrays.get(node.name) if node.is_variable else None

    def _weight(self, node: SymbolNode) -> Any:
        """Return the array of a node's second operand, if it is a parameter."""
        if len(node.inputs) < 2:
            return None
        return self._arrays.get(self._graph.nodes[node.inputs[1][0]].name)


def _first(node: SymbolNode) -> SymbolNode:
    """Return the operator that reads a node's operands: of a fused operator, the first one of its subgraph."""
    if node.op not in _FUSED or not node.subgraphs:
        return node
    return next((inner for inner in node.subgraphs[0].nodes if not inner.is_variable), node)


def sizes(name: str, shape: Sequence[int | str | None], prefix: str = "") -> list[Dim]:
    """Return the sizes of an input, with texts as symbols. A size that is None gets a name of its own.

    prefix: put before the names of all sizes but N, the batch.
    """
    named = [f"{name}_{axis}" if size is None else size for axis, size in enumerate(shape)]
    return [size if isinstance(size, int) else symbol(size if size == "N" else prefix + size) for size in named]
