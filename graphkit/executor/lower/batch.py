"""Find graphs whose examples are independent: a large batch can be computed in parts.

The activations of a part fit into the caches, and batches of all sizes share the programs of a few parts.
`graphkit.executor.run.batched_program` runs the parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from graphkit.ir.dims import DimExpr
from graphkit.ir.dims import symbol as symbol_dim
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.sizes import SizeTable
from graphkit.ir.types import TensorType
from graphkit.ops import Op
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.bind import match_shapes
from graphkit.passes.core.match import is_op

# The operands and results of one step, for the examples of a part, should fit into this many bytes: the cache of one
# core.
_CACHED = 8 << 20

# Operators whose target sizes may depend on the batch.
_SIZED = ("Reshape", "Resize")


class Batch:
    """A graph with the examples along axis 0 of all outputs, and of the inputs at the positions `inputs`."""

    def __init__(self, graph: Graph, symbol: str, examples: Collection[Value]):
        self.symbol = symbol
        self.inputs = tuple(i for i, v in enumerate(graph.inputs) if v in examples)
        self._given = [(graph.name_of(graph.inputs[i]), graph.inputs[i].tensor) for i in self.inputs]
        kinds = [v.tensor for v in examples]
        names = {name for kind in kinds for d in kind.known_shape if isinstance(d, DimExpr) for name in d.symbols}
        self._table = SizeTable(sorted(names))
        self._kinds = {
            v: (kind.dtype.itemsize, self._table.add_all(kind.known_shape))
            for v, kind in zip(examples, kinds, strict=True)
        }
        self._steps = [[v for v in (*node.inputs, *node.outputs) if v in self._kinds] for node in graph.nodes]
        self._between = self._kinds.keys() - set(graph.inputs) - set(graph.outputs)
        operands = {v for node in graph.nodes for v in node.operands}
        fixed = {v for v in operands if v.node is None or isinstance(v.node.op, Constant)}
        self._fixed_bytes = sum(v.tensor.nbytes for v in fixed - set(self._kinds) if v.tensor.is_static)

    def part(self, shapes: Mapping[str, Any]) -> tuple[int, int]:
        """Return the numbers of examples (in the batch, in a part) for inputs of these shapes.

        Raises InputError if the shapes contradict each other or the graph.
        """
        name, _ = self._given[0]
        if (first := shapes[name][:1]) and first[0] < 2:
            return first[0], first[0]
        bound = match_shapes([(name, kind, TensorType(kind.dtype, shapes[name])) for name, kind in self._given])
        sizes = {name: size for name, size in bound.items() if isinstance(size, int)}
        whole = sizes[self.symbol]
        if whole < 2 or not sizes.keys() >= set(self._table.symbols):
            return whole, whole
        dims = self._table.values(sizes | {self.symbol: 1})
        one = {v: _bytes(itemsize, (dims[at] for at in places)) for v, (itemsize, places) in self._kinds.items()}
        largest = max((sum(one[v] for v in step) for step in self._steps), default=0)
        if largest * whole <= _CACHED:
            return whole, whole
        # Reading the weights again must cost less than writing and reading values between steps.
        between = 2 * sum(one[v] for v in self._between)
        if between == 0:
            return whole, whole
        return whole, min(whole, max(_CACHED // largest, -(-self._fixed_bytes // between), 1))


def _bytes(itemsize: int, dims: Iterable[int]) -> int:
    for size in dims:
        itemsize *= size
    return itemsize


def batch_of(graph: Graph, fixed: Collection[int]) -> Batch | None:
    """Return the Batch of a graph, in linear time.

    None if examples are not independent, inputs do not share a symbolic first dimension, or the graph has updates.

    All inputs are batched, except those at the positions `fixed`. Only Reshape and Resize may read a batched tensor
    together with a value computed from batched shapes.
    """
    used = {v for node in graph.nodes for v in node.operands} | set(graph.outputs)
    fed = [v for i, v in enumerate(graph.inputs) if i not in fixed and v in used]
    symbol = _symbol(fed)
    others = used.intersection(graph.inputs).difference(fed)
    if symbol is None or graph.updates or any(_mentions(v, symbol) for v in others):
        return None
    examples = dict.fromkeys(fed)
    sized: set[Value] = set()
    for node in graph.nodes:
        reads_examples, reads_sizes = (any(v in group for v in node.operands) for group in (examples, sized))
        results = [v for v in node.outputs if v in used]
        if reads_shapes_alone(node, examples) and (reads_examples or reads_sizes):
            sized.update(results)
        elif reads_examples:
            if not _keeps_separate(node, examples, sized) or not all(_has_examples(v, symbol) for v in results):
                return None
            examples.update(dict.fromkeys(results))
        if any(v not in examples and _mentions(v, symbol) for v in results):
            return None
    if any(v not in examples for v in graph.outputs):
        return None
    return Batch(graph, symbol, examples)


def _symbol(fed: Collection[Value]) -> str | None:
    shapes = [v.type.shape if isinstance(v.type, TensorType) else None for v in fed]
    first = {shape[0] if shape else None for shape in shapes}
    dim = first.pop() if len(first) == 1 else None
    if not isinstance(dim, DimExpr) or len(dim.symbols) != 1:
        return None
    (name,) = dim.symbols
    return name if all(_has_examples(v, name) for v in fed) else None


def _has_examples(value: Value, symbol: str) -> bool:
    """Whether the first dimension is the batch size, and no other dimension depends on it."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    if not shape or shape[0] != symbol_dim(symbol):
        return False
    return not any(isinstance(d, DimExpr) and symbol in d.symbols for d in shape[1:])


def _mentions(value: Value, symbol: str) -> bool:
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return shape is None or any(isinstance(d, DimExpr) and symbol in d.symbols for d in shape)


def reads_shapes_alone(node: Node, examples: Collection[Value]) -> bool:
    """Whether a node reads only the shapes of its operands with examples, not their elements."""
    shape_only = node.op.shape_only if isinstance(node.op, Op) else ()
    if not isinstance(node.op, Op) or node.op.subgraphs():
        return False
    last = len(node.op.formals) - 1
    names = [node.op.formals[min(i, last)].name for i in range(len(node.inputs))]
    return all(v not in examples or n in shape_only for v, n in zip(node.inputs, names, strict=True))


def _keeps_separate(node: Node, examples: Collection[Value], sized: Collection[Value]) -> bool:
    """Whether each example of the results depends only on the same example of the operands."""
    op = node.op
    if not isinstance(op, Op) or op.random or any(v.tensor.shape is None for v in node.operands if _is_tensor(v)):
        return False
    if not all(_is_tensor(v) for v in (*node.operands, *node.outputs)):
        return False
    if any(v in sized for v in node.operands) and not is_op(node, *_SIZED):
        return False
    types = [None if v is None else v.tensor for v in node.inputs]
    return op.is_batchwise(types, [v in examples for v in node.inputs])


def _is_tensor(value: Value) -> bool:
    return isinstance(value.type, TensorType)
