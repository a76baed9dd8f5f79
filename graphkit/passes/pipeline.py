"""The passes that prepare a graph to be run natively, in their order, and what each of them does to a graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from graphkit.ir.graph import Graph, Node
from graphkit.ir.types import FLOATS, HALVES, DType
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.control.merge_recurrences import merge_recurrences
from graphkit.passes.control.scan_axes import scan_axes
from graphkit.passes.core.declare import Pass, Property, held_after, ordered, pipeline
from graphkit.passes.core.match import FixedValues
from graphkit.passes.core.sweep import effect, is_constant
from graphkit.passes.fuse.activation import fuse_activation
from graphkit.passes.fuse.attention import fuse_attention
from graphkit.passes.fuse.attention_cache import fuse_attention_cache
from graphkit.passes.fuse.attention_gradient import fuse_attention_gradient
from graphkit.passes.fuse.batch_norm import fuse_batch_norm
from graphkit.passes.fuse.conv import fuse_conv
from graphkit.passes.fuse.float8_products import float8_products
from graphkit.passes.fuse.fold_batch_norm import fold_batch_norm
from graphkit.passes.fuse.gelu import fuse_gelu
from graphkit.passes.fuse.layer_norm import fuse_layer_norm
from graphkit.passes.fuse.loss_grad import fuse_loss_grad
from graphkit.passes.fuse.matmul import fuse_matmul
from graphkit.passes.fuse.norm_casts import fuse_norm_casts
from graphkit.passes.fuse.pointwise import fuse_pointwise
from graphkit.passes.fuse.shared_heads import repeat_heads, share_heads
from graphkit.passes.fuse.softmax import fuse_softmax, fuse_softmax_grad
from graphkit.passes.fuse.string_encoders import fuse_string_encoders
from graphkit.passes.fuse.table_update import fuse_table_update
from graphkit.passes.fuse.tokenized_ngrams import fuse_tokenized_ngrams
from graphkit.passes.layout.channels_last import channels_last, with_filters_last
from graphkit.passes.layout.float16 import widen_halves
from graphkit.passes.layout.move_casts import move_casts
from graphkit.passes.layout.round_products import round_products
from graphkit.passes.layout.unstride_transposed import unstride_transposed
from graphkit.passes.quantise.dynamic import dynamic_products
from graphkit.passes.quantise.integers import integers
from graphkit.passes.quantise.weights import weight_products
from graphkit.passes.simplify.composites import expand_composites
from graphkit.passes.simplify.expand import eliminate_expand
from graphkit.passes.simplify.fold import fold
from graphkit.passes.simplify.identities import simplify
from graphkit.passes.simplify.known_ranks import known_ranks
from graphkit.passes.simplify.outer_taps import drop_outer_taps
from graphkit.passes.simplify.reshape import eliminate_reshape
from graphkit.passes.simplify.transpose import eliminate_transpose

_HELD = held_after(CLEANUP)

# Stages: `ordered` finds the order within one. Passes that run twice stand between stages.
_PRODUCTS_AND_LAYOUTS = (
    *ordered(widen_halves, known_ranks, expand_composites, merge_recurrences),
    integers,
    dynamic_products,
    weight_products,
    # What composites consist of simplifies, and their masks become constants.
    simplify,
    fold,
    *ordered(
        scan_axes,
        eliminate_expand,
        fuse_layer_norm,
        fuse_gelu,
        fuse_activation,
        fuse_softmax,
        eliminate_transpose,
        repeat_heads,
        fuse_attention,
        share_heads,
        fuse_attention_cache,
        eliminate_reshape,
        unstride_transposed,
        drop_outer_taps,
        # As late as it may be, because the nodes that make new weights are many.
        fold_batch_norm,
        fuse_matmul,
        fuse_conv,
        channels_last,
    ),
    # Transposes at the borders of channels-last parts may move no element.
    eliminate_reshape,
)

# What products have left over.
_REGIONS = (
    *CLEANUP,
    *ordered(
        fuse_batch_norm, fuse_loss_grad, fuse_table_update, fuse_string_encoders, fuse_tokenized_ngrams, fuse_pointwise
    ),
)

# After CLEANUP.
INFERENCE = pipeline(*_PRODUCTS_AND_LAYOUTS, *_REGIONS, given=_HELD)


def inference_passes(
    precision: str = "f32",
    whole: Callable[[Node], bool] | None = None,
    halves: Collection[DType] = HALVES,
    fusable: Callable[[Node], bool] | None = None,
) -> tuple[Pass[...], ...]:
    """INFERENCE; with precision="bf16", matrix work is rounded before pointwise regions take the casts in.

    Nodes of composite operators for which `whole` holds are not expanded; `halves` are the types that are computed in
    float32; pointwise nodes for which `fusable` does not hold stay alone.
    """
    rounding = () if precision == "f32" else (round_products, move_casts)
    chosen: dict[Pass[...], Pass[...]] = {widen_halves: widen_halves.with_options(halves=halves)}
    if whole is not None:
        chosen[expand_composites] = expand_composites.with_options(whole=whole)
    if fusable is not None:
        chosen[fuse_pointwise] = fuse_pointwise.with_options(fusable=fusable)
    passes = (*_PRODUCTS_AND_LAYOUTS, *rounding, *_REGIONS)
    return pipeline(*(chosen.get(p, p) for p in passes), given=_HELD)


# Of attention on devices with arrays of their own; half floats are computed as they are there.
_ATTENTION_OF_ANY_TYPE = fuse_attention.with_options(kinds=FLOATS)
# Nothing is done there for what the passes that are missing make.
_GIVEN_TO_ARRAYS = (
    _HELD
    | fuse_pointwise.requires
    | {Property.HALVES_WIDENED, Property.TRANSPOSED_CONVOLUTIONS_CONVERTED, Property.TAPS_MEET_DATA}
)


# Where tensor cores multiply: they read channels that are last. Of precision "f32" half floats alone.
_LAST = {precision: HALVES | {DType.FLOAT32} for precision in ("tf32", "bf16", "f16", "fp8")} | {"f32": HALVES}


def array_passes(
    fusable: Callable[[Node], bool], precision: str = "f32", whole: Callable[[Node], bool] = lambda node: False
) -> tuple[Pass[...], ...]:
    """After CLEANUP, for devices with arrays of their own: formulas are operators, products, convolutions and attention
    have taken in what is around them, and pointwise nodes for which `fusable` holds are fused. Nodes of composite
    operators for which `whole` holds are not expanded.

    precision: with "bf16" and "f16" operands and results of products, convolutions and attention are rounded; "fp8" is
    "bf16" with products in 8 bits. With these and "tf32" convolutions have the channels last.
    """
    halves = {"bf16": DType.BFLOAT16, "f16": DType.FLOAT16, "fp8": DType.BFLOAT16}
    rounding: tuple[Pass[...], ...] = ()
    if precision in halves:
        rounding = (round_products.with_options(kind=halves[precision], attention=True), move_casts)
    if precision == "fp8":
        rounding = (float8_products, *rounding)
    products = (
        *ordered(
            known_ranks, expand_composites.with_options(whole=whole), merge_recurrences, simplify, fold, scan_axes,
            eliminate_expand, fuse_layer_norm, fuse_gelu, fuse_activation, fuse_softmax, fuse_softmax_grad,
            eliminate_transpose, repeat_heads, _ATTENTION_OF_ANY_TYPE,
        ),
        fuse_attention_gradient,
        # Those of its layouts meet others.
        eliminate_transpose,
        *ordered(
            share_heads, eliminate_reshape, fold_batch_norm, fuse_conv,
            # The library has no activations: they are for the pointwise region behind.
            fuse_matmul.with_options(activations=False), with_filters_last(_LAST[precision]),
        ),
        eliminate_reshape,
    )  # fmt: skip
    narrowing = (fuse_norm_casts,) if rounding else ()
    regions = (fuse_batch_norm, fuse_loss_grad, *narrowing, fuse_pointwise.with_options(fusable=fusable))
    return pipeline(*products, *rounding, *CLEANUP, *regions, given=_GIVEN_TO_ARRAYS)


# What becomes possible when the shapes of a prepared graph are known; on devices with arrays of their own.
BOUND = pipeline(
    simplify,
    repeat_heads,
    fuse_attention,
    share_heads,
    fuse_attention_cache,
    scan_axes,
    given=held_after(INFERENCE, _HELD),
)
ARRAYS_BOUND = pipeline(
    simplify,
    repeat_heads,
    _ATTENTION_OF_ANY_TYPE,
    share_heads,
    given=held_after(array_passes(lambda node: True), _GIVEN_TO_ARRAYS),
)


class Effect(NamedTuple):
    """A graph after a pass: nodes that a run computes, nodes on constants and parameters alone, and what changed."""

    name: str
    nodes: int
    fixed: int
    change: str


def effects(graph: Graph, passes: Sequence[Pass[...]] = (*CLEANUP, *INFERENCE)) -> Iterator[Effect]:
    """Apply passes in order and tell what each does; constants are not counted, nor are nodes of subgraphs."""
    for step in passes:
        before, graph = graph, step(graph)
        values = FixedValues(graph)
        nodes = [node for node in graph.nodes if not is_constant(node)]
        fixed = sum(all(v in values for v in node.outputs) for node in nodes)
        yield Effect(step.name, len(nodes) - fixed, fixed, effect(before, graph))
