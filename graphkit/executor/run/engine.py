"""The dependency engine: runs operations on background threads, in an order given by what they read and write.

    engine = Engine(workers=2)
    batch, result = engine.variable("batch"), engine.variable("result")
    engine.push(load, writes=[batch])                       # returns at once
    engine.push(train, reads=[batch], writes=[result], priority=1)
    engine.wait(result)                                     # raises what load or train raised

It loads data, copies and communicates while the program computes. Its threads are native. They hold the GIL only while
a Python function runs. `Offload` decides whether an operation is worth a worker.
"""

from __future__ import annotations

import atexit
import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from graphkit import config
from graphkit.distribution import how_to_install
from graphkit.errors import Cancelled, MissingDependency, RuntimeFailure, UsageError
from graphkit.executor.devices.loading import load_native
from graphkit.executor.run.base_program import failure_of
from graphkit.named_tuples import NamedTuple
from graphkit.text import short_repr

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native

T = TypeVar("T")

# Seconds that an exiting process waits for running operations. Then it exits, even if some are not done.
EXIT_SECONDS = 5.0

# For shorter operations, the calling thread is faster than a worker. Waking a worker, and passing the GIL there and
# back, costs a step about 0.06 ms. Work that computes also slows down the threads of the program, by up to half of its
# own duration (bench/input_pipeline.py).
WORTH_SECONDS = 0.5e-3


class Work(NamedTuple):
    """The record of one operation: engine, worker, and start and end in nanoseconds of the monotonic clock.

    The worker is -1 if a thread that waited ran the operation.
    """

    engine: int
    worker: int
    operation: str
    start: int
    end: int


class Variable:
    """A resource that operations of one engine read and write, such as an array, a file or a connection.

    Operations that only read it may run at the same time. One that writes it runs alone. Apart from that, they run in
    the order in which they were pushed.
    """

    __slots__ = ("_native", "name")

    def __init__(self, native: _native.Variable, name: str):
        self._native = native
        self.name = name

    def __repr__(self) -> str:
        return short_repr(self, lambda: [repr(self.name) if self.name else ""])


