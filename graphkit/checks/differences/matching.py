"""Find for the nodes of one graph the nodes of another graph that they correspond to, in linear time."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence

from graphkit.checks.differences.structure import Structure
from graphkit.ir.graph import Node, Value
from graphkit.ir.limits import check_time
from graphkit.named_tuples import NamedTuple

_Place = tuple[Node, int]
_Key = Callable[[Structure, Node], Hashable]

# How many readers of a value are searched for a node that replaces another one.
_MOST_READERS = 64


class _Neighbours(NamedTuple):
    """Nodes of both graphs at corresponding places: readers of corresponding values, or producers of them."""

    a: Sequence[_Place]
    b: Sequence[_Place]


def _with_name(rule: _Key) -> _Key:
    return lambda side, node: (side.graph.node_name(node), rule(side, node))


class Matching:
    """The pairs of corresponding nodes of two graphs.

    The steps, each for the nodes that are left:

    1. Nodes that are computed and used in the same way, and then nodes that are computed, or used, in the same way.
       This matches everything before the first and after the last difference. Weights count as equal if their first and
       last elements are. Names decide between several candidates.
    2. Nodes with the same weights that no other node has.
    3. Step 1, where weights count as equal if their types are: for fine-tuned models.
    4. Neighbours of matched nodes with the same operator and attributes.
    5. Nodes with the same operator and name, and readers of weights with the same name.
    6. Neighbours with the same operator, whose attributes differ.
    7. Nodes between matched nodes, whose operators differ.
    """

    def __init__(
        self,
        a: Structure,
        b: Structure,
        inputs: Iterable[tuple[Value, Value]],
        outputs: Iterable[tuple[Value, Value]],
        exact: tuple[Structure, Structure],
    ):
        """inputs, outputs: the corresponding ones of both graphs. exact: with keys of the elements of weights."""
        self.a, self.b = a, b
        self.pairs: dict[Node, Node] = {}
        self.taken: set[Node] = set()
        self._inputs, self._outputs = dict(inputs), list(outputs)
        self._same_way(*exact)
        self._anchors(*exact)
        self._same_way(a, b)
        self._spread(lambda side, node: side.local[node])
        self._match(lambda side, node: (side.operator[node], side.graph.node_name(node)))
        for neighbours in self._weight_readers():
            self._pair(neighbours, lambda side, node: side.local[node])
        self._spread(lambda side, node: side.operator[node])
        self._replaced()

    @property
    def only_a(self) -> list[Node]:
        """The nodes of the first graph without a counterpart."""
        return [node for node in self.a.nodes if node not in self.pairs]

    @property
    def only_b(self) -> list[Node]:
        """The nodes of the second graph without a counterpart."""
        return [node for node in self.b.nodes if node not in self.taken]

    def _same_way(self, a: Structure, b: Structure) -> None:
        """Match nodes with equal structural keys of two structures of the two graphs."""
        sides = {self.a: a, self.b: b}

        def both(side: Structure, node: Node) -> Hashable:
            return sides[side].forward[node], sides[side].backward[node]

        def forward(side: Structure, node: Node) -> Hashable:
            return sides[side].forward[node]

        def backward(side: Structure, node: Node) -> Hashable:
            return sides[side].backward[node]

        for rules in ((both,), (forward, backward)):
            for rule in rules:
                self._match(_with_name(rule))
            for rule in rules:
                self._match(rule)

    def _anchors(self, a: Structure, b: Structure) -> None:
        """Match nodes that are the only ones of their graphs with their operator, attributes and weights.

        Pairs in another order in both graphs are not matched: their weights may be swapped.
        """
        once: list[dict[int, Node]] = []
        for side in (a, b):
            counts = Counter(side.local[node] for node in side.weighted)
            once.append({side.local[node]: node for node in side.weighted if counts[side.local[node]] == 1})
        pairs = [(node, once[1][key]) for key, node in once[0].items() if key in once[1]]
        pairs = [(node, other) for node, other in pairs if node not in self.pairs and other not in self.taken]
        places = {node: i for i, node in enumerate(b.nodes)}
        order = [places[other] for _, other in pairs]
        before = [-1, *itertools.accumulate(order, max)]
        after = [*reversed(list(itertools.accumulate(reversed(order), min))), len(places)]
        for i, pair in enumerate(pairs):
            if before[i] < order[i] < after[i + 1]:
                self._add(*pair)

    def _add(self, a: Node, b: Node) -> None:
        self.pairs[a] = b
        self.taken.add(b)

    def _match(self, key: _Key) -> None:
        """Match nodes with equal keys, in their order."""
        check_time()
        found: dict[Hashable, deque[Node]] = {}
        for node in self.only_b:
            found.setdefault(key(self.b, node), deque()).append(node)
        for node in self.only_a if found else ():
            if same := found.get(key(self.a, node)):
                self._add(node, same.popleft())

    # --- neighbours ------------------------------------------------------------------------------------

    def _spread(self, key: _Key) -> None:
        """Match neighbours of matched nodes that have equal keys, and their neighbours, and so on."""
        check_time()
        if len(self.pairs) == len(self.a.nodes) or len(self.taken) == len(self.b.nodes):
            return
        pending = deque(self.pairs.items())
        for one, other in self._inputs.items():
            pending.extend(self._pair(self._readers(one, other), key))
        for one, other in self._outputs:
            pending.extend(self._pair(self._producers(one, other), key))
        while pending:
            a, b = pending.popleft()
            for one, other in zip(a.outputs, b.outputs, strict=False):
                pending.extend(self._pair(self._readers(one, other), key))
            for before, after in zip(self.a.operands[a], self.b.operands[b], strict=False):
                if before is not None and after is not None:
                    pending.extend(self._pair(self._producers(before, after), key))

    def _readers(self, a: Value, b: Value) -> _Neighbours:
        return _Neighbours(self.a.users.get(a, ()), self.b.users.get(b, ()))

    def _producers(self, a: Value, b: Value) -> _Neighbours:
        if a.node is None or b.node is None or a.node not in self.a.local or b.node not in self.b.local:
            return _Neighbours((), ())
        return _Neighbours([(a.node, a.index)], [(b.node, b.index)])

    def _pair(self, neighbours: _Neighbours, key: _Key) -> list[tuple[Node, Node]]:
        """Match nodes at the same place with equal keys: first those with equal attributes and name, then in order."""
        if not neighbours.a or not neighbours.b:
            return []
        left_a = [(n, i) for n, i in neighbours.a if n not in self.pairs]
        left_b = [(n, i) for n, i in neighbours.b if n not in self.taken] if left_a else []
        if not left_b:
            return []
        made: list[tuple[Node, Node]] = []

        def named(side: Structure, node: Node) -> Hashable:
            return key(side, node), side.graph.node_name(node)

        def alike(side: Structure, node: Node) -> Hashable:
            return key(side, node), side.local[node]

        for rule in (named, alike, key):
            found: dict[Hashable, deque[Node]] = {}
            for node, place in left_b:
                found.setdefault((place, rule(self.b, node)), deque()).append(node)
            for node, place in left_a:
                same = found.get((place, rule(self.a, node)), deque())
                while same and same[0] in self.taken:
                    same.popleft()
                if same and node not in self.pairs:
                    made.append((node, same.popleft()))
                    self._add(*made[-1])
        return made

    def _weight_readers(self) -> Iterable[_Neighbours]:
        """Yield the readers of parameters that have the same name and type in both graphs."""
        stored = {self.b.graph.name_of(v): v for v in self.b.graph.inputs if v.role != "data"}
        for value in self.a.graph.inputs:
            if value.role != "data" and (same := stored.get(self.a.graph.name_of(value))) is not None:
                yield self._readers(value, same)

    # --- other operators -------------------------------------------------------------------------------

    def _replaced(self) -> None:
        """Match nodes with other operators: they read corresponding values, and corresponding nodes read them."""
        results = set(self._outputs)
        for node in self.only_a:
            for other in self._beside(node):
                if other not in self.taken and self._same_use(node, other, results):
                    self._add(node, other)
                    break

    def _beside(self, node: Node) -> Iterable[Node]:
        """Yield the nodes of the second graph at the place of a node.

        They read the same value at the same position, for the first operand that has a counterpart.
        """
        for place, operand in enumerate(self.a.operands[node]):
            if operand is not None and (same := self._counterpart(operand)) is not None:
                readers = itertools.islice(self.b.users.get(same, ()), _MOST_READERS)
                yield from (user for user, position in readers if position == place)
                return

    def _counterpart(self, value: Value) -> Value | None:
        """Return the value of the second graph that an input or a result of a matched node corresponds to."""
        if value.node is None:
            return self._inputs.get(value)
        node = self.pairs.get(value.node)
        return node.outputs[value.index] if node is not None and value.index < len(node.outputs) else None

    def _same_use(self, a: Node, b: Node, results: set[tuple[Value, Value]]) -> bool:
        """Whether results of two nodes are corresponding outputs, or corresponding nodes read them at one position."""
        for one, other in zip(a.outputs, b.outputs, strict=False):
            if (one, other) in results:
                return True
            readers = set(itertools.islice(self.b.users.get(other, ()), _MOST_READERS))
            users = itertools.islice(self.a.users.get(one, ()), _MOST_READERS)
            if any((self.pairs.get(user), place) in readers for user, place in users):
                return True
        return False
