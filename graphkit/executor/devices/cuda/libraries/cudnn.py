"""cuDNN through NVIDIA's frontend: its graphs, plans and handles. Plans are created once for each kernel.

https://docs.nvidia.com/deeplearning/cudnn/frontend documents graphs, plans and numerical notes.
"""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.executor.devices.cuda.libraries.workspace import NotInLibrary, aligned_address, usable_bytes
from graphkit.ir.types import DType

# The names of data types in the frontend.
_TYPES = {DType.FLOAT16: "HALF", DType.BFLOAT16: "BFLOAT16", DType.FLOAT32: "FLOAT", DType.FLOAT64: "DOUBLE"}

# The frontend's exceptions, except the one for a graph without a plan.
_REFUSALS = (RuntimeError, ValueError)


class Prepared:
    """A graph with the plan that the library has chosen. Only one thread at a time may use it.

    Raises MissingDependency without the frontend, and NotInLibrary if the library cannot compute the graph.
    """

    def __init__(self, plan: Callable[..., Any], gpu: int):
        """Create the plan.

        Args:
            plan: Returns the planned graph, given the argument `handle`.
            gpu: Number of the current GPU.
        """
        self._gpu = gpu
        self._graph = plan(handle=_handle(gpu))
        _used_gpus.add(gpu)

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Queue the work on a stream. Raises RuntimeFailure for errors of the library.

        addresses: Those of the tensors with the numbers 1, 2, ... (0 for an absent one), then that of the working
        memory.
        """
        *tensors, workspace = addresses
        at = {number: address for number, address in enumerate(tensors, 1) if address}
        handle = _handle(self._gpu)
        try:
            frontend().set_stream(handle=handle, stream=stream)
            self._graph.execute(at, aligned_address(workspace), handle=handle)
        except _REFUSALS as error:
            raise RuntimeFailure(f"cuDNN {version()}: {error}") from error


def planned(
    describe: Callable[[Any, dict[str, Any]], Any],
    workspace: int,
    unwanted: Callable[[Any], list[Any]] = lambda dnn: [],
    **target: Any,
) -> Any:
    """Return a graph of the library, with the first plan of its heuristics.

    Plans are excluded if their results differ from run to run, if they sum in reduced precision, if an element that is
    not finite affects other results, or if they have an unwanted note.

    Args:
        describe: Returns the graph, given the frontend and `target`.
        workspace: Bytes that a plan may use.
        unwanted: Returns further numerical notes of plans to exclude, given the frontend.
        target: Arguments of the frontend's `pygraph` that name the GPU, such as `handle`.
    """
    dnn = frontend()
    try:
        graph = describe(dnn, target)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([dnn.heur_mode.A, dnn.heur_mode.FALLBACK])
        notes = dnn.numerical_note
        always = [notes.NONDETERMINISTIC, notes.REDUCED_PRECISION_REDUCTION, notes.WINOGRAD, notes.FFT]
        graph.deselect_numeric_notes([*always, *unwanted(dnn)])
        graph.deselect_workspace_greater_than(usable_bytes(workspace))
        graph.check_support()
        graph.build_plans()
    except dnn.cudnnGraphNotSupportedError as error:
        raise NotInLibrary(f"cuDNN {version()}: {error}") from error
    except _REFUSALS as error:
        raise RuntimeFailure(f"cuDNN {version()}: {error}") from error
    return graph


def data_type(dnn: Any, kind: DType) -> Any:
    """Return the frontend's data type."""
    return getattr(dnn.data_type, _TYPES[kind])


def graph(dnn: Any, kind: DType, target: dict[str, Any]) -> Any:
    """Return an empty graph for tensors of a type. Sums of float16 and bfloat16 are float32."""
    wide = data_type(dnn, DType.FLOAT64 if kind is DType.FLOAT64 else DType.FLOAT32)
    io = data_type(dnn, kind)
    return dnn.pygraph(io_data_type=io, intermediate_data_type=wide, compute_data_type=wide, **target)


def version() -> str:
    """Return the version of cuDNN.

    Raises MissingDependency without the frontend, and RuntimeFailure without the library.
    """
    try:
        number = frontend().backend_version()
    except RuntimeError as error:
        raise RuntimeFailure(f"cuDNN: {error}") from error
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class _Handle:
    """A handle that is destroyed with the last reference to it."""

    def __init__(self, gpu: int):
        try:
            self.made = frontend().create_handle()
        except _REFUSALS as error:
            raise RuntimeFailure(f"cuDNN on GPU {gpu}: {error}") from error
        weakref.finalize(self, frontend().destroy_handle, self.made).atexit = False


# Each thread needs its own handle.
_of_thread = threading.local()

# The GPUs that have computed something.
_used_gpus: set[int] = set()


def be_ready(gpu: int) -> None:
    """Create this thread's handle, which cannot be created during a recording. gpu: the current GPU."""
    if gpu in _used_gpus:
        _handle(gpu)


def _handle(gpu: int) -> Any:
    """Return this thread's handle for the current GPU, `gpu`."""
    handles: dict[int, _Handle] = _of_thread.__dict__.setdefault("handles", {})
    if gpu not in handles:
        handles[gpu] = _Handle(gpu)
    return handles[gpu].made


@cache
def frontend() -> Any:
    """Return the module of NVIDIA's frontend."""
    try:
        return importlib.import_module("cudnn")
    except (ImportError, OSError, AssertionError) as error:  # the last two: the frontend cannot load cuDNN
        raise MissingDependency(
            f"convolutions and attention on a GPU need cuDNN ({error}): {how_to_install('cuda12', 'cuda13')}"
        ) from error
