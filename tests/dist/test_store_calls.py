"""Calls of stores of every kind with wrong arguments: the errors are named, and the store stays as it was."""

import contextlib
import re

import numpy as np
import pytest
from combinations import in_one_item
from serving import workers

import graphkit as gk
from graphkit.dist import kvstore
from graphkit.dist.kvstore import RowSparse
from graphkit.errors import GraphkitError, InputError, UsageError

# Objects that are neither keys, nor values, nor arrays to write to.
ODD = [None, 3.5, "text", b"bytes", object(), {}, {1}, [], [None], [3.5], [[1.0], [2.0, 3.0]], True, 1 + 2j]


@pytest.fixture(params=["local", "dist_sync", "dist_async"])
def on_stores(request, on_ranks):
    """`on_stores(work)`: `work(store)` for a store of each kind, of one process, of two, and a worker with servers."""

    def run(work):
        if request.param == "dist_sync":
            on_ranks(work)
        else:
            work(kvstore.create() if request.param == "local" else workers(1, servers=2)[0][0])

    return run


def begun(store):
    store.init(["w", 7, "s"], [np.arange(6, dtype=np.float32).reshape(3, 2), np.ones(4), np.float32(2)])
    return store


def read_only(array):
    array.flags.writeable = False
    return array


f32 = np.float32

