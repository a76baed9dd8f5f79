"""Divide the elements of a directed acyclic graph into convex groups. Elements are numbers in topological order."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.named_tuples import NamedTuple

# Edges that all merges together may visit, as a multiple of the edges and elements of the graph, and edges that one
# merge may visit. They make the time linear. Beyond them, groups stay apart that could be merged.
_WORK = 16
_WORK_OF_ONE = 20_000
# Sweeps over pairs of groups that were not merged before. A merge can make another one possible.
_SWEEPS = 3


class Division(NamedTuple):
    """A partition of a graph.

    Attributes:
        parts: Lists of elements, so that each part can be computed after the parts before it. A part is a group of
            supported elements, or one other element.
        groups: The positions of the groups in `parts`.
    """

    parts: list[list[int]]
    groups: list[int]


def divide(operands: Sequence[Sequence[int]], supported: Sequence[bool]) -> Division:
    """Return convex groups of connected supported elements that are as large as possible.

    No path leaves a group and returns to it, and the groups do not depend on each other in a cycle. If two groups are
    connected by an edge, they are merged unless another element must be computed between them. Equal graphs give equal
    groups. Takes linear time.

    Args:
        operands: For each element, the elements that it reads. All of them are smaller.
        supported: Whether an element may be in a group.
    """
    graph = _Contracted(operands, supported)
    graph.merge_levels()
    graph.merge_pairs()
    return graph.division()


class _Contracted:
    """The graph with groups contracted to single elements. A group has the number of one of its elements, its root."""

    def __init__(self, operands: Sequence[Sequence[int]], supported: Sequence[bool]):
        self._operands, self._supported = operands, supported
        count = len(operands)
        self._root = list(range(count))
        # How often a path from an input to the element changes between supported and other elements, at most.
        self._level = [0] * count
        for i, read in enumerate(operands):
            own, level = supported[i], int(supported[i])
            for j in read:
                level = max(level, self._level[j] + (supported[j] != own))
            self._level[i] = level
        self._work = _WORK * (count + sum(map(len, operands)))
        # Positions in a topological order, and neighbours, by root. Neighbours may have been merged since.
        self._place: dict[int, int] = {}
        self._after: dict[int, list[int]] = {}
        self._before: dict[int, list[int]] = {}

    def find(self, element: int) -> int:
        """Return the root of an element's group."""
        root = self._root
        while root[element] != element:
            root[element] = root[root[element]]
            element = root[element]
        return element

    def merge_levels(self) -> None:
        """Merge connected supported elements of one level. A path between them has no element of another level.

        Then order the contracted graph by level. Edges between groups, and edges between a group and another element,
        lead to a higher level.
        """
        for i, read in enumerate(self._operands):
            if self._supported[i]:
                for j in read:
                    if self._supported[j] and self._level[j] == self._level[i]:
                        a, b = sorted((self.find(i), self.find(j)))
                        self._root[b] = a
        roots = [i for i in range(len(self._root)) if self.find(i) == i]
        roots.sort(key=lambda i: (self._level[i], i))
        self._place = {root: place for place, root in enumerate(roots)}
        self._after = {root: [] for root in roots}
        self._before = {root: [] for root in roots}
        for i, read in enumerate(self._operands):
            mine = self.find(i)
            for other in dict.fromkeys(map(self.find, read)):
                if other != mine:
                    self._after[other].append(mine)
                    self._before[mine].append(other)

    def merge_pairs(self) -> None:
        """Merge groups that are connected by an edge, unless a path between them passes another element."""
        pairs = [
            (j, i)
            for i, read in enumerate(self._operands)
            if self._supported[i]
            for j in read
            if self._supported[j] and self.find(j) != self.find(i)
        ]
        for _ in range(_SWEEPS):
            left = [(j, i) for j, i in pairs if not self._merge(self.find(j), self.find(i))]
            if len(left) == len(pairs):
                return
            pairs = left

    def _merge(self, first: int, second: int) -> bool:
        """Merge two groups; the second reads the first. Return whether they are one group now."""
        if first == second:
            return True
        low, high = self._place[first], self._place[second]
        if self._work <= 0:
            return False
        behind = self._reached(first, self._after, low, high, second)
        if behind is None:
            return False
        ahead = self._reached(second, self._before, low, high, -1)
        if ahead is None:
            return False
        # The elements that the second group needs come first, then the merged group, then those that need the first.
        moved = [*sorted(ahead, key=self._place.__getitem__), second, *sorted(behind, key=self._place.__getitem__)]
        places = sorted([low, *(self._place[root] for root in moved)])
        del self._place[first]
        self._place.update(zip(moved, places[1:], strict=True))
        self._root[first] = second
        for table in (self._after, self._before):
            table[second] += table.pop(first)
        return True

    def _reached(self, start: int, edges: dict[int, list[int]], low: int, high: int, end: int) -> list[int] | None:
        """Return what can be reached from `start` between two places.

        Returns None if `end` can be reached other than by an edge from `start`, or if the search takes too long.
        """
        found: dict[int, None] = {}
        stack, allowed = [start], min(self._work, _WORK_OF_ONE)
        while stack:
            root = stack.pop()
            edges[root] = near = [r for r in dict.fromkeys(map(self.find, edges[root])) if r != root]
            allowed -= len(near)
            self._work -= len(near)
            if allowed < 0:
                return None
            for other in near:
                if other == end and root != start:
                    return None
                if low < self._place[other] < high and other not in found:
                    found[other] = None
                    stack.append(other)
        return list(found)

    def division(self) -> Division:
        parts: dict[int, list[int]] = {root: [] for root in sorted(self._place, key=self._place.__getitem__)}
        for i in range(len(self._root)):
            parts[self.find(i)].append(i)
        groups = [place for place, root in enumerate(parts) if self._supported[root]]
        return Division(list(parts.values()), groups)
