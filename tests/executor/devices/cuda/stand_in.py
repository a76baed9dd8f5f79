"""A stand-in for the card: its arrays refuse those of the host, as CuPy's do, and its kernels run on the processor."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from emulator import Emulator

from graphkit.executor.devices import cuda
from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.interpreted import Interpreted
from graphkit.ir.graph import Node
from graphkit.ops.xp import Namespace


class CardArray(np.ndarray):
    """An array in the stand-in's memory: nothing computes with it and an array of the host together."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        keywords = {k: _plain(v) for k, v in keywords.items()}
        return _card(getattr(ufunc, method)(*_plain(inputs), **keywords))

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        return _card(function(*_plain(arguments), **{k: _plain(v) for k, v in keywords.items()}))


def _plain(given: Any) -> Any:
    if isinstance(given, CardArray):
        return given.view(np.ndarray)
    if isinstance(given, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    return type(given)(map(_plain, given)) if type(given) in (list, tuple) else given


def _card(result: Any) -> Any:
    if isinstance(result, np.ndarray):
        return result.view(CardArray)
    if isinstance(result, tuple):  # those of numpy.linalg have named fields
        return tuple(map(_card, result))
    return list(map(_card, result)) if isinstance(result, list) else result


class CardModule:
    """numpy's functions, making arrays of the stand-in."""

    lib = SimpleNamespace(
        stride_tricks=SimpleNamespace(as_strided=lambda *a: _card(np.lib.stride_tricks.as_strided(*map(_plain, a))))
    )

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if not callable(found) or isinstance(found, (type, np.ufunc)):
            return found
        return lambda *arguments, **keywords: _card(found(*arguments, **keywords))


class CardNamespace(Namespace):
    def __init__(self) -> None:
        super().__init__(CardModule(), "scipy.special", "numpy.linalg")

    def to_host(self, array: Any) -> np.ndarray:
        assert isinstance(array, CardArray)
        return np.array(array.view(np.ndarray))

    def scatter_add(self, target: Any, index: Any, values: Any) -> None:
        np.add.at(target, index, values)


class Stream:
    """Counts how often its work was waited for."""

    def __init__(self) -> None:
        self.waits = 0


class _Launched:
    """A kernel of the card, by an emulator."""

    def __init__(self, emulator: Emulator, node: Node, kernel: CardKernel):
        self._emulator, self._node, self._kernel = emulator, node, kernel
        self.may_fail = bool(kernel.fault)
        self._faulty = False
        emulator.compile(kernel.sources)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        for array in (*inputs, *outputs):
            assert array is None or (isinstance(array, CardArray) and array.flags.c_contiguous)
            # All that is read and written in 16 bytes begins at a multiple of them.
            assert array is None or array.ctypes.data % 16 == 0
        self._faulty |= self._emulator.run(self._kernel, inputs, outputs, scratch)

    def check(self) -> None:
        if self._faulty:
            self._faulty = False
            raise self._kernel.failure(self._node)


class Card:
    """The stand-in for CudaDevice. launched: what was prepared, by the operator's name; interpreted: likewise."""

    name = "cuda"

    def __init__(self, emulator: Emulator) -> None:
        self.xp = CardNamespace()
        self._emulator = emulator
        self.launched: list[str] = []
        self.interpreted: list[str] = []
        self.allocated: list[int] = []
        self.uploads = 0
        self.streams: list[Stream] = []
        self._thread = threading.local()

    supports = cuda.CudaDevice.supports

    def stream(self) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        self._thread.stream = stream
        yield
        self._thread.stream = None

    @property
    def current(self) -> Stream | None:
        return getattr(self._thread, "stream", None)

    def synchronize(self, stream: Stream) -> None:
        stream.waits += 1

    def prepare(self, node: Node, made: CardKernel | None) -> Any:
        (self.interpreted if made is None else self.launched).append(node.op.name)
        return Interpreted(node, self.xp) if made is None else _Launched(self._emulator, node, made)

    def alloc(self, nbytes: int) -> Any:
        assert self.current
        self.allocated.append(nbytes)
        # As CuPy's memory does, it begins at a multiple of 512 bytes.
        memory = np.full(nbytes + 512, 0xA5, np.uint8)
        return memory[-memory.ctypes.data % 512 :][:nbytes]

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return np.ndarray(shape, dtype, memory, offset).view(CardArray)

    def copy_in(self, array: np.ndarray) -> Any:
        assert self.current
        assert type(array) is np.ndarray
        self.uploads += 1
        copied = self.view(self.alloc(array.nbytes), 0, array.shape, array.dtype)
        copied[...] = array.view(CardArray)
        return copied

    def copy_out(self, array: Any, out: np.ndarray | None) -> np.ndarray:
        assert isinstance(array, CardArray)
        if out is None:
            return np.array(array.view(np.ndarray), order="C")
        np.copyto(out, array.view(np.ndarray))
        return out
