"""Compile a graph for given input shapes to a program.

The steps are: bind the shapes, simplify the graph, specialise its subgraphs, choose a kernel for each node, order the
steps, plan the memory (`lower_graph`), and write the program (`Program`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphkit import config
from graphkit.collector import without_gc
from graphkit.errors import UnsupportedError
from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.devices.loading import find_device
from graphkit.executor.lower.lowering import LoweredGraph, NotNative, Settings
from graphkit.executor.lower.registry import lower_graph
from graphkit.executor.memory.errors import out_of_memory
from graphkit.executor.memory.pools import Pools
from graphkit.executor.run.program import Program
from graphkit.ir.graph import Graph, Value
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.bind import bind
from graphkit.passes.core.declare import CONTROL, deferred
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.pipeline import BOUND, arrays_bound

# Imported when a program needs them.
if TYPE_CHECKING:
    from graphkit.executor.lower.batch import Batch
    from graphkit.executor.lower.template import Template
    from graphkit.executor.run.executable import DeviceProgram, Executable
    from graphkit.executor.run.sized_program import SizedBuilder
    from graphkit.passes.control.specialise import Unspecialised
    from graphkit.passes.core.declare import Pass

# Only graphs with If, Loop or Scan need its module.
_PRUNE_CONTROL = deferred("prune_control")


@without_gc
def compile_graph(
    graph: Graph,
    shapes: Mapping[str, Any],
    fixed: Mapping[int, VersionedArray],
    settings: Settings,
    pools: Pools,
    device_inputs: Collection[int] = (),
) -> DeviceProgram:
    """Compile `graph` to a program for given input shapes.

    Args:
        graph: The graph.
        shapes: Shapes by name of the input. Inputs that are not listed have static types.
        fixed: Arrays of stored inputs, by position of the input. Packed copies of them are kept until their version
            changes.
        settings: Device, threads and options.
        pools: The memory of the program.
        device_inputs: Positions of inputs that other programs leave in the memory of the device.

    Raises:
        InputError, TypeMismatch: The shapes do not match the graph (see `bind`).
        OutOfMemory: The program needs more memory than allowed.
    """
    bound = bind(graph, shapes)
    if settings.optimize:
        changed = bound is not graph
        more = BOUND if settings.native else arrays_bound() if settings.device != "cpu" else ()
        bound = run_passes(bound, (*CLEANUP, *more)) if changed else _PRUNE_CONTROL(bound)
    with out_of_memory(bound, "planning the run"):
        specialised, unspecialised = _specialised(bound, CLEANUP if settings.optimize else ())
        arrays = {specialised.inputs[position]: array for position, array in fixed.items()}
        lowered = lower_graph(specialised, arrays, settings, unspecialised)
        if settings.device != "cpu":
            lowered = _with_swaps(lowered, arrays, unspecialised)
        return _program(lowered, pools, [specialised.inputs[position] for position in device_inputs])


def _specialised(graph: Graph, passes: Sequence[Pass[...]]) -> tuple[Graph, Unspecialised]:
    """Call `specialise_subgraphs`, which is imported only if the graph has subgraphs."""
    if graph.operators.isdisjoint(CONTROL):
        return graph, {}
    from graphkit.passes.control.specialise import specialise_subgraphs

    return specialise_subgraphs(graph, passes)


def _with_swaps(
    lowered: LoweredGraph, fixed: Mapping[Value, VersionedArray], unspecialised: Unspecialised
) -> LoweredGraph:
    """Return the graph with swaps for its marked nodes, or the graph itself if no swap is worth it."""
    from graphkit.executor.lower.swapped_stacks import stacks_on_host
    from graphkit.executor.memory.swapping import insert_swaps

    stacks = stacks_on_host(lowered)
    swapped = insert_swaps(lowered.graph, lowered.placement, lowered.memory.order, stacks)
    if swapped is None:
        return lowered
    rebuilt = swapped.rebuilt
    moved = {(rebuilt.get(node, node), attribute): reason for (node, attribute), reason in unspecialised.items()}
    return lower_graph(
        swapped.graph, fixed, lowered.settings, moved, order=swapped.order, hosted=frozenset(swapped.stacks)
    )


def find_batch(graph: Graph, fixed: Mapping[int, VersionedArray], settings: Settings) -> Batch | None:
    """Return how large batches of a graph are split into parts, or None if batches of this graph are not split."""
    has_defaults = settings.optimize and settings.inplace and settings.share
    if not (settings.native and has_defaults and settings.device == "cpu"):
        return None
    from graphkit.executor.lower.batch import batch_of

    return batch_of(graph, fixed)


def make_sized_builder(
    graph: Graph, fixed: Mapping[int, VersionedArray], settings: Settings, pools: Pools
) -> SizedBuilder | None:
    """Return the builder of programs for other input sizes of `graph`, or None if each must be compiled.

    A program from a template may round differently from a compiled one. So deterministic executors use no templates.
    """
    from graphkit.executor.run.sized_program import SizedBuilder

    try:
        template = make_template(graph, fixed, settings)
    except NotNative:
        return None
    return SizedBuilder(template, fixed, pools)


def make_template(graph: Graph, fixed: Mapping[int, VersionedArray], settings: Settings) -> Template:
    """Return the template of a graph. Raises NotNative, which says why, if there is none."""
    has_defaults = settings.optimize and settings.inplace and settings.share and not settings.deterministic
    if not (settings.native and has_defaults):
        raise NotNative("options of the executor, such as deterministic, need a program for each size")
    from graphkit.executor.lower.template import Template

    settings = settings._replace(sizes_vary=True)
    graph, unspecialised = _specialised(graph, CLEANUP)
    for reason in unspecialised.values():
        raise NotNative(reason)
    return Template(graph, {graph.inputs[position]: array for position, array in fixed.items()}, settings)


def refuse_fallbacks(program: Executable) -> None:
    """With GRAPHKIT_STRICT=1, raise UnsupportedError for nodes without a native kernel."""
    if config.STRICT.get() and program.fallbacks:
        listed = ", ".join(program.fallbacks)
        raise UnsupportedError(f"GRAPHKIT_STRICT=1, but these nodes have no native kernel: {listed}")


def _program(lowered: LoweredGraph, pools: Pools, device_inputs: Collection[Value]) -> DeviceProgram:
    """Return the program of a lowered graph, for the device of its settings."""
    device = find_device(lowered.settings.device_name)
    if device is None:
        return Program(lowered, pools)
    from graphkit.executor.run.arrays.program import ArrayProgram

    return ArrayProgram(lowered, device, pools, device_inputs)
