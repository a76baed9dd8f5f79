"""Run ONNX Runtime in another process. If it crashes there (SIGFPE, SIGSEGV), an error here names the signal."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

from onnx import ModelProto

from graphkit import errors
from graphkit.errors import ReferenceEnded, RuntimeFailure
from graphkit.ir.atomic import scratch_folder
from graphkit.onnx_io.writing import EXTERNAL_ABOVE, raw_bytes, write_proto

# Gives the new process the module search path of this one, whatever the interpreter's options and environment are.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; from graphkit.onnx_io.runtime_process import main; main(int(sys.argv[1]))"
)
# Larger models are sent in a file: sending one through a socket takes several copies in memory.
_SENT = 1 << 26
# Seconds that a process gets to end after its connection was closed.
_GRACE = 10.0


class _Process:
    """A process that answers requests one after another."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        mine, other = socket.socketpair()
        with other:
            paths = [path or os.getcwd() for path in sys.path if isinstance(path, str)]
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM, str(other.fileno()), *paths],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(other.fileno(),),
                    # Signals of the terminal, such as Ctrl-C, do not reach the process.
                    start_new_session=True,
                )
            except OSError as error:
                mine.close()
                raise RuntimeFailure(f"a process for ONNX Runtime cannot be started: {error}") from None
        self._connection = Connection(mine.detach())

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Any) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(request, protocol=5))
        except OSError:
            raise self._ended() from None

    def answer(self) -> tuple[str, Any]:
        """Wait for an answer: (name of an exception, its message), or ("", outputs).

        Raises ReferenceEnded if the process has ended.
        """
        try:
            answer: tuple[str, Any] = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise self._ended() from None
        return answer

    def _ended(self) -> ReferenceEnded:
        try:
            code = self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return ReferenceEnded("ONNX Runtime's process has closed its connection")
        how = f"with the exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        return ReferenceEnded(f"ONNX Runtime's process has ended {how} while it ran the model")

    def close(self, at_once: bool = False) -> None:
        self._connection.close()
        try:
            self._process.wait(0 if at_once else _GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# Idle processes.
_idle: list[_Process] = []
_choosing = threading.Lock()


def prepare() -> None:
    """Start a process in advance, so that it is ready when the model and its inputs are."""
    _idle.append(_taken())


def _taken() -> _Process:
    """Take the idle process that was used last, or start a new one."""
    with _choosing:
        own = [process for process in _idle if process.owner == os.getpid()]
        alive = next((process for process in reversed(own) if process.is_alive), None)
        for process in own if alive is None else (alive,):
            _idle.remove(process)
    for process in own if alive is None else ():
        process.close(at_once=True)
    return alive or _Process()


def _close_all() -> None:
    while _idle:
        process = _idle.pop()
        if process.owner == os.getpid():
            process.close()


class Pending:
    """A run in progress in another process. is_over: whether it has answered."""

    def __init__(self, process: _Process):
        self._process = process
        self.is_over = False

    def results(self) -> dict[str, Any]:
        """Wait for the outputs, and return them by name.

        Raises the errors of OnnxRuntimeModel, and ReferenceEnded if the process ends before it answers.
        """
        kind, found = self._process.answer()
        self.is_over = True
        if kind:
            raise getattr(errors, kind)(found)
        outputs: dict[str, Any] = found
        return outputs


@contextlib.contextmanager
def running(
    model: str | os.PathLike[str] | bytes | ModelProto, feeds: Mapping[str, Any], threads: int | None = None
) -> Iterator[Pending]:
    """Context manager: another process runs the model in ONNX Runtime meanwhile. Arguments as in OnnxRuntimeModel."""
    with contextlib.ExitStack() as stack:
        source: str | bytes
        if isinstance(model, ModelProto) and (size := raw_bytes(model)) > _SENT:
            path = stack.enter_context(scratch_folder()) / "model.onnx"
            write_proto(model, path, external=size > EXTERNAL_ABOVE)
            source = str(path)
        elif isinstance(model, ModelProto):
            source = model.SerializeToString()
        else:
            source = model if isinstance(model, bytes) else os.path.abspath(os.fspath(model))
        process = _taken()
        pending = Pending(process)
        try:
            process.ask((source, dict(feeds), threads))
            yield pending
        finally:
            # A process with a pending answer cannot be used again: the answer would be taken for that of the next
            # request.
            if pending.is_over:
                _idle.append(process)
            else:
                process.close(at_once=True)


def main(descriptor: int) -> None:
    """The program of the process. It answers requests until the other side closes the connection."""
    from graphkit.onnx_io.compare import OnnxRuntimeModel

    with Connection(descriptor) as connection:
        while True:
            try:
                model, feeds, threads = pickle.loads(connection.recv_bytes())
            except (EOFError, ConnectionResetError):  # reset: the other side has not read the last answer
                return
            try:
                answer: tuple[str, Any] = ("", OnnxRuntimeModel(model, threads=threads, exact=True).run(feeds))
            except errors.GraphkitError as error:
                answer = (type(error).__name__, str(error))
            try:
                connection.send_bytes(pickle.dumps(answer, protocol=5))
            except (BrokenPipeError, ConnectionResetError):
                return


atexit.register(_close_all)
