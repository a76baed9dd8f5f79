"""A fake of CUDA graphs for NVIDIA's bindings, which uses their real classes, and a fake GPU that captures."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from graphkit.executor.devices.bound_steps import BoundStep

# Number of the current stream, which is captured.
STREAM = 1 << 20


class Capture(NamedTuple):
    """The capture of a stream: the number of the graph, and the nodes that the next node depends on."""

    graph: int
    nodes: list[int]


class Runtime:
    """NVIDIA's bindings, whose functions add nodes to a model of graphs; their classes are the real ones.

    edges: whether functions take the kinds of edges, as those of version 13. calls: names of functions, in their order,
    and of kernels. graphs: the nodes of each.
    """

    def __init__(self, bindings: Any, *, edges: bool = False, fails: str = ""):
        self._bindings, self._edges, self._fails = bindings, edges, fails
        self.calls: list[str] = []
        self.captures: dict[int, Capture] = {}
        self.graphs: dict[int, list[Any]] = {}
        self.handles: dict[int, int] = {}  # the graph of each
        self.set: list[tuple[int, int]] = []  # graphs, and the handles that a kernel in them sets
        self._number = 100
        self._kept: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name == "cudaGraphAddNode_v2":
            if self._edges:
                raise AttributeError(name)
            return None  # it is not called
        return getattr(self._bindings, name)

    def _new(self) -> int:
        self._number += 1
        return self._number

    def _answer(self, name: str, *answer: Any) -> tuple[Any, ...]:
        self.calls.append(name)
        if name == self._fails:
            return (self._bindings.cudaError_t.cudaErrorNotSupported, *(None for _ in answer))
        return (self._bindings.cudaError_t.cudaSuccess, *answer)

    def _without_edges(self, given: Sequence[Any], place: int) -> list[Any]:
        """Return the arguments without the kinds of edges, which must be the default."""
        if not self._edges:
            return list(given)
        assert given[place] is None
        return [*given[:place], *given[place + 1 :]]

    def begin(self, stream: int) -> int:
        graph = self._new()
        self.graphs[graph], self.captures[stream] = [], Capture(graph, [])
        return graph

    def add(self, stream: int, what: Any) -> None:
        """Add a node after everything that a stream has captured."""
        graph, last = self.captures[stream]
        self.graphs[graph].append(what)
        last[:] = [self._new()]

    # --- functions ----------------------------------------------------------------------------------------------

    def cudaDriverGetVersion(self) -> Any:  # noqa: N802
        return self._answer("cudaDriverGetVersion", 12040)

    def cudaStreamGetCaptureInfo(self, stream: Any) -> Any:  # noqa: N802
        kinds = self._bindings.cudaStreamCaptureStatus
        if int(stream) not in self.captures:
            none = kinds.cudaStreamCaptureStatusNone
            return self._answer("cudaStreamGetCaptureInfo", none, 0, None, [], 0)
        graph, last = self.captures[int(stream)]
        found = [self._bindings.cudaGraphNode_t(init_value=node) for node in last]
        edges = [[self._bindings.cudaGraphEdgeData() for _ in last]] if self._edges else []
        made = self._bindings.cudaGraph_t(init_value=graph)
        status = kinds.cudaStreamCaptureStatusActive
        return self._answer("cudaStreamGetCaptureInfo", status, 1, made, found, *edges, len(last))

    def cudaGraphConditionalHandleCreate(self, graph: Any, value: int, flags: int) -> Any:  # noqa: N802
        assert int(graph) in self.graphs
        assert (value, flags) == (0, 0), "kernels set it"
        handle = self._new()
        self.handles[handle] = int(graph)
        return self._answer("cudaGraphConditionalHandleCreate", self._bindings.cudaGraphConditionalHandle(handle))

    def cudaGraphAddNode(self, *given: Any) -> Any:  # noqa: N802
        graph, last, count, params = self._without_edges(given, 2)
        assert params.type == self._bindings.cudaGraphNodeType.cudaGraphNodeTypeConditional
        handle, inside = int(params.conditional.handle), params.conditional
        assert self.handles.pop(handle) == int(graph), "a handle is one of its node's graph, and of one node"
        assert (int(graph), handle) in self.set, "a kernel before the node sets its value"
        (capture,) = (c for c in self.captures.values() if c.graph == int(graph))
        assert [int(node) for node in last] == capture.nodes
        assert count == len(last) == 1, "it is behind the kernel, or another node of the same values"
        body, node = self._new(), self._new()
        self.graphs[body] = []
        kind = {0: "if", 1: "while"}[int(inside.type)]
        self.graphs[int(graph)].append((kind, handle, body))
        assert inside.size == 1
        # As CUDA does it: behind the handle, the kind and the size is where the graphs inside are.
        graphs = (ctypes.c_void_p * 1)(body)
        self._kept.append(graphs)
        ctypes.c_void_p.from_address(inside.getPtr() + 16).value = ctypes.addressof(graphs)
        return self._answer("cudaGraphAddNode", self._bindings.cudaGraphNode_t(init_value=node))

    def cudaStreamUpdateCaptureDependencies(self, *given: Any) -> Any:  # noqa: N802
        stream, last, count, flags = self._without_edges(given, 2)
        assert flags == self._bindings.cudaStreamUpdateCaptureDependenciesFlags.cudaStreamSetCaptureDependencies
        assert count == len(last) == 1
        self.captures[int(stream)].nodes[:] = map(int, last)
        return self._answer("cudaStreamUpdateCaptureDependencies")

    def cudaStreamBeginCaptureToGraph(  # noqa: N802
        self, stream: Any, graph: Any, last: Any, edges: Any, count: int, mode: Any
    ) -> Any:
        assert int(stream) not in self.captures, "it captures another graph"
        assert self.graphs[int(graph)] == []
        assert (last, edges, count) == (None, None, 0)
        assert mode == self._bindings.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
        self.captures[int(stream)] = Capture(int(graph), [])
        return self._answer("cudaStreamBeginCaptureToGraph")

    def cudaStreamEndCapture(self, stream: Any) -> Any:  # noqa: N802
        graph, _ = self.captures.pop(int(stream))
        return self._answer("cudaStreamEndCapture", self._bindings.cudaGraph_t(init_value=graph))


class Capturing:
    """A GPU whose kernels add nodes to the capture of the current stream."""

    def __init__(self, runtime: Runtime):
        self.runtime, self.current_stream = runtime, STREAM

    def stream(self) -> Any:
        return SimpleNamespace(ptr=self.runtime._new())

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.current_stream = self.current_stream, stream.ptr
        yield
        self.current_stream = before

    def functions(self, sources: Sequence[Any]) -> list[Any]:
        return [self._launching(source) for source in sources]

    def _launching(self, source: Any) -> Any:
        def launch(blocks: Any, threads: Any, arguments: Any) -> None:
            assert (blocks, threads) == ((1,), (256,))
            assert len(arguments) == len(source.parameters)
            handles = [int(a) for a in arguments if isinstance(a, np.uint64) and a]
            graph, _ = self.runtime.captures[self.current_stream]
            self.runtime.set += [(graph, handle) for handle in handles]
            self.runtime.calls.append(source.name)
            self.runtime.add(self.current_stream, (source.name, *handles))

        return launch

    def step(self, name: str) -> BoundStep:
        def kernel(inputs: Any, outputs: Any, scratch: Any) -> None:
            self.runtime.add(self.current_stream, name)

        return BoundStep(kernel, (), (), None)  # type: ignore[arg-type]
