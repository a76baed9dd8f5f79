"""The CUDA device if there is one, and errors if there is none."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from card_cases import needs_card, why_not
from stand_in import Card
from together import together

import graphkit as gk
from graphkit import cli
from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of, tensor_within
from graphkit.checks.verify import compare
from graphkit.errors import MissingDependency, UnsupportedError
from graphkit.executor.devices import cuda
from graphkit.executor.devices.bound_steps import BoundStep
from graphkit.executor.devices.capabilities import PinnedMemory, Prefetcher, Recorder, ReducedPrecision, Streams
from graphkit.executor.devices.cuda.launches import CardKernel, Launch, Output, Table, source_of
from graphkit.executor.devices.device import interprets
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import registry
from graphkit.ops.sequence.elements import holds_maps
from graphkit.ops.xp import SHARED


@pytest.fixture
def fresh() -> Iterator[None]:
    """Clear the cache of devices."""
    cuda.card._device.cache_clear()
    yield
    cuda.card._device.cache_clear()


class CUDARuntimeError(RuntimeError):
    pass


def without_card(outcome: Any) -> SimpleNamespace:
    """A CuPy that answers the question for cards with `outcome`."""

    def count() -> int:
        if isinstance(outcome, Exception):
            raise outcome
        return int(outcome)

    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=CUDARuntimeError)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))


def network() -> gk.Model:
    x = gk.input("x", ["N", 4])
    return gk.Model({"y": gk.nn.linear(gk.relu(x), 3, name="fc")})


def test_without_cupy(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingDependency, match=r"'\.\[cuda12\]' \(or '\.\[cuda13\]'\).*, or use device='cpu'"):
        network().compile("cuda")


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (0, "the driver finds no NVIDIA GPU; use device='cpu'"),
        (
            CUDARuntimeError("cudaErrorInsufficientDriver: driver version is insufficient"),
            r"no NVIDIA GPU can be used here \(cudaErrorInsufficientDriver.*use device='cpu'",
        ),
    ],
)
def test_without_a_card(fresh: None, monkeypatch: pytest.MonkeyPatch, outcome: Any, message: str) -> None:
    monkeypatch.setitem(sys.modules, "cupy", without_card(outcome))
    with pytest.raises(UnsupportedError, match=message):
        network().compile("cuda")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda:2", "no device 'cuda:2': this machine has 2 devices of this kind, 'cuda:0' to 'cuda:1'"),
        ("cuda:", "no device 'cuda:': expected a number from 0 to 9999 after the colon, as in 'cuda:0'"),
        ("cuda:-1", "no device 'cuda:-1': expected a number from 0 to 9999"),
        ("cuda:10000", "no device 'cuda:10000': expected a number from 0 to 9999"),
        ("cpu:0", "no device 'cpu:0': the CPU has no number; use 'cpu'"),
        ("cudda:1", r"no device 'cudda:1'; did you mean 'cuda'\?"),
    ],
)
def test_devices_that_are_not_there(fresh: None, monkeypatch: pytest.MonkeyPatch, device: str, message: str) -> None:
    monkeypatch.setitem(sys.modules, "cupy", without_card(2))
    with pytest.raises(UnsupportedError, match=message):
        network().compile(device)


@together()
@pytest.mark.parametrize(("status", "done"), [(0, True), (600, False), (700, None)])
def test_work_that_a_card_has_given_up_does_not_go_on(status: int, done: bool | None) -> None:
    """None: an error is raised. Otherwise a caller would wait forever."""

    def check_status(status: int) -> None:
        if status:
            raise CUDARuntimeError("cudaErrorIllegalAddress")

    runtime = SimpleNamespace(streamQuery=lambda stream: status, check_status=check_status)
    card = cuda.CudaDevice.__new__(cuda.CudaDevice)
    card._cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    with nullcontext() if done is not None else pytest.raises(CUDARuntimeError):
        assert card.done(SimpleNamespace(ptr=7)) is done


def test_a_device_by_its_number(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(cuda.card, "device", lambda number=0: asked.append(number) or card)
    monkeypatch.setattr(cuda, "device", cuda.card.device)
    x = {"x": np.ones((2, 4), np.float32)}
    for name in ("cuda", "cuda:0", "cuda:1"):
        np.testing.assert_allclose(network().compile(name).run(x)["y"], network().run(x)["y"], rtol=1e-5)
    assert set(asked) == {0, 1}
    assert asked == sorted(asked)


def test_the_command_line_says_it_in_one_line(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", without_card(0))
    network().save(tmp_path / "net.json")
    code = cli.invoke(["run", str(tmp_path / "net.json"), "--device", "cuda"])
    assert code == UnsupportedError.exit_code
    assert capsys.readouterr().err.splitlines()[-1].startswith("graphkit: device 'cuda': the driver finds no")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_without_cupy_the_rest_works() -> None:
    assert network().run({"x": np.zeros((1, 4), np.float32)})["y"].shape == (1, 3)
    assert "cupy" not in sys.modules


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")
def test_cupy_has_what_references_may_use() -> None:
    import cupy

    assert sorted(name for name in SHARED if not hasattr(cupy, name)) == []


def cases() -> list[Case | None]:
    """Without a GPU, a single test is skipped with the reason, not a thousand."""
    if why_not():
        return [None]
    return [
        make_case(cls, number, dtype)
        for cls in registry
        for number, sample in enumerate(samples_of(cls))
        for dtype in dtypes_of(cls, sample)[:1]
    ]


@together()
@needs_card
@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name if c else "no card")
def test_every_operator_on_the_card(case: Case) -> None:
    graph = case.graph()
    asked = graph.values if graph.inputs else graph.outputs
    if not all(holds_maps(v.type) or interprets(cuda.device(), tensor_within(v.type).dtype) for v in asked):
        pytest.skip("the card has no arrays of these types")
    feeds = dict(zip(graph.input_names, case.feeds(), strict=True))
    found = Executor(graph, ParamStore({}), device="cuda").run(feeds)
    expected = Executor(graph, ParamStore({}), device="cpu").run(feeds)
    for name, array in expected.items():
        if isinstance(array, np.ndarray):
            report = compare(case.name, found[name], array)
            assert report.passed, str(report)


@needs_card
def test_training_on_the_card() -> None:
    data = (np.random.default_rng(0).random((16, 4), np.float32), np.arange(16) % 3)
    losses = {}
    for device in ("cpu", "cuda"):
        trainer = gk.Trainer(network(), "softmax_cross_entropy", gk.optim.SGD(0.1, momentum=0.9), device=device)
        losses[device] = [float(trainer.step(*data)) for _ in range(5)]
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=1e-4)


def test_tables_are_copied_when_a_kernel_is_prepared() -> None:
    """A table is copied once, even if several launches read it."""
    table, copies, seen = Table(np.arange(3)), [], []

    def launched(blocks: Any, threads: Any, given: tuple[Any, ...]) -> None:
        seen.append(given)

    def copied(array: np.ndarray) -> str:
        copies.append(array)
        return "on the card"

    card: Any = SimpleNamespace(functions=lambda sources: [launched] * len(sources), copy_in=copied)
    launch = Launch(source_of("read", ["const gk_i64* table", "int* y"], []), 1, (table, Output(0)))
    x = Value(TensorType("int64", (3,)))
    run = cuda.CudaDevice.prepare(card, Node(registry.get("", "Neg")(), [x]), CardKernel((launch, launch)), None)
    for _ in range(2):
        run([None], ["y"], None)
    assert seen == [("on the card", "y")] * 4
    assert len(copies) == 1
    assert copies[0] is table.array


def test_a_card_has_every_capability() -> None:
    one = object.__new__(cuda.CudaDevice)
    for capability in (Streams, PinnedMemory, Recorder, Prefetcher, ReducedPrecision):
        assert isinstance(one, capability)


def test_what_goes_from_card_to_card_waits_for_an_event() -> None:
    """CuPy records an event after the work of one GPU. The copy in the other GPU's stream waits for it."""
    asked: list[Any] = []

    class Event:
        def __init__(self, *, disable_timing: bool):
            assert disable_timing

        def record(self, stream: Any) -> None:
            asked.append(("record", self, stream))

    class Memory:
        def copy_from_device_async(self, source: Any, nbytes: int) -> None:
            asked.append(("copy", source, nbytes))

    stream = SimpleNamespace(wait_event=lambda event: asked.append(("wait", event)))
    runtime = SimpleNamespace(Event=Event, get_current_stream=lambda: stream)
    one, other = object.__new__(cuda.CudaDevice), object.__new__(cuda.CudaDevice)
    one._cupy = other._cupy = SimpleNamespace(cuda=runtime)
    contiguous = SimpleNamespace(c_contiguous=True)
    array = SimpleNamespace(data="there", nbytes=24, flags=contiguous)
    target = SimpleNamespace(data=Memory())
    event = one.event()
    other.wait_for(event)
    other.copy_across(array, target)
    assert asked == [("record", event, stream), ("wait", event), ("copy", "there", 24)]


