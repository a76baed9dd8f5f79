"""The order of steps: a topological order in which few bytes live at the same time."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

# See `updates_last`.
SLACK = 16


@dataclass(frozen=True, slots=True)
class Task:
    """One step: the buffers that it reads, those that it writes, and the buffers whose writers it has to follow.

    Every buffer is written by one task. `after` is `reads`, and what else has to be there before: operands of which
    only the shape is read, and what the readers of memory that it writes over make. `inplace` lists (read, written)
    pairs of buffers that may be the same memory, `scratch` is working memory in bytes.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    after: tuple[int, ...] = ()
    inplace: tuple[tuple[int, int], ...] = ()
    scratch: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """An order of task indices, with the peak of live bytes in this order and in the given one."""

    order: tuple[int, ...]
    peak_bytes: int
    plain_peak_bytes: int


def schedule(tasks: Sequence[Task], sizes: Sequence[int]) -> Schedule:
    """The best of five orders by its peak: the given one, and four greedy ones.

    The order in which `tasks` are given is kept where nothing is better. `sizes` are the buffers' bytes
    (0: not in the arena). List scheduling picks among the ready tasks the one that allocates least beyond what it
    frees; or, eagerly, any that frees as much as it allocates, and else the next one of the given order. The first
    suits graphs whose branches differ in size, the second training steps, whose updates should not wait.
    Each is tried with and without counting what only updates read, which can be gone at once. n log n.
    """
    plain = plain_order(tasks)
    best = plain_peak = peak_bytes(tasks, sizes, plain)
    chosen = plain
    least = _least(tasks, sizes)
    if best > least:
        lasting = _lasting(tasks, sizes)
        counted = [lasting, sizes] if lasting != list(sizes) else [sizes]
        for eager, weights in itertools.product((False, True), counted):
            order = _greedy(tasks, sizes, eager, weights)
            peak = peak_bytes(tasks, sizes, order)
            if peak < best:
                best, chosen = peak, order
            if best == least:
                break
    return Schedule(chosen, best, plain_peak)


def updates_last(tasks: Sequence[Task], sizes: Sequence[int], found: Schedule) -> Schedule:
    """The same order with updates at its end, unless what they read takes too much memory until then.

    An update writes nothing into the arena, and no task follows it. All that read at most so many bytes wait: as many
    as raise the peak by no more than a part in SLACK. n log n.
    """
    _, followers = _dependencies(tasks)
    reads = {
        index: sum(sizes[b] for b in set(task.reads))
        for index, task in enumerate(tasks)
        if not followers[index] and not any(sizes[b] for b in task.writes)
    }
    limits = sorted({*reads.values()})

    def order(count: int) -> tuple[int, ...]:
        most = limits[count - 1] if count else -1
        late = [index for index in found.order if reads.get(index, most + 1) <= most]
        return (*(index for index in found.order if reads.get(index, most + 1) > most), *late)

    def grows(count: int) -> bool:
        return peak_bytes(tasks, sizes, order(count)) > allowed

    allowed = found.peak_bytes + found.peak_bytes // SLACK
    # Of more updates that wait the peak is no lower.
    late = order(bisect.bisect_left(range(1, len(limits) + 1), True, key=grows))
    return replace(found, order=late, peak_bytes=peak_bytes(tasks, sizes, late))


def measured(tasks: Sequence[Task], sizes: Sequence[int], order: Sequence[int]) -> Schedule:
    """The peaks of an order."""
    plain = plain_order(tasks)
    return Schedule(tuple(order), peak_bytes(tasks, sizes, order), peak_bytes(tasks, sizes, plain))


def is_order(tasks: Sequence[Task], order: Sequence[int]) -> bool:
    """Whether an order has every task once, after those that write what it follows."""
    if sorted(order) != list(range(len(tasks))):
        return False
    waiting = {buffer for task in tasks for buffer in task.writes}
    for index in order:
        task = tasks[index]
        if not waiting.isdisjoint(task.reads) or not waiting.isdisjoint(task.after):
            return False
        waiting.difference_update(task.writes)
    return True


def plain_order(tasks: Sequence[Task]) -> tuple[int, ...]:
    """The order in which tasks are given, but each after those that it has to follow."""
    waiting, followers = _dependencies(tasks)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for follower in followers[index]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    assert len(order) == len(tasks), "the tasks have a cyclic dependency"
    return tuple(order)


