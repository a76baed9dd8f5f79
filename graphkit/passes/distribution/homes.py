"""Choose the rank that computes each value of a graph and its subgraphs, given ranks for groups of nodes.

A node with a group is computed on the rank of the group. So is a node without a group in a subgraph of an If, Loop or
Scan that has a group. Any other node is computed on the rank that holds most bytes of its operands (the first one of
equal ranks). If it depends only on data inputs and constants, it has no home: each rank that reads it computes it. A
value whose elements follow from its type, such as a shape, has no home, either, so it is not sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from graphkit.errors import UsageError
from graphkit.ir.context import GROUP
from graphkit.ir.dims import DimExpr
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import DOMAIN
from graphkit.ops.control.views import IfView, LoopView, is_if
from graphkit.passes.core.bind import plain_name
from graphkit.passes.core.match import is_op
from graphkit.passes.core.sweep import is_control

# The assumed size of an unknown dimension, to compare bytes.
_ASSUMED_SIZE = 64


class Homes:
    """The homes in one graph: ranks, or None for values that each reading rank computes.

    Attributes:
        of: The homes by value.
        nodes: The homes by node.
        inner: For each If, Loop or Scan with a part that has a home: the homes in its subgraphs.
        symbols: The dimension names that the inputs of the outermost graph determine, and that have the same meaning in
            this graph.
    """

    def __init__(self, symbols: frozenset[str]):
        self.symbols = symbols
        self.of: dict[Value, int | None] = {}
        self.nodes: dict[Node, int | None] = {}
        self.inner: dict[Node, tuple[Homes, ...]] = {}

    def is_shape_value(self, value: Value) -> bool:
        return is_shape_value(value, self.symbols)

    @property
    def ranks(self) -> Iterable[int]:
        """Yield the ranks that compute something, in the order of the nodes."""
        for node, home in self.nodes.items():
            if home is not None:
                yield home
            for homes in self.inner.get(node, ()):
                yield from homes.ranks


def find_homes(
    graph: Graph,
    groups: Mapping[str, int],
    given: Mapping[Value, int | None],
    symbols: frozenset[str],
    pinned: Mapping[Node, int],
) -> Homes:
    """Return the homes in a graph whose inputs have the homes `given`. Inputs that are not in `given` are on all ranks.

    pinned: The homes of nodes without a group. Takes linear time, except for loops: their bodies are visited until the
    homes of their states no longer change. Raises UsageError for a group without a rank.
    """
    homes = Homes(symbols)
    _Finder(groups, pinned).graph(graph, homes, given, None)
    return homes


class _Finder:
    def __init__(self, groups: Mapping[str, int], pinned: Mapping[Node, int]):
        self._groups, self._pinned = groups, pinned

    def graph(self, graph: Graph, homes: Homes, given: Mapping[Value, int | None], outer_rank: int | None) -> None:
        """Fill in `homes`. outer_rank: The rank of the enclosing If, Loop or Scan, if this has a group."""
        homes.of = {v: None if homes.is_shape_value(v) else given.get(v) for v in graph.inputs}
        homes.nodes, homes.inner = {}, {}
        for node in graph.nodes:
            if is_control(node):
                found = self._control(node, homes, outer_rank)
            else:
                homes.nodes[node] = home = self._of_node(node, homes, outer_rank)
                found = [home] * len(node.outputs)
            homes.of.update(
                (v, None if homes.is_shape_value(v) else h) for v, h in zip(node.outputs, found, strict=True)
            )

    def _of_node(self, node: Node, homes: Homes, outer_rank: int | None) -> int | None:
        if not node.operands:
            return None
        if is_op(node, "ControlDependency", domain=DOMAIN):
            return homes.of[node.operands[0]]
        if (found := self._group(node, outer_rank)) is not None:
            return found
        return self._pinned.get(node, _rank_with_most_bytes(node.operands, homes))

    def _group(self, node: Node, outer_rank: int | None) -> int | None:
        group = node.meta.get(GROUP)
        if group is None:
            return outer_rank
        if group not in self._groups:
            raise UsageError(f"groups= (--place): no rank is given for {group!r}, of {node.describe()}")
        return self._groups[group]

    def _control(self, node: Node, homes: Homes, outer_rank: int | None) -> list[int | None]:
        """Return the homes of the results."""
        outer_rank = self._group(node, outer_rank)
        place = outer_rank if outer_rank is not None else self._pinned.get(node)
        divide = self._if if is_if(node) else self._loop
        inner, found = divide(node, homes, outer_rank)
        ranks = [r for part in inner for r in part.ranks]
        operands = [homes.of[v] for v in node.operands]
        if place is None and not ranks and all(h is None for h in operands):
            homes.nodes[node] = None
            return [None] * len(found)
        homes.inner[node] = tuple(inner)
        known = (place, *(h for h in found if h is not None), *ranks, *(h for h in operands if h is not None))
        fallback = next(h for h in known if h is not None)
        homes.nodes[node] = None
        return [fallback if h is None else h for h in found]

    def _if(self, node: Node, homes: Homes, outer_rank: int | None) -> tuple[list[Homes], list[int | None]]:
        view = IfView.of(node)
        made = []
        for branch in view.branches:
            inner = Homes(
                homes.symbols if _same_dimensions(branch.inputs, view.captures, homes.symbols) else frozenset()
            )
            given = {v: homes.of[outer] for v, outer in zip(branch.inputs, view.captures, strict=True)}
            self.graph(branch, inner, given, outer_rank)
            made.append(inner)
        then, other = ([h.of[v] for v in b.outputs] for h, b in zip(made, view.branches, strict=True))
        return made, [_result_home(a, b, homes.of[view.condition]) for a, b in zip(then, other, strict=True)]

    def _loop(self, node: Node, homes: Homes, outer_rank: int | None) -> tuple[list[Homes], list[int | None]]:
        view = LoopView.of(node)
        outer = [*((s.before, s.initial) for s in view.states), *view.captures]
        same_dimensions = _same_dimensions([a for a, _ in outer], [b for _, b in outer], homes.symbols)
        same_dimensions = same_dimensions and all(
            _same_names(s.inner.type, _without_axis(s.outer.type, s.axis), homes.symbols) for s in view.scan_inputs
        )
        inner = Homes(homes.symbols if same_dimensions else frozenset())
        fixed = {s.inner: homes.of[s.outer] for s in view.scan_inputs} | {a: homes.of[b] for a, b in view.captures}
        # A state without a home is computed by each rank that reads it. Any other state has a single home.
        places = [homes.of[s.initial] if homes.of[s.initial] is not None else outer_rank for s in view.states]
        settled = [False] * len(places)
        while True:
            given = {**fixed, **{s.before: p for s, p in zip(view.states, places, strict=True)}}
            self.graph(view.body, inner, given, outer_rank)
            moved = False
            for i, state in enumerate(view.states):
                after = inner.of[state.after]
                if not settled[i] and after is not None and after != places[i]:
                    settled[i] = places[i] is not None
                    places[i], moved = after, True
            if not moved:
                break
        return [inner], [*places, *(inner.of[v] for v in view.body.outputs[view.at_slices])]


def _result_home(then: int | None, other: int | None, condition: int | None) -> int | None:
    """Return the home of an If's result, given its homes in both branches.

    If they differ, it is the home of the condition.
    """
    if then is None or other is None or then == other:
        return other if then is None else then
    return then if condition is None else condition


def _rank_with_most_bytes(operands: Sequence[Value], homes: Homes) -> int | None:
    """Return the rank that holds most bytes of the operands (the first one of equal ranks); None if none has a home."""
    weights: dict[int, int] = {}
    for value in dict.fromkeys(operands):
        if (home := homes.of[value]) is not None:
            weights[home] = weights.get(home, 0) + tensor_bytes(value)
    return max(weights, key=weights.__getitem__) if weights else None


def tensor_bytes(value: Value) -> int:
    """Return about how many bytes a value has. Unknown sizes are assumed."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.shape is None:
        return _ASSUMED_SIZE
    size = kind.dtype.itemsize
    for dim in kind.shape:
        size *= _ASSUMED_SIZE if isinstance(dim, DimExpr) else dim
    return size


