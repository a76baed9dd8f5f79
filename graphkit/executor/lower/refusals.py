"""Which steps of a run may fail, and are the first to do so."""

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
    """The steps that refuse nothing but what an earlier one has refused before. lowerings: those of the steps; None for
    native kernels. Linear.
    """
    seen: set[tuple[object, ...]] = set()
    found: list[Node] = []
    for node, lowering in zip(placement.steps, lowerings, strict=True):
        told = value_check(node)
        if told is None or (isinstance(lowering, LaunchedStep) and not lowering.kernel.fault):
            continue
        key = tuple(_elements(part, placement) for part in told)
        if key in seen:
            found.append(node)
        seen.add(key)
    return frozenset(found)


def _elements(part: object, placement: Placement) -> object:
    """What a value stands for: where its elements are, and of which type; else the part itself."""
    if isinstance(part, Value) and isinstance(part.type, TensorType):
        return placement.root.get(part, part), part.type.dtype
    return part


def failing_steps(placement: Placement, lowerings: Sequence[Lowering | None]) -> frozenset[Node]:
    """The steps of which a run may fail first: of values, of Python, of iterations, or of memory that nobody has
    planned. What fails of other processes is not meant. lowerings: as above. Linear in nodes, those of subgraphs
    included.
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
        return _may_go_on(lowering) or any(
            _may_fail(*step, graph.placement, ()) for graph in lowering.subgraphs.values() for step in graph.steps
        )
    refuses = value_check(node) is not None and node not in repeats
    return refuses and (not isinstance(lowering, LaunchedStep) or bool(lowering.kernel.fault))


def _may_go_on(lowering: Lowering) -> bool:
    """Whether a run may reach the limit of iterations."""
    return isinstance(lowering, SubgraphStep) and lowering.unlimited
