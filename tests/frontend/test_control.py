from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InvalidModel, TypeMismatch, UsageError
from graphkit.frontend import tree
from graphkit.ops.evaluate import evaluate


def run(outputs, **feeds):
    """Arrays by output name."""
    net = gk.Model(outputs, seed=1)
    values = [feeds[n] if n in feeds else net.params[n] for n in net.graph.input_names]
    return dict(zip(net.outputs, evaluate(net.graph, values), strict=True)), net


def f32(*values):
    return np.array(values, np.float32)


# --- trees ------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: object
    right: object


@in_one_item()
@pytest.mark.parametrize(
    "nested", [1, (1, 2), [1, (2,)], {"b": 1, "a": [2, {"c": 3}]}, Pair(1, (2, 3)), (), {}, None, (1, None, [])]
)
def test_trees_come_back(nested):
    shape = tree.skeleton(nested)
    rebuilt = tree.unflatten(shape, list(tree.leaves(nested)))
    assert rebuilt == nested
    assert type(rebuilt) is type(nested)
    assert tree.skeleton(rebuilt) == shape
    assert len(list(tree.paths(nested))) == len(list(tree.leaves(nested)))


def test_tree_paths_and_order():
    nested = {"b": (1, 2), "a": [3]}
    assert list(tree.leaves(nested)) == [3, 1, 2]
    assert list(tree.paths(nested)) == ["['a'][0]", "['b'][0]", "['b'][1]"]
    assert str(tree.skeleton(nested)) == "{'b': (*, *), 'a': [*]}"


@in_one_item()
@pytest.mark.parametrize(
    ("nested", "words"),
    [(1, "one value"), (None, "None"), ((1, 2), "a tuple of 2 values"), ([1], "a list of 1 value"),
     (((1, 2), 3), "the nesting ((*, *), *), where * is a value")],
)  # fmt: skip
def test_nestings_are_described_in_words(nested, words):
    assert tree.described(tree.skeleton(nested)) == words


# --- cond -------------------------------------------------------------------------------------------


def test_cond_chooses_a_branch_and_captures_outer_values():
    x, scale = gk.input("x", ["N"]), gk.input("scale", [])
    shifted = x + 1.0
    result = gk.cond(gk.reduce_sum(x) > 0.0, lambda a: (a * scale, shifted), lambda a: (a - scale, a), (x,))
    for data in (f32(1, 2), f32(-1, -2)):
        found, net = run({"a": result[0], "b": result[1]}, x=data, scale=f32(3).reshape(()))
        positive = data.sum() > 0
        np.testing.assert_allclose(found["a"], data * 3 if positive else data - 3)
        np.testing.assert_allclose(found["b"], data + 1 if positive else data)
    (branch,) = [n for n in net.graph.nodes if n.op.name == "If"]
    assert {v.name for v in branch.op.then_branch.inputs} >= {"x", "scale"}
    assert len(branch.op.then_branch.inputs) == len(branch.op.else_branch.inputs) == len(branch.inputs) - 1


def test_cond_results_keep_their_nesting_and_numbers_follow_the_other_branch():
    x = gk.input("x", [2], "float64")
    result = gk.cond(True, lambda: {"y": [x], "k": 1}, lambda: {"k": gk.reduce_sum(x, keepdims=False), "y": [x * 2]})
    assert set(result) == {"y", "k"}
    assert isinstance(result["y"], list)
    assert result["k"].dtype == gk.DType.FLOAT64


def test_cond_joins_sizes():
    p, x = gk.input("p", [], "bool"), gk.input("x", ["N", 3])
    y = gk.cond(p, lambda: x, lambda: gk.concat(x, x, axis=0))
    assert y.rank == 2
    assert y.shape[1] == 3
    assert y.shape[0] != x.shape[0]
    found, _ = run({"y": y}, p=np.array(False), x=np.ones((2, 3), np.float32))
    assert found["y"].shape == (4, 3)


