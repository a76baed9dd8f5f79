"""The key-value store, in one process and under a real mpiexec."""

import re
import subprocess
import sys
import textwrap

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item
from serving import workers

from graphkit.dist import kvstore
from graphkit.dist.job import launch
from graphkit.errors import InputError, UsageError


def mpi_run(processes, code, timeout=300):
    command = [launch.find_mpiexec(), "-n", str(processes), sys.executable, "-P", "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def test_local_store_sums_what_devices_push():
    kv = kvstore.create("local")
    assert (kv.rank, kv.num_workers) == (0, 1)
    kv.init("w", np.zeros(3, np.float32))
    kv.push("w", [np.ones(3, np.float32), np.full(3, 2, np.float32)])
    np.testing.assert_array_equal(kv.pull("w"), [3, 3, 3])
    out = np.empty(3, np.float32)
    kv.pull("w", out=out)
    np.testing.assert_array_equal(out, [3, 3, 3])


def test_sequences_of_keys():
    kv = kvstore.create()
    kv.init([1, 2], [np.zeros(2), np.ones(1)])
    kv.push([1, 2], [np.ones(2), np.ones(1)])
    first, second = kv.pull([1, 2])
    np.testing.assert_array_equal(first, [1, 1])
    np.testing.assert_array_equal(second, [1])
    a, b = kv.pushpull(["p", "q"], [np.ones(2), np.zeros(1)])
    np.testing.assert_array_equal(a, [1, 1])
    np.testing.assert_array_equal(b, [0])


def test_updater_changes_the_stored_value():
    kv = kvstore.create()
    kv.init("w", np.full(2, 10.0))

    def descend(key, total, stored):
        stored -= 0.5 * total

    kv.set_updater(descend)
    np.testing.assert_array_equal(kv.pushpull("w", np.full(2, 4.0)), [8, 8])


@in_one_item()
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda kv: kv.pull("weigth"), UsageError, "did you mean 'weight'"),
        (lambda kv: kv.push("weight", np.zeros(3)), InputError, "'weight' is float64[2]; pushed float64[3]"),
        (lambda kv: kv.init("weight", np.zeros(2)), UsageError, "already initialised"),
        (
            lambda kv: kv.init(["a", "b"], [np.zeros(2)]),
            UsageError,
            "2 keys ('a', 'b') and 1 value: give one value per key",
        ),
    ],
)
def test_wrong_calls_name_the_key(call, error, message):
    kv = kvstore.create()
    kv.init("weight", np.zeros(2))
    with pytest.raises(error) as caught:
        call(kv)
    assert message in str(caught.value)


NOT_SUMMED = [np.dtype(kind) for kind in (bool, ml_dtypes.float8_e5m2, ml_dtypes.int4, "U3")]


def assert_not_summed(kv, dtype):
    """All ways in which values are pushed refuse the dtype, and name it and the key."""
    stored = np.zeros(3, dtype)
    kv.init("mask", stored)
    rows = kvstore.RowSparse([1], np.zeros(1, dtype))
    message = re.escape(f"key 'mask' is {dtype}: a store cannot sum {dtype}")
    for push in (
        lambda: kv.pushpull("mask", stored),
        lambda: kv.push("mask", stored),
        lambda: kv.push("mask", [stored, stored]),
        lambda: kv.push(["mask"], [stored]),
        lambda: kv.push("mask", rows),
    ):
        with pytest.raises(InputError, match=message):
            push()
    with pytest.raises(InputError, match="key 'other' is "):
        kv.pushpull("other", stored)
    np.testing.assert_array_equal(kv.pull("mask"), stored)


@pytest.mark.parametrize("dtype", NOT_SUMMED, ids=str)
def test_dtypes_without_a_sum_are_refused(on_ranks, dtype):
    def work(kv):
        assert_not_summed(kv, dtype)
        with pytest.raises(InputError, match="key 'g' is "):
            kv.transport.start_sum("g", np.zeros(3, dtype), np.zeros(3, dtype))
        half = np.ones(3, ml_dtypes.bfloat16)
        return kv.pushpull("half", half).astype(float).tolist()

    assert on_ranks(work) == [[2.0] * 3] * 2
    assert_not_summed(kvstore.create("local"), dtype)


@in_one_item()
@pytest.mark.parametrize("dtype", NOT_SUMMED, ids=str)
def test_workers_of_servers_refuse_dtypes_without_a_sum(dtype):
    (store,), _ = workers(1)
    assert_not_summed(store, dtype)


@pytest.mark.parametrize("dtype", [bool, ml_dtypes.float8_e4m3fn], ids=["bool", "float8"])
def test_broadcast_and_gather_take_every_dtype(on_ranks, dtype):
    def work(kv):
        mine = np.full(3, kv.rank).astype(dtype)
        kv.init("mask", mine)
        found = [kv.broadcast("b", mine, root=1), *kv.gather("g", mine), kv.pull("mask")]
        assert all(array.dtype == dtype and array.shape == (3,) for array in found)
        return [float(array[0]) for array in found]

    assert on_ranks(work) == [[1, 0, 1, 0]] * 2


