"""Conditional nodes in captured CUDA graphs. They are added with CUDA's runtime, because CuPy has no function for it.

"Conditional Graph Nodes" in https://docs.nvidia.com/cuda/cuda-c-programming-guide documents them. The graph inside a
conditional node may contain kernels, copies in the memory of the GPU, and conditional nodes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Protocol, TypeAlias

from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.executor.devices.bound_steps import BoundStep, Choice, Recorded, Repetition
from graphkit.executor.devices.cuda.conditions.setting import beginning, choosing, continuing
from graphkit.executor.devices.cuda.horizontal_fusion import BoundLaunch
from graphkit.executor.devices.cuda.launches import THREADS, Source

Queue: TypeAlias = Callable[[Sequence[Recorded]], None]


class Capturing(Protocol):
    """The part of a GPU device that this module uses."""

    @property
    def current_stream(self) -> int: ...
    def stream(self) -> Any: ...
    def on(self, stream: Any) -> Any: ...
    def functions(self, sources: Sequence[Source]) -> list[Any]: ...


class ConditionalNodes:
    """Adds conditional nodes to the graph that the current stream captures."""

    def __init__(self, card: Capturing):
        self._card = card

    @cached_property
    def _cuda(self) -> Any:
        return runtime()

    @property
    def _edges(self) -> tuple[None, ...]:
        """The argument for edge data, in versions of the bindings that take one (from 13 on)."""
        return () if hasattr(self._cuda, "cudaGraphAddNode_v2") else (None,)

    def queue(self, steps: Sequence[Recorded]) -> None:
        """Queue expanded steps on the current stream, which is being captured.

        For conditions, it raises MissingDependency without the bindings, and RuntimeFailure for errors of CUDA.
        """
        for step in steps:
            match step:
                case Choice():
                    self._choose(step)
                case Repetition():
                    self._repeat(step)
                case BoundStep():
                    step.run()

    def _choose(self, choice: Choice) -> None:
        graph, _ = self._captured()
        parts = [(self._handle(graph), steps) if steps else None for steps in (choice.then, choice.otherwise)]
        self._launch(choosing(choice, *(None if part is None else int(part[0]) for part in parts)))
        for part in parts:
            if part is not None:
                handle, steps = part
                self._fill(self._node(handle, "If"), partial(self.queue, steps))

    def _repeat(self, repeated: Repetition) -> None:
        graph, _ = self._captured()
        handle = self._handle(graph)
        self._launch(beginning(repeated, int(handle)))

        def steps() -> None:
            self.queue(repeated.steps)
            self._launch(continuing(repeated, int(handle)))

        self._fill(self._node(handle, "While"), steps)

    def _launch(self, setting: BoundLaunch) -> None:
        launch, memory = setting
        (launched,) = self._card.functions([launch.source])
        launched((launch.blocks,), (THREADS,), tuple(map(memory.of, launch.arguments)))

    # --- CUDA's functions ---------------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> Any:
        return checked(self._cuda, name, *arguments)

    def _stream(self) -> Any:
        return self._cuda.cudaStream_t(self._card.current_stream)

    def _captured(self) -> tuple[Any, Any]:
        """Return the captured graph, and the nodes that the next node depends on."""
        status, _, graph, nodes, *_ = self._call("cudaStreamGetCaptureInfo", self._stream())
        if status != self._cuda.cudaStreamCaptureStatus.cudaStreamCaptureStatusActive:
            raise RuntimeFailure(f"cudaStreamGetCaptureInfo: {status.name}")
        return graph, nodes

    def _handle(self, graph: Any) -> Any:
        (handle,) = self._call("cudaGraphConditionalHandleCreate", graph, 0, 0)
        return handle

    def _node(self, handle: Any, kind: str) -> Any:
        """Return the graph inside a new node. The stream continues after the node."""
        cuda, (graph, nodes) = self._cuda, self._captured()
        params = cuda.cudaGraphNodeParams()
        params.type = cuda.cudaGraphNodeType.cudaGraphNodeTypeConditional
        params.conditional.handle = handle
        params.conditional.type = getattr(cuda.cudaGraphConditionalNodeType, f"cudaGraphCondType{kind}")
        params.conditional.size = 1
        (node,) = self._call("cudaGraphAddNode", graph, nodes, *self._edges, len(nodes), params)
        instead = cuda.cudaStreamUpdateCaptureDependenciesFlags.cudaStreamSetCaptureDependencies
        self._call("cudaStreamUpdateCaptureDependencies", self._stream(), [node], *self._edges, 1, instead)
        return params.conditional.phGraph_out[0]

    def _fill(self, graph: Any, queue: Callable[[], None]) -> None:
        """Capture the work of `queue()` in a graph, on a separate stream."""
        stream = self._card.stream()
        with self._card.on(stream):
            captured, mode = self._stream(), self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
            self._call("cudaStreamBeginCaptureToGraph", captured, graph, None, None, 0, mode)
            try:
                queue()
            except BaseException:
                # The error of `queue` is raised, not that of ending the capture.
                self._cuda.cudaStreamEndCapture(captured)
                raise
            self._call("cudaStreamEndCapture", captured)


def checked(cuda: Any, name: str, *arguments: Any) -> Any:
    """Call a function of CUDA and return its results. Raises RuntimeFailure, which names it, for an error."""
    status, *answer = getattr(cuda, name)(*arguments)
    if status != cuda.cudaError_t.cudaSuccess:
        raise RuntimeFailure(f"{name}: {status.name}")
    return answer


def runtime() -> Any:
    """Return the module of NVIDIA's bindings. Raises MissingDependency."""
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except (ImportError, RuntimeError) as error:
        raise MissingDependency(
            f"conditions in CUDA graphs need cuda-bindings ({error}): {how_to_install('cuda12', 'cuda13')}"
        ) from error
