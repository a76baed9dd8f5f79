"""Donation: choose the states whose old value a run overwrites with the new one.

A step that reads a state element by element and writes its new value may work in place, after all other readers of the
old value. Then an optimizer state, running statistic or accumulated gradient needs a single buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from graphkit.executor.memory.placement import Placement
from graphkit.ir.graph import Graph, Node, Value
from graphkit.passes.core.sweep import elements_read

# Operators that write some elements of a state, selected by indices.
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})


def donated_states(
    graph: Graph,
    placement: Placement,
    inplace_pairs: Sequence[Sequence[tuple[Value, Value]]],
    dependencies: Sequence[Sequence[Value]],
    may_fail: Sequence[bool],
) -> Mapping[Value, Value]:
    """Return the states that are overwritten: a mapping from state to the storage of its new value.

    The caller must order the steps so that all other readers of a donated state run before its writer
    (`reader_dependencies`), and steps that may fail before all writers (`failure_dependencies`). Takes linear time.

    Args:
        graph: The graph whose updates define the new values.
        placement: Storages of the graph.
        inplace_pairs: For each step, the pairs (storage read, output) that may share memory.
        dependencies: For each step, the storages that must be written before it runs.
        may_fail: For each step, whether it may raise an error during a run.
    """
    root, place = placement.root, placement.place
    result_count = Counter(root[r.value] for r in placement.results)
    targets = {
        state: root[new] for state, new in graph.updates if result_count[root[new]] == 1 and not result_count[state]
    }
    writers = {
        source: index
        for index, permitted in enumerate(inplace_pairs)
        for source, target in permitted
        if targets.get(source) is target
    }
    before_failures = _before_failures(placement, dependencies, may_fail)
    # One writer that may fail is allowed: the first. It fails before any state is overwritten.
    first = min((index for index in writers.values() if may_fail[index] and index not in before_failures), default=None)
    writers = {
        state: index
        for state, index in writers.items()
        if index not in before_failures and (index == first or not may_fail[index])
    }
    # A step that depends on a writer cannot run before all writers. A step with a dynamic result may return a view of
    # the state. States that such steps read are not donated.
    after_writers: set[Value] = set()  # results of writers, and of steps that depend on them
    writing = set(writers.values())
    has_dynamic = "dynamic" in place.values()
    for index, node in enumerate(placement.steps):
        follows = index in writing or not after_writers.isdisjoint(dependencies[index])
        if follows:
            after_writers.update(node.outputs)
        if follows or (has_dynamic and "dynamic" in [place.get(v) for v in node.outputs]):
            for value in elements_read(node):
                if writers.get(root[value], index) != index:
                    del writers[root[value]]
    return {state: targets[state] for state in writers}


def _before_failures(
    placement: Placement, dependencies: Sequence[Sequence[Value]], may_fail: Sequence[bool]
) -> set[int]:
    """Return the steps that may fail, and all steps that these depend on.

    Scatters count only if another step that may fail depends on them: they write few elements, and copying the whole
    state to protect it would cost far more.
    """
    needed: set[Value] = set()
    found: set[int] = set()
    if True not in may_fail:
        return found
    for index in reversed(range(len(placement.steps))):
        node = placement.steps[index]
        follows = not needed.isdisjoint(node.outputs)
        if follows or (may_fail[index] and node.op.name not in _SCATTERS):
            found.add(index)
        if follows or may_fail[index]:
            needed.update(dependencies[index])
    return found


def failure_dependencies(
    placement: Placement, donated: Mapping[Value, Value], may_fail: Sequence[bool]
) -> dict[Node, list[Value]]:
    """Return extra dependencies that put steps which may fail before those that overwrite states.

    So a run that fails leaves the old values unchanged. The steps that may fail form a chain, in their order; a writer
    that may fail is the last of it. All other writers depend on the end of the chain. Takes linear time.

    Args:
        placement: Storages of the graph.
        donated: The result of `donated_states`.
        may_fail: For each step, whether it may raise an error during a run.
    """
    writers = {target.node for target in donated.values()}
    failing = [node for node, fails in zip(placement.steps, may_fail, strict=True) if fails] if writers else []
    found: dict[Node, list[Value]] = {}
    last: list[Value] = []
    for node in (*(n for n in failing if n not in writers), *(n for n in failing if n in writers)):
        found[node] = last
        last = [next(v for v in node.outputs if v in placement.used)]
    return {node: last for node in writers if node is not None} | found


def reader_dependencies(placement: Placement, donated: Mapping[Value, Value]) -> dict[Node, list[Value]]:
    """Return extra dependencies of the steps that overwrite states: one result of each other step that reads the state.

    donated: The result of `donated_states`.
    """
    root = placement.root
    found: dict[Node, list[Value]] = {}
    for node in placement.steps:
        storages = {root[v] for v in elements_read(node)}
        if donated.keys().isdisjoint(storages):
            continue
        result = next(v for v in node.outputs if v in placement.used)
        for storage in storages & donated.keys():
            writer = donated[storage].node
            assert writer is not None
            if writer is not node:
                found.setdefault(writer, []).append(result)
    return found
