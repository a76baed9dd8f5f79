"""Compile a graph and the shapes of a run to a program. The steps are:

bind the shapes, simplify the result, specialise the subgraphs, choose how each node runs, order the steps, plan the
memory (`lower_graph`), and write the program (`Program`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from graphkit import config
from graphkit.errors import UnsupportedError
from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.devices.loading import find_device
from graphkit.executor.lower.batch import Batch, batch_of
from graphkit.executor.lower.lowering import LoweredGraph, NotNative, Settings
from graphkit.executor.lower.registry import lower_graph
from graphkit.executor.lower.swapped_stacks import stacks_on_host
from graphkit.executor.lower.template import Template
from graphkit.executor.memory.errors import out_of_memory
from graphkit.executor.memory.pools import Pools
from graphkit.executor.memory.swapping import swap_marked
from graphkit.executor.run.arrays.program import ArrayProgram
from graphkit.executor.run.executable import DeviceProgram, Executable
from graphkit.executor.run.program import Program
from graphkit.executor.run.sized_program import SizedProgram
from graphkit.ir.collector import uncollected
from graphkit.ir.graph import Graph, Value
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.control.prune import prune_control
from graphkit.passes.control.specialise import Unspecialised, specialise_subgraphs
from graphkit.passes.core.bind import bind
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.pipeline import ARRAYS_BOUND, BOUND


@uncollected
def compile_graph(
    graph: Graph,
    shapes: Mapping[str, Any],
    fixed: Mapping[int, VersionedArray],
    settings: Settings,
    pools: Pools,
    borrowed: Collection[int] = (),
) -> DeviceProgram:
    """The program of `graph` for inputs of these `shapes`, by name; others have theirs already.

    `fixed` gives operands that only change with a version, by position of the input. `borrowed` are the positions of
    inputs that other programs of the device have computed. See Program for the rest. Raises OutOfMemory, and what
    `bind` raises.
    """
    bound = bind(graph, shapes)
    if settings.optimize:
        changed = bound is not graph
        more = BOUND if settings.native else ARRAYS_BOUND if settings.device != "cpu" else ()
        bound = run_passes(bound, (*CLEANUP, *more)) if changed else prune_control(bound)
    with out_of_memory(bound, "planning the run"):
        specialised, unspecialised = specialise_subgraphs(bound, CLEANUP if settings.optimize else ())
        arrays = {specialised.inputs[position]: array for position, array in fixed.items()}
        lowered = lower_graph(specialised, arrays, settings, unspecialised)
        if settings.device != "cpu":
            lowered = _with_swaps(lowered, arrays, unspecialised)
        return _program(lowered, pools, [specialised.inputs[position] for position in borrowed])


def _with_swaps(
    lowered: LoweredGraph, fixed: Mapping[Value, VersionedArray], unspecialised: Unspecialised
) -> LoweredGraph:
    """The graph with values in the host's memory where its nodes are marked so; itself where none are worth it."""
    stacks = stacks_on_host(lowered)
    swapped = swap_marked(lowered.graph, lowered.placement, lowered.memory.order, stacks)
    if swapped is None:
        return lowered
    became = swapped.became
    moved = {(became.get(node, node), attribute): why for (node, attribute), why in unspecialised.items()}
    return lower_graph(
        swapped.graph, fixed, lowered.settings, moved, order=swapped.order, hosted=frozenset(swapped.stacks)
    )


def find_batch(graph: Graph, fixed: Mapping[int, VersionedArray], settings: Settings) -> Batch | None:
    """The batch of a graph that large ones are computed of in parts; None where all are computed as a whole."""
    plain = settings.optimize and settings.inplace and settings.share
    return batch_of(graph, fixed) if settings.native and plain and settings.device == "cpu" else None


def make_template(graph: Graph, fixed: Mapping[int, VersionedArray], settings: Settings) -> Template | None:
    """What programs for other sizes of the same graph follow from; None where each is compiled on its own.

    The bits of a result may depend on which of the two a size had: where that must not be, all are compiled.
    """
    plain = settings.optimize and settings.inplace and settings.share and not settings.deterministic
    if not (settings.native and plain):
        return None
    settings = settings._replace(sizes_vary=True)
    try:
        return Template(graph, {graph.inputs[position]: array for position, array in fixed.items()}, settings)
    except NotNative:
        return None


def sized_program(
    template: Template, shapes: Mapping[str, Any], fixed: Mapping[int, VersionedArray], pools: Pools
) -> SizedProgram | None:
    """The program of a template for these shapes; None when it has none. Raises InputError as `bind` does."""

    def lower() -> LoweredGraph:
        graph = bind(template.graph, shapes)
        return lower_graph(graph, {graph.inputs[i]: array for i, array in fixed.items()}, template.settings, {})

    try:
        return SizedProgram(template, template.at(shapes), lower, pools)
    except NotNative:
        return None


def refuse_fallbacks(program: Executable) -> None:
    """With GRAPHKIT_STRICT=1, raise UnsupportedError for nodes without a native kernel."""
    if config.STRICT.get() and program.fallbacks:
        listed = ", ".join(program.fallbacks)
        raise UnsupportedError(f"GRAPHKIT_STRICT=1, but these nodes have no native kernel: {listed}")


def _program(lowered: LoweredGraph, pools: Pools, borrowed: Collection[Value]) -> DeviceProgram:
    device = find_device(lowered.settings.device, lowered.settings.number)
    return Program(lowered, pools) if device is None else ArrayProgram(lowered, device, pools, borrowed)
