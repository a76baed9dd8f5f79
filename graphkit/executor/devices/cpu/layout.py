"""Slices: bounds may depend on symbolic sizes."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.executor.devices.cpu._base import native, prepared_kernel
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import constants, dtype, operand
from graphkit.executor.devices.registry import SizedFactory
from graphkit.ir.dims import is_static
from graphkit.ir.graph import Node, Value


@prepared_kernel("Slice")
def _slice(node: Node, context: KernelContext) -> SizedFactory | None:
    """Make the kernels of all sizes. A bound that depends on sizes follows from the other one and the result's size.

    If both bounds depend on sizes, the factory reads the start. Returns None if an operand is known only in a run.
    """
    starts, ends = _bounds(operand(node, 1)), _bounds(operand(node, 2))
    if starts is None or ends is None:
        return None
    axes = _known(operand(node, 3), range(len(starts)))
    steps = _known(operand(node, 4), [1] * len(starts))
    if axes is None or steps is None:
        return None
    return native.SliceFactory(list(zip(axes, starts, ends, steps, strict=True)), dtype(node), context.threads)


def _bounds(value: Value | None) -> list[int | None] | None:
    """Return the elements of an operand, None for those that depend on sizes; None if they are known only in a run."""
    if value is None or value.tensor.value is None:
        return None
    return [size if is_static(size) else None for size in value.tensor.value]


def _known(value: Value | None, default: Sequence[int]) -> Sequence[int] | None:
    """Return the elements of an operand, by default `default`; None if they are not known."""
    return default if value is None else constants(value)
