"""Find the steps whose failure can be the first one in a run, and the loop with the most iterations."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from graphkit.executor.lower.lowering import LoweredGraph, Lowering
from graphkit.executor.lower.native_kernel import PreparedKernel
from graphkit.executor.lower.python_step import LaunchedStep
from graphkit.executor.memory.placement import Placement, has_run_time_size
from graphkit.ir.graph import Node, Operator, Value
from graphkit.ir.types import TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import Op
from graphkit.ops._op import number_of, value_check

# A loop of at most this many steps in all iterations is short. After a state has been overwritten, neither the time
# limit nor Ctrl-C ends the run, so only short loops may run then.
SHORT_LOOP = 10_000


class KnownLoop(NamedTuple):
    """A loop whose number of iterations is known before a run.

    Attributes:
        name: Name of the loop, after the names of enclosing loops.
    """

    name: str
    node: Node
    trips: int


def longest_loop(lowered: LoweredGraph, prefix: str = "") -> KnownLoop | None:
    """Return the loop with the largest known number of iterations, or None. Takes linear time.

    Loops that a run may not reach do not count: those in branches, and in loops of unknown length.
    """
    found: KnownLoop | None = None
    for node, lowering in lowered.steps:
        if lowering.trips and lowering.trips < math.inf:
            name = prefix + lowered.graph.node_name(node)
            inside = (longest_loop(graph, f"{name}/{part}/") for part, graph in lowering.subgraphs.items())
            for loop in (KnownLoop(name, node, int(lowering.trips)), *inside):
                if loop is not None and (found is None or loop.trips > found.trips):
                    found = loop
    return found


def repeated_checks(placement: Placement, lowerings: Iterable[Lowering | None]) -> frozenset[Node]:
    """Return the steps that check the same values as an earlier step, and so cannot fail first.

    Takes linear time. lowerings: one for each step; None for a native kernel.
    """
    return _repeated_checks(zip(placement.steps, lowerings, strict=True), placement, _Accepting())


def _repeated_checks(
    steps: Iterable[tuple[Node, Lowering | None]], placement: Placement, accepts: _Accepting
) -> frozenset[Node]:
    """Implement `repeated_checks` for steps with their lowerings."""
    seen: set[tuple[object, ...]] = set()
    found: list[Node] = []
    for node, lowering in steps:
        if accepts.all_values(node):
            continue
        checked = value_check(node)
        if checked is None or (isinstance(lowering, LaunchedStep) and not lowering.kernel.fault):
            continue
        key = tuple(_check_key(part, placement) for part in checked)
        if key in seen:
            found.append(node)
        seen.add(key)
    return frozenset(found)


class _Accepting:
    """Finds nodes that accept all operand values. Equal operators are examined once."""

    def __init__(self) -> None:
        # By the identity of the operator, and by its number.
        self._known: dict[int, bool] = {}
        self._by_number: dict[int, bool] = {}

    def all_values(self, node: Node) -> bool:
        """Return whether a node surely accepts all values of its operands.

        False for operators with their own `value_check`.
        """
        op = node.op
        found = self._known.get(id(op))
        if found is None:
            found = self._known[id(op)] = self._accepts_all(op)
        return found

    def _accepts_all(self, op: Operator) -> bool:
        if not isinstance(op, Op) or type(op).value_check is not Op.value_check:
            return False
        number = number_of(op)
        if number not in self._by_number:
            self._by_number[number] = op.value_check(()) is None
        return self._by_number[number]


def _check_key(part: object, placement: Placement) -> object:
    """Return a key for an entry of `Op.value_check`. A tensor is identified by storage and element type."""
    if isinstance(part, Value) and isinstance(part.type, TensorType):
        return placement.root.get(part, part), part.type.dtype
    return part


def failing_steps(placement: Placement, lowerings: Sequence[Lowering | None]) -> frozenset[Node]:
    """Return the steps that can fail first: because of values, Python code, iterations or unplanned memory.

    A loop that is not short can fail: a limit or Ctrl-C can end it. Collectives are left out: they fail only if another
    process does.

    These steps must run before any state is overwritten. A new state that such a step reads is written to separate
    memory (see `donated_states`). Takes linear time.

    lowerings: as in `repeated_checks`.
    """
    accepts = _Accepting()
    # Operands and results of device kernels have known sizes.
    possible = [
        (node, lowering)
        for node, lowering in zip(placement.steps, lowerings, strict=True)
        if not (isinstance(lowering, PreparedKernel) and accepts.all_values(node))
    ]
    repeats = _repeated_checks(possible, placement, accepts)
    return frozenset([node for node, lowering in possible if _may_fail(node, lowering, placement, repeats)])


def _may_fail(
    node: Node, lowering: Lowering | None, placement: Placement, repeats: Collection[Node], in_branch: bool = False
) -> bool:
    if getattr(node.op, "collective", False):
        return False
    for value in node.outputs:
        if placement.place.get(value) == "dynamic" and value in placement.used:
            return True
    for value in node.operands:
        if has_run_time_size(value):
            return True
    if lowering is not None and lowering.may_fail:
        return True
    if lowering is not None and lowering.subgraphs:
        is_branch = lowering.trips is None
        # The length of a short loop is checked before a run, unless it is in a branch.
        if not is_branch and (in_branch or lowering.executed_steps > SHORT_LOOP):
            return True
        steps = ((step, graph) for graph in lowering.subgraphs.values() for step in graph.steps)
        return any(_may_fail(*step, graph.placement, (), in_branch or is_branch) for step, graph in steps)
    refuses = value_check(node) is not None and node not in repeats
    return refuses and (not isinstance(lowering, LaunchedStep) or bool(lowering.kernel.fault))