def test_cond_errors():
    p, x = gk.input("p", [], "bool"), gk.input("x", [3])
    with pytest.raises(TypeMismatch, match="then_fn returned a tuple of 2 values, but else_fn returned one value"):
        gk.cond(p, lambda: (x, x), lambda: x)
    with pytest.raises(
        TypeMismatch, match=r"result\['h'\]\[1\] is float32\[3\] in then_fn, but int64\[3\] in else_fn; cast"
    ):
        gk.cond(p, lambda: {"h": (x, x)}, lambda: {"h": (x, gk.cast(x, to="int64"))})
    with pytest.raises(TypeMismatch, match="choice: pred must be a boolean scalar"):
        gk.cond(x, lambda: x, lambda: x, name="choice")
    with pytest.raises(UsageError, match="no value"):
        gk.cond(p, lambda: None, lambda: None)


def test_nested_control_flow_captures_through_both_regions():
    p, x, w = gk.input("p", [], "bool"), gk.input("x", [2]), gk.input("w", [])
    y = gk.cond(
        p, lambda: gk.while_loop(lambda s: gk.reduce_sum(s, keepdims=False) < 50.0, lambda s: s * w, x), lambda: x
    )
    found, _ = run({"y": y}, p=np.array(True), x=f32(1, 2), w=f32(3).reshape(()))
    np.testing.assert_allclose(found["y"], f32(27, 54))


# --- while_loop -------------------------------------------------------------------------------------


def test_while_loop_over_a_dict():
    n = gk.input("n", [], "int64")
    end = gk.while_loop(
        lambda s: s["i"] < n,
        lambda s: {"i": s["i"] + 1, "f": (s["f"][1], s["f"][0] + s["f"][1])},
        {"i": 0, "f": (0, 1)},
    )
    found, _ = run({"fibonacci": end["f"][0]}, n=np.array(10))
    assert found["fibonacci"] == 55
    assert run({"fibonacci": end["f"][0]}, n=np.array(0))[0]["fibonacci"] == 0


@in_one_item()
@pytest.mark.parametrize("limit", [0, 3, np.int64(4)])
def test_while_loop_stops_at_maximum_iterations(limit):
    x = gk.input("x", [])
    y = gk.while_loop(lambda s: s > 0.0, lambda s: s * 2.0, x, maximum_iterations=limit)
    assert run({"y": y}, x=f32(1).reshape(()))[0]["y"] == 2.0**limit


def test_while_loop_limit_from_the_graph():
    x, m = gk.input("x", []), gk.input("m", [], "int32")
    y = gk.while_loop(lambda s: s > 0.0, lambda s: s * 2.0, x, m)
    assert run({"y": y}, x=f32(1).reshape(()), m=np.array(5, np.int32))[0]["y"] == 32.0


def test_while_loop_lets_sizes_grow():
    x = gk.input("x", ["N", 3])
    y = gk.while_loop(lambda s: gk.reduce_sum(s, keepdims=False) < 20.0, lambda s: gk.concat(s, s, axis=0), x)
    assert y.shape[1] == 3
    assert y.shape[0] != x.shape[0]
    assert run({"y": y}, x=np.ones((1, 3), np.float32))[0]["y"].shape == (8, 3)


def test_parameters_made_inside_belong_to_the_model_once():
    x = gk.input("x", ["N", 4])
    y = gk.while_loop(
        lambda s: gk.nn.linear(gk.reduce_mean(s), 1, name="gate")[0, 0] < 5.0,
        lambda s: gk.nn.linear(s, 4, name="cell"),
        x,
        3,
    )
    found, net = run({"y": y}, x=np.ones((2, 4), np.float32))
    assert sorted(net.params) == ["cell_bias", "cell_weight", "gate_bias", "gate_weight"]
    w, b = net.params["cell_weight"], net.params["cell_bias"]
    gate = [net.params["gate_weight"].item(), net.params["gate_bias"].item()]
    s = np.ones((2, 4), np.float32)
    for _ in range(3):
        if s.mean() * gate[0] + gate[1] >= 5.0:
            break
        s = s @ w.T + b
    np.testing.assert_allclose(found["y"], s, rtol=1e-5)


