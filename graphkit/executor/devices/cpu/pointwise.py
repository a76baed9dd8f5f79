"""Elementwise operators, alone and fused, by the native interpreter of pointwise programs."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.executor.devices.cpu._base import native, prepared_kernels
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.pointwise.instructions import PointwiseCode, PointwiseProgram
from graphkit.executor.devices.pointwise.programs import EXPANDED, NAMES, code, program_of
from graphkit.executor.devices.pointwise.rules import RULES
from graphkit.executor.devices.registry import Shapes, SizedFactory
from graphkit.ir.graph import Node, Value

# Names of the operators that have kernels here, at least for some types.
OPERATORS = frozenset({*RULES, *EXPANDED, "Fused", "TableUpdate"})


def kernel_of(
    name: str, node: Node, sources: Sequence[Value | None], results: Sequence[Value], context: KernelContext
) -> native.Pointwise | None:
    """One kernel for the graph from `sources` to `results`; see `program_of`."""
    found = program_of(name, node, sources, results, context)
    return None if found is None else _kernel(found, context.threads)


def _kernel(found: PointwiseProgram, threads: int) -> native.Pointwise:
    """Return the native kernel of a program. Raises native.Unsupported for element types that it does not support."""
    return native.Pointwise(**found._asdict(), threads=threads)


class _Sized:
    """Makes the kernels of one code for all sizes. Equal codes make equal kernels."""

    __slots__ = ("_code", "_threads", "native")

    def __init__(self, code: PointwiseCode, threads: int):
        self._code, self._threads = code, threads
        self.native = native.PointwiseFactory(**code._asdict(), threads=threads)

    def __call__(self, inputs: Shapes, outputs: Shapes) -> Kernel | None:
        return self.native(inputs, outputs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sized) and (self._code, self._threads) == (other._code, other._threads)

    def __hash__(self) -> int:
        return hash((self._code, self._threads))


def _prepare(node: Node, context: KernelContext) -> SizedFactory | None:
    found = code(node, context)
    return None if found is None else _Sized(found, context.threads)


for _fusable in (True, False):
    prepared_kernels([key for key in NAMES if (key[1] in RULES) is _fusable], fusable=_fusable)(_prepare)
