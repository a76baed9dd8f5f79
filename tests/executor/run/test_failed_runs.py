"""A run that fails because of its data leaves all states unchanged, also those independent of the failing step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import LimitReached, RuntimeFailure
from graphkit.executor.memory import donation, plan_graph
from graphkit.executor.memory.schedule import with_peaks
from graphkit.executor.memory.tasks import Schedule, Task
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F, Op, op, registry
from graphkit.ops._op import value_check

X = np.linspace(0.1, 1, 24, dtype=np.float32).reshape(4, 6)


@op
class Sometimes(Op):
    """x, unless an element of it is negative: then its Python raises."""

    domain = "test.failed_runs"
    inputs = ("x",)

    def infer(self, x: TensorType) -> TensorType:
        return x

    def reference(self, xp: Any, x: Any) -> Any:
        if (x < 0).any():
            raise ArithmeticError("not today")
        return xp.array(x)


registry.remove(Sometimes)


def _rows(x: Value, i: Value) -> Value:
    return F.gather(F.exp(x), i)


def _square(i: Value) -> Value:
    made: Value = F.reshape(F.cast(i, to="float32"), np.array([2, 2]))
    return made


def _roi(x: Value, i: Value) -> Value:
    regions = F.slice(x, np.array([0]), np.array([4]), np.array([1]))
    image = F.reshape(F.exp(x), np.array([4, 1, 2, 3]))
    return F.roi_align(image, regions, i)


# name: (what fails, of a value of `i` that is all right, and of one that is not)
CASES: dict[str, tuple[Callable[[Value, Value], Value], list[int], list[int]]] = {
    "gather": (_rows, [0, 1, -4, 3], [0, 1, 9, 3]),
    "gather_elements": (lambda x, i: F.gather_elements(F.exp(x), F.reshape(i, np.array([1, 4])), axis=1), [5, 0, 1, 2],
                        [0, 0, 0, 6]),
    "gather_nd": (lambda x, i: F.gather_nd(F.exp(x), F.reshape(i, np.array([2, 2]))), [0, 5, 3, 0], [0, 0, 4, 0]),
    "scatter_nd": (lambda x, i: F.scatter_nd(F.exp(x), F.reshape(i, np.array([4, 1])), x), [0, 1, 2, 3], [0, 1, 2, 4]),
    "scatter_elements": (lambda x, i: F.scatter_elements(F.exp(x), F.reshape(i, np.array([4, 1])), F.exp(
        F.slice(x, np.array([0]), np.array([1]), np.array([1]))), axis=1), [0, 1, 2, 5], [0, 1, 2, 6]),
    "div": (lambda x, i: F.div(np.array([6, 7, 8, 9]), i), [1, 2, -3, 4], [1, 0, 3, 4]),
    "mod": (lambda x, i: F.mod(F.mul(i, i), i), [1, 2, -3, 4], [1, 2, 3, 0]),
    "fused div": (lambda x, i: F.add(F.div(np.array([6, 7, 8, 9]), i), F.mul(i, i)), [1, 2, -3, 4], [1, 0, 3, 4]),
    "pow": (lambda x, i: F.pow(i, np.array([-1, -2, -3, -4])), [1, 2, 3, 4], [1, 2, 0, 4]),
    "loss": (lambda x, i: F.softmax_cross_entropy_loss(x, i)[0], [0, 5, 1, 2], [0, 5, 6, 2]),
    "inverse": (lambda x, i: F.inverse(_square(i)), [1, 2, 3, 4], [1, 2, 2, 4]),
    "solve": (lambda x, i: F.solve(_square(i), _square(i)), [1, 2, 3, 4], [1, 2, 2, 4]),
    "potrf": (lambda x, i: F.potrf(_square(i)), [4, 1, 1, 4], [1, 2, 2, 1]),
    "trsm": (lambda x, i: F.trsm(_square(i), _square(i)), [4, 0, 1, 4], [0, 0, 2, 0]),
    "potri": (lambda x, i: F.potri(_square(i)), [4, 0, 1, 4], [0, 0, 2, 0]),
    "ratio": (lambda x, i: F.dropout(x, F.cast(F.gather(i, np.array(0)), to="float32"), np.array(True))[0],
              [0, 1, 2, 3], [3, 1, 2, 3]),
    "in a branch": (lambda x, i: gk.cond(F.less(F.reduce_max(i, keepdims=0), 99), lambda: _rows(x, i), lambda: x[:4]),
                    [0, 1, -4, 3], [0, 1, 9, 3]),
    "run-time sizes": (lambda x, i: F.mat_mul(F.unsqueeze(F.compress(F.exp(x), F.greater(i, 0), axis=0)[:, 0],
                       np.array([0])), F.unsqueeze(F.compress(F.exp(x), F.less(i, 5), axis=0)[:, 0], np.array([1]))),
                       [1, 2, 3, 4], [1, 2, 3, 9]),
    "reverse": (lambda x, i: F.reverse_sequence(x, i, batch_axis=0, time_axis=1), [6, 1, 2, 3], [6, 1, 2, 7]),
    "python": (lambda x, i: Node(Sometimes(), [F.cast(i, to="float32")]).output, [1, 2, 3, 4], [1, -2, 3, 4]),
    "regions": (_roi, [0, 3, 1, 2], [0, 3, 4, 2]),
}  # fmt: skip


def updates_first(tasks: Sequence[Task], sizes: Sequence[int]) -> Schedule:
    """Schedule steps that nothing follows and that write nothing into the arena as early as possible."""
    maker = {buffer: index for index, task in enumerate(tasks) for buffer in task.writes}
    read = {buffer for task in tasks for buffer in (*task.reads, *task.after)}
    order: dict[int, None] = {}

    def visit(index: int) -> None:
        for buffer in (*tasks[index].reads, *tasks[index].after):
            if maker.get(buffer, index) not in {index, *order}:
                visit(maker[buffer])
        order[index] = None

    ends = [i for i, t in enumerate(tasks) if read.isdisjoint(t.writes) and not any(sizes[b] for b in t.writes)]
    for index in (*reversed(ends), *range(len(tasks))):
        if index not in order:
            visit(index)
    return with_peaks(tasks, sizes, [*order])


def executor(fails: Callable[[Value, Value], Value], *, fixed: bool, used: bool) -> tuple[Executor, ParamStore]:
    """Adds to one state what is there at once, and what may fail to another one, if it is `used`; it is an output."""
    x = Value(TensorType("float32", X.shape if fixed else ("N", 6)), "x")
    i = Value(TensorType("int64", (4,)), "i")
    a, b = (Value(TensorType("float32", (6,)), name, role="state") for name in "ab")
    total = F.reduce_sum(F.exp(x), np.array([0]), keepdims=0)
    made = F.reduce_sum(F.cast(fails(x, i), to="float32"), keepdims=0)
    graph = Graph([x, i, a, b], [made], [(a, F.add(a, total)), (b, F.add(b, made if used else total))])
    store = ParamStore({v.name: v.tensor for v in (a, b)}, {n: np.ones(6, np.float32) for n in "ab"})
    return Executor(graph, store), store


@in_one_item("pairs")
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_states_stay(name: str, fixed: bool, used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_graph, "cached_schedule", updates_first)
    fails, right, wrong = CASES[name]
    run, store = executor(fails, fixed=fixed, used=used)
    for _ in range(3):
        before = {key: np.array(array) for key, array in store.items()}
        run.run({"x": X, "i": np.array(right)})
        np.testing.assert_allclose(store["a"], before["a"] + np.exp(X).sum(0), rtol=1e-6)
        before = {key: np.array(array) for key, array in store.items()}
        with pytest.raises(RuntimeFailure):
            run.run({"x": X, "i": np.array(wrong)})
        for key, array in before.items():
            np.testing.assert_array_equal(store[key], array)


def test_a_head_that_the_loss_does_not_read() -> None:
    """If its index is out of range, the other parameters stay unchanged, and the next step continues from them."""
    x, i = gk.input("x", ["N", 6]), gk.input("i", ["N"], dtype="int64")
    hidden = gk.tanh(gk.nn.linear(x, 8, name="one"))
    large = gk.reduce_max(gk.exp(gk.tile(hidden, np.array([1, 512]))), axes=[1])
    net = gk.Model({"y": gk.nn.linear(hidden, 3, name="two"), "shown": gk.gather(large, i)}, seed=1)
    run = gk.Trainer(net, {"y": "softmax_cross_entropy"}, gk.optim.SGD(0.1, momentum=0.9))
    y = np.arange(4) % 3
    for _ in range(3):
        before = {key: np.array(array) for key, array in run.executor.params.items()}
        run.step({"x": X, "i": np.arange(4)}, y)
        assert all((run.executor.params[key] != array).any() for key, array in before.items())
        before = {key: np.array(array) for key, array in run.executor.params.items()}
        with pytest.raises(RuntimeFailure, match="index 4"):
            run.step({"x": X, "i": np.arange(1, 5)}, y)
        for key, array in before.items():
            np.testing.assert_array_equal(run.executor.params[key], array)


def states(**arrays: np.ndarray) -> dict[str, Value]:
    return {n: Value(TensorType(str(a.dtype), a.shape), n, role="state") for n, a in arrays.items()}


def check_kept(graph: Graph, arrays: dict[str, np.ndarray], right: dict[str, Any], wrong: dict[str, Any]) -> None:
    """Check that a run with wrong data keeps the states, and that a run with right data changes them."""
    store = ParamStore({v.name: v.tensor for v in graph.inputs if v.role == "state"}, arrays)
    run = Executor(graph, store)
    for turn in range(2):
        before = {name: np.array(array) for name, array in store.items()}
        run.run(right)
        assert turn or all((store[name] != array).any() for name, array in before.items())
        before = {name: np.array(array) for name, array in store.items()}
        with pytest.raises(RuntimeFailure):
            run.run(wrong)
        for name, array in before.items():
            np.testing.assert_array_equal(store[name], array)


@in_one_item()
@pytest.mark.parametrize("fused", [False, True])
def test_what_writes_a_state_fails_itself(fused: bool) -> None:
    arrays = {"a": np.array([6, 7, 8, 9]), "b": np.array([60, 70, 80, 90])}
    made, i = states(**arrays), Value(TensorType("int64", (4,)), "i")
    divided = F.div(made["b"], i)
    new = F.add(F.mul(divided, i), F.sub(i, 70)) if fused else divided
    graph = Graph([i, *made.values()], [F.neg(i)], [(made["a"], F.add(made["a"], i)), (made["b"], new)])
    check_kept(graph, arrays, {"i": np.array([2, 3, 2, 3])}, {"i": np.array([1, 1, 0, 1])})


def test_what_writes_two_states_at_indices() -> None:
    """Only the first one is written in place, because it checks its indices before it writes."""
    arrays = {"a": np.zeros((5, 3), np.float32), "b": np.zeros((5, 3), np.float32)}
    made = states(**arrays)
    i, j = (Value(TensorType("int64", (2, 1)), name) for name in "ij")
    u = Value(TensorType("float32", (2, 3)), "u")
    new = [(made["a"], F.scatter_nd(made["a"], i, u)), (made["b"], F.scatter_nd(made["b"], j, u))]
    graph = Graph([i, j, u, *made.values()], [F.neg(u)], new)
    for at in (1, 2):
        rows = np.full((2, 3), at, np.float32)
        right = {"i": np.array([[0], [1]]), "j": np.array([[2], [3]]), "u": rows + 1}
        for wrong in ({"j": np.array([[2], [5]])}, {"i": np.array([[2], [5]])}):
            fed = {**right, **wrong, "u": rows + 7}
            check_kept(graph, arrays, right | {"u": rows}, fed)


def test_what_follows_from_a_new_value() -> None:
    arrays = {"a": np.zeros((5, 3), np.float32)}
    made, i = states(**arrays), Value(TensorType("int64", (2,)), "i")
    new = F.add(made["a"], np.ones(3, np.float32))
    graph = Graph([i, *made.values()], [F.gather(new, i)], [(made["a"], new)])
    check_kept(graph, arrays, {"i": np.array([0, 4])}, {"i": np.array([0, 5])})


def test_a_gradient_whose_operator_nobody_reads() -> None:
    """It is the first to refuse an index then."""
    arrays = {"w": np.ones((5, 4), np.float32), "a": np.zeros(4, np.float32)}
    made, i = states(**arrays), Value(TensorType("int64", (3,)), "i")
    dy = Value(TensorType("float32", (3, 4)), "dy")
    dw = F.gather_grad(F.mul(dy, dy), made["w"], i, axis=0)
    total = F.reduce_sum(F.exp(dy), np.array([0]), keepdims=0)
    graph = Graph(
        [i, dy, *made.values()], [F.neg(dy)], [(made["a"], F.add(made["a"], total)), (made["w"], F.sub(made["w"], dw))]
    )
    rows = np.ones((3, 4), np.float32)
    check_kept(
        graph,
        arrays,
        {
            "i": np.array(
                [
                    0,
                    1,
                    2,
                ]
            ),
            "dy": rows,
        },
        {"i": np.array([0, 5, 2]), "dy": rows},
    )


def test_a_loop_without_end_that_nobody_reads() -> None:
    """It ends at the run's time, before anything is written."""
    x = gk.input("x", ["N", 6])
    large = gk.tile(gk.reduce_sum(x, axes=[0], keepdims=False), np.array([600]))
    doubled = gk.while_loop(lambda s: gk.reduce_max(s, keepdims=False) < 1e6, lambda s: s * 2.0, large)
    net = gk.Model({"y": gk.nn.linear(x, 3, name="one"), "shown": doubled}, seed=1)
    run = gk.Trainer(net, {"y": "softmax_cross_entropy"}, gk.optim.SGD(0.1))
    y = np.arange(4) % 3
    run.step({"x": X}, y)
    before = {key: np.array(array) for key, array in run.executor.params.items()}
    with pytest.raises(RuntimeFailure, match="the time limit is over"):
        run.executor.run({"x": np.zeros_like(X), "target_y": y, "learning_rate": np.float32(0.1)}, timeout=0.5)
    for key, array in before.items():
        np.testing.assert_array_equal(run.executor.params[key], array)


