"""The kernels that C++ registers itself, by GRAPHKIT_KERNEL: see runtime/operator_kernels.h."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.ops._base import Op, operator
from graphkit.ops.kept import kept

Attribute: TypeAlias = int | float | str | Sequence[int] | Sequence[float]


def _made(node: Node, context: KernelContext) -> Kernel | None:
    return native.make_kernel(
        node.op.domain,
        node.op.name,
        [None if v is None else _input(f"input {i}", v) for i, v in enumerate(node.inputs)],
        [(f"output {i}", v.tensor.static_shape, v.tensor.dtype.value) for i, v in enumerate(node.outputs)],
        _attributes(operator(node, Op)),
        context.threads,
    )


def _input(name: str, value: Value) -> tuple[str, tuple[int, ...], str, tuple[int, ...] | None]:
    kind = value.tensor
    return name, kind.static_shape, kind.dtype.value, kind.constants


@kept
def _attributes(op: Op) -> dict[str, Attribute | None]:
    """Return attributes as numbers, strings and lists of numbers: a type is its name, a boolean 0 or 1.

    Other attributes are None.
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
    return found


for _domain, _name in native.operators():
    kernel(_name, _domain)(_made)
