"""Lower nodes to kernels of the device, if all their sizes are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.executor.devices.kernel import NativeKernel, is_native
from graphkit.executor.devices.registry import make_kernel
from graphkit.executor.lower.lowering import ABSENT, Emission, Location, Lowering, Site
from graphkit.ir.graph import Node
from graphkit.ops._base import Op
from graphkit.ops.pointwise import divides_integers
from graphkit.passes.core.sweep import read_positions


class PreparedKernel(Lowering):
    """A kernel of the native extension, prepared for exactly these shapes."""

    def __init__(self, kernel: NativeKernel, node: Node):
        self.kernel = kernel
        # Only the shape of these operands is read. Their memory may already contain another value.
        if isinstance(node.op, Op) and node.op.shape_only:
            self.unread = set(kernel.optional_inputs).difference(read_positions(node))
        self.scratch_bytes = int(kernel.scratch_bytes)
        self.inplace = kernel.inplace
        self.packing = kernel

    def emit(self, step: Emission) -> None:
        kernel = self.kernel
        step.builder.kernel(
            step.name,
            kernel,
            _padded(step.inputs, kernel.input_count),
            _padded(step.outputs, kernel.output_count),
            step.scratch,
        )


def native_kernel(site: Site) -> Lowering | None:
    """Return the lowering of a node to a kernel of the device; None if a size is unknown, or if there is no kernel."""
    if not site.static:
        return None
    key = None if site.kernels is None else _kernel_key(site)
    if site.kernels is not None and (shared := site.kernels.get(key)) is not None:
        return PreparedKernel(shared, site.node)
    kernel = make_kernel(site.settings.device, site.node, site.context)
    if kernel is None:
        return None
    if is_native(kernel):
        if site.kernels is not None:
            site.kernels[key] = kernel
        return PreparedKernel(kernel, site.node)
    from graphkit.executor.lower.python_step import PythonKernel

    return PythonKernel("native", site.node, kernel)


def _kernel_key(site: Site) -> tuple[object, ...]:
    """Return everything that the kernel of a node with tensors of known sizes depends on. Kernels have no state.

    The key contains arrays by identity, so it is valid while these arrays exist. It says which operands are the same
    value.
    """
    node, context = site.node, site.context
    kinds: list[Any] = [None if v is None else v.type for v in (*node.inputs, *node.outputs)]
    types = [None if t is None else (t.dtype, t.shape, t.value, t.floats and repr(t.floats)) for t in kinds]
    arrays = [(position, id(array)) for position, array in context.constant_inputs.items()]
    given = node.inputs
    repeated = () if len(set(given)) == len(given) else tuple([given.index(v) for v in given])
    # The error of an integer division by zero names the node.
    label = node.name or node.describe() if divides_integers(node) else ""
    return node.op, tuple(types), tuple(arrays), context.used_outputs, repeated, label


def _padded(locations: Sequence[Location], count: int) -> list[Location]:
    return [*locations, *[ABSENT] * (count - len(locations))]