def _wide(p: Value, times: int) -> Value:
    made: Value = F.tile(F.unsqueeze(p, np.array([1])), np.array([1, times]))
    return made


# name: (the first, the second of what may fail of one operand, in several shapes or types, feeds, wrong ones)
TWICE: dict[str, tuple[Callable[[Value, Value], Value], Callable[[Value, Value], Value], Any, Any]] = {
    "power of other pairs": (lambda p, q: F.pow(p, q), lambda p, q: F.pow(F.reshape(p, np.array([4, 1])), q),
                             ([1, 2, 3, 1], [-1, 2, 3, 4]), ([1, 0, 3, 1], [-1, 2, 3, 4])),
    "bits of another type": (lambda p, q: F.pow(p, F.bit_cast(q, to="uint64")), lambda p, q: F.pow(p, q),
                             ([1, 2, 3, 1], [1, 2, 3, 4]), ([1, 0, 3, 1], [-1, -1, 3, 4])),
    "an empty quotient": (lambda p, q: F.div(F.slice(F.reshape(p, np.array([1, 4])), np.array([0]), np.array([0]),
                          np.array([0])), q), lambda p, q: F.div(p, q), ([1, 2, 3, 4], [1, 2, 3, 4]),
                          ([1, 2, 3, 4], [1, 0, 3, 4])),
    "other sequences": (lambda p, q: F.reverse_sequence(_wide(p, 8), q, batch_axis=0, time_axis=1),
                        lambda p, q: F.reverse_sequence(_wide(p, 4), q, batch_axis=0, time_axis=1),
                        ([1, 2, 3, 4], [1, 2, 3, 4]), ([1, 2, 3, 4], [1, 2, 3, 7])),
    "other matrices": (lambda p, q: F.inverse(F.reshape(F.add(_square(p), np.eye(2, dtype=np.float32) * 9), np.array(
                       [1, 2, 2]))), lambda p, q: F.inverse(F.reshape(_square(q), np.array([1, 2, 2]))),
                       ([1, 2, 3, 4], [1, 2, 3, 4]), ([1, 2, 3, 4], [1, 2, 2, 4])),
    "two tables": (lambda p, q: F.gather(np.arange(9.0), p), lambda p, q: F.gather(np.arange(5.0), p),
                   ([0, 1, 2, 3], [1, 2, 3, 4]), ([0, 1, 2, 7], [1, 2, 3, 4])),
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("name", TWICE)
def test_the_second_refuses_what_the_first_does_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_graph, "cached_schedule", updates_first)
    first, second, right, wrong = TWICE[name]
    arrays = {"a": np.ones(4, np.float32)}
    made = states(**arrays)
    p, q = (Value(TensorType("int64", (4,)), name) for name in "pq")
    outputs = [first(p, q), second(p, q)]
    total = F.reduce_sum(F.exp(F.cast(p, to="float32")), keepdims=0)
    graph = Graph([p, q, *made.values()], outputs, [(made["a"], F.add(made["a"], total))])
    given = [{n: np.array(array) for n, array in zip("pq", arrays, strict=True)} for arrays in (right, wrong)]
    check_kept(graph, arrays, *given)


