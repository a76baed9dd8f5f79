"""Interfaces of objects that programs call: collectives, channels between processes, and backends."""

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
        can_record: Whether all processes can replay or make a recording of the run.
        recording: The number of the recording that all processes have, or 0.
        fresh: The number of the new recording, if all processes must make one.
    """

    can_record: bool
    recording: int
    fresh: int


class DeviceSums(Protocol):
    """Collectives of device arrays without copies through host memory. Each process has one device.

    All processes launch the same collectives in one order, which they compare before each run. The work is queued on
    the device's current stream, and recorded if that stream is recorded. `broken`: whether a lost process has aborted
    the launched collectives.
    """

    broken: bool

    def supports(self, dtype: DType) -> bool: ...

    def agree(self, order: str, nbytes: int, can_record: bool, recording: int, structure: int) -> RunAgreement:
        """Collective: agree on how the next run is executed. Raises RuntimeFailure if a process is missing, or
        collectives differ.

        Args:
            order: Text that identifies order and types of the collectives.
            can_record: Whether this process can replay or make a recording of the run.
            recording: The number of this process's recording, or 0.
            structure: One checksum, from 1 to 2**20 - 1, that tells which collectives each recording of this process
                contains. If checksums differ between processes, the run is not recorded.
        """
        ...

    def all_reduce(self, arrays: Sequence[Any], dtype: DType) -> None:
        """Launch the all-reduce of each array, in place."""
        ...

    def reduce_scatter(self, arrays: Sequence[Any], dtype: DType) -> None:
        """Launch a reduce-scatter of the vector that the arrays form, in place. This process gets its own slice."""
        ...

    def all_gather(self, wholes: Sequence[Any], dtype: DType) -> None:
        """Launch an all-gather of the vector that the arrays form, in place. Each process has written its own slice."""
        ...

    def wait(self, done: Callable[[], bool]) -> None:
        """Return when `done()` is true. If a process is lost, abort the collectives and raise RuntimeFailure; later
        calls return at once.
        """
        ...

    def fail(self, error: BaseException) -> None:
        """Report that the run of this process has failed. Afterwards, no collective is possible."""
        ...


class Collectives(Protocol):
    """`on_device` executes collectives of device arrays. If it is None, arrays are copied through host memory, for the
    reason `staged`.
    """

    on_device: DeviceSums | None
    staged: str

    def start(self, key: str, arrays: Sequence[np.ndarray], copied: int) -> None:
        """Start the all-reduce `key`, in place. Adjacent arrays are not copied.

        copied: Bytes that the caller has copied for this collective.
        """
        ...

    def gather(self, key: str, array: np.ndarray) -> np.ndarray: ...

    def start_rows(self, key: str, indices: np.ndarray, rows: np.ndarray) -> None:
        """Start to sum rows of equal index over all processes. Reads the arrays only during the call."""
        ...

    def wait_rows(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of all rows in ascending order, and the sums. Raises as `wait` does."""
        ...

    def start_scattered(self, key: str, arrays: Sequence[np.ndarray], copied: int) -> None:
        """Start the reduce-scatter of the vector that the arrays form, in place. copied: as in `start`."""
        ...

    def start_gather(
        self, key: str, wholes: Sequence[np.ndarray], pieces: Sequence[tuple[int, int, np.ndarray]]
    ) -> None:
        """Start the all-gather of vectors. Reads `pieces` only during the call.

        pieces: This process's (index of the vector, index of the first element, elements).
        """
        ...

    def wait(self, keys: Sequence[str]) -> None:
        """Wait for the collectives `keys`. Raises RuntimeFailure if other processes do not take part."""
        ...


class Channels(Protocol):
    """Copies arrays between ranks. Sender and receiver must pass the same values of `number` in the same order."""

    def send(self, to: int, number: int, key: str, array: np.ndarray) -> None:
        """Send a copy of an array to the rank `to`. key: its name in error messages."""
        ...

    def receive(self, source: int, number: int, key: str, dtype: np.dtype[Any], ndim: int) -> np.ndarray:
        """Return the array that the rank `source` sends. ndim: its number of axes.

        Raises RuntimeFailure if no array, or another one, arrives.
        """
        ...


class GroupCall(Protocol):
    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute, and write the results to `outputs` (None: not used)."""
        ...

    def results(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]: ...


class GroupCalls(Protocol):
    def call(self, node: Node, constants: Mapping[int, VersionedArray]) -> GroupCall:
        """Compile a BackendGroup for the types of its operands, or return an earlier call of the same types.

        constants: The operands that are parameters or constants, by position.
        """
        ...