def _dependencies(tasks: Sequence[Task]) -> tuple[list[int], list[list[int]]]:
    """How many tasks each one follows at once, and those that follow it."""
    writer = {buffer: index for index, task in enumerate(tasks) for buffer in task.writes}
    waiting: list[int] = []
    followers: list[list[int]] = [[] for _ in tasks]
    for index, task in enumerate(tasks):
        before = {writer[b] for b in (*task.reads, *task.after) if b in writer}
        waiting.append(len(before))
        for earlier in before:
            followers[earlier].append(index)
    return waiting, followers


def _least(tasks: Sequence[Task], sizes: Sequence[int]) -> int:
    """The operands, results and working memory of one task: no order has a lower peak."""
    least = 0
    for task in tasks:
        reads = {*task.reads}
        targets = {target for source, target in task.inplace if source in reads}
        bytes_ = sum(sizes[b] for b in reads) + sum(sizes[b] for b in task.writes if b not in targets)
        least = max(least, bytes_ + task.scratch)
    return least


def peak_bytes(tasks: Sequence[Task], sizes: Sequence[int], order: Sequence[int]) -> int:
    """The largest sum of live bytes: a buffer lives from the task that writes it to the last one that reads it.

    Where a buffer may take over the memory of one that dies at the task which writes it, it does, as in plan_memory.
    """
    last = {buffer: task for task in order for buffer in (*tasks[task].writes, *tasks[task].reads)}
    held: dict[int, int] = {}  # buffer -> bytes of the memory that it is in
    live = peak = 0
    for index in order:
        task = tasks[index]
        dying = {b for b in task.reads if last[b] == index}
        taken: set[int] = set()
        for source, target in task.inplace:
            fits = source in dying and source not in taken and target not in held
            if fits and 0 < sizes[target] <= held.get(source, 0):
                held[target] = held[source]
                taken.add(source)
        for buffer in task.writes:
            if buffer not in held:
                held[buffer] = sizes[buffer]
                live += sizes[buffer]
        peak = max(peak, live + task.scratch)
        live -= sum(held.get(b, 0) for b in dying - taken)
        live -= sum(held[b] for b in task.writes if last[b] == index)
    return peak


def _readers(tasks: Sequence[Task]) -> dict[int, set[int]]:
    readers: dict[int, set[int]] = {}
    for index, task in enumerate(tasks):
        for buffer in task.reads:
            readers.setdefault(buffer, set()).add(index)
    return readers


def _lasting(tasks: Sequence[Task], sizes: Sequence[int]) -> list[int]:
    """The sizes without what is read by tasks alone that write nothing into the arena (updates): it can be gone at
    once.
    """
    kept = {buffer for task in tasks if any(sizes[b] for b in task.writes) for buffer in task.reads}
    return [size if buffer in kept else 0 for buffer, size in enumerate(sizes)]


def _greedy(tasks: Sequence[Task], sizes: Sequence[int], eager: bool, lasting: Sequence[int]) -> tuple[int, ...]:
    """List scheduling; `lasting` are the bytes of buffers as far as they count when they are written."""
    waiting, followers = _dependencies(tasks)
    written = {buffer for task in tasks for buffer in task.writes}
    readers = _readers(tasks)

    def rank(index: int) -> int:
        task = tasks[index]
        freed = sum(sizes[b] for b in set(task.reads) if b in written and len(readers[b]) == 1)
        growth = sum(lasting[b] for b in task.writes) - freed
        return int(growth > 0) if eager else growth

    # An entry is stale when its task is done or has a smaller entry; a task's rank only falls while it waits.
    heap = [(rank(i), i) for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(heap)
    done = [False] * len(tasks)
    order: list[int] = []
    while heap:
        _, index = heapq.heappop(heap)
        if done[index]:
            continue
        done[index] = True
        order.append(index)
        for buffer in set(tasks[index].reads):
            left = readers[buffer]
            left.discard(index)
            if len(left) == 1 and sizes[buffer]:
                (only,) = left
                if waiting[only] == 0:
                    heapq.heappush(heap, (rank(only), only))
        for follower in followers[index]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(heap, (rank(follower), follower))
    return tuple(order)
