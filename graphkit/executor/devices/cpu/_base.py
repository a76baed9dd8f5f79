"""Shared by the factories of native kernels: the extension, and the decorators that register factories.

Importing this module raises the errors of `import_extension`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.extension import import_extension
from graphkit.executor.devices.kernel import DataDependentKernel, Kernel, KernelContext
from graphkit.executor.devices.operands import operand
from graphkit.executor.devices.registry import (
    DataDependentFactory,
    Factory,
    KernelRule,
    Preparation,
    Shapes,
    SizedFactory,
    register,
    register_all,
)
from graphkit.ir.graph import Node
from graphkit.ir.types import DType, TensorType

T = TypeVar("T")

if TYPE_CHECKING:
    import graphkit._native
    from graphkit.ops.image.resampling import Taps

    native = graphkit._native
else:
    native = import_extension()


def kernel(
    name: str,
    domain: str = "",
    *,
    onednn: bool = False,
    covers: Callable[[Node], bool] | None = None,
    fusable: bool = False,
) -> Callable[[Factory], Factory]:
    """Decorator: register the factory of an operator's kernels.

    The factory gets a node of static types. It returns a `graphkit._native` kernel, or None if this case has none. If
    the extension raises Unsupported, that means None too.

    Args:
        name: Name of the operator.
        domain: Its domain.
        onednn: Do not register the factory if the extension was built without oneDNN.
        covers: See `KernelRule`.
        fusable: See `KernelRule`.
    """

    def install(factory: Factory) -> Factory:
        def make(node: Node, context: KernelContext) -> Kernel | None:
            return _or_none(node, lambda: factory(node, context))

        if native.has_onednn() or not onednn:
            register("cpu", domain, name, KernelRule(make, covers=covers, fusable=fusable), factory.__module__)
        return factory

    return install


def prepared_kernel(
    name: str,
    domain: str = "",
    *,
    onednn: bool = False,
    covers: Callable[[Node], bool] | None = None,
    fusable: bool = False,
) -> Callable[[Preparation], Preparation]:
    """Decorator: register the preparation of kernels that share work between sizes. See `Preparation` and `kernel`."""
    return prepared_kernels([(domain, name)], onednn=onednn, covers=covers, fusable=fusable)


def prepared_kernels(
    operators: Iterable[tuple[str, str]],
    *,
    onednn: bool = False,
    covers: Callable[[Node], bool] | None = None,
    fusable: bool = False,
) -> Callable[[Preparation], Preparation]:
    """Decorator: the same as `prepared_kernel` for several operators. operators: domain and name of each."""

    def install(prepare: Preparation) -> Preparation:
        def prepared(node: Node, context: KernelContext) -> SizedFactory | None:
            sized = _or_none(node, lambda: prepare(node, context))
            return None if sized is None else _Prepared(node, sized)

        if native.has_onednn() or not onednn:
            rule = KernelRule(prepare=prepared, covers=covers, fusable=fusable)
            register_all("cpu", operators, rule, prepare.__module__)
        return prepare

    return install


class _Prepared:
    """A SizedFactory that handles errors as `kernel` does. Two are equal if they make the same kernels."""

    __slots__ = ("_node", "_sized", "native", "reads_elements")

    def __init__(self, node: Node, sized: SizedFactory):
        self._node, self._sized = node, sized
        self.native = sized if isinstance(sized, native.KernelFactory) else getattr(sized, "native", None)
        self.reads_elements: Sequence[int] = getattr(sized, "reads_elements", ())

    def __call__(self, inputs: Shapes, outputs: Shapes) -> Kernel | None:
        return _or_none(self._node, lambda: self._sized(inputs, outputs))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Prepared) and self._sized == other._sized

    def __hash__(self) -> int:
        return hash(self._sized)


def data_dependent(name: str, domain: str = "") -> Callable[[DataDependentFactory], DataDependentFactory]:
    """Decorator: register the factory of an operator's kernels with data-dependent shapes. See `kernel`."""

    def install(factory: DataDependentFactory) -> DataDependentFactory:
        def make(node: Node, context: KernelContext) -> DataDependentKernel | None:
            return _or_none(node, lambda: factory(node, context))

        register("cpu", domain, name, KernelRule(data_dependent=make), factory.__module__)
        return factory

    return install


