"""Rewrites for ONNX Runtime: nodes that are valid, but that it rejects or computes wrongly, get another form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.ir.graph import Value
from graphkit.ir.types import HALVES, DType
from graphkit.onnx_io.downgrade import ALWAYS, Site, Spelling, rewrites, spells
from graphkit.ops import F, constant, operator
from graphkit.ops.math.einsum import Einsum
from graphkit.ops.tensor.scatter import ScatterElements, ScatterND


@rewrites("ScatterElements", "ScatterND", below=ALWAYS)
def _sums_of_halves(site: Site) -> Sequence[Value] | None:
    # ONNX Runtime's float16 kernel fails at run time if there is a reduction.
    op = site.op
    assert isinstance(op, (ScatterElements, ScatterND))
    x, indices, updates = (site.operand(i) for i in range(3))
    if op.reduction == "none" or x.dtype not in HALVES:
        return None
    wide = [F.cast(x, to=DType.FLOAT32), indices, F.cast(updates, to=DType.FLOAT32)]
    return [F.cast(site.node.rebuilt(wide).output, to=x.dtype)]


@rewrites("OneHot", below=ALWAYS)
def _chosen_values(site: Site) -> Sequence[Value] | None:
    # ONNX Runtime has kernels for few element types. For others, a OneHot of int64 gives indices into the values.
    indices, depth, values = (site.operand(i) for i in range(3))
    integers = [v if v.dtype is DType.INT64 else F.cast(v, to=DType.INT64) for v in (indices, depth)]
    if values.dtype in (DType.FLOAT32, DType.FLOAT16, DType.INT64, DType.STRING):
        return None if integers == [indices, depth] else [site.node.rebuilt([*integers, values]).output]
    chosen = site.node.rebuilt([*integers, constant(np.array([0, 1]))]).output
    return [F.gather(values, chosen)]


@rewrites("Squeeze", below=ALWAYS)
def _squeezed_nowhere(site: Site) -> Sequence[Value] | None:
    # ONNX Runtime reads an empty list of axes as absent axes, and removes every axis of size 1.
    axes = site.input(1)
    return [F.identity(site.operand(0))] if axes is not None and axes.tensor.shape == (0,) else None


@rewrites("Sum", below=ALWAYS)
def _sum_of_two(site: Site) -> Sequence[Value] | None:
    # ONNX Runtime's optimiser fails on a Sum of two operands after a matrix product, if an operand of the product is
    # the third output of a node.
    return [F.add(site.operand(0), site.operand(1))] if len(site.inputs) == 2 else None


@spells("QuantizeLinear", below=ALWAYS)
def _type_of_the_zero_point(spelling: Spelling) -> None:
    # ONNX Runtime's optimiser converts int8 to uint8 in the zero point, but not in output_dtype. Then the two differ.
    if spelling.input(2) is not None:
        spelling.attrs["output_dtype"] = None


@rewrites("Einsum", below=ALWAYS)
def _broadcast_letters(site: Site) -> Sequence[Value] | None:
    # ONNX Runtime infers the size of a letter from one operand, even if that is 1 and broadcasts, and folds values that
    # depend on it. It rejects an ellipsis that represents different numbers of axes.
    op, operands = operator(site.node, Einsum), [site.operand(i) for i in range(len(site.inputs))]
    kinds = [v.tensor for v in operands]
    return [op.expand(*operands)] if op.broadcasts(kinds) or op.has_uneven_ellipsis(kinds) else None
