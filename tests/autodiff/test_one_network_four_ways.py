"""An LSTM as Loop, as Scan, as the LSTM operator, and unrolled: one network, equal outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir.graph import Graph, Value
from graphkit.ops import F

BATCH, FEATURES, HIDDEN = 3, 4, 5
SHAPES = {
    "w": (4 * HIDDEN, FEATURES), "r": (4 * HIDDEN, HIDDEN), "b": (4 * HIDDEN,), "h": (BATCH, HIDDEN),
    "c": (BATCH, HIDDEN),
}  # fmt: skip

State = tuple[Value, Value]


def cell(x: Value, state: State, w: Value, r: Value, b: Value) -> State:
    """ONNX's order of gates: input, output, forget, cell."""
    h, c = state
    gates = F.add(F.add(F.mat_mul(x, F.transpose(w)), F.mat_mul(h, F.transpose(r))), b)
    i, o, f, g = F.split(gates, num_outputs=4, axis=1)
    c = F.add(F.mul(F.sigmoid(f), c), F.mul(F.sigmoid(i), F.tanh(g)))
    return F.mul(F.sigmoid(o), F.tanh(c)), c


def by_operator(x: Value, h: Value, c: Value, w: Value, r: Value, b: Value, steps: int) -> tuple[Any, ...]:
    lead = lambda v: F.unsqueeze(v, np.array([0]))  # noqa: E731
    zeros = np.zeros(4 * HIDDEN, x.dtype.numpy)
    y, last, memory = F.lstm(x, lead(w), lead(r), lead(F.concat(b, zeros, axis=0)), None, lead(h), lead(c))
    return F.squeeze(y, np.array([1])), F.squeeze(last, np.array([0])), F.squeeze(memory, np.array([0]))


def by_scan(x: Value, h: Value, c: Value, w: Value, r: Value, b: Value, steps: int, **options: Any) -> tuple[Any, ...]:
    (h, c), ys = gk.scan(lambda s, v: (lambda n: (n, n[0]))(cell(v, s, w, r, b)), (h, c), x, **options)
    return ys, h, c


def by_blocks(*operands: Any) -> tuple[Any, ...]:
    return by_scan(*operands, recompute=3)


def by_loop(x: Value, h: Value, c: Value, w: Value, r: Value, b: Value, steps: int) -> tuple[Any, ...]:
    def body(s: Any) -> Any:
        i, state, ys = s
        state = cell(F.gather(x, i, axis=0), state, w, r, b)
        return F.add(i, np.int64(1)), state, ys.write(i, state[0])

    size = F.squeeze(F.shape(x, start=0, end=1))
    array = gk.TensorArray(size, (BATCH, HIDDEN), x.dtype)
    _, (h, c), ys = gk.while_loop(lambda s: F.less(s[0], size), body, (np.int64(0), (h, c), array))
    return ys.stack(), h, c


def by_hand(x: Value, h: Value, c: Value, w: Value, r: Value, b: Value, steps: int) -> tuple[Any, ...]:
    state, ys = (h, c), []
    for t in range(steps):
        state = cell(F.gather(x, np.int64(t), axis=0), state, w, r, b)
        ys.append(F.unsqueeze(state[0], np.array([0])))
    return F.concat(*ys, axis=0), *state


WAYS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "operator": by_operator, "scan": by_scan, "blocks": by_blocks, "loop": by_loop, "unrolled": by_hand,
}  # fmt: skip


def network(way: str, dtype: str, steps: Any = "T", length: int = 0) -> gk.Model:
    """Outputs y and loss. The loss is a sum of all results of the network with different weights."""
    inputs = [gk.input("x", [steps, BATCH, FEATURES], dtype), *(gk.input(n, s, dtype) for n, s in SHAPES.items())]
    x, w, r, b, h, c = inputs
    y, last, memory = WAYS[way](x, h, c, w, r, b, length)
    loss = F.add(F.reduce_sum(F.mul(y, F.sin(y)), keepdims=False), F.reduce_sum(F.mul(last, memory), keepdims=False))
    return gk.Model({"loss": loss, "y": y, "last": last, "memory": memory}, inputs=inputs)


def with_gradients(net: gk.Model) -> gk.Model:
    return gk.grad(net, of="loss", wrt=["x", *SHAPES], with_outputs=True)


def draw(length: int, dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    shapes = {"x": (length, BATCH, FEATURES), **SHAPES}
    return {n: (0.5 * rng.standard_normal(s)).astype(dtype) for n, s in shapes.items()}


@in_one_item()
@pytest.mark.parametrize("way", ["scan", "blocks", "loop", "unrolled"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
@pytest.mark.parametrize("length", [1, 7, 12])
def test_equal_outputs_and_gradients(way: str, dtype: str, tolerance: float, length: int) -> None:
    feeds = draw(length, dtype)
    wanted = with_gradients(network("operator", dtype)).run(feeds)
    found = with_gradients(network(way, dtype, length=length)).run(feeds)
    assert list(found) == list(wanted)
    assert {"x_grad", "w_grad", "r_grad", "b_grad", "h_grad", "c_grad"} < set(found)
    for name, array in wanted.items():
        scale = max(1.0, float(np.abs(array).max()))
        np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance * scale, err_msg=name)


def iterated(way: str, parallel: int) -> gk.Model:
    x, w = gk.input("x", ["T", BATCH, FEATURES], "float64"), gk.input("w", [FEATURES], "float64")
    first = gk.gather(x, np.int64(0), axis=0)
    if way == "scan":
        last = gk.fold(lambda c, v: gk.tanh(c * w + v), first, x, parallel_iterations=parallel)
    else:
        below = lambda s: gk.reduce_sum(s * s, keepdims=False) < 50.0  # noqa: E731
        last = gk.while_loop(below, lambda s: s * w + gk.sin(s), first, 9, parallel_iterations=parallel)
    net = gk.Model({"loss": gk.reduce_sum(last, keepdims=False)})
    return gk.grad(net, wrt=["x", "w"], with_outputs=True)


@pytest.mark.parametrize("way", ["scan", "loop"])
def test_parallel_iterations_change_nothing(way: str) -> None:
    feeds = {"x": draw(6, "float64")["x"], "w": np.array([1.5, -1.2, 1.1, 0.9])}
    first, *others = (iterated(way, parallel).run(feeds) for parallel in (1, 2, 10, 32))
    for other in others:
        for name, array in first.items():
            np.testing.assert_array_equal(other[name], array)


def nodes(graph: Graph) -> int:
    """Subgraphs included."""
    inner: Sequence[Graph] = [g for n in graph.nodes for g in n.op.subgraphs().values()]
    return len(graph.nodes) + sum(map(nodes, inner))


@in_one_item()
@pytest.mark.parametrize("way", ["operator", "scan", "loop"])
def test_the_graph_does_not_grow_with_the_number_of_steps(way: str) -> None:
    sizes = {nodes(with_gradients(network(way, "float32", steps, length=steps)).graph) for steps in (4, 64, 1024)}
    assert len(sizes) == 1


def test_blocks_that_divide_the_number_of_steps_do_not_grow_the_graph() -> None:
    sizes = {nodes(with_gradients(network("blocks", "float32", steps)).graph) for steps in (6, 60, 3000)}
    assert len(sizes) == 1
