"""The shapes of a symbol's data inputs. A file does not contain them: they are deduced from the operators that read
an input, and from the shapes of their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from graphkit.ir.dims import Dim, symbol
from graphkit.mxnet_io.attributes import Attributes
from graphkit.mxnet_io.symbol import Symbol, SymbolNode

# Operators whose first operand has the shape of the result.
_SAME_SHAPE = frozenset({
    "Activation", "BatchNorm", "BatchNorm_v1", "BlockGrad", "Cast", "Dropout", "LRN", "LeakyReLU",
    "SoftmaxActivation", "_contrib_quantize", "_contrib_quantize_v2", "_copy", "_contrib_SyncBatchNorm",
    "_div_scalar", "_minus_scalar", "_mul_scalar", "_plus_scalar", "abs", "amp_cast", "broadcast_div",
    "broadcast_mul", "broadcast_sub", "cast", "clip", "identity", "relu", "sigmoid", "tanh",
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

    def __init__(self, graph: Symbol, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """shapes: of the parameters, by name."""
        self._graph = graph
        self._shapes = shapes
        self._readers: dict[int, list[tuple[int, int]]] = {}
        for index, node in enumerate(graph.nodes):
            for position, (source, _) in enumerate(node.inputs):
                self._readers.setdefault(source, []).append((index, position))

    def shape(self, variable: int) -> _Shape | None:
        """Return the shape that the first operator with a rule needs; None if no operator has one."""
        pending, seen = [variable], {variable}
        for source in pending:
            for index, position in self._readers.get(source, ()):
                node = self._graph.nodes[index]
                first = _first(node)
                rule = _RULES.get((first.op, position))
                found = None if rule is None else rule(Attributes(first.attributes), self._weight(node))
                if found is not None:
                    return found
                if position == 0 and node.op in _SAME_SHAPE and index not in seen:
                    seen.add(index)
                    pending.append(index)
        return None

    def _weight(self, node: SymbolNode) -> tuple[int, ...] | None:
        """Return the shape of a node's second operand, if it is a parameter."""
        if len(node.inputs) < 2:
            return None
        return self._shapes.get(self._graph.nodes[node.inputs[1][0]].name)


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