def _or_none(node: Node, make: Callable[[], T | None]) -> T | None:
    """Return the result of `make()`, or None if the extension does not support this case.

    Other errors of the extension become RuntimeFailure, which names the node.
    """
    try:
        return make()
    except native.Unsupported:
        return None
    except native.Error as error:
        raise RuntimeFailure(f"{node.describe()}: {error}") from error


def present(shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return a shape that a SizedFactory gets, of an operand that must be present."""
    assert shape is not None, "the operand is not optional"
    return shape


def library_dtype(node: Node) -> str | None:
    """Return the common element type of all operands and results, if oneDNN supports it on this CPU; else None."""
    kinds = {v.type.dtype if isinstance(v.type, TensorType) else None for v in (*node.operands, *node.outputs)}
    if kinds == {DType.FLOAT32}:
        return "float32"
    return "bfloat16" if kinds == {DType.BFLOAT16} and native.has_bfloat16() else None


def axis_taps(axis: int, taps: Taps, outside: np.ndarray | None = None) -> tuple[Any, ...]:
    """Return the weights along an axis for the native Resample, as (axis, starts, sources, weights, outside).

    The last four entries are the bytes of arrays of int64, int32, float64 and bool. `outside` marks the positions along
    the axis, in the output, that get the fill value.
    """
    sources = taps.sources.astype(np.int32)
    mask = np.zeros(0, bool) if outside is None else outside
    return axis, taps.starts.astype(np.int64).tobytes(), sources.tobytes(), taps.weights.tobytes(), mask.tobytes()


# The native names of the activations of fused operators. A fixed pair replaces the operator's alpha and beta.
_ACTIVATIONS: dict[str, tuple[str, tuple[float, float] | None]] = {
    "Relu": ("relu", (0, 0)),
    "LeakyRelu": ("relu", None),
    "Elu": ("elu", None),
    "Sigmoid": ("sigmoid", (0, 0)),
    "Tanh": ("tanh", (0, 0)),
    "HardSwish": ("hard_swish", (1 / 6, 0.5)),
    "HardSigmoid": ("hard_sigmoid", None),
    "Clip": ("clip", None),
    "Gelu": ("gelu", (0, 0)),
    "GeluTanh": ("gelu_tanh", (0, 0)),
    "Silu": ("swish", (1, 0)),
}


def epilogue(node: Node, residual: int) -> native.Epilogue:
    """Return the epilogue of a fused operator: what is applied to its matrix product or convolution.

    residual: The position of the operand `residual`.
    """
    from graphkit.ops.internal.fused import Epilogue

    op = node.op
    adds = operand(node, residual) is not None
    if not isinstance(op, Epilogue) or not op.activation:
        return native.Epilogue(residual=adds)
    name, fixed = _ACTIVATIONS[op.activation]
    alpha, beta = fixed or (op.activation_alpha, op.activation_beta)
    return native.Epilogue(name, alpha, beta, residual=adds, residual_last=op.residual_last)


def library_options(context: KernelContext) -> dict[str, Any]:
    """Return options of oneDNN kernels: the number of threads, and whether results must not depend on it."""
    return {"threads": context.threads, "deterministic": context.deterministic}


def describe() -> dict[str, Any]:
    """Facts about the native engine, for reports."""
    return {
        "version": native.version,
        "compiler": native.compiler(),
        "cpu features": ", ".join(native.cpu_features()),
        "oneDNN": f"{native.onednn_version()} ({native.onednn_isa()})" if native.has_onednn() else "not built in",
    }
