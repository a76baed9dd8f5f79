"""All-reduces over GPUs: agreement of the processes, launches, and lost processes.

Processes are threads, each with its own fake GPU.
"""

from __future__ import annotations

import json
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item
from stand_in import Card
from stand_in_nccl import Nccl, NcclError
from together import together

import graphkit as gk
from graphkit import cli
from graphkit.cli import doctor
from graphkit.dist.collectives import gpu
from graphkit.dist.collectives.gpu import GpuCollectives
from graphkit.dist.collectives.layout import Slices
from graphkit.errors import MissingDependency, RanksDiffer, RuntimeFailure
from graphkit.executor.devices import cuda
from graphkit.executor.devices.cuda.libraries import nccl
from graphkit.executor.lower.collaborators import RunAgreement
from graphkit.ir.types import DType


class Machine:
    """Cards of ranks that are threads, at different places. without: ranks that have no NCCL."""

    def __init__(self, on_ranks: Callable[..., list[Any]], folder: Path, monkeypatch: pytest.MonkeyPatch):
        self._on_ranks = on_ranks
        self.without: Sequence[int] = ()
        self.cards = [Card(None, place=f"0000:0{rank}:00.0") for rank in range(4)]  # type: ignore[arg-type]
        self.library = Nccl(self.cards, folder)
        self._here = threading.local()
        monkeypatch.setattr(nccl, "bindings", self._bindings)
        monkeypatch.setattr(cuda, "device", lambda number=0: self.cards[self._here.rank])

    def _bindings(self) -> Nccl:
        if getattr(self._here, "rank", None) in self.without:
            raise MissingDependency("CuPy finds no NCCL")
        return self.library

    def run(self, work: Callable[[Any, Card], Any], size: int = 2, **options: Any) -> list[Any]:
        def go(store: Any) -> Any:
            self._here.rank = store.rank
            card = self.cards[store.rank]
            with card.on(card.stream()):
                return work(store, card)

        return self._on_ranks(go, size, **options)


@pytest.fixture
def machine(on_ranks: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(on_ranks, tmp_path / "nccl", monkeypatch)


def sums_of(store: Any) -> GpuCollectives:
    found = store.transport.collectives(device="cuda").on_device
    assert isinstance(found, GpuCollectives)
    return found


def on_card(card: Card, arrays: Sequence[np.ndarray]) -> list[Any]:
    return [card.copy_in(a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a) for a in arrays]


def awaited(sums: GpuCollectives, card: Card, arrays: Sequence[Any], dtype: DType) -> list[np.ndarray]:
    sums.wait(partial(card.done, card.current))
    return [card.copy_out(a, None).view(dtype.numpy) for a in arrays]


# --- exchanges --------------------------------------------------------------------------------------------------------

DTYPES = [
    DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT8, DType.UINT8, DType.INT32, DType.UINT32,
    DType.INT64, DType.UINT64,
]  # fmt: skip


def parts(rank: int, dtype: DType) -> list[np.ndarray]:
    """Return small integers, so that every sum is exact. Float types also get NaN and infinities."""
    rng = np.random.default_rng(rank)
    found = [rng.integers(0, 9, shape).astype(dtype.numpy) for shape in ((7, 3), (), (0, 4), (1000,))]
    if dtype.numpy.kind in "fV":
        found[3][:3] = np.array([np.nan, np.inf, -np.inf])
        found[3][3] = np.nan if rank else 1
    return found


@in_one_item()
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.value)
def test_sums_of_every_type(machine: Machine, dtype: DType) -> None:
    def work(store: Any, card: Card) -> list[np.ndarray]:
        sums = sums_of(store)
        assert sums.supports(dtype)
        arrays = on_card(card, parts(store.rank, dtype))
        sums.all_reduce(arrays, dtype)
        return awaited(sums, card, arrays, dtype)

    with np.errstate(invalid="ignore"):
        totals = [
            sum(a.astype(np.float64) for a in each) for each in zip(*(parts(r, dtype) for r in range(3)), strict=True)
        ]
    for found in machine.run(work, 3):
        for array, total in zip(found, totals, strict=True):
            np.testing.assert_array_equal(array.astype(np.float64), total)