WRONG = [
    # Keys.
    (lambda kv: kv.pull(3.5), UsageError, "a key must be an int or a string, not 3.5 (float)"),
    (lambda kv: kv.pull(None), UsageError, "a key must be an int or a string, not None"),
    (lambda kv: kv.pull(["w", None]), UsageError, "a key must be an int or a string, not None"),
    (lambda kv: kv.pull(np.array([7])), UsageError, "a key must be an int or a string, not array([7])"),
    (lambda kv: kv.push(True, 1.0), UsageError, "a key must be an int or a string, not True (bool)"),
    (lambda kv: kv.gather(["w"], np.ones(2)), UsageError, "a key must be an int or a string, not ['w'] (list)"),
    (lambda kv: kv.wait(3.5), UsageError, "a key must be an int or a string, not 3.5 (float)"),
    (lambda kv: kv.wait("u"), UsageError, "key 'u' is not initialised"),
    (lambda kv: kv.init(["a", "a"], [np.ones(2), np.ones(2)]), UsageError, "init: key 'a' is given twice"),
    (lambda kv: kv.push(["w", "w"], [np.ones((3, 2), f32)] * 2), UsageError, "push: key 'w' is given twice"),
    (lambda kv: kv.pushpull([7, np.int64(7)], [np.ones(4)] * 2), UsageError, ": key 7 is given twice"),
    (lambda kv: kv.broadcast(["b", "b"], [1, 2]), UsageError, "broadcast: key 'b' is given twice"),
    # Values.
    (lambda kv: kv.init("a", None), InputError, "key 'a': a value must be an array or a number, not None"),
    (lambda kv: kv.init("a", RowSparse([0], [1.0])), InputError, "a value must be an array or a number, not RowSparse"),
    (lambda kv: kv.init("a", [[1.0], [2.0, 3.0]]), InputError, "key 'a': its value is not an array"),
    (lambda kv: kv.init(["a", "w"], [1.0, 2.0]), UsageError, "key 'w' is already initialised"),
    (lambda kv: kv.init(["a", "b"], np.ones(2)), UsageError, "one value per key"),
    (lambda kv: kv.init(["a", "b"], [1.0]), UsageError, "2 keys ('a', 'b') and 1 value: give one value per key"),
    (lambda kv: kv.push("w", None), InputError, "key 'w': a value must be an array or a number, not None"),
    (lambda kv: kv.push("w", "text"), InputError, "key 'w' is float32[3, 2]; pushed <U4[]"),
    (lambda kv: kv.push(["w"], np.ones((1, 3, 2), f32)), UsageError, "1 key ('w') and "),
    (lambda kv: kv.push("w", np.ones((3, 2), f32), priority="high"), UsageError, "priority must be an integer"),
    (lambda kv: kv.pushpull("u", None), InputError, "key 'u': a value must be an array or a number, not None"),
    (lambda kv: kv.gather("u", None), InputError, "key 'u': a value must be an array or a number, not None"),
    (lambda kv: kv.broadcast("u", None), InputError, "key 'u': a value must be an array or a number, not None"),
    # The root of a broadcast.
    (lambda kv: kv.broadcast("u", 1.0, root=7), UsageError, "broadcast of 'u': root must be an integer from 0 to "),
    (lambda kv: kv.broadcast("u", 1.0, root=-1), UsageError, "broadcast of 'u': root must be an integer from 0 to "),
    (lambda kv: kv.broadcast("u", 1.0, root="0"), UsageError, "broadcast of 'u': root must be an integer from 0 to "),
    (lambda kv: kv.broadcast(["u"], [1.0], root=None), UsageError, "broadcast of 'u': root must be an integer from "),
    # Arrays to write to.
    (lambda kv: kv.pull("w", out=3), InputError, "key 'w': its value can only be written to numpy arrays, not to 3"),
    (lambda kv: kv.pull("s", out=f32(3)), InputError, "key 's': its value can only be written to numpy arrays, not to"),
    (lambda kv: kv.pull("w", out=[]), UsageError, "key 'w': an empty list of arrays to write to"),
    (lambda kv: kv.pull("w", out=np.zeros((4, 3, 2), f32)), InputError, "the array to write to is float32[4, 3, 2]"),
    (lambda kv: kv.pull("s", out=np.zeros(3, f32)), InputError, "key 's' is float32[]; the array to write to is"),
    (lambda kv: kv.pull("w", out=np.zeros((3, 2), int)), InputError, "the array to write to is int64[3, 2]"),
    (lambda kv: kv.pull("w", out=read_only(np.zeros((3, 2), f32))), InputError, "'w': the array to write to is read"),
    (lambda kv: kv.pull(["w", 7], out=[np.zeros((3, 2), f32)]), UsageError, "('w', 7) and 1 array: give one array per"),
    (lambda kv: kv.pull(["w", 7], out=np.zeros((2, 3))), UsageError, "give a list or a tuple with one array per key"),
    (lambda kv: kv.pull(["w"], out=[[np.zeros((3, 2), f32), None]]), InputError, "written to numpy arrays, not to N"),
    (lambda kv: kv.pushpull("u", np.ones(2), out=np.ones((2, 2))), InputError, "key 'u' is float64[2]; the array to"),
    (lambda kv: kv.pushpull("u", np.ones(2), out=2), InputError, "key 'u': its value can only be written to numpy"),
    (lambda kv: kv.pushpull(["u"], [np.ones(2)], out=[[np.ones(2), np.ones(1)]]), InputError, "is float64[1]"),
    (lambda kv: kv.pushpull("w", np.ones((3, 2), f32), out=np.ones(2)), InputError, "key 'w' is float32[3, 2]; the ar"),
    # Rows.
    (lambda kv: kv.row_sparse_pull("w", None), InputError, "key 'w': row indices must be an array of numbers, not "),
    (lambda kv: kv.row_sparse_pull("w", 1), InputError, "key 'w': row indices must be a vector of integers, not int"),
    (lambda kv: kv.row_sparse_pull("w", [0.5]), InputError, "key 'w': row indices must be a vector of integers"),
    (lambda kv: kv.row_sparse_pull("w", [[0], [1, 2]]), InputError, "key 'w': row indices are not an array"),
    (lambda kv: kv.row_sparse_pull("w", [3]), InputError, "key 'w' has 3 rows, so index 3 is out of range"),
    (lambda kv: kv.row_sparse_pull("w", np.array([2**64 - 1], np.uint64)), InputError, "indices must be below 2**63"),
    (lambda kv: kv.row_sparse_pull("s", []), InputError, "key 's' has no rows"),
    (lambda kv: kv.row_sparse_pull(["w", 7], [0]), UsageError, "2 keys ('w', 7) and 1 index vector: give one"),
    (lambda kv: kv.row_sparse_pull(["w", 7], None), UsageError, "a list or a tuple with one index vector per key"),
    (lambda kv: kv.row_sparse_pull("w", [0], out=np.zeros((3, 2), int)), InputError, "to write to is int64[3, 2]"),
    (lambda kv: kv.row_sparse_pull("w", [0], out=np.zeros((1, 2), f32)), InputError, "to write to is float32[1, 2]"),
    (lambda kv: kv.push("w", RowSparse([0], np.ones((1, 3), f32))), InputError, "pushed rows of float32[3]"),
    # Updaters, optimizers, compression and files.
    (lambda kv: kv.set_updater(3), UsageError, "an updater must be a function f(key, sum, stored), not 3 (int)"),
    (lambda kv: kv.set_optimizer("sgd"), UsageError, "set_optimizer takes an optimizer, such as"),
    (lambda kv: kv.set_optimizer(None), UsageError, "set_optimizer takes an optimizer, such as"),
    (lambda kv: kv.set_optimizer(gk.optim.SGD), UsageError, "set_optimizer takes an optimizer, such as gk.optim.SGD"),
    (lambda kv: kv.save_optimizer_states(None), UsageError, "save_optimizer_states takes the path of a file, not None"),
    (lambda kv: kv.load_optimizer_states(3), UsageError, "load_optimizer_states takes the path of a file, not 3 (int)"),
    (lambda kv: kv.restore_residuals(None), UsageError, "residuals must be a dict of vectors by key, not None"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_wrong_arguments_are_named_and_change_nothing(on_stores, call, error, message):
    def work(store):
        begun(store)
        with pytest.raises(error, match=re.escape(message)):
            call(store)
        assert store.pull(["w", 7, "s"])[0].tolist() == [[0, 1], [2, 3], [4, 5]]
        assert (store.pull(7).tolist(), float(store.pull("s"))) == ([1.0] * 4, 2.0)
        store.init("a", np.ones(2))  # no part of a wrong call has created it
        assert store.pull("a").tolist() == [1, 1]

    on_stores(work)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: "object" if type(odd) is object else repr(odd))
def test_odd_arguments_never_raise_what_is_not_named(on_stores, odd):
    """Each may be right or wrong, but Python's own exceptions never come out."""
    whole = np.ones((3, 2), f32)
    calls = [
        lambda kv: kv.init(odd, whole), lambda kv: kv.init("fresh", odd), lambda kv: kv.init(["f1", "f2"], odd),
        lambda kv: kv.push(odd, whole), lambda kv: kv.push("w", odd), lambda kv: kv.push(["w", 7], odd),
        lambda kv: kv.push("w", whole, priority=odd), lambda kv: kv.push("w", [whole, odd]),
        lambda kv: kv.pull(odd), lambda kv: kv.pull("w", odd), lambda kv: kv.pull(["w"], [odd]),
        lambda kv: kv.pull(["w", 7], odd), lambda kv: kv.pushpull(odd, whole), lambda kv: kv.pushpull("w", odd),
        lambda kv: kv.pushpull("u", odd), lambda kv: kv.pushpull("u", whole, odd),
        lambda kv: kv.pushpull(["u", "v"], [whole, whole], odd), lambda kv: kv.pushpull("u", whole, priority=odd),
        lambda kv: kv.row_sparse_pull(odd, [0]), lambda kv: kv.row_sparse_pull("w", odd),
        lambda kv: kv.row_sparse_pull("w", [0], odd), lambda kv: kv.row_sparse_pull(["w"], odd),
        lambda kv: kv.broadcast(odd, 1.0), lambda kv: kv.broadcast("u", odd), lambda kv: kv.broadcast("u", 1.0, odd),
        lambda kv: kv.gather(odd, whole), lambda kv: kv.gather("u", odd), lambda kv: kv.wait([odd]),
        lambda kv: kv.set_gradient_compression(odd), lambda kv: kv.set_gradient_compression({"type": odd}),
        lambda kv: kv.restore_residuals(odd), lambda kv: kv.restore_residuals({"w": odd}),
        lambda kv: RowSparse(odd, whole), lambda kv: RowSparse([0], odd),
        lambda kv: kv.set_optimizer(odd), lambda kv: kv.set_updater(odd),
        lambda kv: kv.load_optimizer_states(odd),
    ]  # fmt: skip

    def work(store):
        begun(store)
        for call in calls:
            with contextlib.suppress(GraphkitError):
                call(store)

    on_stores(work)


def test_every_array_of_a_key_gets_its_value(on_stores):
    def work(store):
        begun(store)
        expected = np.arange(6).reshape(3, 2)
        one, other = np.zeros((3, 2), f32), np.zeros((2, 3)).T
        outs = [one, other]
        assert store.pull("w", out=outs) is outs
        assert (one == expected).all()
        assert (other == expected).all()
        x, y, z = np.zeros((3, 2), f32), np.zeros(4), np.zeros(4)
        store.pull(("w", 7), out=(x, [y, z]))
        assert (x == expected).all()
        assert y.tolist() == z.tolist() == [1] * 4
        n = store.num_workers
        store.pushpull("u", np.ones(2), out=[y[:2], z[2:]])
        assert (y.tolist(), z.tolist()) == ([n, n, 1, 1], [1, 1, n, n])
        store.pushpull(["u", "v"], [np.full(2, 2.0), np.full(4, 3.0)], out=[[y[:2], z[:2]], np.zeros(4)])
        assert y[:2].tolist() == z[:2].tolist() == [2 * n] * 2
        a, b = np.zeros((3, 2), f32), np.zeros((3, 2), f32)
        store.row_sparse_pull("w", [2], out=[a, b])
        assert a.tolist() == b.tolist() == [[0, 0], [0, 0], [4, 5]]
        scalar = np.zeros((), f32)
        store.pull("s", out=scalar)
        assert scalar == 2

    on_stores(work)


def test_sums_of_keys_may_be_written_over_each_others_values(on_stores):
    def work(store):
        x, y = np.ones(40_000), np.full(40_000, 2.0)
        store.pushpull(["x", "y"], [x, y], out=[y, x])
        n = store.num_workers
        assert (y == n).all()
        assert (x == 2 * n).all()

    on_stores(work)


def test_keys_that_come_twice_are_pulled_twice(on_stores):
    def work(store):
        begun(store)
        first, second, third = store.pull([7, 7, "s"])
        assert first.tolist() == second.tolist() == [1] * 4
        assert float(third) == 2

    on_stores(work)


def test_values_of_the_other_byte_order_are_summed(on_stores):
    def work(store):
        begun(store)
        n = store.num_workers
        assert store.pushpull("u", np.arange(3, dtype=">f4")).tolist() == [0, n, 2 * n]
        store.push(7, np.ones(4, ">f8"))
        assert store.pull(7).tolist() == [n] * 4
        assert store.gather("g", np.arange(2, dtype=">i4"))[0].tolist() == [0, 1]

    on_stores(work)


def test_integers_of_numpy_are_keys(on_stores):
    def work(store):
        store.init(np.int32(3), np.ones(2))
        assert store.pull(3).tolist() == [1, 1]

    on_stores(work)


def test_empty_lists_of_keys_do_nothing(on_stores):
    def work(store):
        store.init([], [])
        store.push([], [])
        assert (store.pull([]), store.pushpull([], []), store.broadcast([], [])) == ([], [], [])

    on_stores(work)


@in_one_item()
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"type": None}, "gk.kvstore.create: type must be a string, not None"),
        ({"type": ["dist"]}, "gk.kvstore.create: type must be a string, not ['dist']"),
        ({"overlap": None}, "unknown overlap None"),
        ({"timeout": "soon"}, "timeout must be a number of seconds above 0, not 'soon'"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, not 0"),
        ({"bucket_bytes": 0}, "bucket_bytes must be an integer of at least 1, not 0"),
        ({"bucket_bytes": 0.5}, "bucket_bytes must be an integer of at least 1, not 0.5"),
        ({"type": "dist_async", "servers": "two"}, "servers must be an integer of at least 1, not 'two'"),
        ({"type": "dist_async", "servers": 1.5}, "servers must be an integer of at least 1, not 1.5"),
        ({"type": "dist_bounded", "staleness": 0.5}, "staleness must be an integer of at least 0, not 0.5"),
        ({"type": "elastic", "period": True}, "period must be an integer of at least 1, not True"),
        ({"type": "elastic", "strength": "much"}, "strength must be a number above 0 and at most 1, not 'much'"),
    ],
)
def test_arguments_of_create_are_named(arguments, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        kvstore.create(**arguments)


def test_servers_are_called_with_functions_and_keys():
    store = begun(workers(1)[0][0])
    for value in (b"bytes", np.datetime64("2026-11-28"), np.zeros(2, "V4")):
        with pytest.raises(InputError, match="key 'a': servers store numbers, booleans and strings, not "):
            store.init(["b", "a"], [1.0, value])
    store.init("b", 2.0)
    with pytest.raises(UsageError, match=r"call_servers takes a function f\(values, \.\.\.\), not 3"):
        store.call_servers(3)
    with pytest.raises(UsageError, match="key 'u' is not initialised"):
        store.averages("u")
    with pytest.raises(UsageError, match=r"a key must be an int or a string, not 3\.5"):
        store.averages([3.5])
