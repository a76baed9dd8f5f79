"""The steps of a run that can be the first to fail."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from graphkit.executor.lower.arrays.body import SubgraphStep
from graphkit.executor.lower.data_dependent import DataDependent
from graphkit.executor.lower.lowering import Lowering
from graphkit.executor.lower.python_step import LaunchedStep, PythonFunction, PythonKernel
from graphkit.executor.lower.run_time_kernel import AtRunTime
from graphkit.executor.memory.placement import Placement, has_run_time_size
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops._op import value_check


def repeated(placement: Placement, lowerings: Iterable[Lowering | None]) -> frozenset[Node]:
    """Return the steps that reject only operands that an earlier step rejects too. Linear.

    lowerings: those of the steps; None for native kernels.
    """
    seen: set[tuple[object, ...]] = set()
    found: list[Node] = []
    for node, lowering in zip(placement.steps, lowerings, strict=True):
        checked = value_check(node)
        if checked is None or (isinstance(lowering, LaunchedStep) and not lowering.kernel.fault):
            continue
        key = tuple(_elements(part, placement) for part in checked)
        if key in seen:
            found.append(node)
        seen.add(key)
    return frozenset(found)


def _elements(part: object, placement: Placement) -> object:
    """Return what identifies the elements of a value: its memory and type. Other parts identify themselves."""
    if isinstance(part, Value) and isinstance(part.type, TensorType):
        return placement.root.get(part, part), part.type.dtype
    return part


def failing_steps(placement: Placement, lowerings: Sequence[Lowering | None]) -> frozenset[Node]:
    """Return the steps that can be the first to fail: because of values, Python code, iterations or unplanned memory.

    Failures of other processes do not count. Linear in nodes, including those of subgraphs. lowerings: as in
    `repeated`.
    """
    repeats = repeated(placement, lowerings)
    steps = zip(placement.steps, lowerings, strict=True)
    return frozenset(node for node, lowering in steps if _may_fail(node, lowering, placement, repeats))


def _may_fail(node: Node, lowering: Lowering | None, placement: Placement, repeats: Collection[Node]) -> bool:
    if getattr(node.op, "collective", False):
        return False
    made = any(placement.place[v] == "dynamic" for v in node.outputs if v in placement.used)
    if made or any(has_run_time_size(v) for v in node.operands):
        return True
    if isinstance(lowering, (PythonKernel, PythonFunction, AtRunTime, DataDependent)):
        return True
    if lowering is not None and lowering.subgraphs:
        return _may_reach_limit(lowering) or any(
            _may_fail(*step, graph.placement, ()) for graph in lowering.subgraphs.values() for step in graph.steps
        )
    refuses = value_check(node) is not None and node not in repeats
    return refuses and (not isinstance(lowering, LaunchedStep) or bool(lowering.kernel.fault))


def _may_reach_limit(lowering: Lowering) -> bool:
    """Whether a run may reach the limit of iterations."""
    return isinstance(lowering, SubgraphStep) and lowering.unlimited
