"""Operations that processes of a job post in different orders."""

import re
import subprocess

import pytest
from jobs import FAILED, finish, start

from graphkit.dist.progress.engine import OVERLAPS

RANDOM = """
    import numpy as np, graphkit as gk
    kv = gk.kvstore.create("dist_sync", overlap={overlap!r})
    keys = list(range(4))
    kv.init(keys, [np.zeros(1 + 3000 * key, np.float32) for key in keys])
    rng = np.random.default_rng(kv.rank)
    for order in range({orders}):
        for key in rng.permutation(4).tolist():
            kv.push(key, np.full(1 + 3000 * key, order, np.float32), priority=int(rng.integers(3)))
        for key in rng.permutation(4).tolist():
            assert (kv.pull(key) == order * kv.num_workers).all()
    print("done")
"""


@pytest.mark.parametrize("orders", [50, pytest.param(1000, marks=pytest.mark.full)])
def test_many_random_orders(jobs, orders):
    for overlap in OVERLAPS:
        assert jobs.run(RANDOM.format(overlap=overlap, orders=orders)) == ["done\n"] * 2


@pytest.mark.full
def test_what_is_not_agreed_upon_hangs():
    """Control experiment: each rank uses its own order of collectives, on separate communicators."""
    job = start(
        2,
        """
        import os, numpy as np, graphkit as gk
        kv = gk.kvstore.create("dist_sync")
        from mpi4py import MPI
        both = [MPI.COMM_WORLD.Dup() for _ in range(2)]
        os.write(1, b"here\\n")
        for one in both if kv.rank else both[::-1]:
            one.Allreduce(np.ones(1 << 16), np.empty(1 << 16))
        print("there", flush=True)
        """,
        before="",
    )
    try:
        assert [job.stdout.readline() for _ in range(2)] == ["here\n"] * 2
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(2)
    finally:
        job.kill()
        out, _ = job.communicate()
    assert "there" not in out


CLOSED_FORM = """
    import numpy as np, graphkit as gk
    kv = gk.kvstore.create("dist_sync", overlap={overlap!r})
    n, rate = kv.num_workers, 2
    shapes = {{"3": (4, 4), 9: (100, 100), "large": (1500, 1500), "none": (0, 3)}}
    keys = list(shapes)
    dtypes = [np.float32, np.float64, np.float32, np.float16]
    def add(key, total, stored):
        stored += rate * total
    kv.init(keys, [np.ones(shape, dtype) for shape, dtype in zip(shapes.values(), dtypes)])
    kv.set_updater(add)
    for i in range(1, 6):
        kv.push(keys, [np.full(s, kv.rank + 1, d) for s, d in zip(shapes.values(), dtypes)])
        for key, found in zip(keys, kv.pull(keys)):
            assert found.shape == shapes[key]
            assert (found == n * (n + 1) // 2 * rate * i + 1).all(), (key, found)
    print("done")
"""


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.full)])
def test_sums_of_pushes_have_their_closed_form(jobs, processes):
    """As MXNet's nightly test of its store: every rank r pushes r + 1, i times, onto an updater that adds."""
    for overlap in OVERLAPS:
        assert jobs.run(CLOSED_FORM.format(overlap=overlap), processes) == ["done\n"] * processes


@pytest.mark.full
def test_a_push_that_nobody_else_makes_is_named_at_the_end():
    status, _, errors = finish(
        start(
            2,
            """
            import numpy as np, graphkit as gk
            kv = gk.kvstore.create("dist_sync")
            kv.init("lonely", np.zeros(3))
            if kv.rank: kv.push("lonely", np.ones(3))
            """,
            before="",
        )
    )
    assert status in FAILED
    assert re.search(r"rank 0: ended after 0 steps; rank 1: sum 'lonely' float64\[3\] as call 2", errors)
