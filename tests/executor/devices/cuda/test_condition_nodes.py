"""Conditional nodes of CUDA graphs: the calls that add them, the launches that set their values, the look at a card."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from emulator import Emulator
from registers import check
from stand_in import Card

from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.executor.devices import cuda
from graphkit.executor.devices.conditions import Choice, NotRecorded, Recorded, Repetition
from graphkit.executor.devices.cuda.conditions import nodes, probe, setting
from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.device import BoundStep

STREAM = 1 << 20


@pytest.fixture
def bindings() -> Any:
    return pytest.importorskip("cuda.bindings.runtime")


class Capture(NamedTuple):
    """What a stream captures: a graph, by its number, and the nodes that the next one depends on."""

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
            return None  # nobody calls it
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
        """Arguments but for the kinds of edges, which are the usual ones."""
        if not self._edges:
            return list(given)
        assert given[place] is None
        return [*given[:place], *given[place + 1 :]]

    def begin(self, stream: int) -> int:
        graph = self._new()
        self.graphs[graph], self.captures[stream] = [], Capture(graph, [])
        return graph

    def add(self, stream: int, what: Any) -> None:
        """A node behind all that a stream has captured."""
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
    """A card whose kernels add a node to what the current stream captures."""

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


def repetition(steps: Sequence[Recorded]) -> Repetition:
    number, word = np.zeros(1, np.int64), np.zeros(1, np.uint32)
    return Repetition(steps, number, None, number, None, number, word, word)


@pytest.fixture
def captured(bindings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a card on a model of graphs."""

    def made(**options: Any) -> Capturing:
        runtime = Runtime(bindings, **options)
        monkeypatch.setattr(nodes, "runtime", lambda: runtime)
        runtime.begin(STREAM)
        return Capturing(runtime)

    return made


# --- nodes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edges", [False, True])
def test_a_choice_is_a_node_for_each_part(edges: bool, captured: Any) -> None:
    card = captured(edges=edges)
    graph = card.runtime.captures[STREAM].graph
    steps = [card.step("a"), Choice(np.array(True), [card.step("b"), card.step("c")], [card.step("d")]), card.step("e")]
    nodes.ConditionalNodes(card).queue(steps)
    first, chosen, (one, then, its), (two, otherwise, others), last = card.runtime.graphs[graph]
    assert (first, chosen, last) == ("a", ("chooses", then, otherwise), "e")
    assert one == two == "if"
    assert (card.runtime.graphs[its], card.runtime.graphs[others]) == (["b", "c"], ["d"])
    assert list(card.runtime.captures) == [STREAM], "what was begun beside it is over"
    in_order = ["cudaGraphConditionalHandleCreate"] * 2 + ["chooses"]
    assert [name for name in card.runtime.calls if name in in_order] == in_order


@pytest.mark.parametrize(("then", "otherwise"), [([], ["a"]), (["a"], []), ([], [])])
def test_a_part_without_steps_has_no_node(then: list[str], otherwise: list[str], captured: Any) -> None:
    card = captured()
    graph = card.runtime.captures[STREAM].graph
    nodes.ConditionalNodes(card).queue([Choice(np.array(1), *(list(map(card.step, p)) for p in (then, otherwise)))])
    assert len(card.runtime.graphs[graph]) == 1 + len(then) + len(otherwise)
    assert not card.runtime.handles, "of a handle without a node CUDA makes no graph that runs"


@pytest.mark.parametrize("edges", [False, True])
def test_a_repetition_sets_its_value_behind_its_steps(edges: bool, captured: Any) -> None:
    card = captured(edges=edges)
    graph = card.runtime.captures[STREAM].graph
    nodes.ConditionalNodes(card).queue([repetition([card.step("a")]), card.step("b")])
    begun, (kind, handle, body), last = card.runtime.graphs[graph]
    assert (begun, kind, last) == (("repeats", handle), "while", "b")
    assert card.runtime.graphs[body] == ["a", ("repeats", handle)]


def test_conditions_in_conditions(captured: Any) -> None:
    """Each handle is one of the graph that its node is in, which is what is captured there."""
    card = captured()
    graph = card.runtime.captures[STREAM].graph
    inner = repetition([card.step("a"), Choice(np.array(1), [card.step("b")], [card.step("c")])])
    nodes.ConditionalNodes(card).queue([Choice(np.array(1), [inner], [card.step("d")]), card.step("e")])
    _, (_, _, then), (_, _, otherwise), last = card.runtime.graphs[graph]
    assert (card.runtime.graphs[otherwise], last) == (["d"], "e")
    _, (kind, handle, body) = card.runtime.graphs[then]
    assert kind == "while"
    first, chosen, (_, _, one), (_, _, two), behind = card.runtime.graphs[body]
    assert (first, chosen[0], behind) == ("a", "chooses", ("repeats", handle))
    assert (card.runtime.graphs[one], card.runtime.graphs[two]) == (["b"], ["c"])


