"""Columns of strings, each encoded as numbers, side by side: what many pipelines of scikit-learn begin with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import F, Sample, constant, op, operator
from graphkit.ops.internal.region import Region
from graphkit.ops.ml.features import OneHotEncoder
from graphkit.ops.ml.labels import LabelEncoder
from graphkit.ops.tensor.gather import Gather


class Column(NamedTuple):
    """A column of strings (column `column` of operand number `operand`) and the operator that encodes it."""

    encoder: OneHotEncoder | LabelEncoder
    operand: int
    column: int


def _samples() -> tuple[Sample, ...]:
    x, y = Value(TensorType("string", ("N", 3))), Value(TensorType("string", ("N", 1)))
    last, first = (F.gather(x, constant(np.array([column])), axis=1) for column in (-1, 0))
    one_hot = [
        F.one_hot_encoder(last, cats_strings=["a", "b"]),
        F.one_hot_encoder(y, cats_strings=["c", "a", "d"]),
        F.one_hot_encoder(first, cats_strings=["b"]),
    ]
    labels = [
        F.label_encoder(first, keys_strings=["a", "b"], values_int64s=[3, 5]),
        F.label_encoder(y, keys_strings=["c"], values_int64s=[7], default_int64=-2),
    ]
    a, b = np.array([["a", "b", "c"], ["b", "", "a"]], object), np.array([["d"], ["e"]], object)
    return (
        Sample(a, b, body=Graph([x, y], [F.concat(*one_hot, axis=2)])),
        Sample(a, b, body=Graph([x, y], [F.concat(*labels, axis=-1)])),
        Sample(a[:0], b[:0], body=Graph([x, y], [F.concat(*labels, axis=1)])),
    )


@op
class EncodedColumns(Region):
    """Encode columns of matrices of strings, each with its own operator, and join the results side by side.

    xs: [N, C]. `body` selects columns (Gather along axis 1), encodes each (OneHotEncoder, or LabelEncoder to numbers)
    and concatenates the results along the last axis.
    """

    inputs = ("xs*",)
    types: ClassVar[Any] = {"xs": frozenset({DType.STRING})}
    samples = staticmethod(_samples)

    def widths(self) -> Iterator[int]:
        """Yield the number of columns of each operand."""
        for x in self.body.inputs:
            width = (x.shape or ())[-1]
            assert isinstance(width, int)
            yield width

    def columns(self) -> Iterator[Column]:
        """Yield the columns in the order of their results."""
        positions = {x: position for position, x in enumerate(self.body.inputs)}
        concat = self.body.outputs[0].node
        assert concat is not None
        for encoded in concat.operands:
            node = encoded.node
            assert node is not None
            assert isinstance(node.op, (OneHotEncoder, LabelEncoder))
            selected = selected_column(node.operands[0])
            assert selected is not None
            yield Column(node.op, positions[selected[0]], selected[1])


def selected_column(value: Value) -> tuple[Value, int] | None:
    """For a matrix of one column, return the matrix that contains the column, and its position there; None if unknown.

    If a Gather selects the column from a matrix of known width, that matrix is returned, else `value` itself.
    """
    if value.rank != 2 or value.tensor.shape is None or value.tensor.shape[1] != 1:
        return None
    found = _gathered(value.node)
    return (value, 0) if found is None else found


def _gathered(node: Node | None) -> tuple[Value, int] | None:
    if node is None or not isinstance(node.op, Gather):
        return None
    x, indices = node.operands
    known, width = indices.tensor.constants, x.shape[1] if x.rank == 2 and x.shape is not None else None
    if operator(node, Gather).axis not in (1, -1) or known is None or len(known) != 1 or not isinstance(width, int):
        return None
    return (x, known[0] % width) if -width <= known[0] < width else None
