"""A stand-in for the card: its arrays refuse those of the host, as CuPy's do, and its kernels run on the processor."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from emulator import Emulator
from stand_in_streams import PENDING, Point, Stream, Work, inside, recorded

from graphkit.executor.devices import cuda
from graphkit.executor.devices.bound_steps import BoundStep, Choice, Recorded, Repetition
from graphkit.executor.devices.cuda.ahead import SentAhead
from graphkit.executor.devices.cuda.conditions.expansion import expanded, has_conditions
from graphkit.executor.devices.cuda.conditions.setting import beginning, choosing, continuing
from graphkit.executor.devices.cuda.horizontal_fusion import BoundLaunch, OwnLaunches
from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.cuda.libraries.nccl import NcclCommunicator
from graphkit.executor.devices.interpreted import Interpreted
from graphkit.executor.devices.loading import DeviceName
from graphkit.ir.graph import Node
from graphkit.ops.xp import Namespace


class CardArray(np.ndarray):
    """An array in the fake GPU's memory. Computing with it and a host array together is an error.

    card: the number of the GPU that it was allocated on; None for results of numpy.
    """

    card: int | None = None

    def __array_finalize__(self, source: Any) -> None:
        self.card = getattr(source, "card", None)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.ctypes.data, False)}

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        return _called(getattr(ufunc, method), inputs, keywords)

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        return _called(function, arguments, keywords)

    def __setitem__(self, index: Any, value: Any) -> None:
        if _is_of_host(value) and value.size != 1:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        _card_of((self, value))
        super().__setitem__(index, value)


def _is_of_host(given: Any) -> bool:
    return isinstance(given, np.ndarray) and not isinstance(given, CardArray)


def _plain(given: Any) -> Any:
    if isinstance(given, CardArray):
        return given.view(np.ndarray)
    if _is_of_host(given):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    return type(given)(map(_plain, given)) if type(given) in (list, tuple) else given


def _card_of(given: Any) -> int | None:
    """The number of the card with all of these arrays; None if it is not known. Raises ValueError if there are two."""
    if isinstance(given, CardArray):
        return given.card
    if not isinstance(given, (list, tuple)):
        return None
    found = {number for part in given if (number := _card_of(part)) is not None}
    if len(found) > 1:
        first, second = sorted(found)
        raise ValueError(
            f"The device where the array resides ({second}) is different from the current device ({first}). "
            "Peer access is unavailable between these devices."
        )
    return found.pop() if found else None


def _called(function: Any, arguments: Sequence[Any], keywords: dict[str, Any], card: int | None = None) -> Any:
    """Call a function; return its results as arrays of the GPU that has the operands, by default of `card`."""
    if function is not np.copyto:  # CuPy copies from card to card
        number = _card_of([*arguments, *keywords.values()])
        card = card if number is None else number
    return _card(function(*_plain(arguments), **{k: _plain(v) for k, v in keywords.items()}), card)


def _card(result: Any, number: int | None = None) -> Any:
    if isinstance(result, np.ndarray):
        made = result.view(CardArray)
        made.card = number
        return made
    if isinstance(result, tuple):  # those of numpy.linalg have named fields
        return tuple(_card(part, number) for part in result)
    return [_card(part, number) for part in result] if isinstance(result, list) else result


# CuPy copies arrays of the host that these functions get.
_COPIES = frozenset({"array", "asarray", "ascontiguousarray"})


class _Function:
    """A function of numpy that refuses arrays of the host, also if it gets no others."""

    def __init__(self, function: Any, card: int):
        self._function, self._card = function, card

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self._function.__name__ in _COPIES:
            return _card(self._function(*arguments, **keywords), self._card)
        return _called(self._function, arguments, keywords, self._card)

    def at(self, *arguments: Any) -> None:
        _called(self._function.at, arguments, {})


class CardModule:
    """numpy's functions, making arrays of the stand-in on the card of a number."""

    lib = SimpleNamespace(
        stride_tricks=SimpleNamespace(as_strided=lambda *a: _called(np.lib.stride_tricks.as_strided, a, {}))
    )

    def __init__(self, card: int):
        self._card = card

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return _Function(found, self._card) if callable(found) and not isinstance(found, type) else found