def is_shape_value(value: Value, symbols: Collection[str]) -> bool:
    """Return whether the elements of a value follow from its type: as numbers, or as expressions of these dimension
    names.
    """
    kind = value.type
    if not isinstance(kind, TensorType) or kind.value is None or not kind.is_static:
        return False
    return all(not isinstance(d, DimExpr) or all(name in symbols for name in d.symbols) for d in kind.value)


def sources_of(values: Iterable[Value]) -> dict[str, tuple[Value, int]]:
    """Return, for each dimension name, one of these values and the axis that determines the size."""
    found: dict[str, tuple[Value, int]] = {}
    for value in values:
        for axis, dim in enumerate((value.type.shape if isinstance(value.type, TensorType) else None) or ()):
            if isinstance(dim, DimExpr) and (name := plain_name(dim)) is not None:
                found.setdefault(name, (value, axis))
    return found


def _same_dimensions(inner: Sequence[Value], outer: Sequence[Value], symbols: frozenset[str]) -> bool:
    """Return whether dimension names have the same meaning in a subgraph as outside: inputs and operands have equal
    sizes.
    """
    return all(_same_names(a.type, b.type, symbols) for a, b in zip(inner, outer, strict=True))


def _same_names(inner: object, outer: object, symbols: frozenset[str]) -> bool:
    if not isinstance(inner, TensorType) or inner.shape is None:
        return True
    known = outer.shape if isinstance(outer, TensorType) else None
    for axis, dim in enumerate(inner.shape):
        named = isinstance(dim, DimExpr) and dim.symbols & symbols
        if named and (known is None or len(known) != len(inner.shape) or known[axis] != dim):
            return False
    return True


def _without_axis(kind: object, axis: int) -> object:
    if not isinstance(kind, TensorType) or kind.shape is None:
        return kind
    place = axis % len(kind.shape)
    return TensorType(kind.dtype, (*kind.shape[:place], *kind.shape[place + 1 :]))