def test_ranks_with_other_fingerprints_do_not_meet(machine: Machine) -> None:
    """If ranks take different steps, nothing is launched."""

    def work(store: Any, card: Card) -> bool:
        sums = sums_of(store)
        store.transport.fingerprint.number = 5 + store.rank
        with pytest.raises(RanksDiffer):
            sums.agree("order", 4, True, 1, 1)
        store.transport.fingerprint.number = 5
        return sums.agree("order", 4, True, 1, 1).can_record

    assert machine.run(work, 3) == [True] * 3


@in_one_item()
@pytest.mark.parametrize("dtype", [DType.BOOL, DType.INT16, DType.COMPLEX64, DType.STRING], ids=lambda d: d.value)
def test_other_types_are_not_carried(machine: Machine, dtype: DType) -> None:
    assert not nccl.supports(dtype)


@in_one_item()
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("shapes", [((5,), (40, 3), (0,), (7,)), ((1,),), ((0,),)], ids=str)
def test_slices(machine: Machine, shapes: Sequence[tuple[int, ...]], ranks: int) -> None:
    """Each process's slice has the sum; from the slices all get the whole."""
    given = [[np.random.default_rng(r).random(s).astype(np.float32) for s in shapes] for r in range(ranks)]
    totals = [np.sum([given[r][i] for r in range(ranks)], axis=0, dtype=np.float32) for i in range(len(shapes))]
    slices = Slices.of([t.size for t in totals], 4, ranks)

    def work(store: Any, card: Card) -> Any:
        sums = sums_of(store)
        arrays = on_card(card, given[store.rank])
        sums.reduce_scatter(arrays, DType.FLOAT32)
        mine = awaited(sums, card, arrays, DType.FLOAT32)
        wholes = on_card(
            card,
            [np.where(_has(slices, i, store.rank, a.size), a.reshape(-1), np.float32(7)) for i, a in enumerate(mine)],
        )
        sums.all_gather(wholes, DType.FLOAT32)
        return mine, awaited(sums, card, wholes, DType.FLOAT32)

    for rank, (mine, wholes) in enumerate(machine.run(work, ranks)):
        for index, total in enumerate(totals):
            begin, end = slices.part(index, rank)
            np.testing.assert_allclose(mine[index].reshape(-1)[begin:end], total.reshape(-1)[begin:end], rtol=1e-6)
            np.testing.assert_allclose(wholes[index], total.reshape(-1), rtol=1e-6)


def _has(slices: Slices, index: int, rank: int, size: int) -> np.ndarray:
    begin, end = slices.part(index, rank)
    return (np.arange(size) >= begin) & (np.arange(size) < end)


# --- who takes part ---------------------------------------------------------------------------------------------------


def choice(store: Any, card: Card) -> tuple[bool, str]:
    carrier = store.transport.collectives(device="cuda")
    return carrier.on_device is not None, carrier.staged


def test_one_without_nccl_and_none_takes_part(machine: Machine) -> None:
    machine.without = (1,)
    with pytest.warns(RuntimeWarning, match="through host memory: rank 1 has no NCCL") as seen:
        found = machine.run(choice, 3)
    assert found == [(False, "rank 1 has no NCCL (CuPy finds no NCCL)")] * 3
    assert len(seen) == 1
    assert machine.library.made == []


def test_ranks_that_share_a_card(machine: Machine) -> None:
    machine.cards[2].place = machine.cards[0].place
    with pytest.warns(RuntimeWarning, match="ranks 0, 2 share one GPU, 0000:00:00.0"):
        assert not any(taken for taken, _ in machine.run(choice, 3))


def test_a_processor_among_cards(machine: Machine) -> None:
    def work(store: Any, card: Card) -> Any:
        return store.transport.collectives(device="cpu" if store.rank else "cuda").staged

    with pytest.warns(RuntimeWarning, match="rank 1 computes on the CPU"):
        assert machine.run(work) == ["rank 1 computes on the CPU"] * 2