def test_while_loop_errors():
    x = gk.input("x", [3])
    keep = lambda s: gk.reduce_sum(s, keepdims=False) < 1.0  # noqa: E731
    with pytest.raises(TypeMismatch, match="body_fn returned a tuple of 2 values, but the state is one value"):
        gk.while_loop(keep, lambda s: (s, s), x)
    with pytest.raises(TypeMismatch, match=r"state\['h'\] is float32\[3\] before, but int64\[3\] after"):
        gk.while_loop(lambda s: keep(s["h"]), lambda s: {"h": gk.cast(s["h"], to="int64")}, {"h": x})
    with pytest.raises(TypeMismatch, match="cond_fn's result must be a boolean scalar"):
        gk.while_loop(lambda s: s, lambda s: s, x)
    with pytest.raises(TypeMismatch, match=r"^while_loop: cond_fn's .* is bool\[1\] before the loop and bool\[2\]"):
        gk.while_loop(lambda s: s < 3.0, lambda s: gk.concat(s, s, axis=0), gk.input("y", [1]))
    with pytest.raises(UsageError, match="no value"):
        gk.while_loop(lambda s: True, lambda s: s, ())
    with pytest.raises(UsageError, match=r"maximum_iterations must be an integer or a graph value or None, not 2.5"):
        gk.while_loop(keep, lambda s: s, x, 2.5)


def test_condition_of_one_element_on_a_growing_state():
    w = gk.parameter("w", [1], "ones")

    def grown(s):
        return gk.concat(s + w, s, axis=0)

    for size in (1, "N"):
        y = gk.while_loop(lambda s: s[:1] < 4.0, grown, gk.input("x", [size]))
        found = gk.Model({"y": y}).run({"x": np.array([1.0], np.float32)})
        assert found["y"].tolist() == [4, 3, 3, 2, 3, 2, 2, 1]


def test_an_input_made_in_a_branch_is_refused():
    x = gk.input("x", [3])
    with pytest.raises(UsageError, match=r"the input made: .* is created inside a function of cond.* create it before"):
        gk.cond(gk.reduce_sum(x, keepdims=False) > 0.0, lambda: x, lambda: gk.input("made", [3]))


def test_a_value_of_a_region_does_not_leave_it():
    x, kept = gk.input("x", [3]), []
    gk.map(lambda row: kept.append(row * 2.0) or row, x)
    with pytest.raises(InvalidModel, match="not among its inputs"):
        gk.Model(kept[0], inputs=[x])


# --- scan and what is made of it --------------------------------------------------------------------

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_carries_and_stacks(reverse):
    x = gk.input("x", ["T", 3])
    carry, ys = gk.scan(
        lambda c, row: (c + row, {"sum": c + row, "old": c}), gk.constant(np.zeros(3, np.float32)), x, reverse
    )
    assert ys["sum"].shape == x.shape
    found, _ = run({"carry": carry, **ys}, x=ROWS)
    sums = np.cumsum(ROWS[::-1] if reverse else ROWS, axis=0)
    np.testing.assert_allclose(found["carry"], sums[-1])
    np.testing.assert_allclose(found["sum"], sums[::-1] if reverse else sums)
    np.testing.assert_allclose(found["old"], (sums - (ROWS[::-1] if reverse else ROWS))[:: -1 if reverse else 1])


def test_scan_axes_several_sequences_and_captures():
    x, y, w = gk.input("x", [3, "T"]), gk.input("y", [2, "T"]), gk.input("w", [])
    carry, out = gk.scan(
        lambda c, e: (c + gk.reduce_sum(e["y"], keepdims=False), e["x"] * w),
        np.float32(0),
        {"x": x, "y": y},
        axis=-1,
        out_axis=1,
    )
    assert str(out.type) == "float32[3, T]"
    ys = np.ones((2, 4), np.float32)
    found, _ = run({"carry": carry, "out": out}, x=ROWS.T, y=ys, w=f32(2).reshape(()))
    np.testing.assert_allclose(found["out"], ROWS.T * 2)
    assert found["carry"] == 8.0


def test_scan_by_length():
    n = gk.input("n", [], "int64")
    carry, ys = gk.scan(lambda c, x: (c * 2.0, c if x is None else x), np.float32(1), None, length=n)
    found, _ = run({"carry": carry, "ys": ys}, n=np.array(4))
    assert found["carry"] == 16.0
    assert found["ys"].tolist() == [1.0, 2.0, 4.0, 8.0]


def test_scan_over_nothing():
    x = gk.input("x", ["T", 3])
    carry, ys = gk.scan(lambda c, row: (c + row, row), gk.constant(np.ones(3, np.float32)), x)
    found, _ = run({"carry": carry, "ys": ys}, x=ROWS[:0])
    assert found["carry"].tolist() == [1, 1, 1]
    assert found["ys"].shape == (0, 3)


