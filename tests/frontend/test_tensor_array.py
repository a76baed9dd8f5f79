from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.checks.gradcheck import check_graph
from graphkit.errors import RuntimeFailure, TypeMismatch
from graphkit.frontend import tree
from graphkit.ir.graph import Graph
from graphkit.ops.evaluate import evaluate
from graphkit.passes.control.merge import merge_control

RNG = np.random.default_rng(4)


def draw(*shape):
    return RNG.standard_normal(shape)


def run(output, inputs=(), arrays=()):
    return evaluate(Graph(list(inputs), [output]), list(arrays))[0]


def check(inputs, outputs, arrays):
    """First and second order along random directions."""
    outputs = outputs if isinstance(outputs, list) else [outputs]
    wrt = {v.name: v for v in inputs if v.dtype.is_float}
    report = check_graph(inputs, outputs, wrt, arrays, directions=2)
    assert report.passed, str(report)
    first = gradient(outputs, list(wrt.values()), allow_unused=True)
    report = check_graph(inputs, first, wrt, arrays, directions=2, together=True, rtol=1e-5, atol=1e-6)
    assert report.passed, str(report)


def f64(name, *shape):
    return gk.input(name, list(shape), "float64")


# --- forward ----------------------------------------------------------------------------------------


def test_a_new_array_is_zero():
    array = gk.TensorArray(3, [2], "int64")
    assert array.dtype is gk.DType.INT64
    assert array.element_shape == (2,)
    assert run(array.size) == 3
    np.testing.assert_array_equal(run(array.stack()), np.zeros((3, 2), np.int64))
    n = gk.input("n", [], "int32")
    assert run(gk.TensorArray(n).stack(), [n], [np.array(4, np.int32)]).shape == (4,)


def test_writes_and_reads():
    x = gk.input("x", [2])
    array = gk.TensorArray(4, [2]).write(1, x).write(-1, x * 2.0).write(1, x * 3.0)
    data = np.array([1.0, 2.0], np.float32)
    zero = np.zeros(2, np.float32)
    np.testing.assert_array_equal(run(array.stack(), [x], [data]), [zero, data * 3, zero, data * 2])
    np.testing.assert_array_equal(run(array.read(-1), [x], [data]), data * 2)
    assert run(gk.TensorArray(2).write(0, 3.5).read(0)) == 3.5


def test_several_elements_at_once():
    x = gk.input("x", ["N", 2])
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    array = gk.TensorArray.of(x)
    np.testing.assert_array_equal(run(array.gather(np.array([3, 0, 3])), [x], [rows]), rows[[3, 0, 3]])
    moved = array.scatter(np.array([2, -1]), x[:2])
    np.testing.assert_array_equal(run(moved.stack(), [x], [rows]), [rows[0], rows[1], rows[0], rows[1]])
    np.testing.assert_array_equal(run(array.concat(), [x], [rows]), rows.reshape(-1))
    whole = gk.TensorArray(4, [2]).unstack(x)
    np.testing.assert_array_equal(run(whole.read(2), [x], [rows]), rows[2])


def test_it_is_a_tree():
    array = gk.TensorArray(3, [2])
    shape = tree.skeleton({"a": array, "n": 1})
    assert shape == tree.skeleton({"a": gk.TensorArray(5), "n": 2})
    assert shape != tree.skeleton({"a": 1, "n": 2})
    assert str(shape) == "{'a': TensorArray(*), 'n': *}"
    assert tree.unflatten(shape, list(tree.leaves({"a": array, "n": 1})))["a"] == array


def test_errors():
    array, x = gk.TensorArray(3, [2]), gk.input("x", [2])
    with pytest.raises(TypeMismatch, match=r"TensorArray.write: the value must be float32\[2\], not y: float32\[3\]"):
        array.write(0, gk.input("y", [3]))
    with pytest.raises(TypeMismatch, match=r"TensorArray.write: the value must be float32\[2\], not y: int64\[2\]"):
        array.write(0, gk.input("y", [2], "int64"))
    with pytest.raises(TypeMismatch, match=r"TensorArray.read: an index must be an integer scalar, not x"):
        array.read(x)
    with pytest.raises(TypeMismatch, match=r"TensorArray.scatter: the value must be float32\[1, 2\]"):
        array.scatter(np.array([1]), gk.input("y", [2, 2]))
    with pytest.raises(TypeMismatch, match=r"TensorArray.unstack: the value must be float32\[3, 2\]"):
        array.unstack(gk.input("y", [4, 2]))
    with pytest.raises(TypeMismatch, match=r"TensorArray.concat: elements of float32.* have no axis"):
        gk.TensorArray(3).concat()
    with pytest.raises(TypeMismatch, match="TensorArray: size must be an integer scalar"):
        gk.TensorArray(x)
    with pytest.raises(TypeMismatch, match=r"TensorArray.of"):
        gk.TensorArray.of(1.0)
    n = gk.input("n", [], "int64")
    with pytest.raises(RuntimeFailure):
        run(array.read(n), [n], [np.array(3)])


# --- gradients --------------------------------------------------------------------------------------


