"""Recurrent layers."""

from __future__ import annotations

from typing import Any

from graphkit.executor.devices.cpu._base import native, prepared_kernel
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import SizedFactory
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops import DOMAIN
from graphkit.ops._base import operator


def _is_float(node: Node) -> bool:
    return all(v is None or v.dtype in (DType.FLOAT32, DType.INT32) for v in node.inputs)


def _options(layer: Any) -> dict[str, Any]:
    return {
        "direction": layer.direction,
        "activations": [tuple(f) for d in range(layer.directions) for f in layer.functions_of(d)],
        "clip": layer.clip,
        "linear_before_reset": getattr(layer, "linear_before_reset", False),
        "input_forget": getattr(layer, "input_forget", False),
        "batch_first": bool(layer.layout),
    }


def _forward(node: Node, context: KernelContext, layer: Any, saves: bool) -> SizedFactory | None:
    x = node.inputs[0]
    if x is None or x.dtype is not DType.FLOAT32:
        return None
    return native.RecurrentFactory(
        layer.name,
        **_options(layer),
        pack_w=1 in context.constant_inputs,
        pack_r=2 in context.constant_inputs,
        saves=saves,
        threads=context.threads,
    )


def _recurrent(node: Node, context: KernelContext) -> SizedFactory | None:
    return _forward(node, context, node.op, saves=False)


def _recurrence(node: Node, context: KernelContext) -> SizedFactory | None:
    from graphkit.ops.rnn.backward import OfLayer

    op = operator(node, OfLayer)
    return _forward(node, context, op.forward, saves=True)


def _recurrence_grad(node: Node, context: KernelContext) -> SizedFactory | None:
    from graphkit.ops.rnn.backward import OfLayer

    op = operator(node, OfLayer)
    if not _is_float(node):
        return None
    names = [formal.name for formal in op.formals]
    read = context.used_outputs
    return native.RecurrentGradFactory(
        op.forward.name,
        gates=names.index("gates"),
        r=names.index("r"),
        **_options(op.forward),
        reads_gates=read[0],
        reads_other=read[-1],
        threads=context.threads,
    )


for _name in ("RNN", "GRU", "LSTM"):
    prepared_kernel(_name)(_recurrent)
    prepared_kernel(f"{_name}Recurrence", DOMAIN, covers=_is_float)(_recurrence)
    prepared_kernel(f"{_name}RecurrenceGrad", DOMAIN, covers=_is_float)(_recurrence_grad)
