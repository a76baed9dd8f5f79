"""Outputs that are maps: Python makes them from the results of a run, after the run."""

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


class Maker(NamedTuple):
    """What makes maps of a tensor, and the node that it stands for."""

    node: Node
    make: Callable[[Any], Any]


class Apart(NamedTuple):
    """A graph that returns tensors in the place of maps, and by output what makes maps of a tensor."""

    graph: Graph
    makers: dict[str, Maker]


def apart(graph: Graph) -> Apart:
    """Take the nodes off a graph that do no more than make maps of one tensor for an output."""
    makers: dict[str, Maker] = {}
    outputs: list[Value] = []
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        node = value.node
        if node is not None and _makes_maps_of_a_tensor(node):
            makers[name] = Maker(node, _maker(node))
            value = node.operands[0]
        outputs.append(value)
    if not makers:
        return Apart(graph, makers)
    return Apart(graph.replace(outputs=outputs, output_names=graph.output_names), makers)


def _makes_maps_of_a_tensor(node: Node) -> bool:
    only = len(node.inputs) == len(node.outputs) == 1
    return only and holds_maps(node.output.type) and isinstance(node.operands[0].type, TensorType)


def _maker(node: Node) -> Callable[[Any], Any]:
    op = operator(node, Op)
    if isinstance(op, ZipMap) and node.operands[0].tensor.rank == 2 and (native := native_module()) is not None:
        return partial(native.maps_of_rows, op.labels)
    return partial(op.reference, numpy_xp)


def make(makers: Mapping[str, Maker], named: dict[str, Any]) -> None:
    """Put maps in the place of the tensors that they are made of, where these are; raises RuntimeFailure, naming the
    node.
    """
    for name, (node, maps_of) in makers.items():
        if named.get(name) is not None:
            try:
                named[name] = maps_of(named[name])
            except Exception as error:
                raise failure_of(node, error) from error
