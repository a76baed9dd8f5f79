"""Normalisations over the last axes. A row is read for its statistics, and for the result. Factors are broadcast."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphkit.executor.devices.cuda.launches import Argument, CardKernel, Input, Output, launched
from graphkit.executor.devices.cuda.rows.groups import Groups, Pass, Work, written
from graphkit.executor.devices.cuda.text.expressions import STORED, float_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.cuda.text.repeated import repeated
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.ir.graph import Node
from graphkit.ir.types import HALVES, DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.nn.norm import NormOfLastAxes, RMSNormalization


@launched("LayerNormalization")
@launched("MixedPrecisionLayerNorm", DOMAIN)
def _layer_norm(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, NormOfLastAxes)
    used = [*context.used_outputs, True, True, True][:3]
    narrow = op.stash is DType.FLOAT64 and node.operands[0].dtype in HALVES
    if op.stash not in STORED or narrow:
        return None
    moments = Pass("gk_moments<A>", 4, ["p0.take((A)gk_read(x[at]));"])
    ahead = ["const A mean = p0.mean;", "const A r = (A)1 / gk_sqrt(p0.deviations / (A)count + epsilon);"]
    return _normalised(node, op, used, moments, ahead, "((A)gk_read(x[at]) - mean) * r")


@launched("RMSNormalization")
def _rms_norm(node: Node, context: KernelContext) -> CardKernel | None:
    squares = Pass("gk_sums<A, 1>", 1, ["const A v = (A)gk_read(x[at]);", "p0.s[0] += v * v;"])
    ahead = ["const A r = (A)1 / gk_sqrt(p0.s[0] / (A)count + epsilon);"]
    return _normalised(node, operator(node, RMSNormalization), (True,), squares, ahead, "(A)gk_read(x[at]) * r")


def _normalised(
    node: Node, op: NormOfLastAxes, used: Sequence[bool], statistics: Pass, ahead: Sequence[str], value: str
) -> CardKernel | None:
    """Return the kernel of a normalisation; None for unsupported types, or if only y is empty.

    Args:
        node: The node.
        op: Its operator.
        used: Whether y, mean and inverse deviation are used.
        statistics: The pass that computes statistics.
        ahead: Lines that declare `r` and, if there is a mean, `mean`.
        value: Expression of a normalised element, before scale and bias.
    """
    kinds = {v.dtype for v in node.operands}
    sizes = node.operands[0].tensor.static_shape
    if any(float_type(kind) is None for kind in kinds):
        return None
    if math.prod(sizes) == 0:
        # Without elements, y is empty, but statistics may not be.
        read = [v for v, is_read in zip(node.outputs, used, strict=False) if is_read]
        return None if any(math.prod(shape(v)) for v in read) else CardKernel(())
    held = DType.FLOAT64 if DType.FLOAT64 in kinds or op.stash is DType.FLOAT64 else DType.FLOAT32
    size = math.prod(sizes[op.axes(len(sizes))[0] :])
    groups = Groups.over((math.prod(sizes) // size, size), [1], held)
    given: list[tuple[str, Argument]] = [(f"const {STORED[node.operands[0].dtype]}* x", Input(0))]
    lines: list[str] = []
    places: list[tuple[Coordinates, Sequence[int]]] = []
    for position, sign in zip(range(1, len(node.inputs)), "*+", strict=False):
        factor = operand(node, position)
        if factor is None:
            continue
        lies = repeated(f"i{position}", shape(factor), sizes, groups.short, size)
        given += [(f"const {STORED[factor.dtype]}* f{position}", Input(position)), *lies.given]
        lines += lies.lines
        places += lies.coordinates
        value += f" {sign} (A)gk_read(f{position}[{lies.place}])"
    results = list(zip(("y", "means", "inverses"), node.outputs, used, strict=False))
    given += [(f"{STORED[v.dtype]}* {name}", Output(i)) for i, (name, v, read) in enumerate(results) if read]
    given.append((f"{STORED[held]} epsilon", held.numpy.type(op.epsilon)))
    lines.append(written("y", node.outputs[0].dtype, "at", value))
    statistics_of = zip(results[1:], ("mean", "r"), strict=False)
    once = [written(name, v.dtype, "g", made) for (name, v, read), made in statistics_of if read]
    work = Work(f"{op.name}_rows", given, [statistics], lines if used[0] else [], ahead, once, places)
    return groups.kernel(work)
