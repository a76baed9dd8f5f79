"""Interfaces of objects that programs call: collectives and channels between processes, and backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from graphkit.named_tuples import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from graphkit.executor.devices.kernel import VersionedArray
    from graphkit.ir.graph import Node
    from graphkit.ir.types import DType


class RunAgreement(NamedTuple):
    """The result of `DeviceSums.agree`: how all processes execute the next run.

    Args:
        can_record: Whether all processes can replay a recording of the run, or make one.
        recording: The number of the recording that all processes have; 0 if there is none.
        fresh: The number of the new recording, if all processes must make one.
    """

    can_record: bool
    recording: int
    fresh: int


class DeviceSums(Protocol):
    """Collectives that sum or gather device arrays without copies through host memory. Each process has one device.

    All processes launch the same collectives in one order, which they compare before each run. The work is queued on
    the current stream of the device. If that stream is being recorded, the work is recorded, too. `broken`: whether
    another process was lost, so that the launched collectives were aborted.
    """

    broken: bool

    def supports(self, dtype: DType) -> bool:
        """Return whether arrays of this element type can be summed."""
        ...

    def agree(self, order: str, nbytes: int, can_record: bool, recording: int, structure: int) -> RunAgreement:
        """Agree with all processes on how the next run is executed. Every process must call it before the run.

        Raises RuntimeFailure if a process is missing, or if the collectives of the processes differ.

        Args:
            order: Text that identifies the order and the types of the collectives.
            nbytes: Total bytes of the collectives.
            can_record: Whether this process can replay a recording of the run, or make one.
            recording: The number of the recording that this process has; 0 if it has none.
            structure: A checksum of the collectives in each recording of this process, from 1 to 2**20 - 1.
                If the checksums of the processes differ, the run is not recorded.
        """
        ...

    def all_reduce(self, arrays: Sequence[Any], dtype: DType) -> None:
        """Launch the all-reduce of each array, in place."""
        ...

    def reduce_scatter(self, arrays: Sequence[Any], dtype: DType) -> None:
        """Launch a reduce-scatter, in place. The arrays form one vector. This process gets the sum of its own slice."""
        ...

    def all_gather(self, wholes: Sequence[Any], dtype: DType) -> None:
        """Launch an all-gather, in place. The arrays form one vector. Each process has written its own slice of it."""
        ...

    def wait(self, done: Callable[[], bool]) -> None:
        """Return when `done()` is true. If another process is lost, abort the collectives and raise RuntimeFailure.

        After such an error, later calls return at once, even if `done()` is false.
        """
        ...

    def fail(self, error: BaseException) -> None:
        """Report to the other processes, which may wait for this one, that its run has failed.

        Afterwards, no collective is possible.
        """
        ...


class Collectives(Protocol):
    """The collectives that a program starts and waits for.

    `on_device` executes collectives of device arrays. If it is None, the arrays are copied through host memory, and
    `staged` says why.
    """

    on_device: DeviceSums | None
    staged: str

    def start(self, key: str, arrays: Sequence[np.ndarray], copied: int) -> None:
        """Start the all-reduce `key` of arrays, in place. Arrays that lie next to each other in memory are not copied.

        copied: Bytes that the caller has copied for this call, for statistics.
        """
        ...

    def gather(self, key: str, array: np.ndarray) -> np.ndarray:
        """Return the arrays of all processes with this key, stacked by rank along a new first axis."""
        ...

    def start_rows(self, key: str, indices: np.ndarray, rows: np.ndarray) -> None:
        """Start to sum rows with the same index over all processes. Reads the arrays only during the call."""
        ...

    def wait_rows(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of all rows in ascending order, and the sums, in new arrays. Raises as `wait` does."""
        ...

    def start_scattered(self, key: str, arrays: Sequence[np.ndarray], copied: int) -> None:
        """Start the reduce-scatter `key`, in place. The arrays form one vector. This process gets the sum of its slice.

        copied: As in `start`.
        """
        ...

    def start_gather(
        self, key: str, wholes: Sequence[np.ndarray], pieces: Sequence[tuple[int, int, np.ndarray]]
    ) -> None:
        """Start the all-gather `key` of vectors. It reads `pieces` only during the call.

        pieces: The elements of this process: (index of the vector, index of the first element, elements).
        """
        ...

    def wait(self, keys: Sequence[str]) -> None:
        """Wait for the collectives `keys`. Raises RuntimeFailure if other processes do not take part."""
        ...


class Channels(Protocol):
    """Sends single values between processes.

    `number` is a tag. Sender and receiver use the same tags in the same order.
    """

    def send(self, to: int, number: int, key: str, array: np.ndarray) -> None:
        """Send a copy of an array to the rank `to`. key: the name of the array in error messages."""
        ...

    def receive(self, source: int, number: int, key: str, dtype: np.dtype[Any], ndim: int) -> np.ndarray:
        """Return the array that a rank sends. ndim: Its number of axes.

        Raises RuntimeFailure if it does not arrive, or if another array arrives.
        """
        ...


class GroupCall(Protocol):
    """A group of nodes, compiled by its backend."""

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute, and write the results to `outputs` (None: not used)."""
        ...

    def results(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """Compute, and return the results."""
        ...


class GroupCalls(Protocol):
    """Calls backends to compile groups of nodes."""

    def call(self, node: Node, constants: Mapping[int, VersionedArray]) -> GroupCall:
        """Compile a BackendGroup for the types of its operands, or return the call that was compiled before.

        constants: The operands that are parameters or constants, by position.
        """
        ...
