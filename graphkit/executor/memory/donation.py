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


def donated_states(
    graph: Graph,
    placement: Placement,
    pairs: Sequence[Sequence[tuple[Value, Value]]],
    after: Sequence[Sequence[Value]],
) -> Mapping[Value, Value]:
    """Storage of a new value, by the state whose memory it may take. Linear.

    `pairs` are the (storage read, output) pairs that each step permits to be the same memory, `after` the storages that
    each step follows. Every other step that reads such a state has to run before the one that writes its new value.
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


def failing_first(
    placement: Placement, chosen: Mapping[Value, Value], after: Sequence[Sequence[Value]], may_fail: Sequence[bool]
) -> dict[Node, list[Value]]:
    """What steps have to follow so that those which may fail come before all that overwrite the `chosen` states: a run
    that fails leaves the old values. What follows from a new value itself comes behind. Linear.

    `after` are the storages that each step follows. Steps that may fail follow each other, in their order, and writers
    the last of them.
    """
    writers = {target.node for target in chosen.values()}
    late: set[Node | None] = set()
    found: dict[Node, list[Value]] = {}
    last: list[Value] = []
    for index, node in enumerate(placement.steps if writers else ()):
        if node in writers or any(v.node in late for v in after[index]):
            late.add(node)
        elif may_fail[index]:
            found[node] = last
            last = [next(v for v in node.outputs if v in placement.used)]
    return found | {node: last for node in writers if node is not None}


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
