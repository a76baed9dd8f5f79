from __future__ import annotations

from graphkit.executor.lower.lowering import ABSENT, Emission, Lowering, Site
from graphkit.executor.memory.placement import has_fixed_size, has_run_time_size
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.ops.tensor.gather import Gather
from graphkit.ops.tensor.shape import Shape


class ShapeStep(Lowering):
    def __init__(self, first: int, last: int):
        self._first = first
        self._last = last

    def emit(self, step: Emission) -> None:
        if step.outputs[0] != ABSENT:
            step.builder.sizes(step.name, step.inputs[0][0], self._first, self._last, step.outputs[0])


class RowStep(Lowering):
    """Copies row `place` of `x`. A negative index counts from the end."""

    def __init__(self, x: Value, place: Value):
        self._x = x
        self._place = place

    def emit(self, step: Emission) -> None:
        wide = self._place.dtype is DType.INT64
        if step.outputs[0] != ABSENT:
            (buffer, _), place, *_ = step.inputs
            step.builder.row(step.name, buffer, self._x.dtype.itemsize, place, wide, step.outputs[0])


def shape_step(site: Site) -> ShapeStep | None:
    """Return the lowering of the Shape of a value in a buffer; None for another node."""
    x = _in_buffer(site)
    if x is None or x.rank is None or not isinstance(site.node.op, Shape):
        return None
    first, last, _ = slice(site.node.op.start, site.node.op.end).indices(x.rank)
    return ShapeStep(first, max(first, last))


def row_step(site: Site) -> RowStep | None:
    """Return the lowering of a Gather of one row of a value in a buffer; None for another node."""
    x, op = _in_buffer(site), site.node.op
    if x is None or not x.rank or not isinstance(op, Gather):
        return None
    place = site.node.inputs[1]
    if place is None or op.axis % x.rank or place.tensor.shape != () or not has_fixed_size(site.node.output):
        return None
    return RowStep(x, place)


def _in_buffer(site: Site) -> Value | None:
    x = site.node.inputs[0] if site.node.inputs else None
    return x if x is not None and has_run_time_size(x) else None
