"""Prove that the rows of a graph are independent, from its operators and types."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from graphkit.executor.lower.batch import reads_shapes_alone
from graphkit.ir.dims import DimExpr, symbol
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType, Type
from graphkit.ops import Op
from graphkit.passes.core.match import is_op

# Operands of recurrent layers: the axis of the rows with layout=0. With layout=1, it is always 0.
_RECURRENT = {"x": 1, "sequence_lens": 0, "initial_h": 1, "initial_c": 1}

# Operators that compute along their attribute `axis`, separately along other axes.
_ALONG_AN_AXIS = ("ArgMax", "ArgMin", "TopK", "Hardmax", "Softmax", "LogSoftmax", "Split")


def rows_are_independent(graph: Graph, rows: str) -> bool:
    """Return whether each row of the outputs provably depends only on the same row of the inputs.

    If False, rows may still be independent. Arguments: see `why_rows_mix`.
    """
    return why_rows_mix(graph, rows) is None


def why_rows_mix(graph: Graph, rows: str) -> str | None:
    """Return a clause that names a node or output that may mix rows, or None.

    Args:
        graph: A data input has the rows if its first dimension is the symbol `rows`. The types of other inputs must not
            contain this symbol. Passes must have removed nodes that only training needs.
    """
    proof = _Proof(graph, rows)
    for node in graph.nodes:
        if not proof.admits(node):
            does = "draws random numbers" if isinstance(node.op, Op) and node.op.random else "may mix rows"
            return f"{node.op.name} {graph.node_name(node)!r} {does}"
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if value not in proof.examples:
            return f"output {name!r} is {value.type}: its first axis does not have the rows"
    return None


class _Proof:
    """Follows the rows through a graph.

    Attributes:
        examples: Values with the rows along axis 0, each computed from the same row of the inputs.
        inner: The axis of the rows in other values with rows.
        counts: Other values that depend on the number of rows, such as a shape.
    """

    def __init__(self, graph: Graph, rows: str):
        fed = [value for value in graph.inputs if value.role == "data"]
        self._rows = symbol(rows)
        self.examples = {value for value in fed if (_shape(value.type) or ())[:1] == (self._rows,)}
        self.inner: dict[Value, int] = {}
        self.counts: set[Value] = set()
        self._used = {value for node in graph.nodes for value in node.operands} | set(graph.outputs)
        sizes = [size for value in fed for size in _shape(value.type) or ()]
        # Other symbols of data inputs. Symbols that no data input contains may depend on the number of rows.
        self._fixed = {name for size in sizes if isinstance(size, DimExpr) for name in size.symbols} - {rows}

    def admits(self, node: Node) -> bool:
        """Follow the rows through a node. Return False if its results may mix them."""
        op, operands = node.op, set(node.operands)
        if not isinstance(op, Op) or op.subgraphs() or op.random:
            return False
        results = [value for value in node.outputs if value in self._used]
        if all(operands.isdisjoint(group) for group in (self.examples, self.inner, self.counts)):
            return True
        if reads_shapes_alone(node, self.examples | self.inner.keys()):
            self._follow_sizes(node, results)
            return True
        if operands.isdisjoint(self.inner) and self._keeps_separate(node, op) and all(map(self._has_rows, results)):
            self.examples.update(results)
            return True
        axes = self._axes(node)
        if axes is None or not all(self._has_rows(value, axis) for value, axis in zip(results, axes, strict=True)):
            return False
        self.examples.update(value for value, axis in zip(results, axes, strict=True) if axis == 0)
        self.inner |= {value: axis for value, axis in zip(results, axes, strict=True) if axis > 0}
        return True

    def _axes(self, node: Node) -> list[int] | None:
        """Return the axis of the rows in each used result of a node.

        None if the node may mix rows, or is unknown.
        """
        if not self.counts.isdisjoint(node.operands) or any(_shape(value.type) is None for value in node.operands):
            return None
        if is_op(node, "RNN", "GRU", "LSTM"):
            return self._recurrent_axes(node)
        axes = {value: 0 for value in node.operands if value in self.examples}
        axes |= {value: self.inner[value] for value in node.operands if value in self.inner}
        is_pointwise = isinstance(node.op, Op) and node.op.pointwise
        if len(set(node.operands)) < len(node.operands) and not is_pointwise:
            return None  # the same value is passed twice, for example as table and as indices
        first, kind = node.operands[0], _shape(node.outputs[0].type) or ()
        if is_op(node, "Transpose", "Unsqueeze") or (is_op(node, "Squeeze") and len(node.operands) > 1):
            # These operators only move, add or remove axes: the rows are along the axis of the result whose size is the
            # number of rows. Squeeze needs given axes: without them, it would remove this axis for a single row.
            return [kind.index(self._rows)] if axes.keys() == {first} and self._rows in kind else None
        if is_op(node, *_ALONG_AN_AXIS):
            return self._along(node, axes)
        if is_pointwise:
            return self._aligned(node, axes)
        if is_op(node, "MatMul"):
            shapes = [_shape(value.type) or () for value in node.operands]
            is_left = axes.keys() == {first} and len(shapes[1]) == 2
            return [axes[first]] if is_left and axes[first] < len(shapes[0]) - 1 else None
        return self._gathered(node, axes) if is_op(node, "Gather") else None

    def _along(self, node: Node, axes: dict[Value, int]) -> list[int] | None:
        assert isinstance(node.op, Op)
        first, along = node.operands[0], node.op.attributes().get("axis")
        rank = len(_shape(first.type) or ())
        if axes.keys() != {first} or along is None or along % rank == axes[first]:
            return None
        shapes = [_shape(value.type) or () for value in node.outputs if value in self._used]
        return [shape.index(self._rows) if self._rows in shape else 0 for shape in shapes]

    def _recurrent_axes(self, node: Node) -> list[int] | None:
        assert isinstance(node.op, Op)
        inner = node.op.attributes().get("layout", 0) == 0
        for formal, value in zip(node.op.formals, node.inputs, strict=False):
            if value is None:
                continue
            expected = None if formal.name not in _RECURRENT else _RECURRENT[formal.name] * inner
            if (0 if value in self.examples else self.inner.get(value)) != expected:
                return None
        return [(2 if place == 0 else 1) * inner for place, value in enumerate(node.outputs) if value in self._used]

    def _aligned(self, node: Node, axes: dict[Value, int]) -> list[int] | None:
        ranks = {value: len(_shape(value.type) or ()) for value in node.operands}
        places = {ranks[value] - axis for value, axis in axes.items()}
        if len(places) != 1:
            return None
        (place,) = places
        for value in node.operands:
            if value not in axes and ranks[value] >= place and (_shape(value.type) or ())[-place] != 1:
                return None
        return [max(ranks.values()) - place] * len([value for value in node.outputs if value in self._used])

    def _gathered(self, node: Node, axes: dict[Value, int]) -> list[int] | None:
        assert isinstance(node.op, Op)
        x, indices = node.operands
        rank, places = len(_shape(x.type) or ()), len(_shape(indices.type) or ())
        along = node.op.attributes().get("axis", 0) % max(rank, 1)
        if axes.keys() == {indices}:
            return [along + axes[indices]]
        if axes.keys() != {x} or axes[x] == along:
            return None
        return [axes[x] if axes[x] < along else axes[x] + places - 1]

    def _follow_sizes(self, node: Node, results: Collection[Value]) -> None:
        """Follow the number of rows through a node that reads only shapes, and values computed from shapes."""
        axis = self._repeated_axis(node)
        if axis is None:
            self.counts.update(value for value in results if not self._is_fixed(value))
        elif axis == 0:
            self.examples.update(results)
        else:
            self.inner |= dict.fromkeys(results, axis)

    def _repeated_axis(self, node: Node) -> int | None:
        """If a node copies one row as many times as the inputs have rows, return the axis of the copies, else None."""
        kind = _shape(node.outputs[0].type) or ()
        axis = kind.index(self._rows) if self._rows in kind else 0
        if not self._has_rows(node.outputs[0], axis):
            return None
        if is_op(node, "ConstantOfShape"):
            return axis
        given, place = _shape(node.operands[0].type), len(kind) - axis
        if not is_op(node, "Expand") or node.operands[0] in self.counts or given is None:
            return None
        return axis if len(given) < place or given[-place] == 1 else None

    def _keeps_separate(self, node: Node, op: Op) -> bool:
        types = [None if value is None else value.type for value in node.inputs]
        if any(kind is not None and _shape(kind) is None for kind in types):
            return False
        # Only Reshape and Resize may read the number of rows: their results' types show whether axis 0 has the rows.
        if not self.counts.isdisjoint(node.operands) and not is_op(node, "Reshape", "Resize"):
            return False
        if is_op(node, "MaxPool"):
            return node.outputs[1] not in self._used  # the second output contains positions in the whole tensor
        return op.is_batchwise(types, [value in self.examples for value in node.inputs])

    def _has_rows(self, value: Value, axis: int = 0) -> bool:
        """Whether the size along this axis is the number of rows, and no other size depends on it."""
        shape = _shape(value.type) or ()
        return shape[axis : axis + 1] == (self._rows,) and self._are_known((*shape[:axis], *shape[axis + 1 :]))

    def _is_fixed(self, value: Value) -> bool:
        """Whether an integer tensor has known elements that do not depend on the number of rows."""
        elements = value.type.value if isinstance(value.type, TensorType) else None
        return elements is not None and self._are_known(elements)

    def _are_known(self, sizes: Iterable[object]) -> bool:
        return all(not isinstance(size, DimExpr) or self._fixed.issuperset(size.symbols) for size in sizes)


def _shape(kind: Type) -> tuple[int | DimExpr, ...] | None:
    return kind.shape if isinstance(kind, TensorType) else None