def test_copies_to_the_host_s_memory_and_back() -> None:
    """CuPy is asked for copies in the current stream, of as many bytes as there are on the card."""
    asked: list[Any] = []

    one, array = object.__new__(cuda.CudaDevice), SimpleNamespace(data=SimpleNamespace(ptr=5), nbytes=24)
    runtime = SimpleNamespace(memcpyAsync=lambda *given: asked.append(given))
    stream = SimpleNamespace(ptr=7)
    one._cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, get_current_stream=lambda: stream))
    host = np.zeros((2, 3), np.float32)
    one.copy_to_host(array, host)
    one.copy_from_host(host, array)
    to_host, from_host = 2, 1  # cudaMemcpyKind
    assert asked == [(host.ctypes.data, 5, 24, to_host, 7), (5, host.ctypes.data, 24, from_host, 7)]


def test_what_ends_a_recording_early_is_what_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original error is raised, not the resulting CUDA error."""
    asked: list[str] = []

    class Stream:
        def begin_capture(self) -> None:
            asked.append("begin")

        def end_capture(self) -> None:
            asked.append("end")
            raise CUDARuntimeError("cudaErrorStreamCaptureUnjoined: capturing stream has unjoined work")

    def interrupted(inputs: Any, outputs: Any, scratch: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cuda.card.cudnn, "be_ready", lambda number: None)
    one = object.__new__(cuda.CudaDevice)
    one.number = 0
    one._cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(CUDARuntimeError=CUDARuntimeError)))
    with pytest.raises(KeyboardInterrupt):
        one.record(Stream(), [BoundStep(interrupted, (), (), None)])  # type: ignore[arg-type]
    assert asked == ["begin", "end"]


@together()
@pytest.mark.parametrize(("status", "kind"), [(2, MemoryError), (35, CUDARuntimeError)])
def test_memory_of_the_host_that_is_not_there(status: int, kind: type[Exception]) -> None:
    """Of CUDA's errors that of memory is Python's."""

    def refused(nbytes: int, flags: int) -> None:
        error = CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        error.status = status  # type: ignore[attr-defined]
        raise error

    one = object.__new__(cuda.CudaDevice)
    one.number, one.name = 0, "cuda:0"
    runtime = SimpleNamespace(CUDARuntimeError=CUDARuntimeError)
    one._cupy = SimpleNamespace(
        cuda=SimpleNamespace(Device=lambda number: nullcontext(), PinnedMemory=refused, runtime=runtime)
    )
    with pytest.raises(kind, match="out of memory"):
        one.host_memory(100)