def test_long_loop_runs_before_states_are_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if its number of iterations is known: the time limit ends it there."""
    monkeypatch.setattr(plan_graph, "cached_schedule", updates_first)
    arrays = {"a": np.ones(4, np.float32)}
    made, x = states(**arrays), Value(TensorType("float32", (4,)), "x")
    i, go, s = Value(TensorType("int64", ()), "i"), Value(TensorType("bool", ()), "go"), Value(x.tensor, "s")
    y = F.loop(np.array(20_000_000), None, F.exp(x), body=Graph([i, go, s], [go, F.tanh(s)]))
    store = ParamStore({"a": made["a"].tensor}, arrays)
    exe = Executor(Graph([x, made["a"]], [y], [(made["a"], F.add(made["a"], x))]), store, threads=1)
    with pytest.raises(LimitReached, match="the time limit is over"):
        exe.run({"x": np.ones(4, np.float32)}, timeout=0.01)
    assert exe._choice.latest is not None
    assert exe._choice.latest.lowered.memory.donated
    assert store["a"].tolist() == [1] * 4


def test_a_ratio_is_looked_at_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_graph, "cached_schedule", updates_first)
    arrays = {"a": np.ones(6, np.float32)}
    made, x = states(**arrays), Value(TensorType("float32", X.shape), "x")
    ratio, training = Value(TensorType("float32", ()), "ratio"), Value(TensorType("bool", ()), "training")
    outputs = [F.dropout(x, ratio, training)[0], F.dropout(F.exp(x), ratio, np.array(True))[0]]
    total = F.reduce_sum(F.exp(x), np.array([0]), keepdims=0)
    graph = Graph([x, ratio, training, *made.values()], outputs, [(made["a"], F.add(made["a"], total))])
    right = {"x": X, "ratio": np.float32(0.5), "training": np.array(False)}
    check_kept(graph, arrays, right, right | {"ratio": np.float32(1.5)})


def test_a_ratio_in_one_element() -> None:
    x = Value(TensorType("float32", X.shape), "x")
    y = F.dropout(x, np.array([0.25], np.float32), np.array(True))[0]
    assert value_check(y.node) is None
    ratio = Value(TensorType("float32", (1,)), "ratio")
    assert value_check(F.dropout(x, ratio, np.array(True))[0].node) is not None


@pytest.mark.parametrize("optimizer", [gk.optim.SGD(0.1, momentum=0.9), gk.optim.Adam(0.01)], ids=["sgd", "adam"])
def test_tables_whose_rows_are_updated_are_written_where_they_are(
    optimizer: gk.optim.Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Gather rejects an invalid index before the ScatterND does."""
    donated, donated_states = [], donation.donated_states

    def counted(*given: Any) -> Any:
        donated.append(donated_states(*given))
        return donated[-1]

    monkeypatch.setattr(donation, "donated_states", counted)
    found = []
    for count in (1, 2):
        inputs = [gk.input(f"i{n}", ["N", "T"], dtype="int64") for n in range(count)]
        tables = [gk.nn.embedding(v, 7 + n, 3, name=f"t{n}") for n, v in enumerate(inputs)]
        net = gk.Model({"y": tables[0] if count == 1 else tables[0] + tables[1]}, seed=0)
        lazy = [f"t{n}_weight" for n in range(count)]
        run = gk.Trainer(net, "mse", optimizer, seed=1, lazy=lazy)
        at = np.array([[0, 2], [2, 1]])
        before = {name: np.array(run.net.params[name]) for name in lazy}
        run.step({f"i{n}": at for n in range(count)}, np.ones((2, 2, 3), np.float32))
        assert all((run.net.params[name] != array).any() for name, array in before.items())
        found.append(len(donated[-1]))
    slots = len(optimizer.slots)
    assert found[1] - found[0] == 1 + slots
