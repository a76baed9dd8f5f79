"""The rank that computes each value of a graph, at any depth, for groups of nodes that are placed on ranks.

A node with a group is computed on the group's rank. A node without a group, in a subgraph of control flow that has a
group, is computed there as well. Any other node is computed where most bytes of its operands are (at the first of equal
ranks). If it depends only on fed inputs and constants, it is computed wherever it is read. A value whose elements
follow from its type, such as a shape, has no home either: it need not be sent.
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

# For a size that only inputs tell, where bytes are compared.
_ASSUMED_SIZE = 64


class Homes:
    """The homes of one graph: ranks, or None for what is computed wherever it is read.

    of: by value. nodes: by node. inner: of the subgraphs of each node of control flow that has a home somewhere.
    symbols: the names of sizes that the inputs of the outermost graph tell, as far as they mean the same in this one.
    """

    def __init__(self, symbols: frozenset[str]):
        self.symbols = symbols
        self.of: dict[Value, int | None] = {}
        self.nodes: dict[Node, int | None] = {}
        self.inner: dict[Node, tuple[Homes, ...]] = {}

    def told(self, value: Value) -> bool:
        return is_told(value, self.symbols)

    @property
    def ranks(self) -> Iterable[int]:
        """Where something is computed, first things first."""
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
    """The homes of a graph whose inputs have the homes `given`; what is missing there is everywhere. `pinned` are those
    of nodes without a group. Linear but for loops, whose bodies are looked at until their states stay where they are.
    Raises UsageError for a group without a rank.
    """
    homes = Homes(symbols)
    _Finder(groups, pinned).graph(graph, homes, given, None)
    return homes


class _Finder:
    def __init__(self, groups: Mapping[str, int], pinned: Mapping[Node, int]):
        self._groups, self._pinned = groups, pinned

    def graph(self, graph: Graph, homes: Homes, given: Mapping[Value, int | None], around: int | None) -> None:
        """around: where the control flow is whose subgraph this is, if it has a group."""
        homes.of = {v: None if homes.told(v) else given.get(v) for v in graph.inputs}
        homes.nodes, homes.inner = {}, {}
        for node in graph.nodes:
            if is_control(node):
                found = self._control(node, homes, around)
            else:
                homes.nodes[node] = home = self._of_node(node, homes, around)
                found = [home] * len(node.outputs)
            homes.of.update((v, None if homes.told(v) else h) for v, h in zip(node.outputs, found, strict=True))

    def _of_node(self, node: Node, homes: Homes, around: int | None) -> int | None:
        if not node.operands:
            return None
        if is_op(node, "ControlDependency", domain=DOMAIN):
            return homes.of[node.operands[0]]
        if (found := self._group(node, around)) is not None:
            return found
        return self._pinned.get(node, _heaviest(node.operands, homes))

    def _group(self, node: Node, around: int | None) -> int | None:
        group = node.meta.get(GROUP)
        if group is None:
            return around
        if group not in self._groups:
            raise UsageError(f"groups= (--place): no rank is given for {group!r}, of {node.describe()}")
        return self._groups[group]

    def _control(self, node: Node, homes: Homes, around: int | None) -> list[int | None]:
        """The homes of the results."""
        around = self._group(node, around)
        place = around if around is not None else self._pinned.get(node)
        divide = self._if if is_if(node) else self._loop
        inner, found = divide(node, homes, around)
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

    def _if(self, node: Node, homes: Homes, around: int | None) -> tuple[list[Homes], list[int | None]]:
        view = IfView.of(node)
        made = []
        for branch in view.branches:
            inner = Homes(homes.symbols if _keeps_names(branch.inputs, view.captures, homes.symbols) else frozenset())
            given = {v: homes.of[outer] for v, outer in zip(branch.inputs, view.captures, strict=True)}
            self.graph(branch, inner, given, around)
            made.append(inner)
        then, other = ([h.of[v] for v in b.outputs] for h, b in zip(made, view.branches, strict=True))
        return made, [_joint(a, b, homes.of[view.condition]) for a, b in zip(then, other, strict=True)]

    def _loop(self, node: Node, homes: Homes, around: int | None) -> tuple[list[Homes], list[int | None]]:
        view = LoopView.of(node)
        outer = [*((s.before, s.initial) for s in view.states), *view.captures]
        alike = _keeps_names([a for a, _ in outer], [b for _, b in outer], homes.symbols)
        alike = alike and all(
            _same_names(s.inner.type, _without_axis(s.outer.type, s.axis), homes.symbols) for s in view.scan_inputs
        )
        inner = Homes(homes.symbols if alike else frozenset())
        fixed = {s.inner: homes.of[s.outer] for s in view.scan_inputs} | {a: homes.of[b] for a, b in view.captures}
        # A state that is everywhere is computed by each rank that reads it; any other one has one home.
        places = [homes.of[s.initial] if homes.of[s.initial] is not None else around for s in view.states]
        settled = [False] * len(places)
        while True:
            given = {**fixed, **{s.before: p for s, p in zip(view.states, places, strict=True)}}
            self.graph(view.body, inner, given, around)
            moved = False
            for i, state in enumerate(view.states):
                after = inner.of[state.after]
                if not settled[i] and after is not None and after != places[i]:
                    settled[i] = places[i] is not None
                    places[i], moved = after, True
            if not moved:
                break
        return [inner], [*places, *(inner.of[v] for v in view.body.outputs[view.at_slices])]


def _joint(then: int | None, other: int | None, condition: int | None) -> int | None:
    """The home of an If's result that the branches make in these places: where they differ, that of the condition."""
    if then is None or other is None or then == other:
        return other if then is None else then
    return then if condition is None else condition


def _heaviest(operands: Sequence[Value], homes: Homes) -> int | None:
    """The rank that has most bytes of the operands, the first of equal ones; None where all are everywhere."""
    weights: dict[int, int] = {}
    for value in dict.fromkeys(operands):
        if (home := homes.of[value]) is not None:
            weights[home] = weights.get(home, 0) + tensor_bytes(value)
    return max(weights, key=weights.__getitem__) if weights else None


def tensor_bytes(value: Value) -> int:
    """About how many bytes a value takes; a size that only inputs tell is assumed."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.shape is None:
        return _ASSUMED_SIZE
    size = kind.dtype.itemsize
    for dim in kind.shape:
        size *= _ASSUMED_SIZE if isinstance(dim, DimExpr) else dim
    return size


def is_told(value: Value, symbols: Collection[str]) -> bool:
    """Whether the elements follow from the type, as numbers or as sizes of these names."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.value is None or not kind.is_static:
        return False
    return all(not isinstance(d, DimExpr) or all(name in symbols for name in d.symbols) for d in kind.value)


def sources_of(values: Iterable[Value]) -> dict[str, tuple[Value, int]]:
    """Which of these values determines each name of a size, and along which axis."""
    found: dict[str, tuple[Value, int]] = {}
    for value in values:
        for axis, dim in enumerate((value.type.shape if isinstance(value.type, TensorType) else None) or ()):
            if isinstance(dim, DimExpr) and (name := plain_name(dim)) is not None:
                found.setdefault(name, (value, axis))
    return found


def _keeps_names(inner: Sequence[Value], outer: Sequence[Value], symbols: frozenset[str]) -> bool:
    """Whether names of sizes mean in a subgraph what they mean around it: its inputs have the sizes of the operands."""
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
