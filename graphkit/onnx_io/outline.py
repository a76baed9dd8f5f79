"""Outline of a file, whether or not graphkit can run it: inputs, outputs, nodes, stored tensors."""

from __future__ import annotations

import math
import os
from collections import Counter
from typing import TYPE_CHECKING

from graphkit.errors import UnsupportedError
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io import functions, validate
from graphkit.onnx_io.scopes import Reader
from graphkit.onnx_io.tensors import checked_shape, dtype_of_code, packed_nbytes, type_from_proto
from graphkit.onnx_io.uses import Means, uses

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto, TypeProto


class Entry(NamedTuple):
    """A node of the file. output: declared type of its first result; "" if the file declares none."""

    name: str
    operator: str
    output: str


class Outline(NamedTuple):
    """Names and declared types of a file's graph.

    stored: type and shape of every initialiser.
    stored_bytes: their size.
    nodes: nodes of the outermost graph.
    opset: version of the standard operators.
    producer: program that wrote the file.
    operators: number of nodes by (domain, operator, means), including subgraphs and function bodies. Operators have the
        names of the newest opset; for the means, see `uses.Means`.
    """

    name: str
    opset: str
    producer: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    stored: dict[str, str]
    stored_bytes: int
    nodes: list[Entry]
    operators: Counter[tuple[str, str, Means]]


def outline(source: str | os.PathLike[str] | bytes | ModelProto) -> Outline:
    """Read names and declarations of a model. Raises InvalidModel, UnsafeModel."""
    parsed = validate.read_model(source)
    label, graph = parsed.label, parsed.model.graph
    reader = Reader(label)
    opsets = validate.opsets_of(parsed.model.opset_import, label)
    library = functions.Library(parsed.model.functions, opsets, reader)
    top = reader.graph(graph)
    reader.closed(top, f"{label}: {top.place}")
    tensors = {**top.initializers, **{name: sparse.values for name, sparse in top.sparse.items()}}
    results = top.declared | {name: proto for name, proto in top.outputs if proto is not None}
    entries = []
    for node in top.nodes:
        first = next(filter(None, node.outputs), "")
        operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        entries.append(Entry(node.name or first or str(node), operator, _declared(results.get(first), label)))
    return Outline(
        graph.name,
        str(validate.version_of("", opsets)),
        " ".join(filter(None, (parsed.model.producer_name, parsed.model.producer_version))),
        {name: _declared(proto, label) for name, proto in top.inputs if name not in tensors},
        {name: _declared(proto, label) for name, proto in top.outputs},
        {name: _stored(proto, f"{label}: initializer {name!r}") for name, proto in tensors.items()},
        sum(_nbytes(proto, f"{label}: initializer {name!r}") for name, proto in tensors.items()),
        entries,
        Counter((use.domain, use.name, use.means) for use in uses(top, opsets, library)),
    )


def _declared(proto: TypeProto | None, label: str) -> str:
    if proto is None:
        return ""
    try:
        declared = type_from_proto(proto, label)
    except UnsupportedError:
        return str(proto.WhichOneof("value"))
    return "" if declared is None else str(declared)


def _stored(proto: TensorProto, where: str) -> str:
    shape = ", ".join(map(str, checked_shape(proto.dims, where)))
    return f"{dtype_of_code(proto.data_type, where)}[{shape}]"


def _nbytes(proto: TensorProto, where: str) -> int:
    return packed_nbytes(dtype_of_code(proto.data_type, where), math.prod(checked_shape(proto.dims, where)))
