"""Loops in saved programs (.gkp)."""

import json
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper
from saved_loops import (
    counted_model,
    info,
    nested_model,
    scan_model,
    second_gradient,
    stacks_model,
    table_gradient,
    while_gradient,
    while_model,
)
from saved_programs import assert_same_bits, check, model_of, random_feeds

import graphkit as gk
from graphkit.errors import RuntimeFailure, UnsupportedError
from graphkit.executor.run import saved_steps
from graphkit.executor.run.c_runtime import CSession


@pytest.mark.parametrize("backwards", [0, 1])
def test_scans(backwards, tmp_path):
    check(scan_model(backwards), tmp_path / "net.gkp")


def test_loops_in_branches_and_loops(tmp_path):
    check(nested_model(), tmp_path / "net.gkp")


@in_one_item()
@pytest.mark.parametrize(("m", "start", "limit"), [(5, True, 100), (0, True, 3), (5, False, 3), (50, True, 100)])
def test_while_loops_read_trip_count_and_conditions(m, start, limit, tmp_path):
    net = while_model()
    net.save(tmp_path / "net.gkp")
    feeds = {
        "m": np.array(m), "start": np.array(start), "x": np.array([1, 2], np.float32),
        "limit": np.array(limit, np.float32),
    }  # fmt: skip
    with CSession(tmp_path / "net.gkp") as session:
        found = session.run(feeds)
    assert_same_bits(found, net.run(feeds))
    trips = 0 if not start else {0: 0, 5: 5, 50: 6}[m]
    np.testing.assert_array_equal(found["y"], feeds["x"] * 2**trips)
    assert found["n"] == trips * (trips - 1) // 2


@pytest.mark.parametrize("starts", [True, False])
def test_loops_whose_condition_is_constant(starts, tmp_path):
    feeds, expected = check(counted_model(starts), tmp_path / "net.gkp")
    np.testing.assert_array_equal(expected["rows"], feeds["x"] * np.array([[1], [2], [3]], np.float32)[: 3 * starts])


def test_gradient_of_a_loop(tmp_path):
    """The backward loop reads what the forward loop stacked, from the end."""
    x, start = gk.input("x", [5, 2, 3]), gk.constant(np.zeros((2, 4), np.float32))

    def step(h, row):
        h = gk.tanh(gk.nn.linear(row, 4, name="in") + gk.nn.linear(h, 4, name="rec", bias=False))
        return h, h

    last, states = gk.scan(step, start, x)
    net = gk.Model({"loss": gk.reduce_mean(last * states, keepdims=False)})
    check(gk.grad(net, of="loss", with_outputs=True), tmp_path / "net.gkp")


def test_gradient_of_a_loop_in_blocks(tmp_path):
    """The backward pass computes blocks of iterations again, and adds gradients of slices."""
    x, w = gk.input("x", [5, 3]), gk.input("w", [3])
    last = gk.fold(lambda carry, row: gk.tanh(carry * row) + w, x[0], x, recompute=2)
    net = gk.Model({"loss": gk.reduce_mean(last, keepdims=False)})
    check(gk.grad(net, of="loss", wrt=["x", "w"], with_outputs=True), tmp_path / "net.gkp")


@pytest.mark.parametrize("make", [while_gradient, table_gradient, second_gradient])
def test_gradient_of_a_while_loop(make, tmp_path):
    """One file computes any number of iterations, also fewer than in the run before."""
    net = make()
    net.save(tmp_path / "net.gkp")
    with CSession(tmp_path / "net.gkp") as session:
        for n in (3, 0, 40, 1, -1, 7):
            feeds = random_feeds(net, {}, seed=n + 1) | {"n": np.array(n)}
            assert_same_bits(session.run(feeds), net.run(feeds))


def inner_loop(h, w, n, x):
    """tanh(h * w) + x, n times."""
    start = (gk.constant(np.int64(0)), h)
    return gk.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, gk.tanh(s[1] * w) + x), start)[1]


def outer_loop(h, w, n, x):
    start = (gk.constant(np.int64(0)), h)
    return gk.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, inner_loop(s[1], w, s[0], x)), start)[1]