def test_gradients_of_reads_add_up():
    x, w = f64("x", 4, 2), f64("w", 2)
    array = gk.TensorArray.of(x)
    y = array.read(1) * w + gk.sin(array.read(1)) + array.read(3) * array.read(1)
    check([x, w], y, [draw(4, 2), draw(2)])
    (dx,) = gradient([array.read(2) + array.read(2)], [x])
    np.testing.assert_array_equal(run(dx, [x], [draw(4, 2)]), [[0, 0], [0, 0], [2, 2], [0, 0]])


def test_a_write_hides_what_was_there():
    x, v = f64("x", 3, 2), f64("v", 2)
    dx, dv = gradient([gk.TensorArray.of(x).write(1, v).write(1, v * 3.0).stack()], [x, v])
    np.testing.assert_array_equal(run(dx, [x, v], [draw(3, 2), draw(2)]), [[1, 1], [0, 0], [1, 1]])
    np.testing.assert_array_equal(run(dv, [x, v], [draw(3, 2), draw(2)]), [3, 3])
    check([x, v], gk.sin(gk.TensorArray.of(x).write(0, gk.exp(v)).stack()), [draw(3, 2), draw(2)])


def test_gathers_scatters_and_concat():
    x, v = f64("x", "N", 2), f64("v", 2, 2)
    array = gk.TensorArray.of(x)
    check([x, v], gk.sin(array.gather(np.array([1, 1, 0]))), [draw(3, 2), draw(2, 2)])
    check([x, v], gk.sin(array.scatter(np.array([2, 0]), gk.exp(v)).stack()), [draw(3, 2), draw(2, 2)])
    check([x], gk.sin(array.concat()), [draw(3, 2)])


def fibonacci_like(array, w, n):
    """array[i] = tanh(array[i - 1] * w + array[i - 2]), in place, for i from 2."""

    def body(s):
        i, held = s
        return i + 1, held.write(i, gk.tanh(held.read(i - 1) * w + held.read(i - 2)))

    return gk.while_loop(lambda s: s[0] < n, body, (np.int64(2), array))[1]


def test_read_and_written_inside_a_while_loop():
    n, x, w = gk.input("n", [], "int64"), f64("x", 6, 2), f64("w", 2)
    y = fibonacci_like(gk.TensorArray.of(x), w, n).stack()
    for trips in (2, 3, 6):
        check([n, x, w], y, [np.array(trips), draw(6, 2), draw(2)])


def test_equal_to_the_unrolled_network():
    x, w = f64("x", 6, 2), f64("w", 2)
    looped = fibonacci_like(gk.TensorArray.of(x), w, np.int64(6)).stack()
    array = gk.TensorArray.of(x)
    for i in range(2, 6):
        array = array.write(i, gk.tanh(array.read(i - 1) * w + array.read(i - 2)))
    arrays = [draw(6, 2), draw(2)]
    for a, b in zip(gradient([looped], [x, w]), gradient([array.stack()], [x, w]), strict=True):
        np.testing.assert_allclose(run(a, [x, w], arrays), run(b, [x, w], arrays), rtol=1e-12)


def test_random_access_inside_a_scan():
    x, table, order = f64("x", "T", 2), f64("table", 5, 2), gk.input("order", ["T"], "int64")

    def step(carry, element):
        held, total = carry
        found = held.read(element["at"])
        return (held.write(element["at"], gk.sin(found * element["x"])), total + found), gk.mul(found, total)

    (held, total), ys = gk.scan(step, (gk.TensorArray.of(table), table[0]), {"x": x, "at": order})
    check([x, table, order], [held.stack(), total, ys], [draw(6, 2), draw(5, 2), np.array([0, 3, 3, 1, 0, -2])])


def test_the_array_itself_is_not_saved():
    """For each iteration, the backward pass needs the numbers of elements and the elements read, not the array."""
    x, w = f64("x", 64, 2), f64("w", 2)
    y = fibonacci_like(gk.TensorArray.of(x), w, np.int64(64)).stack()
    graph = merge_control(Graph([x, w], [y, *gradient([y], [x, w])]))
    forward, _ = (n for n in graph.nodes if n.op.name == "Loop")
    # Two numbers of elements that are read, the one that is written, and the operands of tanh' and of the product.
    saved = [v.shape[1:] for v in forward.outputs[2:]]
    assert sorted(saved) == [(), (), (), (2,), (2,)]


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_may_write(taken):
    p, x, v = gk.input("p", [], "bool"), f64("x", 3, 2), f64("v", 2)
    array = gk.TensorArray.of(x)
    chosen = gk.cond(p, lambda: array.write(1, gk.sin(v)), lambda: array)
    check([p, x, v], gk.tanh(chosen.stack()), [np.array(taken), draw(3, 2), draw(2)])


@pytest.mark.parametrize("recompute", [1, 3])
def test_with_blocks(recompute):
    x, w = f64("x", 7, 2), f64("w", 2)

    def step(carry, i):
        after = carry.write(i, gk.tanh(carry.read(i - 1) * w))
        return after, after.read(i)

    array, ys = gk.scan(step, gk.TensorArray.of(x), gk.constant(np.arange(1, 7)), recompute=recompute)
    check([x, w], [array.stack(), ys], [draw(7, 2), draw(2)])
