"""Recurrent layers."""

from __future__ import annotations

from typing import Any

from graphkit.executor.cpu._base import kernel, native, shape
from graphkit.executor.kernels import KernelContext
from graphkit.ir.graph import Node
from graphkit.ir.types import DType


def _recurrent(node: Node, context: KernelContext) -> Any:
    x, r = node.inputs[0], node.inputs[2]
    if x is None or x.dtype is not DType.FLOAT32:
        return None
    op: Any = node.op
    return native.Recurrent(
        op.name,
        shape(x),
        shape(r)[2],
        direction=op.direction,
        activations=[tuple(f) for d in range(op.directions) for f in op.functions_of(d)],
        clip=op.clip,
        linear_before_reset=getattr(op, "linear_before_reset", False),
        input_forget=getattr(op, "input_forget", False),
        batch_first=bool(op.layout),
        pack_w=1 in context.constant_inputs,
        pack_r=2 in context.constant_inputs,
        threads=context.threads,
    )


for _name in ("RNN", "GRU", "LSTM"):
    kernel(_name)(_recurrent)
