"""Fuse convolutions with the operators after them: bias, activation, residual."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import DOMAIN, F, operator
from graphkit.ops.internal.fused_conv import FusedConv
from graphkit.ops.nn.conv import Conv
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import ints, is_channel_vector, producer
from graphkit.passes.core.sweep import Readers, fuse
from graphkit.passes.fuse.epilogue import ABSORBED, Product, absorb, is_single


@graph_pass(
    requires=[
        Property.HALVES_WIDENED,
        Property.GELUS_FUSED,
        Property.ACTIVATIONS_FUSED,
        Property.TRANSPOSED_CONVOLUTIONS_CONVERTED,
        Property.TAPS_MEET_DATA,
        Property.BATCH_NORMS_FOLDED,
        Property.POINTWISE_APART,
    ],
    ensures=[Property.CONVOLUTIONS_FUSED],
    at=["Conv", "FusedConv"],
    beside=[ABSORBED],
)
def fuse_conv(graph: Graph) -> Graph:
    """Fuse a Conv and the operators after it into FusedConv. Takes linear time.

    These are: the sum with one number per channel, an activation (see FusedConv), and the sum with a tensor of the
    result's shape. Each of them must be the only reader of its operand.
    """

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        return absorb(node, readers, _form, _bias)

    return fuse(graph, rule, needs=("Conv", "FusedConv"), at=ABSORBED)


def _form(value: Value) -> Product[FusedConv] | None:
    node = producer(value, "FusedConv", domain=DOMAIN)
    if node is not None:
        return Product(operator(node, FusedConv), (*node.inputs, None, None)[:4], node)
    node = producer(value, "Conv")
    if node is None or not is_single(value):
        return None
    return Product(FusedConv(**operator(node, Conv).related()), (*node.inputs, None, None)[:4], node)


def _bias(product: Product[FusedConv], value: Value) -> Value | None:
    """Return the bias [M] for which adding it equals adding `value`; None if there is none."""
    rank, channels = product.node.output.rank, product.node.output.tensor.known_shape[1]
    if rank is None or not isinstance(channels, int) or not is_channel_vector(value, channels, 1, rank):
        return None
    return value if value.rank == 1 else F.reshape(value, ints(channels))
