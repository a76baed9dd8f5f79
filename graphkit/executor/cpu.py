"""The native kernels of the CPU: factories that map nodes to prepared steps of `graphkit._native`.

This module owns the extension. Importing it raises ImportError, naming `graphkit._native`, where graphkit was not
built, and MissingDependency where oneDNN, which the extension was built with, is not installed any more.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.executor.kernels import Factory, Kernel, KernelContext, VersionedArray, register
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import DOMAIN

_ONEDNN_DISTRIBUTION = "onednn-cpu-gomp"
_ONEDNN_LIBRARY = "libdnnl.so.3"
_SPIN_COUNT = "1000"


def _load_native() -> ModuleType:
    """Import the extension. Its RPATH finds oneDNN in an ordinary environment; package metadata finds it elsewhere."""
    # libgomp reads this when it loads. Where other processes want the cores, threads that spin for long at a barrier
    # slow every region down a hundred times.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    try:
        import graphkit._native as native
    except ImportError as error:
        if _ONEDNN_LIBRARY not in str(error):
            raise
        ctypes.CDLL(_onednn_library(error))
        import graphkit._native as native
    return native


def _onednn_library(cause: ImportError) -> str:
    try:
        files = importlib.metadata.files(_ONEDNN_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == _ONEDNN_LIBRARY:
            return str(file.locate())
    raise MissingDependency(
        f"oneDNN's {_ONEDNN_LIBRARY} is not there ({cause}); pip install --force-reinstall {_ONEDNN_DISTRIBUTION}"
    ) from cause


native: Any = _load_native()


class Step(Protocol):
    """A prepared native kernel (graphkit._native.Step)."""

    @property
    def packable(self) -> int: ...
    def pack(self, array: np.ndarray) -> Any: ...
    def __call__(
        self, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None], packed: Any = None
    ) -> None: ...


class PackingKernel:
    """Runs a step whose weights seldom change, and packs them once they have stayed for a second run.

    Weights that change before every run (training) are never packed: that would only add a copy.
    `make(True)` makes the step that takes packed weights, `make(False)` the one for changing weights.
    """

    inplace = ()

    def __init__(self, make: Callable[[bool], Step], weights: VersionedArray):
        self._make = make
        self._weights = weights
        self._changing = make(False)
        self._constant: Step | None = None
        # (version of the weights, step to run, packed weights): replaced as a whole, as threads run concurrently.
        self._current: tuple[int, Step, Any] = (-1, self._changing, None)

    def __call__(self, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]) -> None:
        version = self._weights.version
        seen, step, packed = self._current
        if seen != version:
            self._current = (version, self._changing, None)
            step, packed = self._changing, None
        elif step is self._changing:
            step, packed = self._pack(version)
        step(inputs, outputs, packed)

    def _pack(self, version: int) -> tuple[Step, Any]:
        if self._constant is None:
            self._constant = self._make(True)
        step = self._constant
        packed = step.pack(self._weights.array) if step.packable >= 0 else None
        self._current = (version, step, packed)
        return step, packed


def _kernel(name: str, domain: str = "", *, onednn: bool = False) -> Callable[[Factory], Factory]:
    """Register a factory for nodes whose floating-point operands are float32; other types run by reference.

    A factory that needs oneDNN is left out where the extension was built without it.
    """

    def install(factory: Factory) -> Factory:
        def make(node: Node, context: KernelContext) -> Kernel | None:
            if not all(_is_covered(v) for v in (*node.inputs, *node.outputs) if v is not None):
                return None
            try:
                return factory(node, context)
            except native.Unsupported:
                return None
            except native.Error as error:
                raise RuntimeFailure(f"{node.describe()}: {error}") from error

        return register("cpu", domain, name)(make) if native.has_onednn() or not onednn else factory

    return install


def _is_covered(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in (DType.FLOAT32, DType.INT64)


def _shape(value: Value | None) -> tuple[int, ...]:
    assert value is not None
    return value.tensor.static_shape


def _operand(node: Node, position: int) -> Value | None:
    return node.inputs[position] if position < len(node.inputs) else None


def _threads(context: KernelContext) -> int:
    """oneDNN's partitions depend on the number of threads, and with them the order of sums."""
    return 1 if context.deterministic else context.threads


def _with_weights(make: Callable[[bool], Step], position: int, context: KernelContext) -> Kernel:
    weights = context.constant_inputs.get(position)
    return make(False) if weights is None else PackingKernel(make, weights)


# --- matrix products ------------------------------------------------------------------------------


@_kernel("MatMul", onednn=True)
def _mat_mul(node: Node, context: KernelContext) -> Kernel | None:
    if node.output.dtype is not DType.FLOAT32:
        return None
    a, b = (_shape(v) for v in node.inputs)
    return _with_weights(lambda pack: native.MatMul(a, b, pack_b=pack, threads=_threads(context)), 1, context)


