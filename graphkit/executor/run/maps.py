"""Outputs that are maps (Python dicts): built after a run from the tensors that it computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from graphkit.executor.devices.loading import native_module
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops._base import Op, operator
from graphkit.ops.evaluate import failure_of
from graphkit.ops.ml.maps import ZipMap
from graphkit.ops.sequence.elements import holds_maps
from graphkit.ops.xp import numpy_xp


class MapBuilder(NamedTuple):
    """A function that builds the maps of an output from a tensor, and the node that it replaces."""

    node: Node
    build: Callable[[Any], Any]


class WithoutMaps(NamedTuple):
    """A graph that returns tensors instead of maps.

    builders: Builds the maps of an output from its tensor, by name of the output.
    """

    graph: Graph
    builders: dict[str, MapBuilder]


def remove_maps(graph: Graph) -> WithoutMaps:
    """Remove each node that builds the maps of an output from a single tensor."""
    builders: dict[str, MapBuilder] = {}
    outputs: list[Value] = []
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        node = value.node
        if node is not None and _builds_maps(node):
            builders[name] = MapBuilder(node, _builder(node))
            value = node.operands[0]
        outputs.append(value)
    if not builders:
        return WithoutMaps(graph, builders)
    return WithoutMaps(graph.replace(outputs=outputs, output_names=graph.output_names), builders)


def _builds_maps(node: Node) -> bool:
    """Whether a node has one output, which consists of maps, and one input, which is a tensor."""
    is_unary = len(node.inputs) == len(node.outputs) == 1
    return is_unary and holds_maps(node.output.type) and isinstance(node.operands[0].type, TensorType)


def _builder(node: Node) -> Callable[[Any], Any]:
    """Return a function that computes the output of a node from its input."""
    op = operator(node, Op)
    if isinstance(op, ZipMap) and node.operands[0].tensor.rank == 2 and (native := native_module()) is not None:
        return partial(native.maps_of_rows, op.labels)
    return partial(op.reference, numpy_xp)


def build_maps(builders: Mapping[str, MapBuilder], results: dict[str, Any]) -> None:
    """Replace the tensors in `results` by the maps that are built from them. Raises RuntimeFailure, naming the node.

    results: By name of the output. Outputs that are missing or None are skipped.
    """
    for name, (node, build) in builders.items():
        if results.get(name) is not None:
            try:
                results[name] = build(results[name])
            except Exception as error:
                raise failure_of(node, error) from error
