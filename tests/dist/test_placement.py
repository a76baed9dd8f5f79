"""How the cores of a host are divided among the processes of a job."""

from __future__ import annotations

import json
import os

import pytest
from combinations import in_one_item
from jobs import finish, start

from graphkit import config, cores
from graphkit.dist.hosts.placement import Allowed, has_own_cores, own_cores, thread_count


def process(allowed, quota=None, group="", threads=None, may_bind=True):
    return Allowed(frozenset(allowed), quota, group, threads, may_bind)


@in_one_item()
@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([process(range(8))], [8]),
        ([process(range(8))] * 2, [4, 4]),
        ([process(range(8))] * 3, [2, 2, 2]),
        ([process(range(2))] * 4, [1, 1, 1, 1]),
        ([process(range(4)), process(range(4, 6))], [4, 2]),  # as a launcher has bound them
        ([process(range(4)), process(range(2, 6))], [3, 3]),
        ([process(range(64), quota=6)] * 2, [3, 3]),
        ([process(range(64), quota=0.5)] * 2, [1, 1]),
        ([process(range(64), 2, "a"), process(range(64), 4, "b")], [2, 4]),  # each in a group of its own
    ],
)
def test_threads_of_processes(processes, expected):
    assert [thread_count(processes, mine) for mine in range(len(processes))] == expected


def parts(processes):
    return [own_cores(processes, mine) for mine in range(len(processes))]


def test_cores_are_disjoint_and_as_many_for_each():
    found = parts([process(range(7))] * 3)
    assert [len(cores) for cores in found] == [2, 2, 2]
    assert len({core for cores in found for core in cores}) == 6


@in_one_item()
@pytest.mark.parametrize(
    "processes",
    [
        [process(range(4))],
        [process(range(4)), process(range(4, 8))],
        [process(range(2))] * 3,  # fewer cores than processes
        [process(range(4), threads=3)] * 2,  # fewer cores than threads
        [process(range(4)), process(range(4), may_bind=False)],
    ],
)
def test_who_stays_where_the_launcher_has_put_it(processes):
    assert parts(processes) == [None] * len(processes)


@in_one_item()
@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([process(range(4))], True),
        ([process(range(4))] * 2, True),
        ([process(range(4)), process(range(4, 8))], True),
        ([process(range(4)), process(range(2, 6))], False),
        ([process(range(2))] * 3, False),  # waiting, they offer their cores to each other
        ([process(range(4)), process(range(4), may_bind=False)], False),
    ],
)
def test_whether_cores_are_of_one_process_alone(processes, expected):
    assert [has_own_cores(processes, mine) for mine in range(len(processes))] == [expected] * len(processes)


def test_fewer_threads_than_cores_may_use_all_of_them():
    assert [len(cores) for cores in parts([process(range(8), threads=1)] * 2)] == [4, 4]


def test_hardware_threads_of_a_core_are_neighbours(tmp_path):
    """Two nodes of two cores, whose second threads have the higher numbers, as Linux counts them."""
    for node, listed in enumerate(("0,2,4,6", "1,3,5,7")):
        folder = tmp_path / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(listed)
    for core in range(8):
        folder = tmp_path / "cpu" / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}")
    assert cores.neighbours(range(8), tmp_path) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert cores.neighbours([6, 1, 5], tmp_path) == [6, 1, 5]
    assert cores.neighbours([3, 1], tmp_path / "nothing") == [1, 3]


JOB = """
    import json, os, threading
    from pathlib import Path
    before = threading.Event()
    threading.Thread(target=before.wait).start()
    from graphkit import config
    from graphkit.dist import kvstore
    from graphkit.dist.job import ending
    with ending.abort_on_error():
        kv = kvstore.create("dist_sync")
        masks = [sorted(os.sched_getaffinity(int(task.name))) for task in Path("/proc/self/task").iterdir()]
        print(json.dumps([kv.rank, config.num_threads(), masks]) + "\\n", end="", flush=True)
        before.set()
"""


def placed(monkeypatch, **environment):
    """Of both ranks of a job the threads, and the cores of each thread."""
    monkeypatch.delenv(config.NUM_THREADS.name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    status, out, errors = finish(start(2, JOB, before=""))
    assert status == 0, errors
    return [row[1:] for row in sorted(json.loads(line) for line in out.splitlines())]


enough = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two cores are divided")


PLACED = """
    import json, os
    from pathlib import Path
    from graphkit import config
    masks = [sorted(os.sched_getaffinity(int(task.name))) for task in Path("/proc/self/task").iterdir()]
    print(json.dumps([config.num_threads(), masks]))
"""


@enough
def test_ranks_of_a_running_job_have_cores_of_their_own(jobs):
    (threads, first), (more, second) = map(json.loads, jobs.run(PLACED))
    assert threads == more == max(1, config.num_threads() // 2)
    assert all(mask == first[0] for mask in first)
    assert all(mask == second[0] for mask in second)
    assert len(first[0]) == len(second[0]) == len(os.sched_getaffinity(0)) // 2
    assert not set(first[0]) & set(second[0])


@pytest.mark.full
@enough
def test_ranks_have_cores_and_threads_of_their_own(monkeypatch):
    mine = sorted(os.sched_getaffinity(0))
    each = len(mine) // 2
    (threads, first), (more, second) = placed(monkeypatch)
    assert threads == more == max(1, config.num_threads() // 2)
    assert all(mask == first[0] for mask in first)  # threads that were there before, too
    assert all(mask == second[0] for mask in second)
    assert len(first[0]) == len(second[0]) == each
    assert not set(first[0]) & set(second[0])


@pytest.mark.full
@enough
def test_what_the_user_chooses_wins(monkeypatch):
    allowed, half = sorted(os.sched_getaffinity(0)), max(1, config.num_threads() // 2)
    many = 2 * len(allowed)
    for name, value, expected in (
        (config.NUM_THREADS.name, str(many), many),
        (config.PLACE_RANKS.name, "0", half),
    ):
        with monkeypatch.context() as patch:
            for threads, masks in placed(patch, **{name: value}):
                assert threads == expected
                assert all(mask == allowed for mask in masks)