@_kernel("Gemm", onednn=True)
def _gemm(node: Node, context: KernelContext) -> Kernel | None:
    if node.output.dtype is not DType.FLOAT32:
        return None
    op: Any = node.op
    a, b = (_shape(v) for v in node.inputs[:2])
    c = _operand(node, 2)
    bias = None if c is None or op.beta == 0 else _shape(c)

    def make(pack: bool) -> Step:
        return native.MatMul(
            a,
            b,
            transpose_a=op.transA,
            transpose_b=op.transB,
            bias=bias,
            alpha=op.alpha,
            beta=op.beta if bias is not None else 1.0,
            pack_b=pack,
            threads=_threads(context),
        )

    return _with_weights(make, 1, context)


# --- convolutions ---------------------------------------------------------------------------------


def _window(geometry: Any) -> Any:
    """The native window of a convolution's geometry; None when its number of spatial axes is not covered."""
    if not 1 <= len(geometry.strides) <= 3:
        return None
    # Under ConvTranspose fewer than a stride of output rows may lie beyond every window: rounding down covers them.
    if any(-end >= stride for end, stride in zip(geometry.end, geometry.strides, strict=True)):
        return None
    end = [max(e, 0) for e in geometry.end]
    return native.Window(geometry.strides, geometry.dilations, geometry.begin, end, geometry.group)


def _forward(kind: Any, node: Node, context: KernelContext) -> Kernel | None:
    op: Any = node.op
    x, w, y = _shape(node.inputs[0]), _shape(node.inputs[1]), _shape(node.output)
    window = _window(op.geometry(x, w))
    if window is None:
        return None
    bias = _operand(node, 2) is not None

    def make(pack: bool) -> Step:
        return kind(x, w, y, window, bias=bias, pack_weights=pack, threads=_threads(context))

    return _with_weights(make, 1, context)


@_kernel("Conv", onednn=True)
def _conv(node: Node, context: KernelContext) -> Kernel | None:
    return _forward(native.Convolution, node, context)


@_kernel("ConvTranspose", onednn=True)
def _conv_transpose(node: Node, context: KernelContext) -> Kernel | None:
    return _forward(native.Deconvolution, node, context)


@_kernel("ConvGradInput", DOMAIN, onednn=True)
def _conv_grad_input(node: Node, context: KernelContext) -> Kernel | None:
    op: Any = node.op
    dy, w, dx = _shape(node.inputs[0]), _shape(node.inputs[1]), _shape(node.output)
    window = _window(op.geometry(dx, w))
    if window is None:
        return None

    def make(pack: bool) -> Step:
        return native.ConvolutionBackwardData(dy, w, dx, window, pack_weights=pack, threads=_threads(context))

    return _with_weights(make, 1, context)


@_kernel("ConvGradWeight", DOMAIN, onednn=True)
def _conv_grad_weight(node: Node, context: KernelContext) -> Kernel | None:
    op: Any = node.op
    x, dy, dw = _shape(node.inputs[0]), _shape(node.inputs[1]), _shape(node.output)
    window = _window(op.geometry(x, dw))
    if window is None:
        return None
    return native.ConvolutionBackwardWeights(x, dy, dw, window, threads=_threads(context))


# --- pooling --------------------------------------------------------------------------------------


def _pool_window(op: Any, spatial: tuple[int, ...]) -> Any:
    """The native window of a pool; None when its number of spatial axes is not covered."""
    if not 1 <= len(spatial) <= 3:
        return None
    window = op.window_of(spatial)
    return native.PoolWindow(window.kernel, window.strides, window.dilations, window.begin, window.end)


@_kernel("MaxPool")
def _max_pool(node: Node, context: KernelContext) -> Kernel | None:
    op: Any = node.op
    x, y = _shape(node.inputs[0]), _shape(node.outputs[0])
    window = _pool_window(op, x[2:])
    return window and native.MaxPool(x, y, window, bool(op.storage_order), context.threads)


@_kernel("MaxPoolGrad", DOMAIN)
def _max_pool_grad(node: Node, context: KernelContext) -> Kernel | None:
    indices = node.inputs[1]
    if indices is None or indices.dtype is not DType.INT64:
        return None
    return native.MaxPoolGrad(_shape(node.inputs[0]), _shape(node.output), context.threads)


@_kernel("AveragePool")
def _average_pool(node: Node, context: KernelContext) -> Kernel | None:
    op: Any = node.op
    x, y = _shape(node.inputs[0]), _shape(node.output)
    window = _pool_window(op, x[2:])
    return window and native.AveragePool(x, y, window, op.count_include_pad, context.threads)


@_kernel("AveragePoolGrad", DOMAIN)
def _average_pool_grad(node: Node, context: KernelContext) -> Kernel | None:
    op: Any = node.op
    dy, dx = _shape(node.inputs[0]), _shape(node.output)
    window = _pool_window(op, dx[2:])
    return window and native.AveragePoolGrad(dy, dx, window, op.count_include_pad, context.threads)


def describe() -> dict[str, Any]:
    """Facts about the native engine, for reports."""
    return {
        "version": native.version,
        "compiler": native.compiler(),
        "cpu features": ", ".join(native.cpu_features()),
        "oneDNN": f"{native.onednn_version()} ({native.onednn_isa()})" if native.has_onednn() else "not built in",
    }
