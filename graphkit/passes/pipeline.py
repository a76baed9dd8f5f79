"""Pipelines of passes that prepare a graph for execution, and the effect of each pass on a graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache

from graphkit.ir.graph import Graph, Node
from graphkit.ir.types import FLOATS, HALVES, DType
from graphkit.named_tuples import NamedTuple
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.declare import Pass, Property, deferred, held_after, ordered, pipeline
from graphkit.passes.core.match import FixedValues
from graphkit.passes.core.sweep import effect, is_constant

cse = deferred("cse")
merge_recurrences = deferred("merge_recurrences")
scan_axes = deferred("scan_axes")
fuse_activation = deferred("fuse_activation")
fuse_attention = deferred("fuse_attention")
fuse_attention_cache = deferred("fuse_attention_cache")
fuse_attention_gradient = deferred("fuse_attention_gradient")
fuse_batch_norm = deferred("fuse_batch_norm")
fuse_conv = deferred("fuse_conv")
float8_products = deferred("float8_products")
fold_batch_norm = deferred("fold_batch_norm")
fuse_gelu = deferred("fuse_gelu")
fuse_layer_norm = deferred("fuse_layer_norm")
fuse_loss_grad = deferred("fuse_loss_grad")
fuse_matmul = deferred("fuse_matmul")
fuse_norm_casts = deferred("fuse_norm_casts")
fuse_pointwise = deferred("fuse_pointwise")
repeat_heads = deferred("repeat_heads")
share_heads = deferred("share_heads")
fuse_softmax = deferred("fuse_softmax")
fuse_softmax_grad = deferred("fuse_softmax_grad")
fuse_string_encoders = deferred("fuse_string_encoders")
fuse_table_update = deferred("fuse_table_update")
fuse_tokenized_ngrams = deferred("fuse_tokenized_ngrams")
channels_last = deferred("channels_last")
widen_halves = deferred("widen_halves")
move_casts = deferred("move_casts")
round_products = deferred("round_products")
unstride_transposed = deferred("unstride_transposed")
dynamic_products = deferred("dynamic_products")
integers = deferred("integers")
weight_products = deferred("weight_products")
expand_composites = deferred("expand_composites")
eliminate_expand = deferred("eliminate_expand")
fold = deferred("fold")
simplify = deferred("simplify")
known_ranks = deferred("known_ranks")
drop_outer_taps = deferred("drop_outer_taps")
eliminate_reshape = deferred("eliminate_reshape")
eliminate_transpose = deferred("eliminate_transpose")

_HELD = held_after(CLEANUP)

# `ordered` orders the passes within a stage. Passes that run twice are between stages.
_PRODUCTS_AND_LAYOUTS = (
    *ordered(widen_halves, known_ranks, expand_composites, merge_recurrences),
    integers,
    dynamic_products,
    weight_products,
    # Expanded composites contain nodes that can be simplified, and masks that become constants. Expanded gradients
    # repeat parts of the forward pass, which become equal to those of the expanded forward pass.
    simplify,
    fold,
    cse,
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
        fuse_attention_gradient.with_options(kinds=(DType.FLOAT32,)),
        share_heads,
        fuse_attention_cache,
        eliminate_reshape,
        unstride_transposed,
        drop_outer_taps,
        # As late as possible, because it adds many nodes that compute new weights.
        fold_batch_norm,
        fuse_matmul,
        fuse_conv,
        channels_last,
    ),
    # Some transposes at the borders of channels-last parts only move axes of size 1.
    eliminate_reshape,
)

# After products are fused: the remaining nodes.
_REGIONS = (
    *CLEANUP,
    *ordered(
        fuse_batch_norm, fuse_loss_grad, fuse_table_update, fuse_string_encoders, fuse_tokenized_ngrams, fuse_pointwise
    ),
)

# All passes after CLEANUP.
INFERENCE = pipeline(*_PRODUCTS_AND_LAYOUTS, *_REGIONS, given=_HELD)


def inference_passes(
    precision: str = "f32",
    whole: Callable[[Node], bool] | None = None,
    halves: Collection[DType] = HALVES,
    fusable: Callable[[Node], bool] | None = None,
) -> tuple[Pass[...], ...]:
    """Return INFERENCE, adapted to a precision and to the supported kernels.

    Args:
        precision: With "bf16", matrix products are rounded to bfloat16. This happens before pointwise nodes are fused,
            so that the fused regions include the casts.
        whole: Returns whether a node of a composite operator must not be expanded.
        halves: The element types whose operators are computed in float32.
        fusable: Returns whether a pointwise node may be fused with others.
    """
    rounding = () if precision == "f32" else (round_products, move_casts)
    chosen: dict[Pass[...], Pass[...]] = {widen_halves: widen_halves.with_options(halves=halves)}
    if whole is not None:
        chosen[expand_composites] = expand_composites.with_options(whole=whole)
    if fusable is not None:
        chosen[fuse_pointwise] = fuse_pointwise.with_options(fusable=fusable)
    passes = (*_PRODUCTS_AND_LAYOUTS, *rounding, *_REGIONS)
    return pipeline(*(chosen.get(p, p) for p in passes), given=_HELD)


# On devices with their own memory, attention is computed in float16 and bfloat16, too.
_ATTENTION_OF_ANY_TYPE = fuse_attention.with_options(kinds=FLOATS, guards=False)
# Properties that count as given on such devices, because their pipeline leaves out the passes that ensure them.
_GIVEN_TO_ARRAYS = (
    _HELD
    | fuse_pointwise.requires
    | {Property.HALVES_WIDENED, Property.TRANSPOSED_CONVOLUTIONS_CONVERTED, Property.TAPS_MEET_DATA}
)


# Element types whose convolutions have the channels last, by precision: tensor cores need this layout. With "f32", only
# float16 and bfloat16 use tensor cores.
_LAST = {precision: HALVES | {DType.FLOAT32} for precision in ("tf32", "bf16", "f16", "fp8")} | {"f32": HALVES}


def with_filters_last(kinds: Collection[DType]) -> Pass[...]:
    """Return `channels_last` for float convolutions of these types. Their filters have the channels last, too."""

    def check(graph: Graph) -> Node | None:
        from graphkit.passes.layout.channels_last import channels_first

        return channels_first(graph, kinds)

    return channels_last.with_options(check, kinds=kinds, filters_last=True)


def array_passes(
    fusable: Callable[[Node], bool], precision: str = "f32", whole: Callable[[Node], bool] = lambda node: False
) -> tuple[Pass[...], ...]:
    """Return the passes after CLEANUP for devices with their own memory.

    Formulas become operators. Products, convolutions and attention are fused with their neighbours. Pointwise nodes are
    fused into regions.

    Args:
        fusable: Returns whether a pointwise node may be fused with others.
        precision: With "bf16" and "f16", operands and results of products, convolutions and attention are rounded to
            this type. "fp8" is "bf16" with 8-bit operands of matrix products. With these and "tf32", convolutions have
            the channels last.
        whole: Returns whether a node of a composite operator must not be expanded.
    """
    halves = {"bf16": DType.BFLOAT16, "f16": DType.FLOAT16, "fp8": DType.BFLOAT16}
    rounding: tuple[Pass[...], ...] = ()
    if precision in halves:
        rounding = (round_products.with_options(kind=halves[precision], attention=True), move_casts)
    if precision == "fp8":
        rounding = (float8_products, *rounding)
    products = (
        *ordered(
            known_ranks, expand_composites.with_options(whole=whole), merge_recurrences, simplify, fold, cse, scan_axes,
            eliminate_expand, fuse_layer_norm, fuse_gelu, fuse_activation, fuse_softmax, fuse_softmax_grad,
            eliminate_transpose, repeat_heads, _ATTENTION_OF_ANY_TYPE, fuse_attention_gradient, share_heads,
            eliminate_reshape, fold_batch_norm.with_options(expanded=True), fuse_conv,
            # The library has no activations. They join the pointwise region after the product.
            fuse_matmul.with_options(activations=False), with_filters_last(_LAST[precision]),
        ),
        eliminate_reshape,
    )  # fmt: skip
    narrowing = (fuse_norm_casts,) if rounding else ()
    regions = (fuse_batch_norm, fuse_loss_grad, *narrowing, fuse_pointwise.with_options(fusable=fusable))
    return pipeline(*products, *rounding, *CLEANUP, *regions, given=_GIVEN_TO_ARRAYS)


# Passes that may apply once the shapes of a prepared graph are known.
BOUND = pipeline(
    simplify,
    repeat_heads,
    fuse_attention,
    share_heads,
    fuse_attention_cache,
    scan_axes,
    given=held_after(INFERENCE, _HELD),
)


@cache
def arrays_bound() -> tuple[Pass[...], ...]:
    """Return the same as BOUND, for devices with their own memory."""
    given = held_after(array_passes(lambda node: True), _GIVEN_TO_ARRAYS)
    return pipeline(simplify, repeat_heads, _ATTENTION_OF_ANY_TYPE, share_heads, given=given)


class Effect(NamedTuple):
    """A graph after a pass.

    Attributes:
        name: The name of the pass.
        nodes: The number of nodes that each run computes.
        fixed: The number of nodes that depend only on constants and parameters.
        change: What the pass changed, in one line.
    """

    name: str
    nodes: int
    fixed: int
    change: str


def effects(graph: Graph, passes: Sequence[Pass[...]] = (*CLEANUP, *INFERENCE)) -> Iterator[Effect]:
    """Apply passes in order and yield the effect of each. Constants and nodes of subgraphs are not counted."""
    for step in passes:
        before, graph = graph, step(graph)
        values = FixedValues(graph)
        nodes = [node for node in graph.nodes if not is_constant(node)]
        fixed = sum(all(v in values for v in node.outputs) for node in nodes)
        yield Effect(step.name, len(nodes) - fixed, fixed, effect(before, graph))
