"""The GPU as a device: CuPy's arrays and streams, and the launches of kernels.

Only this module, `libraries.nccl` and `graphkit.ops.xp` use CuPy. They import it when the device is first used.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, RuntimeFailure, UnsupportedError
from graphkit.executor.devices.bound_steps import ArrayKernel, NotRecorded, Recorded
from graphkit.executor.devices.cuda.ahead import SentAhead
from graphkit.executor.devices.cuda.compiler import compiled
from graphkit.executor.devices.cuda.conditions.expansion import expanded, has_conditions
from graphkit.executor.devices.cuda.conditions.nodes import ConditionalNodes
from graphkit.executor.devices.cuda.conditions.probe import refusal
from graphkit.executor.devices.cuda.conditions.setting import SETTING
from graphkit.executor.devices.cuda.horizontal_fusion import OwnLaunches
from graphkit.executor.devices.cuda.launches import (
    THREADS,
    CardKernel,
    Convolution,
    Launch,
    Product,
    Source,
    Work,
)
from graphkit.executor.devices.cuda.libraries import attention, convolutions, cudnn
from graphkit.executor.devices.cuda.libraries.cublaslt import PreparedProduct
from graphkit.executor.devices.cuda.libraries.nccl import NcclCommunicator
from graphkit.executor.devices.cuda.libraries.workspace import NotInLibrary
from graphkit.executor.devices.interpreted import Interpreted, owned_results
from graphkit.executor.devices.loading import DeviceName
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops.evaluate import run_node
from graphkit.ops.xp import cupy_xp

# Element types that only kernels compute with, and the types of the arrays that hold their bits.
_BITS: dict[DType, np.dtype] = {
    DType.BFLOAT16: np.dtype(np.uint16),
    DType.FLOAT8E4M3FN: np.dtype(np.uint8),
    DType.FLOAT8E5M2: np.dtype(np.uint8),
}

# cudaErrorMemoryAllocation, cudaErrorNotReady.
_NO_MEMORY, _NOT_READY = 2, 600

# The first compute capability with 8-bit matrix products.
_FLOAT8 = (8, 9)

# cudaHostAllocPortable: pinned for all GPUs.
_PORTABLE = 1

# cudaMemcpyKind.
_FROM_HOST, _TO_HOST = 1, 2


class CudaDevice:
    """A GPU: a Device with all capabilities.

    `communicator`, `place` and `current_stream` are for all-reduces between GPUs.
    """

    def __init__(self, cupy: Any, number: int):
        self._cupy = cupy
        self.name = str(DeviceName("cuda", number))
        self.number = number
        self._functions: dict[str, Any] = {}
        self._ahead = SentAhead(self)
        self.xp = cupy_xp()

    def stored(self, dtype: DType) -> np.dtype | None:
        # CuPy's arrays only hold numpy's own numbers and booleans: no types of ml_dtypes, no strings.
        has_arrays = dtype.numpy.isbuiltin == 1 and dtype.numpy.kind in "biufc"
        return dtype.numpy if has_arrays else _BITS.get(dtype)

    def check_precision(self, precision: str) -> None:
        if precision == "fp8" and self.capability < _FLOAT8:
            raise UnsupportedError(
                f"precision 'fp8': {self.name!r} has compute capability {_dotted(self.capability)}, but 8-bit "
                f"matrix products need {_dotted(_FLOAT8)} or later; use 'bf16'"
            )

    def stream(self) -> Any:
        with self._cupy.cuda.Device(self.number):
            return self._cupy.cuda.Stream(non_blocking=True)

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        with self._cupy.cuda.Device(self.number), stream:
            yield

    def synchronize(self, stream: Any) -> None:
        stream.synchronize()

    def done(self, stream: Any) -> bool:
        runtime = self._cupy.cuda.runtime
        # `Stream.done` of CuPy does not distinguish pending work from an error.
        status = runtime.streamQuery(stream.ptr)
        if status != _NOT_READY:
            runtime.check_status(status)
        return bool(status == 0)

    @property
    def current_stream(self) -> int:
        """The address of the current stream, for CUDA's libraries."""
        number: int = self._cupy.cuda.get_current_stream().ptr
        return number

    def supports_conditions(self) -> bool:
        # The first call makes a recording with conditional nodes, and compares its results.
        return not self.conditions_refused

    @cached_property
    def conditions_refused(self) -> str:
        """Why recordings cannot contain conditional nodes; empty if they can."""
        return refusal(self, self.record)

    def record(self, stream: Any, steps: Sequence[Recorded]) -> Callable[[], None]:
        """Record steps as one CUDA graph, in which independent steps share launches. Raises NotRecorded."""
        cudnn.be_ready(self.number)
        merged = expanded(steps)
        if has_conditions(merged):
            self.functions(SETTING)  # compiled and loaded before the capture
        try:
            recording = self._captured(stream, merged)
            # Without this, CUDA would report some errors only at the first launch.
            recording.upload()
        except (RuntimeFailure, self._cupy.cuda.runtime.CUDARuntimeError) as error:
            raise NotRecorded(f"device {self.name!r} cannot record a CUDA graph: {error}") from error
        return recording

    def _captured(self, stream: Any, steps: Sequence[Recorded]) -> _Recording:
        stream.begin_capture()
        try:
            ConditionalNodes(self).queue(steps)
        except BaseException:
            # CUDA may report that work on another stream was not joined.
            with contextlib.suppress(self._cupy.cuda.runtime.CUDARuntimeError):
                stream.end_capture()
            raise
        return _Recording(stream.end_capture(), stream, steps)

    def prepare(self, node: Node, made: CardKernel | None, fault: Any) -> ArrayKernel:
        return Interpreted(node, self.xp) if made is None else _Launched(self, node, made, fault)

    def compute(self, node: Node, operands: Sequence[Any]) -> Sequence[Any]:
        return owned_results(operands, run_node(node, operands, self.xp))

    @property
    def place(self) -> str:
        """The PCI bus id of the GPU. All instances of a partitioned GPU have the same id."""
        return str(self._cupy.cuda.runtime.deviceGetPCIBusId(self.number))

    def communicator(self, unique: bytes, rank: int, size: int) -> NcclCommunicator:
        """Return a communicator of the GPUs of several processes. Raises as `NcclCommunicator` does."""
        with self._cupy.cuda.Device(self.number):
            return NcclCommunicator(unique, rank, size)

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability, as (9, 0)."""
        digits = str(self._cupy.cuda.Device(self.number).compute_capability)
        return int(digits[:-1]), int(digits[-1])

    @property
    def architecture(self) -> str:
        """The architecture that code is compiled for, as "sm_90"."""
        return "sm_{}{}".format(*self.capability)

    def facts(self) -> dict[str, str]:
        """Return facts for reports: name, architecture, memory and versions."""
        runtime = self._cupy.cuda.runtime
        properties = runtime.getDeviceProperties(self.number)
        with self._cupy.cuda.Device(self.number):
            free, whole = runtime.memGetInfo()
        return {
            "card": properties["name"].decode(),
            "architecture": self.architecture,
            "memory": f"{whole / 2**30:.1f} GiB, {free / 2**30:.1f} free",
            "driver": _release(runtime.driverGetVersion()),
            "CUDA": _release(runtime.runtimeGetVersion()),
            "CuPy": str(self._cupy.__version__),
            "conditions": f"on the host ({why})" if (why := self.conditions_refused) else "in recordings",
        }

    def functions(self, sources: Sequence[Source]) -> list[Any]:
        """Return the functions that launch these sources."""
        new = [source for source in dict.fromkeys(sources) if source.entry not in self._functions]
        if new:
            module = self._cupy.cuda.function.Module()
            module.load(compiled(new, self.architecture))
            self._functions |= {source.entry: module.get_function(source.entry) for source in new}
        return [self._functions[source.entry] for source in sources]

    def alloc(self, nbytes: int) -> Any:
        return self._cupy.empty(max(nbytes, 1), np.uint8)

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        if memory is None:
            return self._cupy.empty(shape, dtype)
        return self._cupy.ndarray(shape, dtype, memptr=memory.data + offset)

    def host_memory(self, nbytes: int) -> np.ndarray:
        # Pinned, without CuPy's pool, which would keep freed memory of all sizes.
        cuda = self._cupy.cuda
        with cuda.Device(self.number):
            try:
                memory = cuda.PinnedMemory(max(nbytes, 1), _PORTABLE)
            except cuda.runtime.CUDARuntimeError as error:
                if error.status != _NO_MEMORY:
                    raise
                raise MemoryError(f"{nbytes} bytes of host memory for device {self.name!r}: {error}") from error
        return np.frombuffer(cuda.PinnedMemoryPointer(memory, 0), np.uint8, nbytes)

    def copy_in(self, array: np.ndarray, target: Any = None) -> Any:
        if target is None:
            return self._cupy.array(array)
        if self._ahead.read(array, target):
            return target
        target.set(np.ascontiguousarray(array).reshape(target.shape))
        return target

    def send_ahead(self, array: np.ndarray) -> None:
        self._ahead.send(array)

    def copy_across(self, source: Any, target: Any) -> None:
        if not source.flags.c_contiguous:
            self.xp.copyto(self.view(target, 0, source.shape, source.dtype), source)
            return
        # CuPy copies directly between GPUs that reach each other, otherwise through host memory.
        target.data.copy_from_device_async(source.data, source.nbytes)

    def copy_to_host(self, source: Any, host: np.ndarray) -> None:
        self._copy(host.ctypes.data, source.data.ptr, source.nbytes, _TO_HOST)

    def copy_from_host(self, host: np.ndarray, target: Any) -> None:
        self._copy(target.data.ptr, host.ctypes.data, target.nbytes, _FROM_HOST)

    def _copy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        # CuPy's own functions reject copies from and to pinned memory in recordings.
        self._cupy.cuda.runtime.memcpyAsync(target, source, nbytes, kind, self.current_stream)

    def event(self) -> Any:
        made = self._cupy.cuda.Event(disable_timing=True)
        # By default, an event is recorded on the null stream.
        made.record(self._cupy.cuda.get_current_stream())
        return made

    def wait_for(self, event: Any) -> None:
        self._cupy.cuda.get_current_stream().wait_event(event)

    def copy_out(self, array: Any, out: np.ndarray | None) -> np.ndarray:
        with self._cupy.cuda.Device(self.number):
            result: np.ndarray = self._cupy.ascontiguousarray(array).reshape(array.shape).get(out=out)
        return result


def _dotted(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))


def _release(number: int) -> str:
    """Return the name of a CUDA version: "12.9" for 12090."""
    return f"{number // 1000}.{number % 1000 // 10}"


class _Recording:
    """A CUDA graph. It keeps its steps, whose tables it reads."""

    def __init__(self, graph: Any, stream: Any, steps: Sequence[Recorded]):
        self._graph, self._stream, self._steps = graph, stream, steps

    def __call__(self) -> None:
        self._graph.launch(self._stream)

    def upload(self) -> None:
        self._graph.upload(self._stream)


class _Launched(OwnLaunches):
    """A kernel on the GPU's arrays."""

    def __init__(self, card: CudaDevice, node: Node, kernel: CardKernel, fault: Any):
        self._card, self._node = card, node
        try:
            chosen, self._calls = self._first_supported(list(kernel.alternatives))
        except (MissingDependency, RuntimeFailure) as error:
            raise type(error)(f"{node.describe()}: {error}") from error
        super().__init__(chosen, fault, {table: card.copy_in(table.array) for table in chosen.tables})

    def beside(self, kernel: CardKernel) -> _Launched:
        return _Launched(self._card, self._node, kernel, None)

    def _first_supported(self, kernels: Sequence[CardKernel]) -> tuple[CardKernel, list[Any]]:
        """Return the first kernel that the libraries support, with the functions that do its work."""
        refusal: NotInLibrary | None = None
        for kernel in kernels[:-1]:
            try:
                return kernel, self._prepared(kernel)
            except NotInLibrary as error:
                refusal = error
        if refusal is not None:
            text = f"{self._node.describe()}: {refusal}; graphkit's own kernel computes it"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return kernels[-1], self._prepared(kernels[-1])

    def _prepared(self, kernel: CardKernel) -> list[Any]:
        # Libraries first: if they do not support the work, this kernel needs no code.
        libraries: dict[int, PreparedProduct | cudnn.Prepared] = {}
        for launch in kernel.launches:
            if not isinstance(launch, Launch) and id(launch) not in libraries:
                libraries[id(launch)] = self._by_library(launch)
        own = iter(self._card.functions(kernel.sources))
        return [next(own) if isinstance(launch, Launch) else libraries[id(launch)] for launch in kernel.launches]

    def _by_library(self, work: Work) -> PreparedProduct | cudnn.Prepared:
        if isinstance(work, Product):
            return PreparedProduct(work, self._card.number)
        if isinstance(work, Convolution):
            return cudnn.Prepared(partial(convolutions.planned, work), self._card.number)
        return cudnn.Prepared(partial(attention.planned, work), self._card.number)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        memory = self.memory(inputs, outputs, scratch)
        for launch, call in zip(self.chosen.launches, self._calls, strict=True):
            if isinstance(launch, Launch):
                call((launch.blocks,), (THREADS,), tuple(map(memory.of, launch.arguments)))
                continue
            addresses = (0 if argument is None else int(memory.of(argument).data.ptr) for argument in launch.arguments)
            try:
                call(tuple(addresses), self._card.current_stream)
            except RuntimeFailure as error:
                raise RuntimeFailure(f"{self._node.describe()}: {error}") from error


def load(number: int = 0) -> None:
    """Raise MissingDependency if CuPy is not installed, and UnsupportedError if there is no such GPU."""
    device(number)


def device(number: int = 0) -> CudaDevice:
    """Return the GPU of a number, always the same object. Raises as `load` does."""
    return _device(number)  # a cache takes device() and device(0) for two calls


@cache
def _device(number: int) -> CudaDevice:
    DeviceName("cuda", number).check_number(cards())
    return CudaDevice(importlib.import_module("cupy"), number)


def cards() -> int:
    """Return the number of GPUs. Raises MissingDependency without CuPy, and UnsupportedError if there is none."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        # CuPy's own message is a page about the environment; the cause is one line.
        cause = error.__cause__ or error
        raise MissingDependency(
            f"device 'cuda' needs CuPy ({cause}): {how_to_install('cuda12', 'cuda13')}, or use device='cpu'"
        ) from error
    try:
        count: int = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UnsupportedError(f"device 'cuda': no NVIDIA GPU can be used here ({error}); use device='cpu'") from error
    if count == 0:
        raise UnsupportedError("device 'cuda': the driver finds no NVIDIA GPU; use device='cpu'")
    return count
