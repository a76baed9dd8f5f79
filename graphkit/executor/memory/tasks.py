"""Tasks, which are the steps of a program as the scheduler sees them, and their order."""

from __future__ import annotations

from graphkit.named_tuples import NamedTuple


class Task(NamedTuple):
    """One step, and the buffers that it uses. Every buffer is written by one task.

    Attributes:
        reads: Buffers whose elements the task reads.
        writes: Buffers that it writes.
        after: Buffers that must be written before: operands whose shape alone is read, and results of the other
            readers of memory that the task overwrites.
        inplace: Pairs (buffer read, buffer written) that may share memory.
        scratch: Working memory in bytes.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    after: tuple[int, ...] = ()
    inplace: tuple[tuple[int, int], ...] = ()
    scratch: int = 0


class Schedule(NamedTuple):
    """An order of the tasks and its peak of live bytes.

    Attributes:
        order: Indices of tasks.
        peak_bytes: The peak in this order.
        plain_peak_bytes: The peak in the order in which the tasks were given.
    """

    order: tuple[int, ...]
    peak_bytes: int
    plain_peak_bytes: int
