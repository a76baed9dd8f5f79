"""Which states a run may overwrite: new values that are written into the memory of the old ones.

A step that reads a state elementwise and writes its new value may do so in place, once nobody else has to read the old
one. Optimizers, running statistics and accumulated gradients then keep to one buffer for each state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from graphkit.executor.memory.placement import Placement
from graphkit.ir.graph import Graph, Node, Value
from graphkit.passes.core.sweep import elements_read

# Operators that write elements of a state, by index.
_WRITING_ELEMENTS = frozenset({"ScatterElements", "ScatterND"})


def donated_states(
    graph: Graph,
    placement: Placement,
    pairs: Sequence[Sequence[tuple[Value, Value]]],
    after: Sequence[Sequence[Value]],
    may_fail: Sequence[bool],
) -> Mapping[Value, Value]:
    """Storage of a new value, by the state whose memory it may take. Linear.

    `pairs` are the (storage read, output) pairs that each step permits to be the same memory, `after` the storages that
    each step follows, `may_fail` says which steps a run may fail of. Every other step that reads such a state has to
    run before the one that writes its new value; no step follows that one, or is it, of which a run may fail.
    """
    root, place = placement.root, placement.place
    wanted = Counter(root[r.value] for r in placement.results)
    targets = {state: root[new] for state, new in graph.updates if wanted[root[new]] == 1 and not wanted[state]}
    writers = {
        source: index
        for index, permitted in enumerate(pairs)
        for source, target in permitted
        if targets.get(source) is target
    }
    early = _before_failures(placement, after, may_fail)
    # Of steps that write what they were asked to, and may fail, the first one does before anything is written.
    first = min((index for index in writers.values() if may_fail[index] and index not in early), default=None)
    writers = {
        state: index
        for state, index in writers.items()
        if index not in early and (index == first or not may_fail[index])
    }
    # What follows from some writer cannot always run before all writers; what a step makes itself may be a view.
    late: set[Node] = set()
    chosen = {placement.steps[index] for index in writers.values()}
    for index, node in enumerate(placement.steps):
        if node in chosen or any(v.node in late for v in after[index]):
            late.add(node)
        if node in late or any(place.get(v) == "dynamic" for v in node.outputs):
            for value in elements_read(node):
                if writers.get(root[value], index) != index:
                    del writers[root[value]]
    return {state: targets[state] for state in writers}


def _before_failures(placement: Placement, after: Sequence[Sequence[Value]], may_fail: Sequence[bool]) -> set[int]:
    """The steps from which one that may fail follows, and those that may fail themselves; but for those that write
    elements of a state by index, which are so few of so many that a state is not copied for this.
    """
    needed: set[Value] = set()
    found: set[int] = set()
    for index in reversed(range(len(placement.steps))):
        node = placement.steps[index]
        follows = any(v in needed for v in node.outputs)
        if follows or (may_fail[index] and node.op.name not in _WRITING_ELEMENTS):
            found.add(index)
        if follows or may_fail[index]:
            needed.update(after[index])
    return found


def failing_first(
    placement: Placement, chosen: Mapping[Value, Value], may_fail: Sequence[bool]
) -> dict[Node, list[Value]]:
    """What steps have to follow so that those which may fail come before all that overwrite the `chosen` states: a run
    that fails leaves the old values. Linear.

    Steps that may fail follow each other, in their order, a writer that may the others, and all other writers the last
    of them.
    """
    writers = {target.node for target in chosen.values()}
    failing = [node for node, fails in zip(placement.steps, may_fail, strict=True) if fails] if writers else []
    found: dict[Node, list[Value]] = {}
    last: list[Value] = []
    for node in (*(n for n in failing if n not in writers), *(n for n in failing if n in writers)):
        found[node] = last
        last = [next(v for v in node.outputs if v in placement.used)]
    return {node: last for node in writers if node is not None} | found


def awaited(placement: Placement, chosen: Mapping[Value, Value]) -> dict[Node, list[Value]]:
    """What the steps that overwrite the `chosen` states have to follow: a result of every other step that reads one."""
    root = placement.root
    found: dict[Node, list[Value]] = {}
    for node in placement.steps:
        result = next(v for v in node.outputs if v in placement.used)
        for storage in {root[v] for v in elements_read(node)} & chosen.keys():
            writer = chosen[storage].node
            assert writer is not None
            if writer is not node:
                found.setdefault(writer, []).append(result)
    return found
