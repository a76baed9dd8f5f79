"""The kernels that C++ registers itself, by GRAPHKIT_KERNEL: see runtime/operator_kernels.h."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.ir.graph import Node
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import Op, operator
from graphkit.ops.kept import kept

Attribute: TypeAlias = int | float | str | Sequence[int] | Sequence[float]


def _made(node: Node, context: KernelContext) -> Kernel | None:
    return _described(operator(node, Op)).make(
        [None if v is None else _input(f"input {i}", v.tensor) for i, v in enumerate(node.inputs)],
        [_output(f"output {i}", v.tensor) for i, v in enumerate(node.outputs)],
        context.threads,
    )


# Types are static here. `static_shape` would check that, in a considerable part of the time that making a kernel takes.
def _input(name: str, kind: TensorType) -> Any:
    return name, kind.shape, kind.dtype.value, kind.constants


def _output(name: str, kind: TensorType) -> Any:
    return name, kind.shape, kind.dtype.value


@kept
def _described(op: Op) -> native.DescribedOperator:
    """Return an operator with attributes that are numbers, strings and lists of numbers. Others are None.

    A type is its name, and a boolean is 0 or 1.
    """
    found: dict[str, Attribute | None] = dict.fromkeys(op.__dict__)
    for key, value in op.attributes().items():
        if isinstance(value, DType):
            found[key] = value.value
        elif isinstance(value, bool):
            found[key] = int(value)
        elif isinstance(value, (int, float, str)) or (
            isinstance(value, (tuple, list)) and all(isinstance(v, (int, float)) for v in value)
        ):
            found[key] = value
    return native.DescribedOperator(op.domain, op.name, found)


for _domain, _name in native.operators():
    kernel(_name, _domain)(_made)
