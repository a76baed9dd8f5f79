"""The CUDA device: CuPy's arrays and streams under the planner that all devices share.

Only this module and `graphkit.ops.xp` know CuPy, and they import it when the device is asked for.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np

from graphkit.errors import MissingDependency, UnsupportedError
from graphkit.executor.devices.interpreted import interpreted_kernel
from graphkit.executor.devices.kernel import Kernel
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops.xp import cupy_xp


class CudaDevice:
    """The current card, as `graphkit.executor.devices.device.Device` wants it."""

    name = "cuda"

    def __init__(self, cupy: Any):
        self._cupy = cupy
        self.xp = cupy_xp()

    def supports(self, dtype: DType) -> bool:
        """Numbers and booleans of numpy itself: CuPy has no ml_dtypes, no strings."""
        return dtype.numpy.isbuiltin == 1 and dtype.numpy.kind in "biufc"

    def stream(self) -> Any:
        return self._cupy.cuda.Stream(non_blocking=True)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = stream
        return context

    def synchronize(self, stream: Any) -> None:
        stream.synchronize()

    def prepare(self, node: Node) -> Kernel:
        return interpreted_kernel(node, self.xp)

    def alloc(self, nbytes: int) -> Any:
        return self._cupy.empty(max(nbytes, 1), np.uint8)

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return self._cupy.ndarray(shape, dtype, memptr=memory.data + offset)

    def copy_in(self, array: np.ndarray) -> Any:
        return self._cupy.array(array)

    def copy_out(self, array: Any, out: np.ndarray | None) -> np.ndarray:
        result: np.ndarray = self._cupy.ascontiguousarray(array).reshape(array.shape).get(out=out)
        return result


def load() -> None:
    """Raises MissingDependency where CuPy is not installed, UnsupportedError where it finds no card."""
    device()


@cache
def device() -> CudaDevice:
    """The device; see `load` for what it raises."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        # CuPy's own message is a page about the environment; the cause is one line.
        cause = error.__cause__ or error
        raise MissingDependency(
            f"device 'cuda' needs CuPy ({cause}): pip install 'graphkit[cuda]', or use device='cpu'"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UnsupportedError(f"device 'cuda': no NVIDIA card can be used here ({error}); use device='cpu'") from error
    if count == 0:
        raise UnsupportedError("device 'cuda': the driver finds no NVIDIA card; use device='cpu'")
    return CudaDevice(cupy)
