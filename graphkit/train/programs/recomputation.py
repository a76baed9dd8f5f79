"""Choose which activations the backward pass computes again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from graphkit.errors import UsageError
from graphkit.executor.devices.groups import AnyDevice, kinds_of
from graphkit.executor.devices.loading import load_device
from graphkit.executor.devices.registry import runs_whole
from graphkit.ir.graph import Graph, Node
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.control.merge_recurrences import merge_recurrences
from graphkit.passes.core.bind import match_shapes
from graphkit.passes.core.declare import pipeline
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.simplify.composites import expand_composites
from graphkit.passes.training.randomness import bind_rng
from graphkit.passes.training.recompute import MARK, Segments, recompute_marked, recompute_sqrt

Recompute = Literal["sqrt"] | int


def check(recompute: Recompute | None) -> None:
    if recompute is None or recompute == "sqrt":
        return
    if isinstance(recompute, bool) or not isinstance(recompute, int) or recompute < 1:
        raise UsageError(f"recompute must be 'sqrt' or a number of bytes, not {recompute!r}")


def recompute_marked_nodes(program: Graph, device: AnyDevice = "cpu") -> Graph:
    if all(MARK not in node.meta for node in program.nodes):
        return program
    return recompute_marked(prepared(program, device))


def limit_memory(
    program: Graph,
    recompute: Recompute,
    shapes: Mapping[str, Sequence[int]],
    arena_bytes: Callable[[Graph], int],
    device: AnyDevice = "cpu",
) -> Graph:
    """With a limit, as few segments as possible are recomputed, first those that save the most bytes per arithmetic
    operation.

    Raises:
        UsageError: The limit cannot be met.
    """
    segments = _segments(prepared(program, device), shapes)
    if recompute == "sqrt":
        return segments.apply()
    if arena_bytes(program) <= recompute:
        return program
    order = segments.by_benefit()
    best = segments.apply()
    if (least := arena_bytes(best)) > recompute:
        raise UsageError(
            f"recompute={recompute} (--recompute): even if everything possible is recomputed, a step needs {least} "
            "bytes for activations and working memory. Allow at least that, or use smaller batches"
        )
    low, high = 0, len(order)  # `low` segments are too few, `high` are enough
    while high - low > 1:
        middle = (low + high) // 2
        trial = segments.apply(order[:middle])
        if arena_bytes(trial) <= recompute:
            best, high = trial, middle
        else:
            low = middle
    return best


def _segments(program: Graph, shapes: Mapping[str, Sequence[int]]) -> Segments:
    by_name = {program.name_of(v): v.tensor for v in program.inputs if v.role == "data"}
    bindings = match_shapes([(n, by_name[n], by_name[n].with_shape(s)) for n, s in shapes.items() if n in by_name])
    return recompute_sqrt(program, {n: d for n, d in bindings.items() if isinstance(d, int)})


def prepared(program: Graph, device: AnyDevice = "cpu") -> Graph:
    """Random nodes get fixed streams: a recomputed copy draws the same numbers. Equal expressions are merged, and
    composite operators without a kernel are expanded.
    """
    kinds = kinds_of(device)
    for kind in kinds:
        load_device(kind)

    def whole(node: Node) -> bool:
        return all(runs_whole(kind, node) for kind in kinds)

    expand = expand_composites.with_options(whole=whole)
    passes = pipeline(bind_rng, *CLEANUP, expand, merge_recurrences, *CLEANUP)
    return run_passes(program, passes).replace(output_names=program.output_names)
