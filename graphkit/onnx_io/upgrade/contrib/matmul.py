"""Matrix products with transposes, factors and activations fused in: FusedMatMul, FusedGemm, GemmFastGelu."""

from __future__ import annotations

from typing import Any

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.onnx_io.upgrade.contrib.activation import activated, fast_gelu
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like


def _factor(node: NodeView, x: Any, last: bool, batch: bool) -> Any:
    """Transpose an operand for the product. Vectors stay unchanged.

    batch: the first axis moves to the position before the last. last: the last two axes are swapped.
    """
    if not last and not batch:
        return x
    if x.rank is None:
        raise UnsupportedError(f"{node.label}: a transposed factor needs a known rank")
    if x.rank < 2:
        return x
    axes = list(range(x.rank))
    if batch and x.rank > 2:
        axes = [*axes[1:-1], 0, axes[-1]]
    if last:
        axes[-2:] = axes[-1], axes[-2]
    return F.transpose(x, perm=tuple(axes))


def _product(node: NodeView) -> Any:
    a, b = (
        _factor(node, node.operand(i), bool(node.take(f"trans{which}", 0)), bool(node.take(f"transBatch{which}", 0)))
        for i, which in enumerate("AB")
    )
    y, alpha = F.mat_mul(a, b), node.take("alpha", 1.0)
    return y if alpha == 1.0 else F.mul(y, scalar_like(alpha, y))


@contrib("FusedMatMul", "TransposeMatMul")
def _fused_matmul(node: NodeView) -> Results:
    return (_product(node),)


@contrib("FusedMatMulActivation")
def _fused_matmul_activation(node: NodeView) -> Results:
    activation = node.require("activation")
    given = tuple(node.take(f"activation_{name}") for name in ("alpha", "beta", "gamma"))
    node.take("activation_axis")
    return (activated(node, _product(node), activation, given),)


@contrib("FusedGemm")
def _fused_gemm(node: NodeView) -> Results:
    given = tuple(node.take(f"activation_{name}") for name in ("alpha", "beta", "gamma"))
    activation = node.take("activation")
    attrs = node.taken("alpha", "beta", "transA", "transB")
    y = F.gemm(node.operand(0), node.operand(1), node.input(2), **attrs)
    return (activated(node, y, activation, given),)


@contrib("GemmFastGelu")
def _gemm_fast_gelu(node: NodeView) -> Results:
    return (fast_gelu(F.mat_mul(node.operand(0), node.operand(1)), node.input(2)),)
