"""Gradients of sequences with data-dependent elements, checked numerically in float64, also in branches and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.errors import MissingGradient, UsageError
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import OptionalType, SequenceType, TensorType
from graphkit.ops import F
from graphkit.ops.control.loop_state import without_value
from graphkit.ops.evaluate import evaluate

X = gk.input("x", ["N", 6], dtype="float64")
AT, M, P = (gk.input(n, [], dtype=d) for n, d in (("i", "int64"), ("m", "int64"), ("p", "bool")))


def looped(body: Callable[..., list[Any]], states: list[Value], captured: list[Value], trips: Any) -> Any:
    number, going = Value(TensorType("int64", ()), "number"), Value(TensorType("bool", ()), "going")
    inner = [
        Value(
            SequenceType(TensorType("float64")) if isinstance(v.type, SequenceType) else without_value(v.type), v.name
        )
        for v in (*states, *captured)
    ]
    graph = Graph([number, going, *inner], [F.constant(value=np.array(True)), *body(number, *inner)])
    return F.loop(trips, None, *states, *captured, body=graph, captures=len(captured))


def parts() -> Value:
    return F.split_to_sequence(F.sin(X), np.array(2), axis=1)


def changed_somewhere() -> Any:
    return F.tanh(F.concat_from_sequence(F.sequence_insert(F.sequence_erase(parts(), AT), X * X, AT), axis=1))


def taken_somewhere() -> Any:
    return F.exp(F.sequence_at(parts(), AT))


def branch() -> Any:
    def graph(build: Callable[..., Any]) -> Graph:
        q, x = Value(parts().type, "q"), Value(X.type, "x")
        return Graph([q, x], [build(q, x)])

    then = graph(lambda q, x: F.sequence_insert(q, F.cos(x)))
    other = graph(lambda q, x: F.sequence_erase(q))
    return F.exp(F.concat_from_sequence(F.if_(P, parts(), X, then_branch=then, else_branch=other), axis=1))


def optional_branch() -> Any:
    """An optional with a value in one branch, and without one in the other."""
    then = Graph([x := Value(X.type, "x")], [F.optional(F.sin(x))])
    other = Graph([Value(X.type, "x")], [F.optional(type=X.type)])
    held = F.if_(P, X, then_branch=then, else_branch=other)
    read = Graph([o := Value(held.type, "o"), x := Value(X.type, "x")], [F.exp(F.optional_get_element(o))])
    kept = Graph([Value(held.type, "o"), x := Value(X.type, "x")], [F.cos(x)])
    return F.if_(F.optional_has_element(held), held, X, then_branch=read, else_branch=kept)


def states_read_and_put_in() -> Any:
    def body(_: Value, h: Value, q: Value) -> list[Any]:
        last, first = F.sequence_at(q, np.array(-1)), F.sequence_at(q, np.array(0))
        return [F.sin(h + last), F.sequence_insert(q, first * h)]

    h, q = looped(body, [X, F.sequence_construct(X, F.cos(X))], [], M)
    return F.exp(F.concat_from_sequence(q, axis=0)) * F.reduce_sum(h, keepdims=False)


def captured_with_a_position() -> Any:
    total = F.slice(F.tanh(X), np.array([0]), np.array([2]), np.array([1]))
    return looped(lambda n, h, q, i: [F.tanh(h) * F.sequence_at(q, i)], [total], [parts(), AT], M)


def sequence_of_loops() -> Any:
    """A loop in a loop. Both insert into the sequence."""

    def inner(_: Value, q: Value, h: Value) -> list[Any]:
        return [F.sequence_insert(q, F.tanh(h * F.reduce_sum(F.sequence_at(q, AT), keepdims=False)))]

    def outer(_: Value, q: Value, i: Value, m: Value, x: Value) -> list[Any]:
        def again(_: Value, s: Value, h: Value, j: Value) -> list[Any]:
            return [F.sequence_insert(s, F.tanh(h + F.sequence_at(s, j)))]

        return [looped(again, [q], [x, i], m)]

    return F.concat_from_sequence(looped(outer, [F.sequence_construct(X, F.sin(X))], [AT, M, X], M), axis=1)


@in_one_item()
@pytest.mark.parametrize("trips", [0, 1, 2])
@pytest.mark.parametrize("index", [0, -1])
@pytest.mark.parametrize(
    "build",
    [
        changed_somewhere, taken_somewhere, branch, optional_branch, states_read_and_put_in, captured_with_a_position,
        sequence_of_loops,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_against_differences(build: Any, index: int, trips: int) -> None:
    net = gk.Model({"y": build()}, name="net")
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal((3, 6)), "i": np.array(index), "m": np.array(trips), "p": np.array(trips > 1)}
    feeds = {name: given[name] for name in net.inputs}
    plain, direction, step = net.compile(optimize=False), rng.standard_normal((3, 6)), 1e-5
    moved = [plain.run({**feeds, "x": feeds["x"] + s * direction})["y"].sum() for s in (step, -step)]
    numeric = (moved[0] - moved[1]) / (2 * step)
    made = gk.grad(net, wrt="x")
    for executor in (made.compile(), made.compile(optimize=False)):
        found = executor.run(feeds)["x_grad"]
        np.testing.assert_allclose((found * direction).sum(), numeric, rtol=1e-6, atol=1e-7)


def test_the_gradient_of_a_sequence_is_a_sequence() -> None:
    q = gk.input("q", SequenceType(TensorType("float64", ["N"])))
    o = gk.input("o", OptionalType(TensorType("float64", ["N"])))
    y = F.reduce_sum(F.exp(F.sequence_at(q, np.array(1))), keepdims=False)
    z = F.reduce_sum(F.optional_get_element(o), keepdims=False)
    graph = Graph([q, o], gradient([y, z], [q, o]))
    given = [np.ones(2), np.arange(3.0)]
    of_q, of_o = evaluate(graph, [given, np.ones(2)])
    assert [g.tolist() for g in of_q] == [[0, 0], np.exp(given[1]).tolist()]
    assert of_o.tolist() == [1, 1]
    (unread,) = evaluate(Graph([q], gradient([y], [o], allow_unused=True) and [F.zeros_like(q)]), [given])
    assert [g.tolist() for g in unread] == [[0, 0], [0, 0, 0]]


def test_seeds_of_sequences_are_given() -> None:
    q = F.split_to_sequence(X)
    with pytest.raises(UsageError, match="need seeds"):
        gradient([q], [X])
    seed = gk.input("seed", q.type)
    (found,) = evaluate(Graph([X, seed], gradient([q], [X], [seed])), [np.zeros((2, 6)), [np.ones((1, 6))] * 2])
    assert np.array_equal(found, np.ones((2, 6)))


def test_what_has_no_gradient_is_named() -> None:
    x, split = gk.input("x", [4], dtype="float64"), gk.input("split", None, dtype="int64")
    q = F.split_to_sequence(x, split, keepdims=False, name="parts")
    net = gk.Model({"y": F.concat_from_sequence(q, axis=0)}, name="net")
    with pytest.raises(MissingGradient, match=r"parts.*the gradient needs a constant `split`, or keepdims=1"):
        gk.grad(net, wrt="x")
    words = gk.input("words", SequenceType(TensorType("string", None)))
    with pytest.raises(UsageError, match="has no gradient"):
        gradient([words], [words])


def test_training_through_sequences(tmp_path: Any) -> None:
    """As a recurrent network that PyTorch's exporter writes: a loop that fills a list, which is joined."""
    x = gk.input("x", ["N", "T", 4])
    w = gk.parameter("w", [4, 4])
    rows = F.split_to_sequence(x, axis=1, keepdims=False)

    def body(n: Value, h: Value, q: Value, s: Value, v: Value) -> list[Any]:
        h = F.tanh(F.mat_mul(h, v) + F.sequence_at(s, n))
        return [h, F.sequence_insert(q, h)]

    number, going = Value(TensorType("int64", ()), "n"), Value(TensorType("bool", ()), "go")
    start = F.reduce_sum(x, np.array([1]), keepdims=False) * 0.0
    inner = [
        Value(start.type, "h"),
        Value(SequenceType(TensorType("float32")), "q"),
        Value(rows.type, "s"),
        Value(w.type, "v"),
    ]
    graph = Graph([number, going, *inner], [F.constant(value=np.array(True)), *body(number, *inner)])
    _, q = F.loop(F.sequence_length(rows), None, start, F.sequence_empty(), rows, w, body=graph, captures=2)
    net = gk.Model({"y": F.concat_from_sequence(q, axis=1, new_axis=True)}, name="net")
    path = tmp_path / "net.onnx"
    net.save(path)
    trainer = gk.Trainer(gk.load(path), loss="mse", optimizer=gk.optim.SGD(0.1))
    rng = np.random.default_rng(0)
    inputs, targets = rng.standard_normal((8, 5, 4), np.float32), rng.standard_normal((8, 5, 4), np.float32)
    losses = [float(trainer.step(inputs, targets)) for _ in range(20)]
    assert losses[-1] < losses[0]