@pytest.mark.parametrize(
    "name",
    [
        "cudaStreamGetCaptureInfo", "cudaGraphConditionalHandleCreate", "cudaGraphAddNode",
        "cudaStreamUpdateCaptureDependencies", "cudaStreamBeginCaptureToGraph", "cudaStreamEndCapture",
    ],
)  # fmt: skip
def test_what_cuda_refuses_is_named(name: str, captured: Any) -> None:
    card = captured(fails=name)
    with pytest.raises(RuntimeFailure, match=f"^{name}: cudaErrorNotSupported$"):
        nodes.ConditionalNodes(card).queue([repetition([card.step("a")])])


def test_a_stream_that_captures_nothing(captured: Any) -> None:
    card = captured()
    card.runtime.captures.clear()
    with pytest.raises(RuntimeFailure, match="cudaStreamCaptureStatusNone"):
        nodes.ConditionalNodes(card).queue([repetition([card.step("a")])])


def test_what_ends_a_part_early_is_what_is_raised(captured: Any) -> None:
    """And its capture is over."""

    def interrupted(inputs: Any, outputs: Any, scratch: Any) -> None:
        raise KeyboardInterrupt

    card = captured()
    step = BoundStep(interrupted, (), (), None)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        nodes.ConditionalNodes(card).queue([Choice(np.array(1), [repetition([step])], [])])
    assert list(card.runtime.captures) == [STREAM]


def test_the_bindings_take_what_functions_are_given(bindings: Any) -> None:
    """Without a driver they refuse the call, and not its arguments."""
    if bindings.cudaDriverGetVersion()[1]:
        pytest.skip("there is a driver, for which these arguments mean nothing")
    cuda_nodes = nodes.ConditionalNodes(SimpleNamespace(current_stream=STREAM))  # type: ignore[arg-type]
    graph, node = bindings.cudaGraph_t(init_value=1), bindings.cudaGraphNode_t(init_value=2)
    params, stream = bindings.cudaGraphNodeParams(), bindings.cudaStream_t(STREAM)
    edges, modes = cuda_nodes._edges, bindings.cudaStreamCaptureMode
    flags = bindings.cudaStreamUpdateCaptureDependenciesFlags.cudaStreamSetCaptureDependencies
    for name, given in (
        ("cudaStreamGetCaptureInfo", (stream,)),
        ("cudaGraphConditionalHandleCreate", (graph, 0, 0)),
        ("cudaGraphAddNode", (graph, [node], *edges, 1, params)),
        ("cudaStreamUpdateCaptureDependencies", (stream, [node], *edges, 1, flags)),
        ("cudaStreamBeginCaptureToGraph", (stream, graph, None, None, 0, modes.cudaStreamCaptureModeRelaxed)),
        ("cudaStreamEndCapture", (stream,)),
    ):
        with pytest.raises(RuntimeFailure, match=f"{name}: cudaError"):
            nodes.checked(bindings, name, *given)


class CUDARuntimeError(RuntimeError):
    pass


@pytest.mark.parametrize("fails", ["cudaGraphAddNode", "instantiate", ""])
def test_a_recording_that_cuda_refuses(fails: str, captured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    card, asked = captured(fails=fails), []

    class Stream:
        def begin_capture(self) -> None:
            asked.append("begin")

        def end_capture(self) -> str:
            asked.append("end")
            if fails == "instantiate":
                raise CUDARuntimeError("cudaErrorInvalidValue: invalid argument")
            return "graph"

    class Device(cuda.CudaDevice):
        current_stream = property(lambda self: card.current_stream)  # type: ignore[assignment]
        stream, on, functions = card.stream, card.on, card.functions

    monkeypatch.setattr(cuda.card.cudnn, "be_ready", lambda number: None)
    one = object.__new__(Device)
    one.number, one.name = 0, "cuda"
    one._cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(CUDARuntimeError=CUDARuntimeError)))
    steps = [repetition([])]
    if not fails:
        assert one.record(Stream(), steps)
    else:
        why = "cudaErrorNotSupported" if fails != "instantiate" else "invalid argument"
        with pytest.raises(NotRecorded, match=f"device 'cuda' records no conditions here: .*{why}"):
            one.record(Stream(), steps)
    assert asked == ["begin", "end"]


# --- values -----------------------------------------------------------------------------------------


def launched(emulator: Emulator, bound: Any, order: int = 0) -> None:
    emulator.run(CardKernel((bound.launch,)), bound.memory.inputs, (), order=order)


@pytest.mark.parametrize("condition", [False, True])
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_values_of_both_parts(condition: bool, wanted: tuple[bool, bool], emulator: Emulator) -> None:
    values = np.full(2, 7, np.uint32)
    handles = [values[i:].ctypes.data if there else None for i, there in enumerate(wanted)]
    launched(emulator, setting.choosing(Choice(np.array(condition), (), ()), *handles))
    expected = (condition, not condition)
    assert values.tolist() == [int(e) if there else 7 for e, there in zip(expected, wanted, strict=True)]


