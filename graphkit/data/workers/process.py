"""The program of a worker: it makes batches of the data sets that it receives, until the connection is closed."""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from typing import Any

import numpy as np

from graphkit.data.making import Making
from graphkit.data.workers.memory import Arena
from graphkit.data.workers.parcel import Parcel, unpacked
from graphkit.data.workers.progress import Progress
from graphkit.data.workers.wire import Closed, Connection

# Option of prctl(2): the signal that a process gets when the thread that started it ends.
_PR_SET_PDEATHSIG = 1

# Whether this process is a worker.
running = False


def main(end: int, page: int, parent: int) -> None:
    """Run a worker. end: descriptor of the socket; page: of the memory for Progress; parent: id of the parent."""
    global running
    running = True
    _end_with(parent)
    # Only the training process reacts to Ctrl-C, and only it writes to stdout: output of a worker goes to stderr.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    connection = socket.socket(fileno=end)
    threading.Thread(target=_watch, args=(end,), daemon=True).start()
    try:
        _Worker(Connection(connection), Progress(mmap.mmap(page, Progress.SIZE))).run()
    except Closed:
        os._exit(0)


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, whatever it is doing."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call of prctl
        os._exit(0)


def _watch(end: int) -> None:
    """End this process when the other side closes the socket, also in the middle of a sample."""
    poll = select.poll()
    poll.register(end, 0)
    poll.poll()
    os._exit(0)


class _Into(Making):
    """A batch in shared memory. It reports each sample that begins, and the batch's size after the first sample."""

    def __init__(self, task: int, arena: Arena, progress: Progress, connection: Connection):
        super().__init__()
        self._task, self._arena, self._progress, self._connection = task, arena, progress, connection
        self._begun = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return self._arena.empty(shape, dtype)

    def begin(self, number: int) -> None:
        self._progress.at(self._task, number)
        self._begun += 1
        if self._begun == 2:
            self._connection.send(("sized", self._task, self._arena.top))


class _Worker:
    def __init__(self, connection: Connection, progress: Progress):
        self._connection, self._progress = connection, progress
        self._data: dict[int, Any] = {}
        self._arenas: dict[int, Arena] = {}
        self._tasks: deque[tuple[int, int, np.ndarray, tuple[int, int] | None, int]] = deque()

    def run(self) -> None:
        self._progress.between()
        asked = select.poll()
        asked.register(self._connection, select.POLLIN)
        while True:
            while not self._tasks or asked.poll(0):
                self._take(*self._connection.receive())
            self._make(*self._tasks.popleft())

    def _take(self, message: tuple[Any, ...], files: list[int]) -> None:
        kind, *what = message
        if kind == "arguments":
            sys.argv[:] = what[0]
        elif kind == "data":
            number, name, spans, script = what
            self._data[number] = name, Parcel(files[0], spans, script)
        elif kind == "slot":
            self._arenas[what[0]] = Arena(files[0])
        elif kind == "make":
            self._tasks.append((what[0], what[1], what[2], what[3], what[4]))
        elif kind == "forget":
            self._forget(set(what[0]))
        elif kind == "close":
            self._arenas.pop(what[0]).close()
        else:
            assert kind == "drop", kind
            self._data.pop(what[0])

    def _forget(self, tasks: set[int]) -> None:
        for task in [found for found in self._tasks if found[0] in tasks]:
            self._tasks.remove(task)
            self._connection.send(("forgotten", task[0]))

    def _make(self, task: int, data: int, places: np.ndarray, key: tuple[int, int] | None, slot: int) -> None:
        arena = self._arenas[slot]
        arena.begin()
        making = _Into(task, arena, self._progress, self._connection)
        try:
            found = self._dataset(data)
            layout = arena.layout(found.name, *found.make_batch(places, key, making))
        except Closed:
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised where the batch is requested
            self._connection.send(("failed", task, self._progress.sample, *_described(error)))
        else:
            self._connection.send(("made", task, layout, making.damaged, making.replaced))
        finally:
            self._progress.between()

    def _dataset(self, number: int) -> Any:
        name, found = self._data[number]
        if isinstance(found, Parcel):
            found = unpacked(found)
            self._data[number] = name, found
        return found


def _described(error: BaseException) -> tuple[bytes | None, str, str]:
    """The pickled exception (None if it cannot be unpickled), its message in a line, and its traceback."""
    line = traceback.format_exception_only(error)[-1].strip()
    trace = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # noqa: BLE001 - the exception's class may run any code
        return None, line, trace
    return pickled, line, trace
