"""Outputs as callers receive them: in arrays of the caller (`out`), or as maps that are built after a run.

Maps are Python dicts. The run computes a tensor, from which they are built.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graphkit.errors import InputError
from graphkit.executor.devices.loading import native_module
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import Op, operator


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
    if not is_unary or isinstance(node.output.type, TensorType):
        return False
    from graphkit.ops.sequence.elements import holds_maps

    return holds_maps(node.output.type) and isinstance(node.operands[0].type, TensorType)


def _builder(node: Node) -> Callable[[Any], Any]:
    """Return a function that computes the output of a node from its input."""
    # Here, because few graphs build maps.
    from graphkit.ops.ml.maps import ZipMap
    from graphkit.ops.xp import numpy_xp

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
                from graphkit.ops.evaluate import failure_of

                raise failure_of(node, error) from error


def checked_target(name: str, value: Value, target: Any) -> np.ndarray:
    """Return an array of the caller for an output. Raises InputError if the output cannot be written to it.

    Args:
        name: Name of the output.
        value: The output of the graph.
        target: The array.
    """
    kind = value.tensor
    if not isinstance(target, np.ndarray) or not target.flags.writeable:
        raise InputError(f"out[{name!r}] is not a writable array")
    if target.dtype != kind.dtype.numpy or (kind.is_static and target.shape != kind.static_shape):
        raise InputError(f"output {name!r} is {kind}; out[{name!r}] is {target.dtype}{list(target.shape)}")
    return target


def check_disjoint(out: Mapping[str, np.ndarray]) -> None:
    """Raise InputError if two of the caller's arrays share memory."""
    for (one, a), (other, b) in itertools.combinations(out.items(), 2):
        if np.may_share_memory(a, b) and np.shares_memory(a, b):
            raise InputError(f"out[{one!r}] and out[{other!r}] share memory")


def copied_to(name: str, result: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Copy a result to an array of the caller, and return that array. Raises InputError for another shape."""
    if result.shape != target.shape:
        raise InputError(f"output {name!r} has shape {list(result.shape)}; out[{name!r}] has {list(target.shape)}")
    np.copyto(target, result)
    return target


def overlaps(target: np.ndarray, arrays: Sequence[Any]) -> bool:
    """Whether an array of the caller may share memory with an input of the run."""
    return any(isinstance(a, np.ndarray) and np.may_share_memory(target, a) for a in arrays)
