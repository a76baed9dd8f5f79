"""cuDNN through NVIDIA's frontend: its graphs, plans and handles. Plans are made once, for each kernel.

https://docs.nvidia.com/deeplearning/cudnn/frontend has what graphs, plans and notes are.
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

# What the frontend raises for all but graphs that it has no plan for.
_REFUSALS = (RuntimeError, ValueError)


class Prepared:
    """A graph with the plan that the library has chosen. For one thread at a time.

    Raises MissingDependency without the frontend, NotInLibrary where the library cannot compute it.
    """

    def __init__(self, plan: Callable[..., Any], card: int):
        """plan: makes the graph, of what `planned` takes for `target`. card: its number; it is the current one."""
        self._card = card
        self._graph = plan(handle=_handle(card))
        _cards.add(card)

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Queue the work on a stream. addresses: of its tensors, numbered from 1 on, 0 where there is none, and of the
        working memory. Raises RuntimeFailure for what the library refuses.
        """
        *tensors, workspace = addresses
        at = {number: address for number, address in enumerate(tensors, 1) if address}
        handle = _handle(self._card)
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
    """The library's graph, with the plan that its heuristics put first.

    describe: makes the graph, of the frontend and `target`, which is what the frontend's `pygraph` takes to know the
    card. workspace: bytes that a plan may take. Left out are plans whose results differ from run to run, or where an
    element that is not finite spoils those beside it, and those with notes that are `unwanted`.
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
    """Of cuDNN. Raises MissingDependency without the frontend, RuntimeFailure without the library."""
    try:
        number = frontend().backend_version()
    except RuntimeError as error:
        raise RuntimeFailure(f"cuDNN: {error}") from error
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class _Handle:
    """A handle that is destroyed with the last reference to it."""

    def __init__(self, card: int):
        try:
            self.made = frontend().create_handle()
        except _REFUSALS as error:
            raise RuntimeFailure(f"cuDNN on GPU {card}: {error}") from error
        weakref.finalize(self, frontend().destroy_handle, self.made).atexit = False


# Each thread needs its own handle.
_of_thread = threading.local()

# The GPUs that have computed something.
_cards: set[int] = set()


def be_ready(card: int) -> None:
    """Create this thread's handle, which cannot be created during a recording. card: the current GPU."""
    if card in _cards:
        _handle(card)


def _handle(card: int) -> Any:
    """Return this thread's handle for the current GPU, `card`."""
    handles: dict[int, _Handle] = _of_thread.__dict__.setdefault("handles", {})
    if card not in handles:
        handles[card] = _Handle(card)
    return handles[card].made


@cache
def frontend() -> Any:
    """Return the module of NVIDIA's frontend."""
    try:
        return importlib.import_module("cudnn")
    except (ImportError, OSError, AssertionError) as error:  # the last two: of the library that it loads
        raise MissingDependency(
            f"convolutions and attention on a GPU need cuDNN ({error}): {how_to_install('cuda12', 'cuda13')}"
        ) from error
