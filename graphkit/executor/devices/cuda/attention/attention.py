"""The operator, and which kernel computes it."""

from __future__ import annotations

from graphkit.executor.devices.cuda.attention.flash import Flash
from graphkit.executor.devices.cuda.attention.sizes import Attended
from graphkit.executor.devices.cuda.launches import CardKernel, Launch, Output
from graphkit.executor.devices.cuda.text.expressions import STORED, float_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import register_launched
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN


@register_launched("cuda", DOMAIN, "FusedAttention")
def _attention(node: Node, context: KernelContext) -> CardKernel | None:
    if float_type(node.output.dtype) is None:
        return None
    of = Attended.of(node)
    if of.results == 0:
        return CardKernel(())
    if of.keys == 0:
        return CardKernel((_nothing(of),))
    return Flash(of).kernel()


def _nothing(of: Attended) -> Launch:
    """The sums of no values."""
    return for_each(
        "attention_of_nothing", (of.results,), Coordinates("i", 1, of.short),
        [(f"{STORED[of.kind]}* y", Output(0))], [f"y[at] = {STORED[of.kind]}();"],
    )  # fmt: skip
