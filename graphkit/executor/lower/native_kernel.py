"""Lower nodes to kernels of the device, if all their sizes are known."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.executor.devices.kernel import NativeKernel, is_native
from graphkit.executor.devices.registry import make_kernel
from graphkit.executor.lower.lowering import ABSENT, Emission, Location, Lowering, Site


class PreparedKernel(Lowering):
    """A kernel of the native extension, prepared for exactly these shapes."""

    def __init__(self, kernel: NativeKernel):
        self.kernel = kernel
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
    kernel = make_kernel(site.settings.device, site.node, site.context) if site.static else None
    if kernel is None:
        return None
    if is_native(kernel):
        return PreparedKernel(kernel)
    from graphkit.executor.lower.python_step import PythonKernel

    return PythonKernel("native", site.node, kernel)


def _padded(locations: Sequence[Location], count: int) -> list[Location]:
    return [*locations, *[ABSENT] * (count - len(locations))]
