"""The ways in which a node can run, in the order in which they are tried, and the lowering of whole graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TypeAlias

from graphkit.errors import BAD_VALUE, GraphkitError
from graphkit.executor.devices.kernel import KernelContext, VersionedArray
from graphkit.executor.lower.arrays.body import SubgraphStep
from graphkit.executor.lower.arrays.swapped import SwapStep
from graphkit.executor.lower.branch import branch
from graphkit.executor.lower.channel import channel, check_channels
from graphkit.executor.lower.collective import collective
from graphkit.executor.lower.data_dependent import data_dependent
from graphkit.executor.lower.loop import loop
from graphkit.executor.lower.lowering import LoweredGraph, Lowering, NotNative, Settings, Site
from graphkit.executor.lower.native_kernel import native_kernel
from graphkit.executor.lower.python_step import LaunchedStep, PythonKernel, interpreted, launched, string_function
from graphkit.executor.lower.refusals import failing_steps
from graphkit.executor.lower.run_time_kernel import interpreted_inside, run_time_kernel
from graphkit.executor.lower.run_time_shape import row_step, shape_step
from graphkit.executor.memory.errors import require_memory_for, require_shapes_for
from graphkit.executor.memory.placement import Placement, has_fixed_size, has_run_time_size, place_values
from graphkit.executor.memory.plan_graph import StepMemory, plan_graph
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops.evaluate import failure_of
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.control.specialise import Misfits

# Makes the lowering of a node, None when it is not for such nodes; NotNative says why it does not do for this one.
Way: TypeAlias = Callable[[Site], Lowering | None]

# A view of known size is no step: `place_values` finds where it lies.
_IN_NATIVE_PROGRAMS: tuple[Way, ...] = (
    collective,
    channel,
    native_kernel,
    string_function,
    branch,
    loop,
    data_dependent,
    shape_step,
    row_step,
    run_time_kernel,
    interpreted_inside,
)
_ELSEWHERE: tuple[Way, ...] = (collective, native_kernel, launched, branch, loop)


def lower_graph(
    graph: Graph,
    fixed: Mapping[Value, VersionedArray],
    settings: Settings,
    misfits: Misfits,
    *,
    inner: bool = False,
    order: Sequence[Node] | None = None,
    hosted: Set[Value] = frozenset(),
) -> LoweredGraph:
    """Choose how each node runs, order the steps, lay out the arena. `fixed` gives operands that change with a version.

    The inputs have static types; those of an `inner` graph may have sizes that only a run tells. `misfits` are the
    subgraphs that specialisation left alone. order: that of the steps, where it is chosen. hosted: what
    loops stack in the host's memory (see `stacks_on_host`).
    """
    known = {**fixed, **{node.output: node.op.value for node in graph.nodes if isinstance(node.op, Constant)}}
    placement = place_values(graph, swaps=settings.device != "cpu" and not inner, hosted=hosted)
    for node in graph.nodes:
        require_shapes_for(node)
    # Beforehand: what prepares a kernel may take as much time and memory as its results.
    for node in placement.steps:
        require_memory_for(node, [v for v in node.outputs if v in placement.used])

    def lower(subgraph: Graph, arrays: Mapping[int, VersionedArray]) -> LoweredGraph:
        return _lower_subgraph(subgraph, arrays, settings, misfits)

    lowerings = [
        SwapStep(node)
        if placement.swapped_by(node) is not None
        else choose(
            Site(
                node,
                settings,
                kernel_context(node, placement, known, settings),
                inner,
                any(placement.place[v] == "dynamic" for v in node.outputs if v in placement.used),
                misfits,
                lower,
                hosted,
            )
        )
        for node in placement.steps
    ]
    failing = failing_steps(placement, lowerings) if graph.updates else ()
    steps = zip(placement.steps, lowerings, strict=True)
    needs = [StepMemory(found.scratch_bytes, found.inplace, node in failing) for node, found in steps]
    # Devices with arrays of their own make one launch of updates that stand together.
    place = {node: index for index, node in enumerate(placement.steps)}
    memory = plan_graph(
        graph,
        placement,
        needs,
        inplace=settings.inplace,
        share=settings.share,
        together=not settings.native,
        order=None if order is None else [place[node] for node in order],
    )
    return LoweredGraph(graph, known, placement, lowerings, memory, settings)


def choose(site: Site) -> Lowering:
    """The first way that does for a node; every node can be interpreted."""
    reason = ""
    for way in _IN_NATIVE_PROGRAMS if site.settings.native else _ELSEWHERE:
        try:
            found = way(site)
        except NotNative as refusal:
            reason = str(refusal)
            continue
        except (*BAD_VALUE, MemoryError) as error:
            if isinstance(error, GraphkitError):
                raise
            raise failure_of(site.node, error) from error
        if found is not None:
            found.reason = reason or found.reason
            return found
    check_channels(site.node, reason)
    return interpreted(site, reason)


def kernel_context(
    node: Node, placement: Placement, known: Mapping[Value, VersionedArray], settings: Settings
) -> KernelContext:
    """What the factory of a kernel knows beside the node; `known` are operands that only change with a version."""
    root = placement.root
    constants = {i: known[root[v]] for i, v in enumerate(node.inputs) if v in root and root[v] in known}
    used = tuple(v in placement.used for v in node.outputs)
    return KernelContext(settings.threads, settings.deterministic, constants, used, settings.sizes_vary, settings.tf32)


def _lower_subgraph(
    graph: Graph, arrays: Mapping[int, VersionedArray], settings: Settings, misfits: Misfits
) -> LoweredGraph:
    if graph.updates or not all(has_fixed_size(v) or has_run_time_size(v) for v in (*graph.inputs, *graph.outputs)):
        raise NotNative("only tensors of numbers pass into and out of a subgraph")
    fixed = {graph.inputs[i]: array for i, array in arrays.items()}
    lowered = lower_graph(graph, fixed, settings, misfits, inner=True)
    for node, lowering in lowered.steps:
        if not _runs_inside(lowering, settings):
            why = f": {lowering.reason}" if lowering.reason else ""
            raise NotNative(f"no native kernel for {graph.node_name(node)} ({node.op.name}{why})")
    return lowered


def _runs_inside(lowering: Lowering, settings: Settings) -> bool:
    """Whether a step of a subgraph runs as those of the outermost graph do."""
    if settings.native:
        return not lowering.in_python
    return isinstance(lowering, (LaunchedStep, SubgraphStep, PythonKernel))
