"""Recomputation: the backward pass computes activations again instead of keeping them.

After Chen et al., 2016, "Training deep nets with sublinear memory cost". The forward part of a training step is cut
into segments at places where few bytes cross. Values that cross a cut are kept. All other values of a segment that the
backward pass reads are computed again from them, once the gradient has reached the segment. Random nodes draw the same
numbers again: they are bound to their streams before (see `bind_rng`).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphkit.ir import dims
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.types import DType, TensorType
from graphkit.ops.cost import multiply_adds
from graphkit.ops.internal.guard import FiniteGuard
from graphkit.passes.core.sweep import elements_read
from graphkit.passes.training import marks
from graphkit.passes.training.mirror import mirrored

# The assumed size of an unknown dimension, to compare the bytes of activations.
NOMINAL_SIZE = 16
# Values that are smaller than this part of all saved bytes are not recomputed.
_SMALL = 1 / 4096
_THRESHOLDS = 24

MARK = "recompute"


@dataclass(frozen=True)
class Segment:
    """A part of the forward nodes, the bytes that recomputing it saves, and the operations that it costs."""

    nodes: frozenset[Node]
    bytes: int
    flops: int


@dataclass(frozen=True)
class Segments:
    """The segments of the forward part of `graph`. `kept`: values that cross a cut, or are too small to recompute."""

    graph: Graph
    parts: tuple[Segment, ...]
    kept: frozenset[Value]

    def by_benefit(self) -> list[int]:
        """Return the indices of the segments, sorted by saved bytes per operation, largest first."""
        return sorted(range(len(self.parts)), key=lambda i: -self.parts[i].bytes / (1 + self.parts[i].flops))

    def apply(self, chosen: Sequence[int] | None = None) -> Graph:
        """Return the graph that recomputes the chosen segments (default: all) for its backward part."""
        parts = range(len(self.parts)) if chosen is None else sorted(chosen)
        return mirrored(self.graph, [self.parts[i].nodes for i in parts], self.kept)


def recompute_sqrt(graph: Graph, sizes: Mapping[str, int] | None = None) -> Segments:
    """Choose cuts that minimise the bytes that cross cuts plus the bytes of the largest segment. Takes linear time.

    For a chain of n equal layers, the result is proportional to sqrt(n).

    Args:
        graph: A training step whose first outputs are the forward part. Run `cse` before.
        sizes: Sizes of dimension names.
    """
    return _Forward(graph, sizes or {}).cut()


def recompute_marked(graph: Graph) -> Graph:
    """Return the graph that recomputes nodes with the attribute recompute=True (`gk.attr_scope(recompute=True)`)."""
    forward = _Forward(graph, {})
    runs: list[list[Node]] = []
    for marked, run in itertools.groupby(forward.nodes, is_marked):
        if marked:
            runs.append(list(run))
    return mirrored(graph, [frozenset(run) for run in runs]) if runs else graph


def is_marked(node: Node) -> bool:
    """Return whether a node is marked to be recomputed."""
    return marks.is_marked(node, MARK)


@dataclass
class _Lifetime:
    """The lifetime of a forward value and its views: its bytes, and the positions of its producer and of its last
    forward reader.

    needed: Whether the backward part reads it.
    """

    bytes: int
    made: int
    last: int
    needed: bool = False


class _Forward:
    """The forward nodes of a training step, and the lifetimes of their values."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int]):
        self.graph = graph
        self.nodes = [n for n in topological(graph.outputs) if n.inputs]
        self._sizes = sizes
        self._root: dict[Value, Value] = {}
        self._lives: dict[Value, _Lifetime] = {}
        for position, node in enumerate(self.nodes):
            self._add(position, node)
        inside = set(self.nodes)
        for node in graph.nodes:
            # A guard reads only the loss, which is an output and stays in memory anyway.
            if node not in inside and not isinstance(node.op, FiniteGuard):
                for value in elements_read(node):
                    if (root := self._root.get(value)) is not None:
                        self._lives[root].needed = True

    def _add(self, position: int, node: Node) -> None:
        for value in elements_read(node):
            if (root := self._root.get(value)) is not None:
                self._lives[root].last = position
        viewed = {output: node.inputs[operand] for operand, output in getattr(node.op, "views", ())}
        for index, value in enumerate(node.outputs):
            source = viewed.get(index)
            if source is not None and source in self._root:
                self._root[value] = self._root[source]
            elif source is None:
                self._root[value] = value
                self._lives[value] = _Lifetime(self._bytes(value), position, position)

    def _bytes(self, value: Value) -> int:
        if not isinstance(value.type, TensorType) or value.type.shape is None or value.type.dtype is DType.STRING:
            return 0
        return math.prod(self._dim(d) for d in value.type.shape) * value.type.dtype.itemsize

    def _dim(self, dim: dims.Dim) -> int:
        if dims.is_static(dim):
            return dim
        return max(0, dims.evaluate(dim, {s: self._sizes.get(s, NOMINAL_SIZE) for s in dim.symbols}))

    def cut(self) -> Segments:
        lives = self._lives
        needed = [0] * len(self.nodes)
        crossing = [0] * (len(self.nodes) + 1)
        for life in lives.values():
            needed[life.made] += life.bytes if life.needed else 0
            crossing[life.made] += life.bytes
            crossing[life.last] -= life.bytes
        crossing = list(itertools.accumulate(crossing))
        total = sum(needed)
        trials = {tuple(_cuts(needed, crossing, total / math.sqrt(2) ** i)) for i in range(1, _THRESHOLDS)}
        cuts = min(trials, key=lambda c: (self._estimate(c, needed), c))
        small = total * _SMALL
        kept = {v for v, life in lives.items() if life.bytes <= small or _crosses(life, cuts)}
        return Segments(self.graph, tuple(self._parts(cuts, kept)), frozenset(kept | self._views(kept)))

    def _views(self, kept: set[Value]) -> set[Value]:
        return {value for value, root in self._root.items() if root in kept}

    def _estimate(self, cuts: Sequence[int], needed: Sequence[int]) -> int:
        """Return the bytes that cross cuts plus the largest number of bytes that recomputing a segment adds."""
        across = 0
        inside = [0] * (len(cuts) + 1)
        for life in self._lives.values():
            if _crosses(life, cuts):
                across += life.bytes
            elif life.needed:
                inside[bisect.bisect_left(cuts, life.made)] += life.bytes
        return across + max(inside)

    def _parts(self, cuts: Sequence[int], kept: set[Value]) -> Iterator[Segment]:
        # Leave out the last segment: the gradient reaches it immediately, so recomputing it saves nothing.
        for begin, end in itertools.pairwise((0, *(c + 1 for c in cuts))):
            nodes = self.nodes[begin:end]
            made = [v for n in nodes for v in n.outputs if v in self._lives and v not in kept]
            saved = sum(self._lives[v].bytes for v in made if self._lives[v].needed)
            if saved:
                yield Segment(frozenset(nodes), saved, sum(self._flops(n) for n in nodes))

    def _flops(self, node: Node) -> int:
        """Return two operations per multiply-add for products, and one per element for other nodes."""
        products = multiply_adds(node)
        if products is not None:
            return 2 * self._dim(products)
        return sum(self._bytes(v) // v.dtype.itemsize for v in node.outputs if isinstance(v.type, TensorType))


def _crosses(life: _Lifetime, cuts: Sequence[int]) -> bool:
    """Return whether a cut is between the producer and the last reader of a value."""
    at = bisect.bisect_left(cuts, life.made)
    return at < len(cuts) and cuts[at] < life.last


def _cuts(needed: Sequence[int], crossing: Sequence[int], most: float) -> Iterator[int]:
    """Yield the positions after which to cut.

    A segment contains about `most` bytes. Its end is the position in its second half where the fewest bytes cross.
    """
    held, best = 0, None
    for position, size in enumerate(needed):
        held += size
        if 2 * held >= most and (best is None or crossing[position] <= crossing[best]):
            best = position
        if held >= most and best is not None and position + 1 < len(needed):
            yield best
            held = sum(needed[best + 1 : position + 1])
            best = None