def loop_in_branch(h, w, n, x):
    return gk.cond(gk.reduce_sum(h, keepdims=False) > 0.0, lambda: inner_loop(h, w, n, x), lambda: gk.sin(h) * w)


@pytest.mark.parametrize("make", [outer_loop, loop_in_branch])
def test_gradient_of_nested_while_loops(make, tmp_path):
    x, w, n = gk.input("x", [2, 3]), gk.input("w", [3]), gk.input("n", [], "int64")
    loss = gk.reduce_mean(make(x, w, n, x), keepdims=False)
    net = gk.grad(gk.Model({"loss": loss}), of="loss", wrt=["x", "w"], with_outputs=True)
    net.save(tmp_path / "net.gkp")
    with CSession(tmp_path / "net.gkp") as session:
        for n, sign in ((3, 1), (3, -1), (0, 1), (5, 1)):
            feeds = random_feeds(net, {}, seed=n) | {"n": np.array(n)}
            feeds["x"] = sign * np.abs(feeds["x"])
            assert_same_bits(session.run(feeds), net.run(feeds))


def test_kernels_whose_results_have_another_number_of_rows_are_refused(tmp_path):
    body = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["row"])],
        "body",
        [info("i", TensorProto.INT64), info("c", TensorProto.BOOL)],
        [info("c", TensorProto.BOOL), info("row", shape=[2])],
    )
    nodes = [
        helper.make_node("Loop", ["m", ""], ["rows"], name="grow", body=body),
        helper.make_node("Concat", ["rows", "rows"], ["twice"], name="join", axis=0),
        helper.make_node("ReduceSum", ["twice"], ["y"], keepdims=0),
    ]
    net = model_of(nodes, [("m", np.int64, []), ("x", np.float32, [2])], [("y", np.float32, [])])
    with pytest.raises(UnsupportedError, match=r"program for C: join \(Concat: shapes that depend on values"):
        net.save(tmp_path / "net.gkp")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("width", "message"), [(2, ""), (3, "the rows of a result have another shape in the other")])
def test_loops_in_two_branches_stack_one_result(width, message, tmp_path):
    """The rows of the branches must have one shape."""

    def branch(columns):
        body = helper.make_graph(
            [helper.make_node("Identity", [f"x{columns}"], ["row"])],
            "body",
            [info("i", TensorProto.INT64), info("c", TensorProto.BOOL)],
            [info("c", TensorProto.BOOL), info("row", shape=[columns])],
        )
        loop = helper.make_node("Loop", ["m", ""], ["rows"], name="grow", body=body)
        return helper.make_graph([loop], f"rows{columns}", [], [info("rows", shape=["N", "W"])])

    choice = helper.make_node("If", ["c"], ["rows"], name="choice", then_branch=branch(2), else_branch=branch(width))
    net = model_of(
        [choice, helper.make_node("Shape", ["rows"], ["sizes"])],
        [("c", bool, []), ("m", np.int64, []), ("x2", np.float32, [2]), ("x3", np.float32, [3])],
        [("sizes", np.int64, [2])],
    )
    if message:
        with pytest.raises(UnsupportedError, match=f"choice/else/grow: {message}"):
            net.save(tmp_path / "net.gkp")
        return
    net.save(tmp_path / "net.gkp")
    with CSession(tmp_path / "net.gkp") as session:
        for m in (4, 2):
            feeds = random_feeds(net, {}) | {"m": np.array(m), "c": np.array(m > 3)}
            np.testing.assert_array_equal(session.run(feeds)["sizes"], [m, 2])


def test_scans_over_a_stack_of_unknown_length(tmp_path):
    net = stacks_model()
    net.save(tmp_path / "net.gkp")
    x = np.array([1, 2], np.float32)
    with CSession(tmp_path / "net.gkp") as session:
        for m, i in ((4, 0), (2, -1), (9, 8), (1, 0)):
            feeds = {"m": np.array(m), "i": np.array(i), "x": x}
            found = session.run(feeds)
            assert_same_bits(found, net.run(feeds))
            np.testing.assert_array_equal(found["other"], -x * (m + 1 if i == 0 else 2))
            np.testing.assert_array_equal(found["sizes"], [m, 2])
        with pytest.raises(RuntimeFailure, match=r"index 3 is outside of an axis of size 3 \(GK_ERROR_RUN"):
            session.run({"m": np.array(3), "i": np.array(3), "x": x})
        with pytest.raises(RuntimeFailure, match="index 0 is outside of an axis of size 0"):
            session.run({"m": np.array(0), "i": np.array(0), "x": x})


