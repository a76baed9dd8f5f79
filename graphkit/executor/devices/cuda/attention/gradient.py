"""The operator FusedAttentionGrad, and the choice of its kernels."""

from __future__ import annotations

import math

from graphkit.executor.devices.cuda.attention.backward import Backward, RegisterBackward, Wanted, sums
from graphkit.executor.devices.cuda.attention.backward_tensor import TensorBackward
from graphkit.executor.devices.cuda.attention.sizes import FEW, AttentionSizes
from graphkit.executor.devices.cuda.launches import CardKernel, Launch, Output, launched
from graphkit.executor.devices.cuda.movement.sorting import aligned
from graphkit.executor.devices.cuda.text.expressions import STORED, float_type, held_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.kernel import KernelContext
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN

_OPERANDS: tuple[Wanted, ...] = ("q", "k", "v")


@launched("FusedAttentionGrad", DOMAIN)
def _gradient(node: Node, context: KernelContext) -> CardKernel | None:
    of = AttentionSizes.of(node)
    if float_type(of.kind) is None:
        return None
    used = (*context.used_outputs, True, True, True)[:3]
    sizes = [math.prod(v.tensor.static_shape) for v in node.outputs]
    wanted = [i for i, (size, read) in enumerate(zip(sizes, used, strict=True)) if size and read]
    if of.queries == 0 or of.keys == 0:
        return CardKernel(tuple(_zeros(of, i, sizes[i]) for i in wanted))
    launches = [_backward(of, _OPERANDS[i], context.tf32).launch() for i in wanted]
    if not {0, 1}.intersection(wanted):
        return CardKernel(tuple(launches))
    return CardKernel((sums(of), *launches), aligned(of.queries * held_type(of.kind).itemsize))


def _backward(of: AttentionSizes, wanted: Wanted, tf32: bool) -> Backward:
    """Return the kernel of one gradient. With few rows, tensor cores are not used: most of a tile would be empty."""
    if TensorBackward.computes(of, tf32) and min(of.rows, of.keys) >= FEW:
        return TensorBackward(of, wanted=wanted)
    return RegisterBackward(of, wanted=wanted)


def _zeros(of: AttentionSizes, position: int, count: int) -> Launch:
    """Return the launch that fills a gradient with zeros, because there are no queries or keys."""
    kind = STORED[of.kind]
    return for_each(
        "attention_gradient_of_nothing", (count,), Coordinates("i", 1, of.short), [(f"{kind}* to", Output(position))],
        [f"to[at] = {kind}();"],
    )  # fmt: skip
