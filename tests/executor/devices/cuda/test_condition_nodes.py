"""Conditional nodes of CUDA graphs: the calls that add them, the launches that set their values, the look at a card."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulator import Emulator
from on_a_card import stand_in_alone
from registers import check
from stand_in import Card
from stand_in_graphs import STREAM, Capturing, Runtime
from together import together

from graphkit.cli import doctor
from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.executor.devices import cuda
from graphkit.executor.devices.bound_steps import BoundStep, Choice, NotRecorded, Recorded, Repetition
from graphkit.executor.devices.cuda.conditions import nodes, probe, setting
from graphkit.executor.devices.cuda.launches import CardKernel


@pytest.fixture
def bindings() -> Any:
    return pytest.importorskip("cuda.bindings.runtime")


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
    """Each handle belongs to the captured graph that contains its node."""
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


class CapturingStream:
    """A fake of CuPy's stream. fails: the calls that fail. asked: the calls so far."""

    def __init__(self, fails: str):
        self._fails, self.asked = fails, []

    def _does(self, what: str) -> None:
        self.asked.append(what)
        if what == self._fails:
            raise CUDARuntimeError("cudaErrorInvalidValue: invalid argument")

    def begin_capture(self) -> None:
        self._does("begin")

    def end_capture(self) -> Any:
        self._does("end")
        return SimpleNamespace(upload=lambda stream: self._does("upload"))


@pytest.mark.parametrize("fails", ["cudaGraphAddNode", "end", "upload", ""])
def test_a_recording_that_cuda_refuses(fails: str, captured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, or when it is made, or when it comes to the card."""
    card, stream = captured(fails=fails), CapturingStream(fails)

    class Device(cuda.CudaDevice):
        current_stream = property(lambda self: card.current_stream)  # type: ignore[assignment]
        stream, on, functions = card.stream, card.on, card.functions

    monkeypatch.setattr(cuda.card.cudnn, "be_ready", lambda number: None)
    one = object.__new__(Device)
    one.number, one.name = 0, "cuda:0"
    one._cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(CUDARuntimeError=CUDARuntimeError)))
    if not fails:
        assert one.record(stream, [repetition([])])
    else:
        why = "cudaErrorNotSupported" if fails == "cudaGraphAddNode" else "invalid argument"
        with pytest.raises(NotRecorded, match=f"device 'cuda:0' cannot record a CUDA graph: .*{why}"):
            one.record(stream, [repetition([])])
    assert stream.asked == ["begin", "end", "upload"][: 3 if fails in ("", "upload") else 2]


# --- values -----------------------------------------------------------------------------------------


def launched(processor: Emulator, bound: Any, order: int = 0) -> None:
    processor.run(CardKernel((bound.launch,)), bound.memory.inputs, (), order=order)


@together()
@pytest.mark.parametrize("condition", [False, True])
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_values_of_both_parts(condition: bool, wanted: tuple[bool, bool], processor: Emulator) -> None:
    values = np.full(2, 7, np.uint32)
    handles = [values[i:].ctypes.data if there else None for i, there in enumerate(wanted)]
    launched(processor, setting.choosing(Choice(np.array(condition), (), ()), *handles))
    expected = (condition, not condition)
    assert values.tolist() == [int(e) if there else 7 for e, there in zip(expected, wanted, strict=True)]


INT64 = np.iinfo(np.int64)


@together()
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
    processor: Emulator,
) -> None:
    """The condition is also computed before the first iteration, like after iteration -1. A fault ends the loop."""
    value, counted, own = np.full(1, 7, np.uint32), np.array(trips), np.zeros(1, np.uint32)
    bounds = [None if bound is None else np.array(bound) for bound in (flag, limit)]
    words = np.zeros(faults, np.uint32)
    given = Repetition((), counted, bounds[0], bounds[1], bounds[0], np.array(most), own, words)
    launched(processor, setting.continuing(given, value.ctypes.data), order)
    assert (value[0], counted, own[0]) == (goes, trips + 1, fault)
    if faults:
        own[0], words[-1] = 0, 9
        launched(processor, setting.continuing(given, value.ctypes.data), order)
        assert (value[0], own[0]) == (False, 0)
        words[-1] = 0
    launched(processor, setting.beginning(given, value.ctypes.data), order)
    first = flag is not False and (limit is None or limit > 0)
    assert (value[0], counted, own[0]) == (first, 0, 0)


@together()
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


@stand_in_alone
@pytest.mark.parametrize(
    ("name", "does", "wrong"), [("_choose", always, "'then': 2"), ("_repeat", once, "'iterations': 1")]
)
def test_a_card_that_computes_something_else(
    name: str, does: Any, wrong: str, looked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Card, name, does)
    assert wrong in looked()
    assert looked().startswith("a recording computed")


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


@together()
@pytest.mark.parametrize(("why", "said"), [("", "in recordings"), ("it is old", "on the host (it is old)")])
def test_the_doctor_tells(why: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = object.__new__(cuda.CudaDevice)
    one.number, one.conditions_refused = 0, why
    runtime = SimpleNamespace(
        getDeviceProperties=lambda number: {"name": b"a card"},
        memGetInfo=lambda: (1 << 30, 2 << 30),
        driverGetVersion=lambda: 12040,
        runtimeGetVersion=lambda: 12090,
    )
    device = contextlib.nullcontext()
    device.compute_capability = "90"  # type: ignore[attr-defined]
    one._cupy = SimpleNamespace(__version__="14", cuda=SimpleNamespace(runtime=runtime, Device=lambda number: device))
    monkeypatch.setattr(cuda, "device", lambda: one)
    found = doctor.collect()["card"]
    assert (found["card"], found["driver"], found["conditions"]) == ("a card", "12.4", said)


def test_a_card_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(cuda.card, "refusal", lambda *given: asked.append(given) or "it is old")
    one = object.__new__(cuda.CudaDevice)
    assert not one.supports_conditions()
    assert not one.supports_conditions()
    assert one.conditions_refused == "it is old"
    assert len(asked) == 1
