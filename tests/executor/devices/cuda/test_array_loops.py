"""If, Loop and Scan on a card: subgraphs by its own kernels, recorded where it is known how often they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stand_in import Card
from together import together

import graphkit as gk
from graphkit.checks.samples import Case, make_case, samples_of
from graphkit.checks.verify import compare_outputs
from graphkit.errors import LimitReached, RuntimeFailure
from graphkit.executor.lower.arrays import loop as array_loop
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F, registry
from graphkit.ops.evaluate import evaluate

RNG = np.random.default_rng(0)


def both(net: gk.Model, *runs: dict[str, Any], rtol: float = 1e-5) -> Executor:
    """Compare each run on the GPU with the CPU, twice. Return the executor on the GPU."""
    there, here = net.compile("cuda"), net.compile(threads=1)
    for feeds in runs * 2 if len(runs) > 1 else runs * 4:
        expected, found = here.run(feeds), there.run(feeds)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=rtol, atol=1e-6, err_msg=name)
    return there


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# --- operators --------------------------------------------------------------------------------------


CASES = [
    make_case(cls, number)
    for cls in (registry.find("", name) for name in ("If", "Loop", "Scan"))
    for number in range(len(samples_of(cls)))
]


@together()
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_sample(case: Case, card: Card) -> None:
    """Run after run: the later ones are replayed."""
    graph = case.graph()
    exe = Executor(graph, ParamStore({}), device="cuda")
    wanted = dict(zip(graph.output_names, evaluate(graph, case.feeds()), strict=True))
    for _ in range(4):
        for report in compare_outputs(exe.run(dict(zip(graph.input_names, case.feeds(), strict=True))), wanted):
            assert report.passed, str(report)


# --- scans ------------------------------------------------------------------------------------------


def cell(width: int, length: int, reverse: bool = False) -> gk.Model:
    """width: of the state; slices of 3 floats begin at no unit of memory, those of 4 do."""
    xs, h0 = gk.input("xs", [length, 2, width]), gk.input("h0", [2, width])
    w = gk.parameter("w", (width, width), init=gk.init.Normal(0.5))

    def step(h: Any, x: Any) -> tuple[Any, Any]:
        new = gk.tanh((h @ w) + x)
        return new, new * 2.0

    last, ys = gk.scan(step, h0, xs, reverse=reverse)
    return gk.Model({"last": last, "ys": ys}, seed=1)


@together()
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("width", "length"), [(8, 5), (3, 4), (1, 1), (4, 1)])
def test_a_scan_is_recorded_with_what_is_around_it(width: int, length: int, reverse: bool, card: Card) -> None:
    feeds = {"xs": floats(length, 2, width), "h0": floats(2, width)}
    exe = both(cell(width, length, reverse), feeds)
    assert not exe.plan.fallbacks
    assert not card.interpreted
    if length > 1:
        assert card.recordings == 1


def test_a_state_that_is_stacked(card: Card) -> None:
    for width in (4, 3):
        xs = gk.input("xs", [6, width])
        last, ys = gk.scan(lambda c, x: (c * 0.5 + x,) * 2, gk.input("c", [width]), xs)
        exe = both(gk.Model({"last": last, "ys": ys}), {"xs": floats(6, width), "c": floats(width)})
        assert not exe.plan.fallbacks


def test_what_a_body_passes_on(card: Card) -> None:
    """A slice, a capture, a state as it came, a constant: results that no step of the body makes."""
    xs, k = gk.input("xs", [5, 4]), gk.input("k", [4])
    a, b = gk.input("a", [4]), gk.input("b", [4])

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        one, two = carry
        return (two, one), (x, k + 0.0, one, gk.constant(np.ones(4, np.float32)))

    (one, two), stacks = gk.scan(step, (a, b), xs)
    net = gk.Model({"one": one, "two": two, **{f"s{i}": s for i, s in enumerate(stacks)}})
    both(net, {"xs": floats(5, 4), "k": floats(4), "a": floats(4), "b": floats(4)})


def test_loops_in_loops(card: Card) -> None:
    xs = gk.input("xs", [3, 4, 4])

    def outer(c: Any, rows: Any) -> tuple[Any, Any]:
        inner, ys = gk.scan(lambda h, row: (gk.tanh(h + row), h * row), c, rows)
        return inner, gk.reduce_sum(ys, np.array([0]), keepdims=False)

    last, ys = gk.scan(outer, gk.input("c", [4]), xs)
    exe = both(gk.Model({"last": last, "ys": ys}), {"xs": floats(3, 4, 4), "c": floats(4)})
    assert not exe.plan.fallbacks
    assert card.recordings == 1


def test_no_iterations(card: Card) -> None:
    both(cell(4, 0), {"xs": floats(0, 2, 4), "h0": floats(2, 4)})


def test_lengths_that_change(card: Card) -> None:
    xs = gk.input("xs", ["T", 4])
    last, ys = gk.scan(lambda c, x: (gk.sigmoid(c + x), c), gk.input("c", [4]), xs)
    net = gk.Model({"last": last, "ys": ys})
    both(net, *({"xs": floats(t, 4), "c": floats(4)} for t in (3, 1, 7, 0, 3)))


def test_not_a_number_goes_through(card: Card) -> None:
    xs = floats(4, 2, 4)
    xs[1, 0, 2] = np.nan
    xs[2, 1, 1] = np.inf
    both(cell(4, 4), {"xs": xs, "h0": floats(2, 4)})


def test_a_long_loop_is_not_recorded(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_loop, "MOST_RECORDED", 8)
    both(cell(4, 5), {"xs": floats(5, 2, 4), "h0": floats(2, 4)})
    assert not card.recordings


def test_what_has_no_kernel_is_interpreted_alone(card: Card) -> None:
    xs = gk.input("xs", [3, 2, 2])
    last, ys = gk.scan(lambda c, x: (gk.tanh(c + x), gk.ops.F.det(x)), gk.input("c", [2, 2]), xs)
    exe = both(gk.Model({"last": last, "ys": ys}), {"xs": floats(3, 2, 2), "c": floats(2, 2)})
    assert [name.rpartition(" ")[2] for name in exe.plan.fallbacks] == ["(Det)"]
    assert set(card.interpreted) == {"Det"}


# --- loops ------------------------------------------------------------------------------------------


def halved(limit: int | None = None) -> gk.Model:
    x = gk.input("x", [3])
    y, count = gk.while_loop(
        lambda s: gk.reduce_sum(s[0] * s[0]) > 1.0, lambda s: (s[0] * 0.5, s[1] + 1), (x, np.array(0)), limit
    )
    return gk.Model({"y": y, "count": count})


@together()
@pytest.mark.parametrize("limit", [None, 3])
def test_a_while_loop_looks_at_its_condition(limit: int | None, card: Card) -> None:
    runs = [{"x": np.full(3, size, np.float32)} for size in (100, 0.1, 7, np.nan)]
    exe = both(halved(limit), *runs)
    assert not exe.plan.fallbacks
    assert not card.interpreted


def test_iterations_are_counted(card: Card) -> None:
    count, x = Value(TensorType("int64", ()), "i"), Value(TensorType("float32", (2,)), "s")
    keep = Value(TensorType("bool", ()), "keep")
    body = Graph([count, keep, x], [keep, F.add(x, F.cast(count, to="float32")), F.mul(count, count)])
    start = Value(TensorType("float32", (2,)), "x")
    for trips in (np.array(5), np.array([4])):
        loop = Node(registry.find("", "Loop")(body=body, captures=0), (F.constant(value=trips), None, start))
        net = Graph([start], loop.outputs, output_names=["y", "squares"])
        exe = Executor(net, ParamStore({}), device="cuda")
        for _ in range(4):
            found = exe.run({"x": np.ones(2, np.float32)})
            assert found["squares"].tolist() == [i * i for i in range(trips.item())]
            assert found["y"].tolist() == [1 + sum(range(trips.item()))] * 2
        assert not exe.plan.fallbacks


@together()
@pytest.mark.parametrize("width", [4, 3])
def test_what_a_run_tells_the_length_of_grows(width: int, card: Card) -> None:
    """Stack rows, some of which are states. Their size is a multiple of what kernels need, or not."""
    count, keep = Value(TensorType("int64", ()), "i"), Value(TensorType("bool", ()), "keep")
    s, limit = Value(TensorType("float32", (width,)), "s"), Value(TensorType("int64", ()), "limit")
    new = F.mul(s, F.constant(value=np.full(width, 0.5, np.float32)))
    body = Graph([count, keep, s, limit], [F.less(count, limit), new, new, F.add(new, s), F.cast(count, to="float32")])
    x, n = Value(TensorType("float32", (width,)), "x"), Value(TensorType("int64", ()), "n")
    loop = Node(registry.find("", "Loop")(body=body, captures=1), (None, None, x, n))
    net = Graph([x, n], [*loop.outputs, F.reduce_sum(loop.outputs[2])], output_names=["y", "a", "b", "c", "total"])
    exe, plain = (Executor(net, ParamStore({}), device=device) for device in ("cuda", "cpu"))
    for limit in (0, 5, 1, 9, 2):
        feeds = {"x": np.arange(1, width + 1, dtype=np.float32), "n": np.array(limit)}
        expected = plain.run(feeds)
        for name, array in exe.run(feeds).items():
            np.testing.assert_array_equal(array, expected[name], err_msg=name)
        assert len(expected["a"]) == limit + 1
    assert not {*card.interpreted} - {"ReduceSum"}


def test_what_grows_inside_of_a_loop_is_interpreted(card: Card) -> None:
    """No memory is planned for it."""

    def halvings(x: Any) -> Any:
        count, keep = Value(TensorType("int64", ()), "i"), Value(TensorType("bool", ()), "keep")
        s = Value(TensorType("float32", (4,)), "s")
        new = F.mul(s, F.constant(value=np.full(4, 0.5, np.float32)))
        large = F.greater(F.reduce_sum(F.mul(new, new), keepdims=0), F.constant(value=np.array(0.1, np.float32)))
        body = Graph([count, keep, s], [large, new, new])
        return Node(registry.find("", "Loop")(body=body, captures=0), (None, None, x)).outputs[1]

    def step(c: Any, x: Any) -> tuple[Any, Any]:
        total = gk.reduce_sum(halvings(x), np.array([0]), keepdims=False)
        return c + total, total

    last, ys = gk.scan(step, gk.input("c", [4]), gk.input("xs", [3, 4]))
    exe = both(gk.Model({"last": last, "ys": ys}), {"xs": floats(3, 4), "c": floats(4)})
    assert [name.rpartition(" ")[2] for name in exe.plan.fallbacks] == ["(Scan)"]


def test_a_loop_without_end_meets_its_limit(card: Card) -> None:
    x = gk.input("x", [3])
    y = gk.while_loop(lambda s: gk.reduce_sum(s * s) >= 0.0, lambda s: s + 1.0, x)
    exe = gk.Model({"y": y}).compile("cuda", max_iterations=20)
    with pytest.raises(LimitReached, match=r"^node 'while_loop' Loop\(.*\): more than 20 iterations"):
        exe.run({"x": np.ones(3, np.float32)})
    timed = gk.Model({"y": y}).compile("cuda", timeout=0.2)
    with pytest.raises(LimitReached, match=r"node .*time"):
        timed.run({"x": np.ones(3, np.float32)})


# --- branches ---------------------------------------------------------------------------------------


def test_the_branch_that_the_condition_tells(card: Card) -> None:
    x, p = gk.input("x", [3]), gk.input("p", [], "bool")
    one, two = gk.cond(p, lambda a: (gk.exp(a), a), lambda a: (a - 1.0, gk.tanh(a * 2.0)), (x,))
    net = gk.Model({"one": one, "two": two})
    exe = both(net, *({"x": floats(3), "p": np.array(value)} for value in (True, False)))
    assert not exe.plan.fallbacks


def test_a_branch_in_a_loop(card: Card) -> None:
    xs = gk.input("xs", [5, 4])

    def step(c: Any, x: Any) -> tuple[Any, Any]:
        new = gk.cond(gk.reduce_sum(x) > 0.0, lambda a, b: a + b, lambda a, b: a * 0.5, (c, x))
        return new, new

    last, ys = gk.scan(step, gk.input("c", [4]), xs)
    exe = both(gk.Model({"last": last, "ys": ys}), {"xs": floats(5, 4), "c": floats(4)})
    assert not exe.plan.fallbacks


# --- faults -----------------------------------------------------------------------------------------


def test_a_fault_inside_names_its_node(card: Card) -> None:
    table, ids = gk.input("table", [4, 4]), gk.input("ids", [6], "int64")

    def step(c: Any, i: Any) -> tuple[Any, Any]:
        return c + gk.gather(table, i, axis=0, name="pick"), c

    last, _ = gk.scan(step, gk.input("c", [4]), ids)
    exe = gk.Model({"last": gk.gather(last, gk.input("at", [], "int64"), name="outside")}).compile("cuda")
    feeds = {"table": floats(4, 4), "c": floats(4), "ids": np.arange(6) % 4, "at": np.array(0)}
    for _ in range(3):
        exe.run(feeds)
        with pytest.raises(RuntimeFailure, match=r"pick.*Gather.*: an index is outside axis 0"):
            exe.run({**feeds, "ids": np.array([0, 1, 9, 0, 0, 0])})
        with pytest.raises(RuntimeFailure, match=r"outside.*Gather"):
            exe.run({**feeds, "at": np.array(4)})


# --- gradients --------------------------------------------------------------------------------------


def recurrent(x: gk.Value) -> gk.Value:
    w = gk.parameter("w", (5, 5), init=gk.init.Normal(0.5))
    v = gk.parameter("v", (3, 5), init=gk.init.Normal(0.5))
    rows = gk.transpose(x, perm=[1, 0, 2])

    def step(h: Any, row: Any) -> tuple[Any, Any]:
        new = gk.tanh((h @ w) + (row @ v))
        return new, new

    start = gk.reduce_sum(rows, np.array([0, 2]), keepdims=False)
    h0 = gk.reshape(start, np.array([-1, 1])) * gk.constant(np.zeros((1, 5), np.float32))
    _, ys = gk.scan(step, h0, rows)
    return gk.nn.linear(gk.reduce_mean(ys, np.array([0]), keepdims=False), 4)


def adaptive(x: gk.Value) -> gk.Value:
    """A loop with a data-dependent number of iterations, and its gradient."""
    w = gk.parameter("w", (3, 3), init=gk.init.Normal(0.3))
    h = gk.while_loop(
        lambda s: gk.reduce_sum(s * s) > 0.5, lambda s: gk.tanh(s @ w) * 0.7, x[:, 0], maximum_iterations=6
    )
    return gk.nn.linear(h, 4)


@together()
@pytest.mark.parametrize(("build", "inside"), [(recurrent, set()), (adaptive, {"Gather"})])
def test_training_through_a_loop(build: Callable[[gk.Value], gk.Value], inside: set[str], card: Card) -> None:
    def trained(device: str) -> tuple[list[float], dict[str, np.ndarray]]:
        rng = np.random.default_rng(3)
        net = gk.Model({"y": build(gk.input("x", ["N", 6, 3]))}, seed=3)
        trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.Adam(0.01), device=device, seed=1)
        losses = [
            float(trainer.step(rng.standard_normal((7, 6, 3)).astype(np.float32), rng.integers(0, 4, 7)))
            for _ in range(4)
        ]
        return losses, dict(net.params)

    here, params = trained("cpu")
    there, found = trained("cuda")
    np.testing.assert_allclose(there, here, rtol=1e-4)
    for name, array in params.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-5)
    # Of how much was stacked, a run tells.
    assert {*card.interpreted} - {"Shape"} <= inside
