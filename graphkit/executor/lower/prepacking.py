"""Constant prepacking: values that depend only on parameters are computed when parameters change.

Examples: transposed or cast weights, and weights with a folded batch normalisation. A prepacked value becomes an input
of the graph, with a derived array.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.memory.placement import has_fixed_size
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.names import Names
from graphkit.ir.stored import Scratch
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.draws import is_random
from graphkit.passes.core.sweep import rewrite

# Larger derived arrays are released when no program refers to them: usually one kernel reads and packs them.
KEPT_BYTES = 1 << 16

# Results are not prepacked if they need more than 1024 bytes and more than this many times the bytes of the operands.
GROWTH_LIMIT = 4


class _Group:
    def __init__(self, graph: Graph, sources: Sequence[VersionedArray]):
        self._graph = graph
        self._sources = tuple(sources)
        self._lock = threading.Lock()
        self._made_for = -1
        self._kept: dict[int, np.ndarray] = {}
        self._held: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()

    @property
    def version(self) -> int:
        return sum(source.version for source in self._sources)

    def get(self, index: int, scratch: Scratch | None = None) -> np.ndarray:
        scratch = Scratch() if scratch is None else scratch
        with self._lock:
            version = self.version
            found = self._kept.get(index, self._held.get(index)) if self._made_for == version else None
            if found is not None:
                return found
            from graphkit.ops.evaluate import evaluate

            computed = evaluate(self._graph, [source.borrowed(scratch) for source in self._sources])
            arrays = [np.array(a, order="C") if scratch.overlaps(a) else np.asarray(a, order="C") for a in computed]
            self._made_for = version
            self._kept = {i: a for i, a in enumerate(arrays) if a.nbytes <= KEPT_BYTES}
            self._held.clear()
            self._held.update(enumerate(arrays))
            return arrays[index]


class DerivedArray:
    """One output of a group, as a VersionedArray."""

    __slots__ = ("_group", "_index")

    def __init__(self, group: _Group, index: int):
        self._group = group
        self._index = index

    @property
    def array(self) -> np.ndarray:
        return self._group.get(self._index)

    @property
    def version(self) -> int:
        return self._group.version

    def borrowed(self, scratch: Scratch) -> np.ndarray:
        return self._group.get(self._index, scratch)


def prepack(graph: Graph, parameters: Mapping[Value, VersionedArray]) -> tuple[Graph, dict[str, DerivedArray]]:
    """Return the graph without prepacked nodes, and the arrays of their values, in linear time.

    Each prepacked value becomes an input with the role parameter, whose name is the key of its array. parameters:
    inputs that no update writes.
    """
    prepacked = _prepacked_nodes(graph, parameters)
    if not prepacked:
        return graph, {}
    kept = [node for node in graph.nodes if node not in prepacked and not isinstance(node.op, Constant)]
    read = {v for node in kept for v in node.inputs}.union(graph.outputs, (new for _, new in graph.updates))
    names = Names(graph.input_names)
    replaced: dict[Value, Value] = {}
    arrays: dict[str, DerivedArray] = {}
    for nodes in _components(prepacked):
        outputs = [v for node in nodes for v in node.outputs if v in read]
        operands = list(dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v in parameters))
        group = _Group(Graph(operands, outputs, name="derived"), [parameters[v] for v in operands])
        for index, value in enumerate(outputs):
            name = names.take(f"{graph.name_of(value)}.derived")
            replaced[value] = Value(value.type, name, role="parameter")
            arrays[name] = DerivedArray(group, index)

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        return [replaced.get(v, v) for v in node.outputs] if node in prepacked else None

    return rewrite(graph, rule, extra_inputs=list(replaced.values())), arrays


def _prepacked_nodes(graph: Graph, parameters: Mapping[Value, VersionedArray]) -> dict[Node, None]:
    known: set[Value | None] = {None, *parameters}  # None: absent operands
    found: dict[Node, None] = {}
    for node in graph.nodes:
        if isinstance(node.op, Constant):
            if has_fixed_size(node.output):
                known.add(node.output)
            continue
        if not known.issuperset(node.inputs):
            continue
        operands = node.operands
        if not operands or node.op.subgraphs() or is_random(node.op):
            continue
        if not all(has_fixed_size(v) for v in (*operands, *node.outputs)):
            continue
        if sum(v.tensor.nbytes for v in node.outputs) > max(
            GROWTH_LIMIT * sum(v.tensor.nbytes for v in operands), 1024
        ):
            continue
        known.update(node.outputs)
        found[node] = None
    return found


def _components(nodes: Mapping[Node, None]) -> list[list[Node]]:
    leader: dict[Node, Node] = {}

    def find(node: Node) -> Node:
        while leader[node] is not node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for node in nodes:
        leader[node] = node
        for value in node.inputs:
            if value is not None and value.node in leader:
                leader[find(value.node)] = find(node)
    groups: dict[Node, list[Node]] = {}
    for node in nodes:
        groups.setdefault(find(node), []).append(node)
    return list(groups.values())
