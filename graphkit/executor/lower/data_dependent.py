"""Nodes whose kernels compute the shapes of the results in each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphkit.executor.devices.kernel import DataDependentKernel
from graphkit.executor.devices.registry import rule_of
from graphkit.executor.lower.lowering import ABSENT, NO_BUFFER, Emission, Location, Lowering, Site
from graphkit.executor.memory.placement import has_fixed_size, has_run_time_size
from graphkit.ir.declared import Declarations
from graphkit.ir.graph import Node, Value
from graphkit.ops import Op


class DataDependent(Lowering):
    may_fail = allocates = True

    def __init__(self, node: Node, kernel: DataDependentKernel, formals: int, declared: Declarations | None):
        self._node = node
        self._kernel = kernel
        self._formals = formals
        claimed = declared is not None and any(declared.may_contradict(v.name, v.tensor) for v in node.outputs)
        self._declared = declared if claimed else None

    def emit(self, step: Emission) -> None:
        node = self._node
        padding = self._formals - len(step.inputs)
        step.builder.data_dependent(
            step.name,
            self._kernel,
            [*step.inputs, *[ABSENT] * padding],
            [*map(_input, node.inputs, step.inputs), *[(NO_BUFFER, ())] * padding],
            list(step.outputs),
            [_output(value, at) for value, at in zip(node.outputs, step.outputs, strict=True)],
            None if self._declared is None else _shape_check(node, self._declared),
        )


def _input(value: Value | None, location: Location) -> tuple[int, tuple[int, ...]]:
    if value is None:
        return NO_BUFFER, ()
    return (location[0], ()) if has_run_time_size(value) else (NO_BUFFER, value.tensor.static_shape)


def _output(value: Value, location: Location) -> tuple[int, int]:
    if location == ABSENT:
        return NO_BUFFER, 0
    if has_run_time_size(value):
        return location[0], 0
    return NO_BUFFER, value.tensor.nbytes // value.dtype.itemsize


def _shape_check(node: Node, declared: Declarations) -> Callable[[Sequence[Sequence[int]]], None]:
    return lambda shapes: declared.found(node.outputs, shapes)


def data_dependent(site: Site) -> DataDependent | None:
    """Return the lowering to a kernel whose results have data-dependent shapes, or None."""
    node = site.node
    values = (*node.operands, *node.outputs)
    if not isinstance(node.op, Op) or not all(has_fixed_size(v) or has_run_time_size(v) for v in values):
        return None
    make = rule_of(site.settings.device, node.op).data_dependent
    kernel = None if make is None else make(node, site.without_constants)
    if kernel is None:
        return None
    return DataDependent(node, kernel, len(node.op.formals), site.settings.declared)
