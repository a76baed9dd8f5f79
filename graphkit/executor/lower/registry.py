"""The rules that lower a node, in the order of trials, and the lowering of whole graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, TypeAlias

from graphkit.errors import BAD_VALUE, GraphkitError
from graphkit.executor.devices.kernel import KernelContext, VersionedArray
from graphkit.executor.lower.lowering import LoweredGraph, Lowering, NotNative, Settings, Site
from graphkit.executor.lower.native_kernel import SharedKernels, native_kernel
from graphkit.executor.memory.errors import require_memory_for, require_shapes_for
from graphkit.executor.memory.placement import Placement, has_fixed_size, has_run_time_size, place_values
from graphkit.executor.memory.plan_graph import StepMemory, plan_graph
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops._base import DOMAIN
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.match import is_op

if TYPE_CHECKING:
    from graphkit.passes.control.specialise import Unspecialised

# These functions import the modules of rare operators only for graphs that contain them.


def _collective(site: Site) -> Lowering | None:
    if site.settings.collectives is None or site.node.op.domain != DOMAIN:
        return None
    from graphkit.executor.lower.collective import collective

    return collective(site)


def _backend_group(site: Site) -> Lowering | None:
    if not is_op(site.node, "BackendGroup", domain=DOMAIN):
        return None
    from graphkit.executor.lower.backend import backend_group

    return backend_group(site)


def _channel(site: Site) -> Lowering | None:
    if not is_op(site.node, "Send", "Receive", domain=DOMAIN):
        return None
    from graphkit.executor.lower.channel import channel

    return channel(site)


def _string_function(site: Site) -> Lowering | None:
    from graphkit.executor.lower.python_step import string_function

    return string_function(site)


def _launched(site: Site) -> Lowering | None:
    from graphkit.executor.lower.python_step import launched

    return launched(site)


def _branch(site: Site) -> Lowering | None:
    if not is_op(site.node, "If"):
        return None
    from graphkit.executor.lower.branch import branch

    return branch(site)


def _loop(site: Site) -> Lowering | None:
    if not is_op(site.node, "Loop", "Scan"):
        return None
    from graphkit.executor.lower.loop import loop

    return loop(site)


def _data_dependent(site: Site) -> Lowering | None:
    from graphkit.executor.lower.data_dependent import data_dependent

    return data_dependent(site)


def _shape_or_row(site: Site) -> Lowering | None:
    if not is_op(site.node, "Shape", "Gather"):
        return None
    from graphkit.executor.lower.run_time_shape import row_step, shape_step

    return shape_step(site) or row_step(site)


def _at_run_time(site: Site) -> Lowering | None:
    from graphkit.executor.lower.run_time_kernel import run_time_kernel

    return run_time_kernel(site)


def _interpreted_in_subgraph(site: Site) -> Lowering | None:
    if not site.inner:
        return None
    from graphkit.executor.lower.run_time_kernel import interpreted_in_subgraph

    return interpreted_in_subgraph(site)


# Returns the lowering of a node, or None for other operators. Raises NotNative, with the reason, if the rule does not
# apply to this node.
LoweringRule: TypeAlias = Callable[[Site], Lowering | None]

# Views of known size are not steps: `place_values` gives them the memory of their operand.
_IN_NATIVE_PROGRAMS: tuple[LoweringRule, ...] = (
    _collective,
    _channel,
    _backend_group,
    native_kernel,
    _string_function,
    _branch,
    _loop,
    _data_dependent,
    _shape_or_row,
    _at_run_time,
    _interpreted_in_subgraph,
)
_ON_DEVICES: tuple[LoweringRule, ...] = (_collective, native_kernel, _launched, _branch, _loop)
# Without the native extension, If and Loop are interpreted as a whole.
_WITHOUT_EXTENSION: tuple[LoweringRule, ...] = (_collective, _backend_group, native_kernel)


def _rules(settings: Settings) -> tuple[LoweringRule, ...]:
    if settings.native:
        return _IN_NATIVE_PROGRAMS
    return _WITHOUT_EXTENSION if settings.device == "cpu" else _ON_DEVICES


def lower_graph(
    graph: Graph,
    fixed: Mapping[Value, VersionedArray],
    settings: Settings,
    unspecialised: Unspecialised,
    *,
    inner: bool = False,
    order: Sequence[Node] | None = None,
    hosted: Set[Value] = frozenset(),
) -> LoweredGraph:
    """Choose how each node runs, order the steps and lay out the arena.

    Args:
        graph: The graph. Unless it is `inner`, its inputs have static types.
        fixed: The arrays of parameters. Packed copies are valid until the version changes.
        hosted: Outputs of loops that are stacked in host memory (see `stacks_on_host`).
    """
    known = {**fixed, **{node.output: node.op.value for node in graph.nodes if isinstance(node.op, Constant)}}
    placement = place_values(graph, swaps=settings.device != "cpu" and not inner, hosted=hosted)
    require_shapes_for(graph.nodes)
    # Check the memory first: preparing kernels may take time and memory in proportion to their results.
    require_memory_for(placement.steps, placement.used)

    def lower(subgraph: Graph, arrays: Mapping[int, VersionedArray]) -> LoweredGraph:
        return _lower_subgraph(subgraph, arrays, settings, unspecialised)

    shared = SharedKernels(placement, known) if settings.device == "cpu" else None

    def chosen(node: Node) -> Lowering:
        if placement.host_storage(node) is not None:
            from graphkit.executor.lower.arrays.swapped import SwapStep

            return SwapStep(node)
        context = kernel_context(node, placement, known, settings)
        is_dynamic = any(placement.place[v] == "dynamic" for v in node.outputs if v in placement.used)
        return choose(Site(node, settings, context, inner, is_dynamic, unspecialised, lower, hosted))

    steps = placement.steps
    lowerings = [chosen(node) for node in steps] if shared is None else shared.lowerings(steps, chosen)
    failing = _failing_steps(placement, lowerings) if graph.updates else ()
    needs = [
        StepMemory(found.scratch_bytes, found.inplace, node in failing)
        for node, found in zip(steps, lowerings, strict=True)
    ]
    place = {} if order is None else {node: index for index, node in enumerate(steps)}
    memory = plan_graph(
        graph,
        placement,
        needs,
        inplace=settings.inplace,
        share=settings.share,
        group_updates=not settings.native,  # devices launch adjacent updates together
        order=None if order is None else [place[node] for node in order],
    )
    return LoweredGraph(graph, known, placement, lowerings, memory, settings)


def _failing_steps(placement: Placement, lowerings: Sequence[Lowering]) -> frozenset[Node]:
    from graphkit.executor.lower.failures import failing_steps

    return failing_steps(placement, lowerings)


def choose(site: Site) -> Lowering:
    """Return the lowering of the first rule that applies. Without a rule, the node is interpreted.

    Raises UnsupportedError for a node that would exchange values in interpreted code.
    """
    reason = ""
    for rule in _rules(site.settings):
        try:
            found = rule(site)
        except NotNative as refusal:
            reason = str(refusal)
            continue
        except (*BAD_VALUE, MemoryError) as error:
            if isinstance(error, GraphkitError):
                raise
            from graphkit.ops.evaluate import failure_of

            raise failure_of(site.node, error) from error
        if found is not None:
            found.reason = reason or found.reason
            return found
    if site.node.op.subgraphs() or is_op(site.node, "Send", "Receive", domain=DOMAIN):
        from graphkit.executor.lower.channel import check_channels

        check_channels(site.node, reason)
    from graphkit.executor.lower.python_step import interpreted

    return interpreted(site, reason)


def kernel_context(
    node: Node, placement: Placement, known: Mapping[Value, VersionedArray], settings: Settings
) -> KernelContext:
    root = placement.root
    constants = {i: known[root[v]] for i, v in enumerate(node.inputs) if v in root and root[v] in known}
    used = tuple(v in placement.used for v in node.outputs)
    return KernelContext(settings.threads, settings.deterministic, constants, used, settings.sizes_vary, settings.tf32)


def _lower_subgraph(
    graph: Graph, arrays: Mapping[int, VersionedArray], settings: Settings, unspecialised: Unspecialised
) -> LoweredGraph:
    if graph.updates or not all(has_fixed_size(v) or has_run_time_size(v) for v in (*graph.inputs, *graph.outputs)):
        raise NotNative("only tensors of numbers pass into and out of a subgraph")
    fixed = {graph.inputs[i]: array for i, array in arrays.items()}
    lowered = lower_graph(graph, fixed, settings, unspecialised, inner=True)
    for node, lowering in lowered.steps:
        if not _runs_inside(lowering, settings):
            why = f": {lowering.reason}" if lowering.reason else ""
            raise NotNative(f"no native kernel for {graph.node_name(node)} ({node.op.name}{why})")
    return lowered


def _runs_inside(lowering: Lowering, settings: Settings) -> bool:
    if settings.native:
        return not lowering.in_python
    return lowering.runs_in_subgraph
