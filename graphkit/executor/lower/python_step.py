"""Steps that are calls of Python: Python kernels, and interpreted nodes.

In a native program, such steps are only in the outermost graph (in subgraphs:
`graphkit.executor.lower.run_time_kernel`). Devices with their own memory run some of them in subgraphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from graphkit.executor.devices.interpreted import copied, interpreted_kernel
from graphkit.executor.devices.kernel import Kernel, LaunchedKernel
from graphkit.executor.devices.registry import make_launched, rule_of
from graphkit.executor.lower.lowering import Emission, KernelKind, Lowering, Site
from graphkit.ir import limits
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops.evaluate import failure_of, run_node

ArrayFunction: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]


class PythonStep(Lowering):
    in_python = True

    def __init__(self, kind: KernelKind, reason: str = ""):
        self.kind = kind
        self.reason = reason

    def emit(self, step: Emission) -> None:
        step.builder.call(step.name, step.writer.new_call(step.position))


class PythonKernel(PythonStep):
    may_fail = True
    runs_in_subgraph = True

    def __init__(self, kind: KernelKind, node: Node, kernel: Kernel, reason: str = ""):
        super().__init__(kind, reason)
        self.kernel = kernel
        self.inplace = getattr(kernel, "inplace", getattr(node.op, "inplace", ()))


class LaunchedStep(PythonStep):
    runs_in_subgraph = True

    def __init__(self, kernel: LaunchedKernel):
        super().__init__("native")
        self.kernel = kernel
        self.scratch_bytes = kernel.scratch_bytes
        self.inplace = kernel.inplace


class PythonFunction(PythonStep):
    """A function that returns its results as arrays. owned: whether no result shares memory with an operand; otherwise,
    the caller copies.
    """

    may_fail = True

    def __init__(self, kind: KernelKind, function: ArrayFunction, reason: str = "", owned: bool = False):
        super().__init__(kind, reason)
        self.function = function
        self.owned = owned


def launched(site: Site) -> Lowering | None:
    """Return the lowering to a kernel of a device with its own memory, or None."""
    kernel = make_launched(site.settings.device, site.node, site.context) if site.static else None
    return None if kernel is None else LaunchedStep(kernel)


def string_function(site: Site) -> Lowering | None:
    """Return the lowering of a node with strings to a Python function, or None."""
    node = site.node
    if site.inner or not any(_holds_strings(value) for value in (*node.operands, *node.outputs)):
        return None
    make = rule_of(site.settings.device, node.op, strings=True).string_function
    function = None if make is None else make(node)
    if function is None:
        return None

    def compute(operands: Sequence[Any]) -> tuple[Any]:
        try:
            limits.check_time()
            return (function(*operands),)
        except Exception as error:
            raise failure_of(node, error) from error

    if site.dynamic:
        return PythonFunction("native", compute, owned=True)
    return PythonKernel("native", node, copied(node, compute))


def _holds_strings(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is DType.STRING


def interpreted(site: Site, reason: str) -> Lowering:
    """Return the lowering to the Python reference implementation, which every operator has."""
    if site.dynamic:
        return PythonFunction("interpreted", partial(run_node, site.node), reason)
    return PythonKernel("interpreted", site.node, interpreted_kernel(site.node), reason)
