"""The scheduler: topological, never worse than the plain order, better where breadth costs memory."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.extension import import_extension
from graphkit.executor.memory.plan_cache import schedule
from graphkit.executor.memory.planner import Request, aligned, plan_memory
from graphkit.executor.memory.schedule import (
    SLACK,
    is_topological_order,
    peak_bytes,
    plain_order,
    schedule_in_python,
    updates_last,
)
from graphkit.executor.memory.tasks import Schedule, Task


def random_tasks(seed: int, count: int) -> tuple[list[Task], list[int]]:
    rng = np.random.default_rng(seed)
    tasks = []
    for i in range(count):
        reads = tuple({int(v) for v in rng.integers(0, i, size=rng.integers(0, 3))}) if i else ()
        tasks.append(Task(reads, (i,), reads))
    return tasks, [int(s) for s in rng.integers(0, 1000, count)]


def recomputed_peak(tasks: list[Task], sizes: list[int], order: tuple[int, ...]) -> int:
    position = {task: step for step, task in enumerate(order)}
    lives = []
    for index, task in enumerate(tasks):
        for buffer in task.writes:
            readers = [position[j] for j, t in enumerate(tasks) if buffer in t.reads]
            lives.append((position[index], max([position[index], *readers]), sizes[buffer]))
    return max(sum(size for first, last, size in lives if first <= step <= last) for step in range(len(order)))


@in_one_item()
@pytest.mark.parametrize("seed", range(10))
def test_order_is_topological_and_no_worse(seed: int) -> None:
    tasks, sizes = random_tasks(seed, 60)
    chosen = schedule(tasks, sizes)
    assert sorted(chosen.order) == list(range(60))
    done: set[int] = set()
    for index in chosen.order:
        assert set(tasks[index].after) <= done
        done.update(tasks[index].writes)
    assert chosen.peak_bytes == recomputed_peak(tasks, sizes, chosen.order)
    assert chosen.plain_peak_bytes == recomputed_peak(tasks, sizes, tuple(range(60)))
    assert chosen.peak_bytes <= chosen.plain_peak_bytes


def test_branches_are_finished_one_after_the_other() -> None:
    # Eight wide results, each reduced to a small one: breadth first holds all of them at once.
    wide = [Task((), (i,)) for i in range(8)]
    narrow = [Task((i,), (8 + i,), (i,)) for i in range(8)]
    total = [Task(tuple(range(8, 16)), (16,), tuple(range(8, 16)))]
    sizes = [1000] * 8 + [1] * 9
    chosen = schedule([*wide, *narrow, *total], sizes)
    assert chosen.plain_peak_bytes > 8000
    assert chosen.peak_bytes < 1100


def test_updates_do_not_wait_for_the_rest_of_a_backward_sweep() -> None:
    # A chain of 6 (small) results, then gradients from the end, each with a large weight gradient, then the updates.
    forward = [Task((i - 1,) if i else (), (i,), (i - 1,) if i else ()) for i in range(6)]
    backward, weights, updates = [], [], []
    for k in range(6):
        dy = (5 + k,) if k else (5,)
        backward.append(Task((*dy, 5 - k), (6 + k,), (*dy, 5 - k)))
        weights.append(Task((6 + k,), (12 + k,), (6 + k,)))
        updates.append(Task((12 + k,), (18 + k,), (12 + k,)))
    sizes = [10] * 6 + [12] * 6 + [1000] * 6 + [0] * 6
    chosen = schedule([*forward, *backward, *weights, *updates], sizes)
    assert chosen.plain_peak_bytes > 6000
    assert chosen.peak_bytes < 1100


def test_an_order_that_cannot_be_improved_is_kept() -> None:
    tasks = [Task((), (0,)), Task((), (1,)), Task((0, 1), (2,), (0, 1))]
    assert schedule(tasks, [10, 5, 3]) == Schedule((0, 1, 2), 18, 18)


def test_shape_only_operands_order_but_do_not_live() -> None:
    tasks = [Task((), (0,)), Task((0,), (1,), (0,)), Task((), (2,), (0,)), Task((1, 2), (3,), (1, 2))]
    chosen = schedule(tasks, [100, 1, 1, 1])
    assert chosen.order.index(2) > chosen.order.index(0)
    assert peak_bytes(tasks, [100, 1, 1, 1], (0, 1, 2, 3)) == 101


def test_results_in_place_take_no_memory_of_their_own() -> None:
    chain = [Task((i - 1,) if i else (), (i,), (i - 1,) if i else (), ((i - 1, i),) if i else ()) for i in range(5)]
    assert peak_bytes(chain, [100] * 5, range(5)) == 100
    assert peak_bytes(chain, [100] * 4 + [101], range(5)) == 201  # the last one does not fit
    # Two results cannot both take over one operand, and an operand that is read later takes nothing.
    twins = [Task((), (0,)), Task((0,), (1, 2), (0,), ((0, 1), (0, 2))), Task((1, 2), (3,), (1, 2), ((1, 3),))]
    assert peak_bytes(twins, [100] * 4, range(3)) == 200
    kept = [Task((), (0,)), Task((0,), (1,), (0,), ((0, 1),)), Task((0, 1), (2,), (0, 1), ((1, 2),))]
    assert peak_bytes(kept, [100] * 3, range(3)) == 200


def test_working_memory_counts_in_its_step() -> None:
    tasks = [Task((), (0,), scratch=500), Task((0,), (1,), (0,)), Task((1,), (2,), (1,), scratch=50)]
    assert peak_bytes(tasks, [100] * 3, range(3)) == 600
    assert schedule(tasks, [100] * 3).peak_bytes == 600


@in_one_item()
@pytest.mark.parametrize("seed", range(10))
def test_the_planner_finds_the_same_peak(seed: int) -> None:
    tasks, sizes = random_tasks(seed, 60)
    rng = np.random.default_rng(seed)
    sizes = [aligned(size) for size in sizes]
    tasks = [
        Task(t.reads, t.writes, t.after, tuple((r, t.writes[0]) for r in t.reads), aligned(int(rng.integers(0, 900))))
        for t in tasks
    ]
    order = schedule(tasks, sizes).order
    position = {task: step for step, task in enumerate(order)}
    last = {b: max([position[i], *(position[j] for j, t in enumerate(tasks) if b in t.reads)])
            for i, task in enumerate(tasks) for b in task.writes}  # fmt: skip
    requests = []
    for i, task in enumerate(tasks):
        dying = tuple(r for r, _ in task.inplace if last[r] == position[i])
        requests.append(Request(sizes[i], position[i], last[i], dying))
    requests += [Request(t.scratch, position[i], position[i]) for i, t in enumerate(tasks)]
    assert plan_memory(requests).lower_bound == peak_bytes(tasks, sizes, order)


@pytest.mark.full
def test_long_chain() -> None:
    tasks = [Task((i - 1,) if i else (), (i,), (i - 1,) if i else ()) for i in range(100_000)]
    assert schedule(tasks, [64] * len(tasks)).peak_bytes == 128


def test_nothing() -> None:
    assert schedule([], []).order == ()


def test_a_task_that_follows_a_later_one_is_moved_behind_it() -> None:
    tasks = [Task((), (0,)), Task((0,), (1,), after=(0, 3)), Task((0,), (2,)), Task((2,), (3,)), Task((1,), (4,))]
    assert plain_order(tasks) == (0, 2, 3, 1, 4)
    assert is_topological_order(tasks, schedule(tasks, [0] * 5).order)


def test_updates_stand_at_the_end_where_there_is_memory_for_that() -> None:
    # A wide forward result, then small and large gradients with their updates.
    sizes = [10_000, 10, 3000, 10, 0, 0, 0]
    gradients = [Task((0,), (1,), (0,)), Task((0,), (2,), (0,)), Task((0,), (3,), (0,))]
    updates = [Task((1 + i,), (4 + i,), (1 + i,)) for i in range(3)]
    tasks = [Task((), (0,)), gradients[0], updates[0], gradients[1], updates[1], gradients[2], updates[2]]
    plain = Schedule(tuple(range(7)), peak_bytes(tasks, sizes, range(7)), 0)
    late = updates_last(tasks, sizes, plain)
    assert late.order == (0, 1, 3, 5, 2, 4, 6)
    assert late.peak_bytes == peak_bytes(tasks, sizes, late.order) <= plain.peak_bytes * (1 + 1 / SLACK)
    # Two large buffers would have to be alive at the same time.
    sizes[3] = 3000
    assert updates_last(tasks, sizes, plain).order == (0, 1, 3, 4, 5, 6, 2)


@in_one_item()
@pytest.mark.parametrize("seed", range(10))
def test_an_order_with_updates_last_is_one(seed: int) -> None:
    tasks, sizes = random_tasks(seed, 60)
    free = {60 + i for i in range(20)}
    tasks += [Task((i, i + 20), (60 + i,), (i, i + 20)) for i in range(20)]
    sizes += [0] * 20
    found = schedule(tasks, sizes)
    late = updates_last(tasks, sizes, found)
    assert is_topological_order(tasks, late.order)
    assert late.peak_bytes == peak_bytes(tasks, sizes, late.order) <= found.peak_bytes + found.peak_bytes // SLACK
    assert sum(index in free for index in late.order[-5:]) >= sum(index in free for index in found.order[-5:])


def random_steps(seed: int) -> tuple[list[Task], list[int]]:
    """Tasks with several results, repeated operands, in-place pairs, working memory, and results outside the arena."""
    rng = np.random.default_rng(seed)
    tasks: list[Task] = []
    buffers = 0
    for _ in range(int(rng.integers(1, 80))):
        reads = (
            tuple(int(b) for b in rng.integers(max(0, buffers - 12), buffers, rng.integers(0, 4))) if buffers else ()
        )
        after = (*reads, *(int(b) for b in rng.integers(0, buffers, 1))) if buffers else ()
        writes = tuple(range(buffers, buffers + int(rng.integers(0, 3))))
        buffers += len(writes)
        pairs = tuple((r, w) for r in reads for w in writes if rng.random() < 0.6)
        tasks.append(Task(reads, writes, after, pairs, int(rng.integers(0, 3)) * 64))
    sizes = rng.integers(0, 4, buffers) * rng.choice([0, 1, 64, 1 << 40], buffers)
    return tasks, [int(size) for size in sizes]


@in_one_item()
@pytest.mark.parametrize("seed", range(200))
def test_native_and_python_order_are_equal(seed: int) -> None:
    tasks, sizes = random_steps(seed)
    import_extension()  # `schedule` uses it if it is imported
    assert schedule(tasks, sizes) == schedule_in_python(tasks, sizes)


def test_native_schedule_rejects_unknown_buffers_and_cycles() -> None:
    native = import_extension()
    for tasks, error in (
        ([((5,), (0,), (), (), 0)], "buffer 5"),
        ([((1,), (0,), (), (), 0), ((0,), (1,), (), (), 0)], "cyclic"),
    ):
        with pytest.raises(native.Error, match=error):
            native.schedule(tasks, [1, 1])