def test_map_foreach_fold():
    x = gk.input("x", ["T", 3])
    total = gk.constant(np.zeros(3, np.float32))
    outs, state = gk.foreach(lambda row, s: (row * 2.0, s + row), x, total)
    outputs = {
        "map": gk.map(lambda row: gk.reduce_sum(row, keepdims=False), x),
        "outs": outs,
        "state": state,
        "fold": gk.fold(lambda c, row: c * 0.5 + row, total, x, reverse=True),
    }
    found, _ = run(outputs, x=ROWS)
    np.testing.assert_allclose(found["map"], ROWS.sum(1))
    np.testing.assert_allclose(found["outs"], ROWS * 2)
    np.testing.assert_allclose(found["state"], ROWS.sum(0))
    expected = np.zeros(3)
    for row in ROWS[::-1]:
        expected = expected * 0.5 + row
    np.testing.assert_allclose(found["fold"], expected)


def test_scan_errors():
    x, y = gk.input("x", [4, 3]), gk.input("y", [5, 3])
    zero = np.float32(0)
    with pytest.raises(UsageError, match=r"must return a tuple \(carry, y\); it returned one value"):
        gk.scan(lambda c, row: c, zero, x)
    with pytest.raises(
        TypeMismatch, match=r"xs\[0\] is x: float32\[4, 3\] and xs\[1\] is y: float32\[5, 3\]: the lengths differ"
    ):
        gk.scan(lambda c, row: (c, row), zero, (x, y))
    with pytest.raises(TypeMismatch, match=r"carry\[0\] is float32\[3\] before, but float32\[6\] after"):
        gk.scan(lambda c, row: ((gk.concat(c[0], row, axis=0),), row), (x[0],), x)
    with pytest.raises(TypeMismatch, match="no axis 2 to scan"):
        gk.scan(lambda c, row: (c, row), zero, x, axis=2)
    with pytest.raises(UsageError, match="length="):
        gk.scan(lambda c, row: (c, c), zero, None)
    with pytest.raises(UsageError, match="no value"):
        gk.scan(lambda c, row: (None, None), None, x)
    with pytest.raises(UsageError, match=r"\(outputs, states\)"):
        gk.foreach(lambda row, s: row, x, zero)


def test_axes_for_each_leaf():
    x, y = gk.input("x", ["T", 3]), gk.input("y", [2, "T"])
    _, out = gk.scan(
        lambda c, e: (c, {"a": e["x"] * 2.0, "b": e["y"] + 1.0}),
        np.float32(0),
        {"x": x, "y": y},
        axis={"x": 0, "y": -1},
        out_axis={"a": 1, "b": 0},
    )
    ys = np.arange(8, dtype=np.float32).reshape(2, 4)
    found, _ = run(out, x=ROWS, y=ys)
    np.testing.assert_allclose(found["a"], ROWS.T * 2)
    np.testing.assert_allclose(found["b"], ys.T + 1)


def test_foreach_takes_axes_and_directions():
    x = gk.input("x", [3, "T"])
    outs, last = gk.foreach(
        lambda row, s: (s + row, s + row), x, gk.constant(np.zeros(3, np.float32)), axis=1, out_axis=1, reverse=True
    )
    found, _ = run({"outs": outs, "last": last}, x=ROWS.T.copy())
    np.testing.assert_allclose(found["outs"], np.cumsum(ROWS[::-1], axis=0)[::-1].T)
    np.testing.assert_allclose(found["last"], ROWS.sum(0))