INT64 = np.iinfo(np.int64)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(
    ("trips", "flag", "limit", "most", "faults", "goes", "fault"),
    [
        (3, None, None, INT64.max, 1, True, False),
        (3, True, 5, INT64.max, 300, True, False),
        (3, True, 4, INT64.max, 0, False, False),
        (3, False, 5, INT64.max, 1, False, False),
        (3, True, None, 4, 1, False, True),
        (3, False, None, 4, 1, False, False),
        (3, None, 4, 4, 1, False, False),
        (3, None, 5, 4, 1, False, True),
        (3, None, 5, 5, 1, True, False),
        (3, None, INT64.max, INT64.max, 1, True, False),
        (3, None, -1, INT64.max, 1, False, False),
        (3, None, INT64.min, INT64.max, 1, False, False),
        (INT64.max - 2, None, INT64.max, INT64.max, 1, True, False),
        (INT64.max - 1, None, None, INT64.max, 1, False, True),
    ],
)
def test_the_value_behind_an_iteration(
    trips: int,
    flag: bool | None,
    limit: int | None,
    most: int,
    faults: int,
    goes: bool,
    fault: bool,
    order: int,
    emulator: Emulator,
) -> None:
    """And before the first one, which is as many as if there had been one less than none. A fault anywhere ends it."""
    value, counted, own = np.full(1, 7, np.uint32), np.array(trips), np.zeros(1, np.uint32)
    bounds = [None if bound is None else np.array(bound) for bound in (flag, limit)]
    words = np.zeros(faults, np.uint32)
    given = Repetition((), counted, bounds[0], bounds[1], bounds[0], np.array(most), own, words)
    launched(emulator, setting.going_on(given, value.ctypes.data), order)
    assert (value[0], counted, own[0]) == (goes, trips + 1, fault)
    if faults:
        own[0], words[-1] = 0, 9
        launched(emulator, setting.going_on(given, value.ctypes.data), order)
        assert (value[0], own[0]) == (False, 0)
        words[-1] = 0
    launched(emulator, setting.beginning(given, value.ctypes.data), order)
    first = flag is not False and (limit is None or limit > 0)
    assert (value[0], counted, own[0]) == (first, 0, 0)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_what_sets_values_is_code_of_a_card(architecture: str, nvrtc: None) -> None:
    """NVRTC leaves CUDA's function to the driver, and no other."""
    check([setting.CHOOSES, setting.REPEATS], architecture)


# --- the look at a card -----------------------------------------------------------------------------


@pytest.fixture
def looked(card: Card, bindings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Looks at the stand-in, with versions of CUDA."""

    def look(driver: int = 12040, runtime: int = 12090) -> str:
        versions = {"cudaDriverGetVersion": driver, "cudaRuntimeGetVersion": runtime}
        success = bindings.cudaError_t.cudaSuccess
        made = {name: lambda version=version: (success, version) for name, version in versions.items()}
        monkeypatch.setattr(probe, "runtime", lambda: SimpleNamespace(cudaError_t=bindings.cudaError_t, **made))
        return probe.refusal(card, card.record)

    return look


def test_a_card_with_conditions(looked: Any, card: Card) -> None:
    assert looked() == ""
    assert card.recordings == 1
    assert card.conditions == 2 * (4 + 1 + 2 * 3)


@pytest.mark.parametrize(("versions", "which"), [((12030, 12090), "driver"), ((13000, 12020), "runtime")])
def test_cuda_that_is_too_old(versions: tuple[int, int], which: str, looked: Any, card: Card) -> None:
    assert looked(*versions).startswith(f"the {which} is of CUDA 12.")
    assert not card.recordings


def always(self: Card, value: np.ndarray, work: Any) -> None:
    for one in work:
        one()


def once(self: Card, value: np.ndarray, work: Any) -> None:
    if value[0]:
        always(self, value, work)


@pytest.mark.parametrize(
    ("name", "does", "wrong"), [("_choose", always, "'then': 2"), ("_repeat", once, "'iterations': 1")]
)
def test_a_card_that_computes_something_else(
    name: str, does: Any, wrong: str, looked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Card, name, does)
    assert wrong in looked()
    assert looked().startswith("a recording has computed")


@pytest.mark.parametrize("error", [NotRecorded("cudaGraphAddNode: no"), AttributeError("phGraph_out"), TypeError("it")])
def test_whatever_goes_wrong_is_said(
    error: Exception, looked: Any, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any) -> None:
        raise error

    monkeypatch.setattr(card, "record", refused)
    assert looked() == str(error)


def test_without_the_bindings(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingDependency, match="conditions in CUDA graphs need cuda-bindings"):
        nodes.runtime()
    assert probe.refusal(card, card.record).startswith("conditions in CUDA graphs need cuda-bindings")


def test_a_card_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(cuda.card, "refusal", lambda *given: asked.append(given) or "it is old")
    one = object.__new__(cuda.CudaDevice)
    assert not one.has_conditions
    assert not one.has_conditions
    assert one.conditions_refused == "it is old"
    assert len(asked) == 1
