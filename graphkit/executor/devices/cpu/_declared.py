"""Factories of operators whose kernels say themselves what they are made from: see runtime/operator_kernels.h."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType

Attribute: TypeAlias = int | float | str | Sequence[int] | Sequence[float]


def _made(node: Node, context: KernelContext) -> Kernel | None:
    return native.make_kernel(
        node.op.domain,
        node.op.name,
        [None if v is None else (*_named(v, f"input {i}"), v.tensor.constants) for i, v in enumerate(node.inputs)],
        [_named(v, f"output {i}") for i, v in enumerate(node.outputs)],
        _attributes(node),
        context.threads,
    )


def _named(value: Value, name: str) -> tuple[str, tuple[int, ...], str]:
    return name, value.tensor.static_shape, value.dtype.value


def _attributes(node: Node) -> dict[str, Attribute | None]:
    """Numbers, texts and lists of numbers; a type by its name, a switch as 0 or 1; None for what is neither."""
    found: dict[str, Attribute | None] = dict.fromkeys(node.op.__dict__)
    for key, value in node.op.attributes().items():
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
