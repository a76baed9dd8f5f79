"""Schedule the steps in Python: find a topological order with a low peak of live bytes. Check and change orders."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Sequence

from graphkit.executor.memory.tasks import Schedule, Task

# `updates_last` may raise the peak by at most 1 / SLACK of it.
SLACK = 16


def schedule_in_python(tasks: Sequence[Task], sizes: Sequence[int]) -> Schedule:
    """Return the order with the lowest peak out of five: the given one, and four by list scheduling. O(n log n).

    List scheduling picks one of the ready tasks. The first variant picks the task whose allocated bytes minus freed
    bytes are lowest, which suits graphs with branches of different sizes. The eager variant picks any task that frees
    at least as much as it allocates, else the next one in the given order. It suits training steps, whose updates
    should run early. Both are tried with and without counting buffers that only updates read, because an update can
    free these at once. The given order is kept unless another one is better.

    Args:
        tasks: The steps.
        sizes: Bytes of the buffers; 0 for those outside the arena.
    """
    plain = plain_order(tasks)
    best = plain_peak = peak_bytes(tasks, sizes, plain)
    chosen = plain
    lower_bound = _peak_lower_bound(tasks, sizes)
    if best > lower_bound:
        without_updates = _sizes_without_updates(tasks, sizes)
        counted = [without_updates, sizes] if without_updates != list(sizes) else [sizes]
        for eager, allocated in itertools.product((False, True), counted):
            order = _list_schedule(tasks, sizes, eager, allocated)
            peak = peak_bytes(tasks, sizes, order)
            if peak < best:
                best, chosen = peak, order
            if best == lower_bound:
                break
    return Schedule(chosen, best, plain_peak)


def updates_last(tasks: Sequence[Task], sizes: Sequence[int], found: Schedule) -> Schedule:
    """Move updates to the end of an order, if their operands do not take too much memory until then. O(n log n).

    An update is a task that writes nothing to the arena, and that no other task depends on. Updates that read at most a
    certain number of bytes are moved. That number is the largest for which the peak rises by at most 1 / SLACK.
    """
    _, followers = _dependencies(tasks)
    reads = {
        index: sum(sizes[b] for b in set(task.reads))
        for index, task in enumerate(tasks)
        if not followers[index] and not any(sizes[b] for b in task.writes)
    }
    limits = sorted({*reads.values()})

    def reordered(count: int) -> tuple[int, ...]:
        """Return the order in which updates that read at most `limits[count - 1]` bytes are last."""
        limit = limits[count - 1] if count else -1
        moved = [index for index in found.order if reads.get(index, limit + 1) <= limit]
        return (*(index for index in found.order if reads.get(index, limit + 1) > limit), *moved)

    def exceeds(count: int) -> bool:
        """Whether moving these updates raises the peak too much."""
        return peak_bytes(tasks, sizes, reordered(count)) > allowed_peak

    allowed_peak = found.peak_bytes + found.peak_bytes // SLACK
    # Moving more updates never lowers the peak, so a binary search finds the limit.
    order = reordered(bisect.bisect_left(range(1, len(limits) + 1), True, key=exceeds))
    return found._replace(order=order, peak_bytes=peak_bytes(tasks, sizes, order))


def with_peaks(tasks: Sequence[Task], sizes: Sequence[int], order: Sequence[int]) -> Schedule:
    """Return a given order with its peaks of live bytes."""
    plain = plain_order(tasks)
    return Schedule(tuple(order), peak_bytes(tasks, sizes, order), peak_bytes(tasks, sizes, plain))


def is_topological_order(tasks: Sequence[Task], order: Sequence[int]) -> bool:
    """Whether an order contains every task once, after all tasks that it depends on."""
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
    """Return the topological order that is nearest to the order in which the tasks are given."""
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
    """Return, for each task, the number of tasks that it depends on directly, and the tasks that depend on it."""
    writer = {buffer: index for index, task in enumerate(tasks) for buffer in task.writes}
    waiting: list[int] = []
    followers: list[list[int]] = [[] for _ in tasks]
    for index, task in enumerate(tasks):
        before = {writer[b] for b in (*task.reads, *task.after) if b in writer}
        waiting.append(len(before))
        for earlier in before:
            followers[earlier].append(index)
    return waiting, followers


def _peak_lower_bound(tasks: Sequence[Task], sizes: Sequence[int]) -> int:
    """Return the most bytes that the operands, results and working memory of one task take.

    Results that may overwrite an operand are not counted. No order has a lower peak.
    """
    largest = 0
    for task in tasks:
        reads = {*task.reads}
        targets = {target for source, target in task.inplace if source in reads}
        bytes_ = sum(sizes[b] for b in reads) + sum(sizes[b] for b in task.writes if b not in targets)
        largest = max(largest, bytes_ + task.scratch)
    return largest


def peak_bytes(tasks: Sequence[Task], sizes: Sequence[int], order: Sequence[int]) -> int:
    """Return the peak of live bytes in an order.

    A buffer is live from the task that writes it to the last one that reads it. It overwrites an operand that is not
    read again, if both may share memory (as in `plan_memory`).
    """
    last = {buffer: task for task in order for buffer in (*tasks[task].writes, *tasks[task].reads)}
    held: dict[int, int] = {}  # for each live buffer, the bytes of its memory
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
    """Return the tasks that read each buffer."""
    readers: dict[int, set[int]] = {}
    for index, task in enumerate(tasks):
        for buffer in task.reads:
            readers.setdefault(buffer, set()).add(index)
    return readers


def _sizes_without_updates(tasks: Sequence[Task], sizes: Sequence[int]) -> list[int]:
    """Return the sizes, with 0 for buffers that only updates read (tasks that write nothing to the arena)."""
    kept = {buffer for task in tasks if any(sizes[b] for b in task.writes) for buffer in task.reads}
    return [size if buffer in kept else 0 for buffer, size in enumerate(sizes)]


def _list_schedule(
    tasks: Sequence[Task], sizes: Sequence[int], eager: bool, allocated: Sequence[int]
) -> tuple[int, ...]:
    """Return an order by list scheduling (see `schedule`).

    sizes: Bytes of each buffer that count when it is freed. allocated: Bytes that count when it is written.
    """
    waiting, followers = _dependencies(tasks)
    written = {buffer for task in tasks for buffer in task.writes}
    readers = _readers(tasks)

    def rank(index: int) -> int:
        """Return the priority of a ready task; the lowest is picked first."""
        task = tasks[index]
        freed = sum(sizes[b] for b in set(task.reads) if b in written and len(readers[b]) == 1)
        growth = sum(allocated[b] for b in task.writes) - freed
        return int(growth > 0) if eager else growth

    # The rank of a waiting task can only fall. Whenever it falls, the task is pushed again. So the first entry of a
    # task to be popped has its current rank, and later ones are skipped.
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
