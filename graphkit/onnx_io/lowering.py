"""Convert a graph to operators of the target opset, before export.

graphkit's own operators become their `expand`. Operators that are newer than the target become their `expand`, or the
function by which the standard defines them. The rewrites of `downgrade` do the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import ModelProto

from graphkit.errors import GraphkitError, UnsupportedError
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.origin import brief
from graphkit.onnx_io import downgrade
from graphkit.onnx_io.codes import NEWEST_OPSET
from graphkit.onnx_io.external_data import ExternalData
from graphkit.onnx_io.functions import standard_function
from graphkit.onnx_io.importer import Builder
from graphkit.onnx_io.scopes import RawNode
from graphkit.onnx_io.spelling import spelled
from graphkit.onnx_io.tensors import type_to_proto
from graphkit.ops import DOMAIN, Op, operator
from graphkit.passes.core.sweep import map_subgraphs, rewrite

# Maximum depth of expansions of expansions, to detect cycles.
_MAX_DEPTH = 32


def lower(graph: Graph, target: int) -> Graph:
    """Return the graph in operators of opset `target`, subgraphs included.

    Raises UnsupportedError, with the node, its operator and the target, for a node that cannot be expressed.
    """

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        return _lowered(node, operands, target, 0)

    return rewrite(_without_rng(graph), rule)


def _without_rng(graph: Graph) -> Graph:
    """Remove the states of random nodes, because files have none. Nodes that only derive states become unused."""

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        op = operator(node, Op)
        if not op.random or op.onnx is None or "rng" not in op.onnx.hidden:
            return None
        kept = [None if f.name == "rng" else v for f, v in zip(op.formals, operands, strict=False)]
        return node.rebuilt(kept).outputs

    return rewrite(graph, rule)


def _lowered(node: Node, operands: Sequence[Value | None], target: int, depth: int) -> Sequence[Value] | None:
    """The results that replace `node`, fully lowered; None if the node stays unchanged."""
    if depth > _MAX_DEPTH:
        raise UnsupportedError(f"{node.describe()}: its expansion does not end")
    if node.op.subgraphs() and node.op.domain != DOMAIN:
        return map_subgraphs(node, operands, lambda g: lower(g, target)).outputs
    results = _replacement(node, operands, target)
    if results is None:
        return None
    stop = [v for v in operands if v is not None]
    table: dict[Value, Value] = {v: v for v in stop}
    for inner in topological(results, stop=stop):
        inputs = [None if v is None else table.get(v, v) for v in inner.inputs]
        replaced = _lowered(inner, inputs, target, depth + 1)
        table.update(zip(inner.outputs, inner.rebuilt(inputs).outputs if replaced is None else replaced, strict=True))
    return [table.get(v, v) for v in results]


def _replacement(node: Node, operands: Sequence[Value | None], target: int) -> Sequence[Value] | None:
    op = operator(node, Op)
    if op.domain == DOMAIN or op.onnx is None:
        if op.expand is None:
            raise UnsupportedError(f"{node.describe()}: {op.name} cannot be expressed in standard operators")
        return _expanded(node, operands)
    site = downgrade.Site(node, op, tuple(operands), target)
    results = downgrade.rewritten(site)
    if results is not None:
        return results
    if op.onnx.domain != "" or _available(op.onnx.name, target):
        return None
    if op.expand is not None:
        return _expanded(node, operands)
    results = _standard_body(node, operands)
    if results is None:
        raise UnsupportedError(f"{node.describe()}: {op.name} is not in opset {target}")
    return results


def _available(name: str, target: int) -> bool:
    try:
        return not onnx.defs.get_schema(name, target).deprecated
    except onnx.defs.SchemaError:
        return False


def _expanded(node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
    op = operator(node, Op)
    try:
        with context.expanding(maker=f"the expansion of {brief(node)}"):
            results = op.expand(*operands)
    except GraphkitError as error:
        raise type(error)(f"{node.describe()}: in its expansion: {error}") from error
    values = tuple(results) if isinstance(results, (tuple, list)) else (results,)
    if len(values) != len(node.outputs):
        raise UnsupportedError(f"{node.describe()}: its expansion has {len(values)} results, not {len(node.outputs)}")
    return values


def _standard_body(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
    """The results of the standard's function body of the operator, for these operands; None if there is none."""
    proto, operands = spelled(node, list(operands), NEWEST_OPSET)
    proto.input[:] = ["" if v is None else f"x{i}" for i, v in enumerate(operands)]
    proto.output[:] = [f"y{i}" for i in range(len(node.outputs))]
    types = [onnx.TypeProto() if v is None else type_to_proto(v.type) for v in operands]
    function = standard_function("", proto.op_type, NEWEST_OPSET, proto, types)
    if function is None:
        return None
    model = ModelProto(graph=onnx.GraphProto(name=f"definition of {proto.op_type}"))
    model.opset_import.add(domain="", version=NEWEST_OPSET)
    builder = Builder(model, node.describe(), ExternalData())
    raw = RawNode(proto, {}, {a.name: a for a in proto.attribute})
    with context.detached():
        found = builder.call(raw, operands, raw.attributes, builder.setting, node.describe())
    results = list(found) + [None] * (len(node.outputs) - len(found))
    if any(v is None for v in results):
        return None
    return [v for v in results if v is not None]
