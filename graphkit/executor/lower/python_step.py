"""Steps that are calls of Python: kernels that are Python functions, and nodes that are interpreted.

They run at the outermost level only, where a program comes back to Python for them; interpreted nodes of subgraphs are
made in `graphkit.executor.lower.run_time_kernel`.
"""

from __future__ import annotations

from functools import partial

from graphkit.executor.devices.interpreted import interpreted_kernel
from graphkit.executor.devices.kernel import DataDependentKernel, Kernel
from graphkit.executor.devices.registry import make_data_dependent
from graphkit.executor.lower.lowering import Emission, KernelKind, Lowering, Site
from graphkit.ir.graph import Node
from graphkit.ops.evaluate import run_node


class PythonStep(Lowering):
    """A step that the program calls back for."""

    in_python = True

    def __init__(self, kind: KernelKind, reason: str = ""):
        self.kind = kind
        self.reason = reason

    def emit(self, step: Emission) -> None:
        step.builder.call(step.name, step.writer.new_call(step.index))


class PythonKernel(PythonStep):
    """A function that writes its results to planned memory."""

    def __init__(self, kind: KernelKind, node: Node, kernel: Kernel, reason: str = ""):
        super().__init__(kind, reason)
        self.kernel = kernel
        self.inplace = getattr(kernel, "inplace", getattr(node.op, "inplace", ()))


class PythonFunction(PythonStep):
    """A function whose results are arrays that it makes."""

    def __init__(self, kind: KernelKind, function: DataDependentKernel, reason: str = ""):
        super().__init__(kind, reason)
        self.function = function


def data_dependent_function(site: Site) -> Lowering | None:
    """The device's own function for results whose sizes depend on values."""
    if site.static or site.inner:
        return None
    function = make_data_dependent(site.settings.device, site.node, site.without_constants)
    return None if function is None else PythonFunction("native", function)


def interpreted(site: Site, reason: str) -> Lowering:
    """The way that every node has: its operator's reference."""
    if site.dynamic:
        return PythonFunction("interpreted", partial(run_node, site.node), reason)
    return PythonKernel("interpreted", site.node, interpreted_kernel(site.node), reason)
