"""Encode several columns of strings in one operator, for pipelines of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import operator
from graphkit.ops._base import F
from graphkit.ops.internal.encoded_columns import EncodedColumns, selected_column
from graphkit.ops.ml.features import OneHotEncoder
from graphkit.ops.ml.labels import LabelEncoder
from graphkit.ops.tensor.concat import Concat
from graphkit.passes.core.declare import graph_pass
from graphkit.passes.core.match import ints
from graphkit.passes.core.sweep import rewrite, use_counts


@graph_pass(at=["OneHotEncoder", "LabelEncoder"])
def fuse_string_encoders(graph: Graph) -> Graph:
    """Fuse neighbouring operands of a Concat that encode columns of strings into EncodedColumns. Takes linear time.

    Only the Concat may read an encoder. The node that selects the column may have other readers.
    """
    if graph.operators.isdisjoint((OneHotEncoder.name, LabelEncoder.name)):
        return graph
    counts = use_counts(graph)

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if not isinstance(node.op, Concat) or not _is_last(node):
            return None
        given = [v for v in operands if v is not None]  # all: none is optional
        encodes = [counts[old] == 1 and _encodes_a_column(new) for old, new in zip(node.operands, given, strict=True)]
        if not any(a and b for a, b in pairwise(encodes)):
            return None
        names = [v.name for v in node.outputs]
        joined: list[Value] = []
        for is_run, run in groupby(zip(encodes, given, strict=True), key=lambda pair: pair[0]):
            values = [value for _, value in run]
            if not is_run or len(values) == 1:
                joined += values
            elif len(values) == len(given):
                return _encoded(node, values, names)
            else:
                joined += _encoded(node, values, [])
        return Node(node.op, joined, node.name, node.meta, output_names=names).outputs

    return rewrite(graph, rule, at=("Concat",))


def _is_last(node: Node) -> bool:
    """Return whether a Concat is along the last axis."""
    rank = node.output.rank
    return rank is not None and operator(node, Concat).axis in (-1, rank - 1)


def _encodes_a_column(value: Value) -> bool:
    node = value.node
    if node is None or not isinstance(node.op, (OneHotEncoder, LabelEncoder)):
        return False
    x = node.operands[0]
    fails = (
        isinstance(node.op, OneHotEncoder) and not node.op.zeros
    )  # its error names the string, which EncodedColumns cannot do
    return x.dtype is DType.STRING and value.dtype is not DType.STRING and not fails and selected_column(x) is not None


def _encoded(concat: Node, values: Sequence[Value], names: Sequence[str]) -> Sequence[Value]:
    """Return the results, with these names, of an EncodedColumns that replaces a Concat of these encoders."""
    matrices: dict[Value, Value] = {}
    parts = []
    for value in values:
        encoder = value.node
        selected = None if encoder is None else selected_column(encoder.operands[0])
        assert encoder is not None
        assert selected is not None
        matrix, column = selected
        x = matrices.setdefault(matrix, Value(matrix.type))
        one = (
            x if matrix.tensor.shape is not None and matrix.tensor.shape[1] == 1 else F.gather(x, ints(column), axis=1)
        )
        parts.append(Node(encoder.op, [one], encoder.name, encoder.meta).output)
    body = Graph(list(matrices.values()), [F.concat(*parts, axis=-1)])
    return Node(EncodedColumns(body=body), list(matrices), concat.name, concat.meta, output_names=names).outputs
