"""Loops in saved programs (.gkp)."""

import numpy as np
import pytest
from combinations import in_one_item
from saved_loops import counted_model, nested_model, scan_model, while_model
from saved_programs import assert_same_bits, check

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
