"""Converts a graph to a GraphDef, which TensorBoard draws."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.names import Names
from graphkit.ir.printing import node_line
from graphkit.ir.types import TensorType

# Maximum length of the text of a node.
_CHARACTERS = 600

# Characters that names in a GraphDef may not have, such as "^" and ":".
_ODD = re.compile(r"[^A-Za-z0-9_./-]+")


def graph_def(graph: Graph) -> Any:
    """Return a GraphDef: data inputs as Placeholder, parameters as Variable, all nodes, and outputs as Identity.

    TensorBoard shows names with a common prefix before "/" as one box. A node with branches or a loop is one node; its
    operands include those of its subgraphs.
    """
    from tensorboardX.proto.graph_pb2 import GraphDef
    from tensorboardX.proto.versions_pb2 import VersionDef

    names = Names()
    of_value: dict[Value, str] = {}
    nodes = []
    for value in graph.inputs:
        of_value[value] = names.take(_plain(graph.name_of(value)))
        kind = "Placeholder" if value.role == "data" else "Variable"
        nodes.append(_node(of_value[value], kind, (), [value], str(value.type)))
    for node in graph.nodes:
        own = names.take(_plain(graph.node_name(node)))
        read = _operands(node, of_value)
        for index, value in enumerate(node.outputs):
            of_value[value] = own if index == 0 else f"{own}:{index}"
        nodes.append(_node(own, node.op.name, read, node.outputs, node_line(graph, node)[:_CHARACTERS]))
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        own = names.take(_plain(f"{name}/output"))
        nodes.append(_node(own, "Identity", [of_value[value]], [value], f"output {name}: {value.type}"))
    return GraphDef(node=nodes, versions=VersionDef(producer=22))


def _plain(name: str) -> str:
    """Return a valid name for a GraphDef: without empty parts, starting with a letter or a digit."""
    parts = [part for part in _ODD.sub("_", name).split("/") if part]
    found = "/".join(parts) or "_"
    return found if found[0].isalnum() else f"n{found}"


def _operands(node: Node, names: dict[Value, str]) -> list[str]:
    return [names[value] for value in dict.fromkeys(node.operands) if value in names]


def _node(name: str, kind: str, read: Iterable[str], made: Iterable[Value], text: str) -> Any:
    from tensorboardX.proto.attr_value_pb2 import AttrValue
    from tensorboardX.proto.node_def_pb2 import NodeDef

    shapes = AttrValue.ListValue(shape=[_shape(value) for value in made])
    attributes = {"_output_shapes": AttrValue(list=shapes), "text": AttrValue(s=text.encode())}
    return NodeDef(name=name, op=kind, input=read, attr=attributes)


def _shape(value: Value) -> Any:
    """Return the shape of a value. Symbolic sizes become -1."""
    from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto

    if not isinstance(value.type, TensorType) or value.type.shape is None:
        return TensorShapeProto(unknown_rank=True)
    sizes = [size if isinstance(size, int) else -1 for size in value.type.shape]
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in sizes])