def test_options_of_loops_are_checked():
    x, keep = gk.input("x", [4, 3]), lambda s: gk.reduce_sum(s, keepdims=False) < 9.0
    for wrong in (0, -1, 1.5, True, None):
        with pytest.raises(UsageError, match=r"rows.*: parallel_iterations must be (an|a positive) integer"):
            gk.map(lambda row: row, x, parallel_iterations=wrong, name="rows")
        with pytest.raises(UsageError, match=r"search.*: parallel_iterations"):
            gk.while_loop(keep, lambda s: s * 2.0, x, parallel_iterations=wrong, name="search")
    with pytest.raises(UsageError, match=r"'rows'.*a block must have a positive number of iterations or 'sqrt', not 0"):
        gk.fold(lambda c, row: c + row, x[0], x, recompute=0, name="rows")
    with pytest.raises(UsageError, match=r"'search'.*need a known number of iterations"):
        gk.while_loop(keep, lambda s: s * 2.0, x, recompute="sqrt", name="search")
    with pytest.raises(
        UsageError,
        match=r"axis must be an integer, or .* tuple of 2 values; it is a tuple of 1 value",
    ):
        gk.scan(lambda c, e: (c, e), np.float32(0), (x, x), axis=(0,))
    with pytest.raises(UsageError, match=r"scan: axis\[1\] is 0.5, not an integer"):
        gk.scan(lambda c, e: (c, e), np.float32(0), (x, x), axis=(0, 0.5))
    with pytest.raises(TypeMismatch, match=r"map: y is .*float32\[3\], which cannot be stacked along a new axis 2"):
        gk.map(lambda row: row * 2.0, x, out_axis=2)


@in_one_item()
@pytest.mark.parametrize("recompute", [None, 1, 3, "sqrt"])
def test_blocks_compute_the_same(recompute):
    x = gk.input("x", [7, 3])
    options = {"recompute": recompute, "parallel_iterations": 2}
    first = gk.constant(np.ones(3, np.float32))
    outs, state = gk.foreach(lambda row, s: (row * 2.0, s + row), x, first, **options)
    below = lambda s: gk.reduce_sum(s, keepdims=False) < 1e6  # noqa: E731
    outputs = {
        "map": gk.map(lambda row: gk.reduce_sum(row, keepdims=False), x, **options),
        "outs": outs,
        "state": state,
        "fold": gk.fold(lambda c, row: c * 0.5 + row, first, x, reverse=True, **options),
        "loop": gk.while_loop(below, lambda s: s * 2.0, first, 9, **options),
    }
    rows = np.arange(21, dtype=np.float32).reshape(7, 3)
    found, _ = run(outputs, x=rows)
    np.testing.assert_allclose(found["map"], rows.sum(1))
    np.testing.assert_allclose(found["outs"], rows * 2)
    np.testing.assert_allclose(found["state"], rows.sum(0) + 1)
    expected = np.ones(3)
    for row in rows[::-1]:
        expected = expected * 0.5 + row
    np.testing.assert_allclose(found["fold"], expected)
    np.testing.assert_allclose(found["loop"], np.full(3, 512.0))


def test_parameters_of_a_body_that_is_traced_again():
    # The first call finds that sizes grow, the second builds the body.
    x = gk.input("x", ["N", 4])
    grow = lambda s: gk.concat(gk.nn.linear(s, 4, name="cell"), s, axis=0)  # noqa: E731
    y = gk.while_loop(lambda s: gk.reduce_sum(s, keepdims=False) < 1e9, grow, x, 2)
    found, net = run({"y": y}, x=np.ones((1, 4), np.float32))
    assert sorted(net.params) == ["cell_bias", "cell_weight"]
    assert found["y"].shape == (4, 4)


def test_captures_through_three_levels():
    x, w, p = gk.input("x", ["T", 2]), gk.input("w", [2]), gk.input("p", [], "bool")

    def step(carry, row):
        inner = lambda s: gk.cond(p, lambda: s * w + row, lambda: s - gk.nn.linear(row, 2, name="lin"))  # noqa: E731
        return gk.while_loop(lambda s: gk.reduce_sum(s, keepdims=False) < 40.0, inner, carry, 3), None

    last = gk.scan(step, gk.constant(np.ones(2, np.float32)), x)[0]
    rows = ROWS[:, :2] + 1
    found, net = run({"y": last}, x=rows, w=f32(1.5, 2.0), p=np.array(True))
    assert sorted(net.params) == ["lin_bias", "lin_weight"]
    expected = np.ones(2)
    for row in rows:
        for _ in range(3):
            if expected.sum() >= 40.0:
                break
            expected = expected * [1.5, 2.0] + row
    np.testing.assert_allclose(found["y"], expected, rtol=1e-6)
    gradients = gk.grad(net, wrt=["w", "lin_weight"]).run({"x": rows, "w": f32(1.5, 2.0), "p": np.array(True)})
    assert np.abs(gradients["w_grad"]).min() > 0
    np.testing.assert_array_equal(gradients["lin_weight_grad"], np.zeros((2, 2)))