def _solved(a: Any, b: Any) -> Any:
    if a.shape[:-2] != b.shape[:-2]:
        raise ValueError("a must have (..., M, M) shape and b must have (..., M, K) for multidimensional b")
    return np.linalg.solve(a, b)


class CardNamespace(Namespace):
    def __init__(self, card: int) -> None:
        super().__init__(CardModule(card), "scipy.special", "numpy.linalg")

    def to_host(self, array: Any) -> np.ndarray:
        assert isinstance(array, CardArray)
        return np.array(array.view(np.ndarray))

    @property
    def linalg(self) -> Any:
        return SimpleNamespace(**vars(np.linalg) | {"solve": _solved})


class _Launched(OwnLaunches):
    """A kernel of the card, by an emulator."""

    def __init__(self, card: Card, kernel: CardKernel, fault: Any):
        super().__init__(kernel, fault, {table: table.array for table in kernel.tables})
        self._card = card
        assert bool(kernel.fault) == (fault is not None)
        card.emulator.compile(kernel.sources)

    def beside(self, kernel: CardKernel) -> _Launched:
        return _Launched(self._card, kernel, None)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        for array in (*inputs, *outputs):
            assert array is None or (isinstance(array, CardArray) and array.flags.c_contiguous)
            assert array is None or array.card in (None, self._card.number), "another card's memory"
            # All that is read and written in 16 bytes begins at a multiple of them.
            assert array is None or array.ctypes.data % 16 == 0
        given = list(inputs), list(outputs), scratch, self._fault
        self._card.current.queue(lambda: self._card.emulator.run(self.chosen, *given))


class _Eager:
    """A node that numpy computes immediately, after all earlier work of the stream."""

    can_be_recorded = False

    def __init__(self, card: Card, node: Node):
        self._card, self._run = card, Interpreted(node, card.arrays)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._card.current.finish()
        self._run(inputs, outputs, scratch)


# Limit for all iterations of loops in replays of one GPU. No test needs as many.
MOST_ITERATIONS = 10_000


