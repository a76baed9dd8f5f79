"""A fake of CuPy's NCCL module: processes exchange the arrays of fake GPUs through a folder.

As on GPUs, collectives run on streams, and wait forever for a process that does not take part. The fake checks that all
processes launch the same collectives in the same order, either all in graphs that were recorded together, or none.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from stand_in import Card
from stand_in_streams import PENDING, Stream

_DTYPES = [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64]
_DTYPES.append(ml_dtypes.bfloat16)


class NcclError(RuntimeError):
    pass


class Call(NamedTuple):
    """A collective: parameters that must be equal in all processes, and the address of this process's elements."""

    kind: str
    count: int
    dtype: int
    root: int
    address: int

    def array(self) -> np.ndarray:
        dtype = np.dtype(_DTYPES[self.dtype])
        memory = (ctypes.c_char * (self.count * dtype.itemsize)).from_address(self.address)
        return np.frombuffer(memory, dtype)


class Nccl:
    """The module. cards: of this process. folder: of all processes. made: its communicators. refuses: ranks whose
    communicators are not made.
    """

    available = True
    NcclError = NcclError
    NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64 = range(6)
    NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = range(6, 10)
    NCCL_SUM = 0

    def __init__(self, cards: Sequence[Card], folder: Path):
        self._cards, self._folder = cards, folder
        self._of_thread = threading.local()
        self.made: list[Communicator] = []
        self.refuses: Sequence[int] = ()
        folder.mkdir(exist_ok=True)

    def get_version(self) -> int:
        return 22501

    def get_unique_id(self) -> bytes:
        return os.urandom(8).hex().encode().ljust(128, b".")

    def NcclCommunicator(self, ndev: int, unique: bytes, rank: int) -> Communicator:  # noqa: N802 - CuPy's name
        assert len(unique) == 128
        if rank in self.refuses:
            raise NcclError("no way between these cards")
        folder = self._folder / unique.rstrip(b".").decode()
        folder.mkdir(exist_ok=True)
        (folder / f"joined.{rank}").touch()
        while len(list(folder.glob("joined.*"))) < ndev:
            time.sleep(0.001)
        self.made.append(Communicator(self, folder, rank, ndev))
        return self.made[-1]

    def groupStart(self) -> None:  # noqa: N802
        self._of_thread.calls = []

    def groupEnd(self) -> None:  # noqa: N802
        calls = self._of_thread.__dict__.pop("calls")
        assert len({(id(communicator), stream) for communicator, stream, _ in calls}) == 1
        communicator, at, _ = calls[0]
        stream = next(s for card in self._cards for s in card.streams if id(s) == at)
        communicator.launch([call for _, _, call in calls], stream)

    def call(self, communicator: Communicator, call: Call, stream: int) -> None:
        self._of_thread.calls.append((communicator, stream, call))


class Communicator:
    """aborted: calls do not wait any more. failed: the error that the library reports after a call."""

    def __init__(self, nccl: Nccl, folder: Path, rank: int, size: int):
        self._nccl, self.folder, self.rank, self.size = nccl, folder, rank, size
        self.number = 0
        self._recordings: list[Any] = []
        self.aborted = False
        self.failed: str | None = None
        self.launched: list[tuple[bool, Sequence[Call]]] = []

    def launch(self, calls: Sequence[Call], stream: Stream) -> None:
        recording = stream.recording
        if recording is not None and recording not in self._recordings:
            self._recordings.append(recording)
        self.launched.append((recording is not None, calls))
        stream.queue(Exchanged(self, calls, 0 if recording is None else len(self._recordings)))

    def allReduce(self, send: int, to: int, count: int, dtype: int, op: int, stream: int) -> None:  # noqa: N802
        assert (send, op) == (to, Nccl.NCCL_SUM)
        self._nccl.call(self, Call("sum", count, dtype, 0, send), stream)

    def reduce(self, send: int, to: int, count: int, dtype: int, op: int, root: int, stream: int) -> None:
        assert (send, op) == (to, Nccl.NCCL_SUM)
        self._nccl.call(self, Call("reduce", count, dtype, root, send), stream)

    def broadcast(self, send: int, to: int, count: int, dtype: int, root: int, stream: int) -> None:
        assert send == to
        self._nccl.call(self, Call("broadcast", count, dtype, root, send), stream)

    def check_async_error(self) -> None:
        if self.failed is not None:
            raise NcclError(self.failed)

    def abort(self) -> None:
        self.aborted = True


class Exchanged:
    """Work of a stream: the calls of a group. Each process writes its elements to its own file."""

    def __init__(self, communicator: Communicator, calls: Sequence[Call], capture: int):
        self._communicator, self._calls, self._capture = communicator, calls, capture
        self._number = 0  # while it is under way

    def __call__(self) -> object:
        of = self._communicator
        if of.aborted:
            for call in self._calls:
                call.array().view(np.uint8).fill(0xA5)
            return None
        if not self._number:
            of.number += 1
            self._number = of.number
            self._give()
        paths = [of.folder / f"{self._number}.{rank}" for rank in range(of.size)]
        if not all(path.exists() for path in paths):
            return PENDING
        given = [pickle.loads(path.read_bytes()) for path in paths]
        assert len({told for told, _ in given}) == 1, f"processes have launched different things: {given}"
        for call, *parts in zip(self._calls, *(arrays for _, arrays in given), strict=True):
            self._finish(call, [np.frombuffer(part, call.array().dtype) for part in parts])
        self._number = 0
        return None

    def _give(self) -> None:
        of = self._communicator
        told = repr([self._capture, *(call[:-1] for call in self._calls)])
        path = of.folder / f"{self._number}.{of.rank}"
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(pickle.dumps((told, [call.array().tobytes() for call in self._calls])))
        new.rename(path)

    def _finish(self, call: Call, parts: list[Any]) -> None:
        if call.kind == "broadcast":
            call.array()[:] = parts[call.root]
        elif call.kind == "sum" or call.root == self._communicator.rank:
            total = parts[0].copy()
            for part in parts[1:]:
                total += part
            call.array()[:] = total
        else:  # NCCL promises nothing of what is there
            call.array().view(np.uint8).fill(0xA5)