@in_one_item()
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([], UsageError, "key 'w': an empty list of values has no sum"),
        ([np.ones(2), np.ones(3)], InputError, "key 'w' is float64[2]; pushed float64[3]"),
        ([np.ones(2), np.ones(2, bool)], InputError, "key 'w' is float64[2]; pushed bool[2]"),
    ],
)
def test_values_of_devices_that_have_no_sum(value, error, message):
    for kv in (kvstore.create(), workers(1)[0][0]):
        with pytest.raises(error, match=re.escape(message)):
            kv.pushpull("w", value)
        kv.init("w", np.ones(2))
        with pytest.raises(error, match=re.escape(message)):
            kv.push("w", value)


def test_unknown_type_suggests_one():
    with pytest.raises(UsageError, match="did you mean 'dist_sync'"):
        kvstore.create("dist_sinc")


DIST_SYNC = """
    import numpy as np
    from graphkit.dist import kvstore
    kv = kvstore.create("dist_sync")
    n = kv.num_workers
    kv.init("w", np.full(4, kv.rank + 7.0, np.float32))
    assert (kv.pull("w") == 7).all(), "every rank starts from rank 0's value"
    kv.push("w", np.full(4, kv.rank + 1, np.float32))
    assert (kv.pull("w") == n * (n + 1) // 2).all()
    assert kv.pushpull("g", np.array([kv.rank], np.int64))[0] == n * (n - 1) // 2
    assert kv.pushpull("h", np.array([1.5], np.float16))[0] == 1.5 * n
    assert kv.broadcast("b", np.array([kv.rank, 9]), root=n - 1).tolist() == [n - 1, 9]
    assert kv.gather("bits", np.full(3, kv.rank == 1)).tolist() == [[rank == 1] * 3 for rank in range(n)]
    kv.barrier()
    print(n)
"""


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.full)])
def test_dist_sync_over_processes(jobs, processes):
    assert jobs.run(DIST_SYNC, processes) == [f"{processes}\n"] * processes


def test_a_failing_rank_ends_the_job_with_its_exit_code():
    done = mpi_run(
        2,
        """
        import numpy as np
        from graphkit.dist import kvstore
        from graphkit.dist.job import ending
        from graphkit.errors import InputError
        with ending.abort_on_error():
            kv = kvstore.create("dist_sync")
            if kv.rank == 1:
                raise InputError("bad sample")
            kv.barrier()
        """,
    )
    assert done.returncode != 0
    assert "rank 1: bad sample" in done.stderr


def test_without_mpi4py_the_error_says_what_to_install():
    code = """
        import sys
        sys.modules["mpi4py"] = None
        from graphkit.dist import kvstore
        from graphkit.errors import MissingDependency
        try:
            kvstore.create("dist_sync")
        except MissingDependency as error:
            assert "pip install '.[mpi]'" in str(error), error
            print("named")
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "named", done.stderr


def test_importing_the_package_does_not_initialise_mpi():
    code = (
        "import graphkit; from graphkit.dist.job import mpi; import sys; "
        "assert 'mpi4py' not in sys.modules; assert not mpi.launched_by_mpi()"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_sums_are_written_where_they_are_wanted(jobs):
    jobs.run(
        """
        import numpy as np
        from graphkit.dist import kvstore
        kv = kvstore.create("dist_sync")
        mine = np.arange(6, dtype=np.float32).reshape(2, 3) * (kv.rank + 1)
        expected = np.arange(6).reshape(2, 3) * 3
        out = np.empty_like(mine)
        assert kv.pushpull("w", mine, out) is out and (out == expected).all()
        wide = np.empty((2, 3), np.float64)
        kv.pushpull("w", mine, wide)
        assert (wide == expected).all()
        apart = np.zeros((2, 6), np.float32)[:, ::2]
        kv.pushpull("w", mine, apart)
        assert (apart == expected).all()
        halves = np.empty(2, np.float16)
        kv.pushpull("h", np.full(2, 1.5, np.float16), halves)
        assert (halves == 3).all()
        both = [np.empty(1), np.empty(2)]
        kv.pushpull(["a", "b"], [np.ones(1), np.ones(2)], both)
        assert [b.tolist() for b in both] == [[2], [2, 2]]
        kv.pushpull("w", mine, mine)
        assert (mine == expected).all(), "where the part was"
        """
    )


def test_as_many_arrays_to_write_to_as_keys():
    with pytest.raises(UsageError, match="and 1 array: give one array per key"):
        kvstore.create().pushpull(["a", "b"], [np.ones(1), np.ones(1)], [np.ones(1)])