class Card:
    """A fake CudaDevice that does its work as late as possible.

    launched, interpreted: names of the prepared operators. replays: number of replays of recordings. merged: for each
    recording, the number of steps before and after merging launches. early: side streams do their work as early as
    possible. place: PCI address. conditions: number of conditions that replays have tested. iterations: number of loop
    iterations in replays.
    """

    has_conditions = True

    def __init__(
        self, emulator: Emulator, number: int = 0, *, place: str = "0000:01:00.0", early: bool = False
    ) -> None:
        self.number, self.place, self.early = number, place, early
        self.name = str(DeviceName("cuda", number))
        self.arrays = CardNamespace(number)
        self.emulator = emulator
        self.launched: list[str] = []
        self.interpreted: list[str] = []
        self.allocated: list[int] = []
        self.merged: list[tuple[int, int]] = []
        self.uploads = self.recordings = self.replays = self.sent = self.conditions = self.iterations = 0
        # Bytes that came from other cards.
        self.crossed: list[int] = []
        self._ahead = SentAhead(self)
        self.streams: list[Stream] = []
        self._late: list[np.ndarray] = []
        self._thread = threading.local()

    capability = (9, 0)
    stored = cuda.CudaDevice.stored
    check_precision = cuda.CudaDevice.check_precision
    compute = cuda.CudaDevice.compute

    def supports_conditions(self) -> bool:
        return self.has_conditions

    @property
    def xp(self) -> CardNamespace:
        """Return the array module. Its functions compute immediately, so earlier work of the stream runs first."""
        if getattr(self._thread, "stream", None) is not None:
            self.current.finish()
        return self.arrays

    def stream(self) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before = getattr(self._thread, "stream", None)
        self._thread.stream = stream
        stream.early = self.early and before is not None
        try:
            yield
        finally:
            self._thread.stream = before

    @property
    def current(self) -> Stream:
        found: Stream | None = getattr(self._thread, "stream", None)
        assert found is not None, "outside of `on`, where another card may be the current one"
        return found

    def synchronize(self, stream: Stream) -> None:
        stream.waits += bool(stream.work)
        stream.finish()

    @property
    def staging(self) -> int:
        """Bytes of the host's that arrays are copied from and to."""
        return sum(memory.nbytes for memory in self._late)

    def done(self, stream: Stream) -> bool:
        """Return whether the stream is finished. Each call lets a loop in a replay run one more iteration."""
        self._thread.asks = True
        try:
            return stream.advance()
        finally:
            self._thread.asks = False

    @property
    def current_stream(self) -> int:
        return id(self.current)

    def communicator(self, unique: bytes, rank: int, size: int) -> NcclCommunicator:
        return NcclCommunicator(unique, rank, size)

    def record(self, stream: Stream, steps: Sequence[Recorded]) -> Callable[[], None]:
        assert stream is self.current
        merged = expanded(steps)
        assert self.has_conditions or not has_conditions(merged)
        self.merged.append((len(steps), len(merged)))
        if isinstance(steps[-1], Choice) and isinstance(merged[-1], Choice):  # what a fault leaves out
            self.merged.append((len(steps[-1].otherwise), len(merged[-1].otherwise)))
        replayed = recorded(stream, partial(self._queue, merged))
        self.recordings += 1

        def replay() -> None:
            self.replays += 1
            stream.queue(replayed())

        return replay

    def _queue(self, steps: Sequence[Recorded]) -> None:
        """Record the work of steps."""
        for step in steps:
            if isinstance(step, BoundStep):
                step.run()
                continue
            # By their addresses these are what kernels know as handles.
            values = [np.full(1, 7, np.uint32) for _ in range(2)]
            handles = [value.ctypes.data for value in values]
            if isinstance(step, Repetition):
                self._set(beginning(step, handles[0]))
                work = [*self._inside(step.steps), self._setting(continuing(step, handles[0]))]
                self.current.queue(partial(self._repeat, values[0], work))
                continue
            parts = (step.then, step.otherwise)
            given = [handle if part else None for handle, part in zip(handles, parts, strict=True)]
            self._set(choosing(step, *given))
            for value, part in zip(values, parts, strict=True):
                if part:
                    self.current.queue(partial(self._choose, value, self._inside(part)))

    def _inside(self, steps: Sequence[Recorded]) -> list[Work]:
        def queue(stream: Stream) -> None:
            with self.on(stream):
                self._queue(steps)

        return inside(queue)

    def _choose(self, value: np.ndarray, work: Sequence[Work]) -> None:
        assert value[0] in (0, 1), "nothing has set it"
        self.conditions += 1
        asks, self._thread.asks = getattr(self._thread, "asks", False), False
        for one in work if value[0] else ():
            assert one() is not PENDING
        self._thread.asks = asks

    def _repeat(self, value: np.ndarray, work: Sequence[Work]) -> object:
        assert value[0] in (0, 1), "nothing has set it"
        asks, self._thread.asks = getattr(self._thread, "asks", False), False
        while value[0]:
            self.iterations += 1
            assert self.iterations < MOST_ITERATIONS, "a loop does not end"
            for one in work:
                assert one() is not PENDING
            if asks and value[0]:
                self._thread.asks = True
                return PENDING
        self._thread.asks = asks
        self.conditions += 1
        return None

    def _set(self, setting: BoundLaunch) -> None:
        self.current.queue(self._setting(setting))

    def _setting(self, setting: BoundLaunch) -> Work:
        arrays = setting.memory.inputs
        assert all(isinstance(array, CardArray) and array.flags.c_contiguous for array in arrays)
        kernel = CardKernel((setting.launch,))
        self.emulator.compile(kernel.sources)
        return lambda: self.emulator.run(kernel, arrays, ())

    def prepare(self, node: Node, made: CardKernel | None, fault: Any) -> Any:
        # A real device loads code and copies tables to the current GPU.
        assert made is None or self.current is not None
        (self.interpreted if made is None else self.launched).append(node.op.name)
        return _Eager(self, node) if made is None else _Launched(self, made, fault)

    def alloc(self, nbytes: int) -> Any:
        assert self.current.recording is None, "memory that a recording takes is given to others"
        self.allocated.append(nbytes)
        # As CuPy's memory does, it begins at a multiple of 512 bytes.
        memory = np.full(nbytes + 512, 0xA5, np.uint8)
        return memory[-memory.ctypes.data % 512 :][:nbytes]

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        assert dtype.isbuiltin == 1, "CuPy has no such arrays"
        assert memory is not None or 0 in shape
        made = np.ndarray(shape, dtype, memory, offset).view(CardArray)
        made.card = self.number
        return made

    def host_memory(self, nbytes: int) -> np.ndarray:
        self._late.append(np.full(nbytes, 0x5A, np.uint8))
        return self._late[-1]

    def copy_in(self, array: np.ndarray, target: Any = None) -> Any:
        assert not self.current.is_inner, "the host's memory is not there inside of conditions"
        assert type(array) is np.ndarray
        assert array.dtype.isbuiltin == 1, "CuPy has no such arrays"
        self.uploads += 1
        if target is not None and self._ahead.read(array, target):
            return target
        if target is None:
            target = self.view(self.alloc(array.nbytes), 0, array.shape, array.dtype)
        self._check_place(target)
        assert (target.shape, target.dtype) == (array.shape, array.dtype)
        assert target.flags.c_contiguous, "Cannot set to non-contiguous array"
        # From memory of its own the card copies when it comes to it.
        sent = array if any(np.shares_memory(array, memory) for memory in self._late) else array.copy()
        self.current.queue(lambda: np.copyto(target.view(np.ndarray), sent))
        return target

    def send_ahead(self, array: np.ndarray) -> None:
        self.sent += 1
        self._ahead.send(array)

    def copy_across(self, source: Any, target: Any) -> None:
        # Memory by itself is this card's.
        assert getattr(target, "card", self.number) == self.number
        if not source.flags.c_contiguous:
            self.current.finish()
            np.copyto(self.view(target, 0, source.shape, source.dtype).view(np.ndarray), source.view(np.ndarray))
            return
        if getattr(source, "card", self.number) != self.number:
            assert not self.current.is_inner, "conditions have one card's memory inside"
            self.crossed.append(source.nbytes)
        given, to = (array.view(np.ndarray).reshape(-1).view(np.uint8) for array in (source, target))
        self.current.queue(lambda: np.copyto(to[: len(given)], given))

    def _check_place(self, array: Any) -> None:
        assert isinstance(array, CardArray)
        assert array.card in (None, self.number), "another card's memory"

    def copy_to_host(self, source: Any, host: np.ndarray) -> None:
        self._check_place(source)
        self._copy_host(source, host, host)

    def copy_from_host(self, host: np.ndarray, target: Any) -> None:
        self._check_place(target)
        self.uploads += self.current.recording is None
        self._copy_host(host, target, host)

    def _copy_host(self, source: np.ndarray, target: np.ndarray, host: np.ndarray) -> None:
        """Queue a copy of bytes where one side is memory of the host's that the card knows."""
        assert not self.current.is_inner, "the host's memory is not there inside of conditions"
        assert any(np.shares_memory(host, memory) for memory in self._late) or not host.nbytes
        assert source.nbytes == target.nbytes
        given, to = (array.view(np.ndarray).reshape(-1).view(np.uint8) for array in (source, target))
        self.current.queue(lambda: np.copyto(to, given))

    def event(self) -> Point:
        return self.current.mark()

    def wait_for(self, event: Point) -> None:
        self.current.follow(event)

    def copy_out(self, array: Any, out: np.ndarray | None) -> np.ndarray:
        self._check_place(array)
        if getattr(self._thread, "stream", None) is not None:
            self.current.finish()
        if out is None:
            return np.array(array.view(np.ndarray), order="C")
        assert (out.shape, out.dtype) == (array.shape, array.dtype), "`out` has another shape or dtype"
        assert out.flags.c_contiguous, "`out` cannot be specified when copying to non-contiguous ndarray"
        np.copyto(out, array.view(np.ndarray))
        return out
