"""QuantizeLinear and DequantizeLinear for older targets, where zero points and scales determine the result types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.ir.graph import Node, Value
from graphkit.onnx_io.downgrade import Site, Spelling, rewrites, spells
from graphkit.ops import F, constant, operator
from graphkit.ops.quant.linear import DequantizeLinear, QuantizeLinear


@rewrites("QuantizeLinear", below=21)
def _type_by_zero_point(site: Site) -> Sequence[Value] | None:
    """Older opsets take the result type from the zero point. If it is absent, one of `output_dtype` is added."""
    op = operator(site.node, QuantizeLinear)
    if op.output_dtype is None:
        return None
    x, scale, zero = site.operand(0), site.operand(1), site.input(2)
    if zero is None:
        if not scale.tensor.is_static:
            raise site.fail(f"output_dtype={op.output_dtype} with a scale of unknown shape")
        zero = constant(np.zeros(scale.tensor.static_shape, op.output_dtype.numpy))
    return Node(op.replace(output_dtype=None), (x, scale, zero)).outputs


@rewrites("DequantizeLinear", below=23)
def _cast_behind(site: Site) -> Sequence[Value] | None:
    """Older opsets take the result type from the scale. For any other type, a Cast follows."""
    op = operator(site.node, DequantizeLinear)
    scale = site.operand(1)
    if op.output_dtype is None:
        return None
    y = Node(op.replace(output_dtype=None), site.inputs).output
    return (y if op.output_dtype is scale.dtype else F.cast(y, to=op.output_dtype),)


@spells("QuantizeLinear", below=23)
def _own_precision(spelling: Spelling) -> None:
    """Omit `precision` if it is the type of the scale, which is the default."""
    scale = spelling.input(1)
    if scale is not None and spelling.attrs.get("precision") is scale.dtype:
        spelling.attrs.pop("precision")
