"""The card: CuPy's arrays and streams under the planner that all devices share, and kernels of its own.

Only this module and `graphkit.ops.xp` know CuPy, and they import it when the device is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np

from graphkit.errors import MissingDependency, RuntimeFailure, UnsupportedError
from graphkit.executor.devices.cuda.compiler import compiled
from graphkit.executor.devices.cuda.launches import THREADS, CardKernel, Fault, Input, Output, Scratch, Source, Table
from graphkit.executor.devices.device import ArrayKernel
from graphkit.executor.devices.interpreted import Interpreted
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops.xp import cupy_xp


class CudaDevice:
    """The current card, as `graphkit.executor.devices.device.Device` wants it."""

    name = "cuda"

    def __init__(self, cupy: Any):
        self._cupy = cupy
        self._functions: dict[str, Any] = {}
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

    def prepare(self, node: Node, made: CardKernel | None) -> ArrayKernel:
        return Interpreted(node, self.xp) if made is None else _Launched(self, node, made)

    @property
    def architecture(self) -> str:
        """What code is compiled for."""
        return f"sm_{self._cupy.cuda.Device().compute_capability}"

    def facts(self) -> dict[str, str]:
        """What people ask of a card: its name, architecture, memory, and the versions around it."""
        runtime = self._cupy.cuda.runtime
        properties = runtime.getDeviceProperties(self._cupy.cuda.Device().id)
        free, whole = runtime.memGetInfo()
        return {
            "card": properties["name"].decode(),
            "architecture": self.architecture,
            "memory": f"{whole / 2**30:.1f} GiB, {free / 2**30:.1f} free",
            "driver": _release(runtime.driverGetVersion()),
            "CUDA": _release(runtime.runtimeGetVersion()),
            "CuPy": str(self._cupy.__version__),
        }

    def functions(self, sources: Sequence[Source]) -> list[Any]:
        """What launches these sources on the card."""
        new = [source for source in dict.fromkeys(sources) if source.entry not in self._functions]
        if new:
            module = self._cupy.cuda.function.Module()
            module.load(compiled(new, self.architecture))
            self._functions |= {source.entry: module.get_function(source.entry) for source in new}
        return [self._functions[source.entry] for source in sources]

    def word(self) -> Any:
        """A word of the card's memory that is 0."""
        return self._cupy.zeros(1, np.uint32)

    def alloc(self, nbytes: int) -> Any:
        return self._cupy.empty(max(nbytes, 1), np.uint8)

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return self._cupy.ndarray(shape, dtype, memptr=memory.data + offset)

    def copy_in(self, array: np.ndarray) -> Any:
        return self._cupy.array(array)

    def copy_out(self, array: Any, out: np.ndarray | None) -> np.ndarray:
        result: np.ndarray = self._cupy.ascontiguousarray(array).reshape(array.shape).get(out=out)
        return result


def _release(number: int) -> str:
    """12090 is 12.9."""
    return f"{number // 1000}.{number % 1000 // 10}"


class _Launched:
    """A kernel of the card's own on its arrays."""

    def __init__(self, card: CudaDevice, node: Node, kernel: CardKernel):
        self._node, self._kernel = node, kernel
        try:
            self._functions = card.functions(kernel.sources)
        except RuntimeFailure as error:
            raise RuntimeFailure(f"{node.describe()}: {error}") from error
        self.may_fail = bool(kernel.fault)
        self._fault = card.word() if self.may_fail else None
        arguments = {argument for launch in kernel.launches for argument in launch.arguments}
        self._tables = {table: card.copy_in(table.array) for table in arguments if isinstance(table, Table)}

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        for launch, function in zip(self._kernel.launches, self._functions, strict=True):
            given: list[Any] = []
            for argument in launch.arguments:
                match argument:
                    case Input(position):
                        given.append(inputs[position])
                    case Output(position):
                        given.append(outputs[position])
                    case Scratch(offset):
                        given.append(scratch[offset:])
                    case Fault():
                        given.append(self._fault)
                    case Table():
                        given.append(self._tables[argument])
                    case _:
                        given.append(argument)
            function((launch.blocks,), (THREADS,), tuple(given))

    def check(self) -> None:
        """Raises RuntimeFailure where the fault was set."""
        if self._fault is not None and int(self._fault.get()[0]):
            self._fault.fill(0)
            raise self._kernel.failure(self._node)


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
            f"device 'cuda' needs CuPy ({cause}): pip install 'graphkit[cuda12]', or [cuda13], or use device='cpu'"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UnsupportedError(f"device 'cuda': no NVIDIA card can be used here ({error}); use device='cpu'") from error
    if count == 0:
        raise UnsupportedError("device 'cuda': the driver finds no NVIDIA card; use device='cpu'")
    return CudaDevice(cupy)