@pytest.mark.full
def test_training_step_of_a_while_loop(tmp_path, monkeypatch):
    """The iterations depend on the weights. Losses and states have the bits of Python."""
    monkeypatch.chdir(tmp_path)
    h = gk.tanh(gk.nn.linear(gk.input("x", ["N", 6]), 8, name="in"))
    h = gk.while_loop(
        lambda h: gk.reduce_sum(h * h, keepdims=False) < 60.0,
        lambda h: h + 0.3 * gk.tanh(gk.nn.linear(h, 8, name="again")), h, 20, name="think",
    )  # fmt: skip
    trainer = gk.Trainer(gk.Model({"y": gk.nn.linear(h, 3, name="out")}), optimizer=gk.optim.Adam(1e-2))
    trainer.to_onnx("step.onnx")
    step = gk.load("step.onnx")
    step.save("step.gkp", shapes={"x": (4, 6), "target": (4,)})
    roles = json.loads(Path("step_roles.json").read_text())
    states, exe, rng = gk.load("step_init.onnx").run({}), step.compile(), np.random.default_rng(0)
    with CSession("step.gkp") as session:
        for _ in range(8):
            batch = {"x": rng.standard_normal((4, 6)).astype(np.float32), "target": rng.integers(0, 3, 4)}
            found = session.run(batch | states)
            assert_same_bits(found, exe.run(batch | states))
            loss = trainer.step(batch["x"], batch["target"])
            np.testing.assert_allclose(found[roles["loss"]], float(loss), rtol=1e-5)
            states = {state["input"]: found[state["output"]] for state in roles["states"]}


def test_runs_have_limits_of_iterations_and_time(tmp_path):
    net = while_model()
    net.save(tmp_path / "net.gkp")
    feeds = {"m": np.array(1 << 40), "start": np.array(True), "x": np.ones(2, np.float32) * 0}
    feeds["limit"] = np.array(1, np.float32)
    with CSession(tmp_path / "net.gkp", max_iterations=7) as session:
        with pytest.raises(
            RuntimeFailure, match=r"grow: more than 7 iterations \(gk_options.max_iterations\) \(GK_ERROR_LIMIT"
        ):
            session.run(feeds)
        assert session.run(feeds | {"m": np.array(7)})["n"] == 21
    with (
        CSession(tmp_path / "net.gkp", timeout=0.01) as session,
        pytest.raises(RuntimeFailure, match=r"time limit is over \(gk_options.timeout\) \(GK_ERROR_LIMIT"),
    ):
        session.run(feeds)


def test_loops_with_dynamic_sizes_are_refused(tmp_path):
    x = gk.input("x", [2])
    grown = gk.while_loop(
        lambda s: gk.reduce_sum(s, keepdims=False) < 9.0, lambda s: gk.concat(s, s, axis=0), x, name="grow"
    )
    with pytest.raises(UnsupportedError, match=r"grow.* \(Loop: the shape of a state changes"):
        gk.Model({"y": gk.reduce_sum(grown)}).save(tmp_path / "net.gkp")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("_MOST_LEVELS", r"/body/.* \((If|Scan): more than 2 levels of branches"),
        ("_MOST_PIECES", r"more than 2 states"),
    ],
)
def test_loops_that_the_reader_rejects_are_refused(limit, message, tmp_path, monkeypatch):
    monkeypatch.setattr(saved_steps, limit, 2)
    with pytest.raises(UnsupportedError, match=message):
        (nested_model if limit == "_MOST_LEVELS" else scan_model)().save(tmp_path / "net.gkp")
    assert not list(tmp_path.iterdir())
