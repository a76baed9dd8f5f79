"""Elementwise operators, alone and fused, by the native interpreter of pointwise programs."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.pointwise.instructions import PointwiseProgram
from graphkit.executor.devices.pointwise.programs import EXPANDED, NAMES, program, program_of
from graphkit.executor.devices.pointwise.rules import RULES
from graphkit.ir.graph import Node, Value

# Names of the operators that have kernels here, at least for some types.
OPERATORS = frozenset({*RULES, *EXPANDED, "Fused", "TableUpdate"})


def kernel_of(
    name: str, node: Node, sources: Sequence[Value | None], results: Sequence[Value], context: KernelContext
) -> native.Pointwise | None:
    """One kernel for the graph from `sources` to `results`; see `program_of`."""
    found = program_of(name, node, sources, results, context)
    return None if found is None else _kernel(found, context)


def _kernel(found: PointwiseProgram, context: KernelContext) -> native.Pointwise:
    """Return the native kernel of a program. Raises native.Unsupported for element types that it does not support."""
    return native.Pointwise(**found._asdict(), threads=context.threads)


def _pointwise(node: Node, context: KernelContext) -> Kernel | None:
    found = program(node, context)
    return None if found is None else _kernel(found, context)


for _domain, _name in NAMES:
    kernel(_name, _domain, fusable=_name in RULES)(_pointwise)
