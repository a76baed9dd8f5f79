"""Operations on arrays, which a dependency engine runs: programs, copies and Python functions.

An operation names the states of the arrays that it reads and writes. If it fails, the arrays that it writes are
invalid: every wait for them raises its error, and operations that read them fail with it, until they are written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from graphkit.executor.devices.loading import load_native
from graphkit.executor.run.engine import Engine

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native

# Bytes that pushed operations may write before a push waits for all operations. A loop cannot fill the memory then,
# even if it never waits, or waits only for arrays that are computed.
_AHEAD_BYTES = 1 << 30
# Number of operations that may be pending before a push waits for them.
_AHEAD_OPERATIONS = 4096

# Source, target, states of the arrays that a copy reads, and of those that it writes.
Copy: TypeAlias = "tuple[np.ndarray, np.ndarray, Sequence[_native.ArrayState], Sequence[_native.ArrayState]]"


class ArrayQueue:
    """The operations on arrays of a process.

    Attributes:
        engine: The engine that runs them.
        state: Returns the state of a new array.
        batch: Returns a context manager. In its block, the operations that this thread pushes are gathered, and pushed
            as one operation of the engine with the name that `batch` gets. They run one after the other, and each has
            its own error. If any thread waits, the operations gathered so far begin. Within another batch, the block
            has no effect. Calls of Python functions are not gathered.
    """

    def __init__(self, engine: Engine):
        self.engine = engine
        self._native: _native.ArrayQueue = load_native().ArrayQueue(engine._native)
        self._raised = engine.raised
        self.state: Callable[[], _native.ArrayState] = self._native.state
        self.batch: Callable[[str], _native.ArrayBatch] = self._native.batch
        self._push_task = self._native.push_task
        self._bytes = 0
        self._operations = 0

    def push_task(
        self,
        name: str,
        task: _native.ArrayTask,
        arrays: list[np.ndarray | None],
        reads: Sequence[_native.ArrayState],
        writes: Sequence[_native.ArrayState],
        written: int,
        nbytes: int,
    ) -> None:
        """Run a program on its inputs and results.

        Args:
            name: Name of the operation, for errors and profiles.
            task: The program.
            arrays: Its inputs, then memory for its results; None for those that it does not use.
            reads: States of the inputs.
            writes: States of the results.
            written: How many of the last arrays are results.
            nbytes: Bytes of the results.
        """
        self._push_task(name, task, arrays, reads, writes, written)
        self._count(nbytes)

    def push_kernel(
        self,
        name: str,
        kernel: _native.Kernel,
        inputs: list[np.ndarray],
        output: np.ndarray,
        reads: Sequence[_native.ArrayState],
        write: _native.ArrayState,
    ) -> None:
        """Run a native kernel, which writes `output`."""
        self._native.push_kernel(name, kernel, inputs, [output], reads, (write,))
        self._count(output.nbytes)

    def push_copy(
        self,
        name: str,
        source: np.ndarray,
        target: np.ndarray,
        reads: Sequence[_native.ArrayState],
        writes: Sequence[_native.ArrayState],
    ) -> None:
        """Copy all elements between arrays of one shape and dtype, which may have any strides."""
        self._native.push_copy(name, source, target, reads, writes)
        self._count(target.nbytes)

    def push_copies(self, name: str, copies: list[Copy]) -> None:
        """Make copies like `push_copy`, each of which is an operation."""
        self._native.push_copies(name, copies)
        self._operations += len(copies) - 1
        self._count(sum([target.nbytes for _, target, _, _ in copies]))

    def push_call(
        self,
        name: str,
        function: Callable[[], Any],
        reads: Sequence[_native.ArrayState],
        writes: Sequence[_native.ArrayState],
        nbytes: int = 0,
    ) -> None:
        """Call a Python function, which writes `nbytes` bytes."""
        self._native.push_call(name, function, self._raised, reads, writes)
        self._count(nbytes)

    def _count(self, nbytes: int) -> None:
        """Count an operation with results of `nbytes` bytes. Wait if too much may be pending."""
        self._bytes += nbytes
        self._operations += 1
        if self._operations > _AHEAD_OPERATIONS:
            # The next operations are counted up to the limit again, so twice as many would be pending otherwise.
            self._operations = self.pending
            if self._operations > _AHEAD_OPERATIONS // 2:
                self.settle()
        if self._bytes > _AHEAD_BYTES:
            self.settle()

    @property
    def pending(self) -> int:
        """Number of operations of the engine that are not done. Gathered operations are pushed first."""
        self._native.flush()
        return self.engine.pending

    def wait(self, state: _native.ArrayState, *, exclusive: bool = False) -> BaseException | None:
        """Wait for earlier operations that write an array and, with `exclusive`, read it. Return the array's error."""
        failure = self._native.wait(state, exclusive)
        return None if failure is None else self.engine.error_of(failure)

    def wait_all(self) -> BaseException | None:
        """Wait for all operations. Return the error of the oldest one that failed and was not returned before."""
        self._bytes = self._operations = 0
        failure = self._native.wait_all()
        return None if failure is None else self.engine.error_of(failure)

    def settle(self) -> None:
        """Wait for all operations. Errors stay with their arrays, and are returned by later waits."""
        self._bytes = self._operations = 0
        self._native.flush()
        self.engine.wait_all()
