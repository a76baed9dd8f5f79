"""States whose new values are written over the old ones."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item, seeds

import graphkit as gk
from graphkit.errors import RuntimeFailure
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.train.programs.step import STEP

SHAPE = (32, 8)


def state(name: str) -> Value:
    return Value(TensorType("float32", SHAPE), name, role="state")


def executor(graph: Graph, seed: int = 0, **options: Any) -> Executor:
    rng = np.random.default_rng(seed)
    arrays = {v.name: rng.standard_normal(SHAPE).astype(np.float32) for v in graph.inputs if v.role == "state"}
    return Executor(graph, ParamStore({n: TensorType("float32", SHAPE) for n in arrays}, arrays), **options)


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def counter() -> Graph:
    s = state("s")
    return Graph([s], [F.reduce_sum(s)], [(s, F.add(F.mul(s, s), np.float32(1)))], output_names=["sum"])


def donated(ex: Executor) -> set[str]:
    ex.specialise({})
    program = ex._choice.latest
    assert program is not None
    return {name for name, over in zip(ex._selections.get(None).states, program.donated, strict=True) if over}


def test_a_state_keeps_its_memory() -> None:
    ex = executor(counter())
    where = address(ex.params["s"])
    old = ex.params["s"].copy()
    for _ in range(3):
        assert ex.run({})["sum"] == pytest.approx(old.sum(), rel=1e-5)
        old = old * old + 1
        np.testing.assert_allclose(ex.params["s"], old, rtol=1e-6)
        assert address(ex.params["s"]) == where
        assert not ex.params["s"].flags.writeable


@in_one_item()
@pytest.mark.parametrize("hold", [lambda a: a, lambda a: a[3:], lambda a: memoryview(a), lambda a: a.T.reshape(-1, 2)])
def test_what_somebody_holds_keeps_its_values(hold: Any) -> None:
    ex = executor(counter())
    held = hold(ex.params["s"])
    before = np.array(held)
    ex.run({})
    np.testing.assert_array_equal(held, before)
    del held
    where = address(ex.params["s"])
    ex.run({})
    assert address(ex.params["s"]) == where


def test_a_fed_state_keeps_its_values() -> None:
    ex = executor(counter())
    fed = np.full(SHAPE, 2, np.float32)
    ex.run({"s": fed})
    assert (fed == 2).all()
    assert (ex.params["s"] == 5).all()


def test_states_that_change_places() -> None:
    """Each new value needs the other old one: at most one can be donated."""
    a, b = state("a"), state("b")
    ex = executor(Graph([a, b], [a], [(a, F.mul(b, np.float32(2))), (b, F.add(a, np.float32(1)))], output_names=["a"]))
    for _ in range(4):
        x, y = ex.params["a"].copy(), ex.params["b"].copy()
        np.testing.assert_array_equal(ex.run({})["a"], x)
        np.testing.assert_array_equal(ex.params["a"], y * 2)
        np.testing.assert_array_equal(ex.params["b"], x + 1)


def test_an_old_value_that_is_an_output_is_not_donated() -> None:
    s = state("s")
    ex = executor(Graph([s], [F.reshape(s, np.array([-1]))], [(s, F.neg(s))], output_names=["flat"]))
    assert not donated(ex)
    old = ex.params["s"].copy()
    np.testing.assert_array_equal(ex.run({})["flat"], old.reshape(-1))
    np.testing.assert_array_equal(ex.params["s"], -old)


def test_a_new_value_of_two_states() -> None:
    a, b = state("a"), state("b")
    new = F.exp(a)
    ex = executor(Graph([a, b], [], [(a, new), (b, new)]))
    for _ in range(2):
        wanted = np.exp(ex.params["a"].astype(np.float64))
        ex.run({})
        np.testing.assert_allclose(ex.params["a"], wanted, rtol=1e-5)
        np.testing.assert_allclose(ex.params["b"], wanted, rtol=1e-5)


def test_a_run_that_fails_leaves_states_usable() -> None:
    s, index = state("s"), Value(TensorType("int64", (1,)), "index")
    new = F.neg(s)
    graph = Graph([s, index], [F.gather(new, index, axis=0)], [(s, F.mul(new, np.float32(2)))], output_names=["row"])
    ex = executor(graph)
    version = ex.params.version("s")
    with pytest.raises(RuntimeFailure, match=r"^gather: Gather.*: index 99 .*is outside axis 0"):
        ex.run({"index": np.array([99])})
    assert not ex.params["s"].flags.writeable
    # Packed copies of what may be a mixture are stale.
    assert ex.params.version("s") > version or not donated(ex)
    ex.params["s"] = np.ones(SHAPE, np.float32)
    assert (ex.run({"index": np.array([1])})["row"] == -1).all()
    assert (ex.params["s"] == -2).all()


@in_one_item()
@pytest.mark.parametrize("between", [0, 1, 2])
def test_a_run_that_fails_behind_the_new_value_leaves_the_old_one(between: int) -> None:
    """A step that may fail reads what is computed from the new value, so that this must not be written over the old."""
    s, t, index = state("s"), state("t"), Value(TensorType("int64", (1,)), "index")
    new = F.neg(s)
    read = new
    for _ in range(between):
        read = F.tanh(F.exp(read))
    updates = [(s, new), (t, F.mul(t, np.float32(2)))]
    ex = executor(Graph([s, t, index], [F.gather(read, index, axis=0)], updates, output_names=["row"]))
    assert donated(ex) == {"t"}
    old = {name: ex.params[name].copy() for name in ("s", "t")}
    for _ in range(2):
        with pytest.raises(RuntimeFailure, match=r"^gather: Gather.*: index 99 .*is outside axis 0"):
            ex.run({"index": np.array([99])})
        for name, array in old.items():
            np.testing.assert_array_equal(ex.params[name], array)
    ex.run({"index": np.array([1])})
    np.testing.assert_array_equal(ex.params["s"], -old["s"])
    np.testing.assert_array_equal(ex.params["t"], 2 * old["t"])


def test_a_reader_that_waits_for_something_written_later() -> None:
    """If `s` were overwritten, the reader would wait for a step that waits for the reader."""
    s, t = state("s"), state("t")
    new = F.neg(s)
    flat = F.reshape(F.control_dependency(s, F.exp(new)), np.array([-1]))
    ex = executor(Graph([s, t], [F.tanh(flat)], [(s, new), (t, F.abs(t))], output_names=["flat"]))
    assert donated(ex) == {"t"}
    for _ in range(2):
        old = ex.params["s"].copy()
        np.testing.assert_allclose(ex.run({})["flat"], np.tanh(old.reshape(-1)), rtol=1e-5)
        np.testing.assert_array_equal(ex.params["s"], -old)


def test_states_in_one_array() -> None:
    a, b = state("a"), state("b")
    ex = executor(Graph([a, b], [], [(a, F.neg(a)), (b, F.mul(b, np.float32(2)))]))
    ex.params["a"] = ex.params["b"]
    before = ex.params["b"].copy()
    for factor in (1, 2):
        ex.run({})
        np.testing.assert_array_equal(ex.params["a"], before * (-1) ** factor)
        np.testing.assert_array_equal(ex.params["b"], before * 2**factor)


@in_one_item()
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda store: pickle.loads(pickle.dumps(store))])
def test_a_copy_of_the_store_keeps_its_values(copied: Any) -> None:
    ex = executor(counter())
    other = copied(ex.params)
    before, version = other["s"].copy(), other.version("s")
    ex.run({})
    np.testing.assert_array_equal(other["s"], before)
    assert not other["s"].flags.writeable
    assert other.version("s") == version
    Executor(counter(), other).run({})
    np.testing.assert_array_equal(other["s"], ex.params["s"])


def random_update(seed: int) -> Graph:
    """Four states with random readers of old and new values."""
    rng = np.random.default_rng(seed)
    states = [state(f"s{i}") for i in range(4)]
    pool = list(states)

    def pick() -> Value:
        return pool[int(rng.integers(0, len(pool)))]

    for _ in range(30):
        kind = int(rng.integers(0, 6))
        a = pick()
        made = [F.tanh, F.neg, lambda v: F.reshape(F.reshape(v, np.array([8, 32])), np.array(SHAPE)), F.sigmoid]
        pool.append(made[kind](a) if kind < 4 else [F.add, F.mul][kind - 4](a, pick()))
    updates = [(s, F.add(s, F.tanh(pick()))) for s in states]
    return Graph(states, [F.reduce_mean(pick()), pick()], updates, output_names=["mean", "value"])


@in_one_item()
@pytest.mark.parametrize("seed", seeds(60, default=20))
def test_random_updates_are_those_without_donation(seed: int) -> None:
    graph = random_update(seed)
    plain = executor(graph, seed, inplace=False)
    others = [executor(graph, seed), executor(graph, seed, optimize=False)]
    assert not donated(plain)
    for _ in range(3):
        wanted = plain.run({})
        for ex in others:
            results = ex.run({})
            for name, array in wanted.items():
                np.testing.assert_allclose(results[name], array, rtol=1e-4, atol=1e-5)
            for name, array in plain.params.items():
                np.testing.assert_allclose(ex.params[name], array, rtol=1e-4, atol=1e-5)


def test_random_updates_do_donate() -> None:
    """The test above compares with something."""
    assert sum(len(donated(executor(random_update(seed), optimize=False))) for seed in range(60)) > 60


@in_one_item()
@pytest.mark.parametrize("optimizer", [gk.optim.SGD(0.1, momentum=0.9), gk.optim.Adam(0.01)])
def test_training_keeps_one_buffer_for_each_state(optimizer: Any) -> None:
    net = gk.models.build("mlp", inputs=20, hidden=(30, 30), classes=5)
    trainer = gk.Trainer(net, optimizer=optimizer, threads=1, seed=1)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 20)).astype(np.float32), rng.integers(0, 5, 8)
    trainer.step(x, y)
    store = trainer.executor.params
    where = {name: address(store[name]) for name in store}
    inference = Executor(net.graph, net.params)
    feed = {net.inputs[0]: x}
    before = inference.run(feed)
    trainer.step(x, y)
    moved = [name for name in store if address(store[name]) != where[name]]
    # The inference executor holds parameters that it has read, or packed copies of them. The count of steps is written
    # when the loss is known to be finite, not where it is read.
    assert set(moved) <= {*net.params, STEP}
    # It sees the new values although they lie where the old ones lay.
    after = inference.run(feed)
    assert not np.array_equal(before[net.outputs[0]], after[net.outputs[0]])
    wanted = Executor(net.graph, net.params).run(feed)
    np.testing.assert_array_equal(after[net.outputs[0]], wanted[net.outputs[0]])
