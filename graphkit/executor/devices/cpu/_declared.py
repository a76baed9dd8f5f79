"""The kernels that C++ registers itself, by GRAPHKIT_KERNEL: see runtime/operator_kernels.h."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from graphkit.executor.devices.cpu._base import native, prepared_kernels
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import SizedFactory
from graphkit.ir.graph import Node, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType
from graphkit.ops._base import Op, operator
from graphkit.ops.kept import kept

Attribute: TypeAlias = int | float | str | Sequence[int] | Sequence[float]


def _prepare(node: Node, context: KernelContext) -> SizedFactory | None:
    described = _described(operator(node, Op))
    if any(_depends_on_sizes(v) and described.reads(i) for i, v in enumerate(node.inputs)):
        return None
    types = [None if v is None else v.tensor for v in node.inputs]
    inputs = [None if t is None else (f"input {i}", t.dtype.value, t.constants) for i, t in enumerate(types)]
    outputs = [(f"output {i}", v.dtype.value) for i, v in enumerate(node.outputs)]
    return described.factory(
        inputs,
        outputs,
        used=list(context.used_outputs),
        constants=list(context.constant_inputs),
        threads=context.threads,
        sizes_vary=context.sizes_vary,
        deterministic=context.deterministic,
    )


def _depends_on_sizes(value: Value | None) -> bool:
    """Return whether the elements of an integer operand are expressions of symbolic sizes."""
    return value is not None and value.tensor.value is not None and value.tensor.constants is None


@kept
def _described(op: Op) -> native.DescribedOperator:
    """Return an operator as C++ gets it. Its attributes are numbers, strings and lists of numbers; others become None.

    A type is its name, and a boolean is 0 or 1. A tensor of one number is the list of its bytes.
    """
    found: dict[str, Attribute | None] = dict.fromkeys(op.__dict__)
    for key, value in op.attributes().items():
        if isinstance(value, DType):
            found[key] = value.value
        elif isinstance(value, bool):
            found[key] = int(value)
        elif isinstance(value, Tensor) and value.array.size == 1 and not value.array.dtype.hasobject:
            found[key] = list(value.array.tobytes())
        elif isinstance(value, (int, float, str)) or (
            isinstance(value, (tuple, list)) and all(isinstance(v, (int, float)) for v in value)
        ):
            found[key] = value
    return native.DescribedOperator(op.domain, op.name, found)


prepared_kernels(native.operators())(_prepare)