class Engine:
    """Runs operations on `workers` threads (default: GRAPHKIT_ENGINE_WORKERS).

    If an operation raises an exception, the variables that it writes become invalid. Until you wait for such a
    variable, pushed operations that use it do not run, and the variables that they write become invalid, too. The
    exception is raised by `wait` for any of these variables, or by `wait_all`. Afterwards the variable can be used
    again.

    As a context manager it waits for all operations at the end, or cancels them if the block raises. It is safe to use
    from several threads. It does not work after a fork: in the child, every call raises RuntimeFailure.
    """

    def __init__(self, workers: int | None = None):
        workers = config.ENGINE_WORKERS.get() if workers is None else workers
        if not 1 <= workers <= config.MOST_WORKERS:
            raise UsageError(f"workers={workers}: expected a number from 1 to {config.MOST_WORKERS}")
        self._library: Any = load_native()
        if self._library is None:
            raise MissingDependency(
                f"the dependency engine is native, and graphkit was not built here: {how_to_install()}"
            )
        self._native: _native.Engine = self._library.Engine(workers)
        # Exceptions of operations, by number. They are not in the native engine, because they may refer to this object,
        # and Python could not collect such a cycle.
        self.raised: dict[int, BaseException] = {}
        self.number = next(_numbers)
        if _recorded is not None:
            self._native.trace(True)
        _living.add(self)

    def variable(self, name: str = "") -> Variable:
        """Return a new variable. The name is for messages only."""
        return Variable(self._native.variable(), name)

    def push(
        self,
        function: Callable[[], Any],
        *,
        reads: Iterable[Variable] = (),
        writes: Iterable[Variable] = (),
        priority: int = 0,
        name: str = "",
    ) -> None:
        """Run `function()` on a worker, after earlier operations that use these variables.

        Args:
            function: Called without arguments.
            reads: Variables that the function reads.
            writes: Variables that it writes. A variable in both lists counts as written.
            priority: Of the operations that can start, those with the highest priority start first, then the oldest.
            name: Name of the operation, for profiles and messages.

        Raises:
            RuntimeFailure: The engine is closed.
        """
        if not callable(function):
            raise UsageError(f"an operation must be a callable without arguments, not {type(function).__name__}")
        label = name or getattr(function, "__qualname__", "") or type(function).__name__
        self._call(self._native.push, label, function, self.raised, _handles(reads), _handles(writes), priority)

    def push_kernel(
        self,
        kernel: _native.Kernel,
        inputs: Sequence[np.ndarray | None],
        outputs: Sequence[np.ndarray | None],
        *,
        reads: Iterable[Variable] = (),
        writes: Iterable[Variable] = (),
        priority: int = 0,
        name: str = "",
    ) -> None:
        """Run a native kernel of one thread on these arrays, without Python.

        The arrays are checked here (TypeError, ValueError) and kept alive. Only `reads` and `writes` protect their
        elements from other operations.
        """
        label = name or repr(kernel)
        self._call(
            self._native.push_kernel, label, kernel, inputs, outputs, _handles(reads), _handles(writes), priority
        )

    def wait(self, variable: Variable, *, exclusive: bool = False) -> None:
        """Wait until all earlier operations have written `variable` and, with `exclusive`, read it.

        Raises the exception that made the variable invalid, if any. The GIL is released meanwhile, and signals are
        handled.
        """
        self._raise(self._call(self._native.wait, variable._native, exclusive))

    def wait_all(self) -> None:
        """Wait until all earlier operations are done.

        Raises the exception of the oldest operation that failed, unless a wait has raised it before. Afterwards all
        variables can be used again.
        """
        self._raise(self._call(self._native.wait_all))

    def cancel(self) -> None:
        """Cancel operations that have not started. A wait for a variable that they write raises Cancelled."""
        self._call(self._native.cancel)

    def close(self, seconds: float = EXIT_SECONDS) -> bool:
        """Cancel pending operations, accept no more, and wait for running ones.

        Returns False if that takes longer than `seconds`. The remaining operations continue, and their workers end
        after them. It may be called again.
        """
        ended = bool(self._call(self._native.close, seconds))
        if _recorded is not None:
            self._append_traced(_recorded)
        return ended

    @property
    def workers(self) -> int:
        """Number of worker threads."""
        return int(self._native.workers)

    @property
    def pending(self) -> int:
        """Number of operations that were pushed and are not done."""
        return int(self._call(lambda: self._native.pending))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self.wait_all()
        finally:
            self.close()

    def __reduce__(self) -> Any:
        raise UsageError("an Engine holds threads of this process and cannot be copied or pickled: create another one")

    def _append_traced(self, recorded: list[Work]) -> None:
        """Append the operations that were traced since the last call."""
        for operation, worker, start, end in self._call(self._native.events):
            recorded.append(Work(self.number, worker, operation, start, end))

    def __repr__(self) -> str:
        return short_repr(self, lambda: [f"of {self.workers} workers"])

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a native function. Its errors become RuntimeFailure."""
        try:
            return function(*arguments)
        except self._library.Error as error:
            raise RuntimeFailure(str(error)) from None

    def _raise(self, failure: tuple[BaseException | int, str] | None) -> None:
        """Raise the error of an operation, if any. failure: See `error_of`."""
        if failure is not None:
            found = self.error_of(failure)
            cause = failure[0]
            if isinstance(found, RuntimeFailure) and isinstance(cause, self._library.Error):
                raise found from cause
            raise found

    def error_of(self, failure: tuple[BaseException | int, str]) -> BaseException:
        """Return the error of an operation. An exception of Python gets a note that names the operation.

        failure: The error, or its number in `raised`, and the name of the operation.
        """
        found, operation = failure
        error = self.raised.get(found, MemoryError(operation)) if isinstance(found, int) else found
        for number in self._native.released():
            self.raised.pop(number, None)
        if isinstance(error, self._library.Cancelled):
            return Cancelled(str(error))
        if isinstance(error, self._library.Error):
            return failure_of(error)
        note = f"in operation {operation!r} of the engine"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        return error


def _handles(variables: Iterable[Variable]) -> list[_native.Variable]:
    """Return the native variables. Raises UsageError."""
    try:
        return [variable._native for variable in variables]
    except AttributeError:
        raise UsageError("operations can only read and write variables of this engine: use engine.variable()") from None


class Offload:
    """Decides whether a repeated piece of work is long enough to run on a worker of an engine.

    worth: Minimum duration in seconds.
    """

    def __init__(self, worth: float = WORTH_SECONDS) -> None:
        self._worth = worth
        # Both of the two latest durations must be long, because the system may delay a single call.
        self._latest: deque[float] = deque((0.0, 0.0), maxlen=2)

    def timed(self, work: Callable[[], T]) -> T:
        """Call `work`, measure its duration, and return its result."""
        start = time.perf_counter()
        try:
            return work()
        finally:
            self._latest.append(time.perf_counter() - start)

    @property
    def worthwhile(self) -> bool:
        """Whether the work took longer than `worth` the last two times."""
        return min(self._latest) > self._worth


def record(into: list[Work] | None) -> None:
    """Record the operations of all engines in a list from now on. None stops recording."""
    global _recorded
    engines = list(_living)
    for engine in engines:
        engine._call(engine._native.trace, into is not None)
        if _recorded is not None:
            engine._append_traced(_recorded)
    _recorded = into


_recorded: list[Work] | None = None
_numbers = itertools.count()
_living: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Stop all workers before the interpreter is finalized, because they may call Python."""
    deadline = time.monotonic() + EXIT_SECONDS
    engines = list(_living)
    for engine in engines:
        engine.cancel()
    for engine in engines:
        engine.close(max(deadline - time.monotonic(), 0.0))