def test_nothing_is_said_of_what_was_chosen(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def processors(store: Any, card: Card) -> tuple[Any, str]:
        carrier = store.transport.collectives(device="cpu")
        return carrier.on_device, carrier.staged

    def chosen(store: Any, card: Card) -> Any:
        return store.transport.collectives(device="cuda", staged="compression").staged

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert machine.run(processors) == [(None, "")] * 2
        assert machine.run(chosen) == ["compression"] * 2
        monkeypatch.setenv("GRAPHKIT_NCCL", "0")
        assert machine.run(choice) == [(False, "rank 0 has GRAPHKIT_NCCL=0")] * 2
    assert machine.library.made == []


def test_a_group_of_the_same_cards_is_made_once(machine: Machine) -> None:
    def work(store: Any, card: Card) -> None:
        first, again = sums_of(store), sums_of(store)
        assert first is again
        card.place = f"{card.place} too"
        if store.rank:
            first.broken = True
        assert sums_of(store) is not first

    machine.run(work)
    assert len(machine.library.made) == 4


def test_cards_that_do_not_come_together(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one rank cannot join, the others stop waiting for it and do not use a group without it."""
    monkeypatch.setattr(gpu, "_JOINING", 0.3)
    monkeypatch.setenv("GRAPHKIT_RANK_TIMEOUT", "0.3")
    machine.library.refuses = (1,)
    with pytest.warns(RuntimeWarning, match="rank 0 waited 0 s for the GPUs of the other ranks"):
        assert not any(taken for taken, _ in machine.run(choice))
    machine.library.get_unique_id = refuse  # type: ignore[method-assign]
    with pytest.warns(RuntimeWarning, match=r"rank 0 cannot create an NCCL ID \(NCCL 2.25.1: no interface\)"):
        assert not any(taken for taken, _ in machine.run(choice))


def test_any_error_of_joining_is_the_reason(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise OSError("no space left on device")

    for card in machine.cards:
        monkeypatch.setattr(card, "communicator", failing)
    with pytest.warns(RuntimeWarning, match="rank 0 cannot join"):
        found = machine.run(choice)
    assert found == [(False, "rank 0 cannot join (OSError: no space left on device)")] * 2


def refuse() -> bytes:
    raise NcclError("no interface")


# --- before a run -----------------------------------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([(False, 0, 5), (True, 0, 5)], RunAgreement(False, 0, 0)),
        ([(True, 0, 5), (True, 0, 5)], RunAgreement(True, 0, 1)),
        ([(True, 3, 5), (True, 3, 5)], RunAgreement(True, 3, 0)),
        ([(True, 3, 5), (True, 0, 5)], RunAgreement(True, 0, 1)),
        ([(True, 1, 5), (True, 3, 5)], RunAgreement(True, 0, 1)),
        ([(True, 3, 5), (True, 3, 6)], RunAgreement(False, 0, 0)),
    ],
    ids=str,
)
def test_what_all_know(machine: Machine, told: Any, expected: RunAgreement) -> None:
    """Recordings are replayed where all have the same one, and made where all can."""

    def work(store: Any, card: Card) -> Any:
        can_record, recording, structure = told[store.rank]
        return sums_of(store).agree("2", 100, can_record, recording, structure), store.sent_bytes

    assert machine.run(work) == [(expected, 100)] * 2


def test_other_orders_are_an_error_that_names_both(machine: Machine) -> None:
    def work(store: Any, card: Card) -> None:
        sums_of(store).agree(f"order {store.rank}", 0, False, 0, 1)

    found = machine.run(work, ends=RuntimeFailure)
    for error in found:
        assert "rank 0: all-reduces on GPUs, order 0" in str(error)
        assert "rank 1: all-reduces on GPUs, order 1" in str(error)


def test_one_that_leaves_a_run_ends_what_is_done_together(machine: Machine) -> None:
    def work(store: Any, card: Card) -> None:
        sums = sums_of(store)
        sums.fail(ValueError("too small"))
        store.barrier()

    for rank, error in enumerate(machine.run(work, ends=RuntimeFailure)):
        assert str(error) == f"rank {rank} failed (ValueError: too small) in step 0, in all-reduces on GPUs"


# --- who is lost ------------------------------------------------------------------------------------------------------


class Alone:
    """A communicator with two ranks. If `reason` is given, the other rank is lost."""

    rank, size, steps = 0, 2, 7

    def __init__(self, reason: str | None):
        self.reason, self.told, self.said = reason, "", list[str]()

    def waiting(self, for_progress: bool) -> Any:
        assert for_progress
        self.said.append("waiting")
        return nullcontext()

    def working(self) -> Any:
        self.said.append("working")
        return nullcontext()

    def lost(self) -> str | None:
        return self.reason

    def fail(self, reason: str) -> None:
        self.told = reason


class Group:
    """A group whose collectives end when it is aborted, unless it hangs."""

    def __init__(self, error: str = "", hangs: bool = False):
        self._error, self._hangs, self.aborted = error, hangs, threading.Event()

    def check(self) -> None:
        if self._error:
            raise RuntimeFailure(self._error)

    def abort(self) -> None:
        self.aborted.set()

    def done(self) -> bool:
        return self.aborted.is_set() and not self._hangs


@pytest.mark.full
@together()
@pytest.mark.parametrize(
    ("reason", "error", "message"),
    [
        ("rank 1 on here (process 5) has sent no heartbeat", "", "rank 1 on here (process 5) has sent no heartbeat"),
        (None, "NCCL 2: remote", "rank 0 failed (RuntimeFailure: NCCL 2: remote) in step 7, in all-reduces on GPUs"),
    ],
)
@pytest.mark.parametrize("hangs", [False, True])
def test_who_is_lost_ends_the_wait(
    reason: str | None, error: str, message: str, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_ENDING", 0.2)
    communicator, group = Alone(reason), Group(error, hangs)
    sums = GpuCollectives(communicator, SimpleNamespace(current_stream=0), group)  # type: ignore[arg-type]
    with pytest.raises(RuntimeFailure) as raised:
        sums.wait(group.done)
    assert str(raised.value) == communicator.told == message
    assert communicator.said == ["waiting", "working"]  # not only waiting, because the GPU may still compute
    assert group.aborted.wait(60)
    assert sums.broken
    monkeypatch.setattr(gpu, "time", None)  # nothing waits any more: it has been said
    sums.wait(lambda: False)
    sums.fail(ValueError())
    assert communicator.told == message


# --- the libraries ----------------------------------------------------------------------------------------------------


def test_where_a_card_is() -> None:
    runtime = SimpleNamespace(deviceGetPCIBusId=lambda number: f"0000:0{number}:00.0")
    device = cuda.CudaDevice.__new__(cuda.CudaDevice)
    device._cupy, device.number = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)), 3
    assert device.place == "0000:03:00.0"


def test_cupy_has_what_sums_use() -> None:
    """Of CuPy's module itself, which needs no card."""
    pytest.importorskip("cupy")
    try:
        module = nccl.bindings()
    except MissingDependency as error:
        pytest.skip(str(error))
    assert all(hasattr(module, name) for name in nccl._TYPES.values())
    assert all(nccl.supports(dtype) for dtype in DTYPES)
    methods = ("allReduce", "reduce", "broadcast", "check_async_error", "abort")
    assert all(hasattr(module.NcclCommunicator, name) for name in methods)
    assert nccl.version().startswith("2.")
    assert len(nccl.unique_id()) == gpu._UNIQUE


def test_without_cupy_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl.bindings.cache_clear()
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "cupy.cuda.nccl", raising=False)
    with pytest.raises(MissingDependency, match=r"NCCL needs CuPy .*: pip install '\.\[cuda12\]'"):
        nccl.version()
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", SimpleNamespace(available=False))
    with pytest.raises(MissingDependency, match="CuPy finds no NCCL"):
        nccl.version()
    nccl.bindings.cache_clear()


def test_the_outlook(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "cards", lambda: 2)
    assert gpu.sum_route(2) == "nccl 2.25.1"
    assert gpu.sum_route(3) == "staged (copied through host memory): this machine has 2 GPUs"
    monkeypatch.setenv("GRAPHKIT_NCCL", "0")
    assert gpu.sum_route(2) == "staged (copied through host memory): GRAPHKIT_NCCL=0"


def test_the_plan_of_a_job_and_the_doctor_tell(
    machine: Machine, card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda, "cards", lambda: 2)
    gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 4]), 3)}).save(tmp_path / "net.json")
    command = [
        "plan",
        str(tmp_path / "net.json"),
        "--training",
        "--no-run",
        "--json",
        "--batch",
        "4",
        "--device",
        "cuda",
    ]
    assert cli.invoke([*command, "--processes", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["sums"] == "nccl 2.25.1"
    assert cli.invoke(command) == 0
    assert "sums" not in json.loads(capsys.readouterr().out)
    monkeypatch.setattr(card, "facts", lambda: {"card": "a stand-in"}, raising=False)
    assert doctor.collect()["card"]["NCCL"] == "2.25.1"


def test_a_reason_of_any_letters_travels(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise MissingDependency('\N{SNOWMAN}"' * 500)

    monkeypatch.setattr(nccl, "version", missing)
    with pytest.warns(RuntimeWarning, match=r"rank 0 has no NCCL \(\?"):
        assert not any(taken for taken, _ in machine.run(choice))
