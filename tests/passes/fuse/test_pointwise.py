"""Regions of pointwise nodes: as large as they may be, each element computed once, no cycles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.fuse.pointwise import NODE_LIMIT, OPERAND_LIMIT, fuse_pointwise


def data(*shape: Any, name: str = "x", dtype: str = "float32") -> Value:
    return Value(TensorType(dtype, shape), name)


def test_a_chain_is_one_region(apply: Any) -> None:
    x, y = data("N", 4), data("N", 4, name="y")
    chain = -(F.sigmoid(F.gelu(x * y + 1.0, approximate="tanh")) * y) - x
    kept: list[Graph] = []
    assert apply([x, y], chain, fuse_pointwise, N=3, keep=kept) == {"Fused": 1}
    (node,) = kept[0].nodes
    assert len(node.inputs) == 2
    assert node.op.body.name_of(node.op.body.inputs[0]) == "x"


def test_diamonds_casts_and_selection(apply: Any) -> None:
    x = data("N", 4)
    a = F.exp(x)
    y = F.where(F.greater(a, 1.0), F.cast(F.cast(a * 2.0, to="int32"), to="float32"), F.neg(a))
    assert apply([x], y, fuse_pointwise, N=3) == {"Fused": 1}


def test_broadcast_operands_stay_small(apply: Any) -> None:
    x, b, c = data("N", 4, 5), data(5, name="b"), data("N", 1, 1, name="c")
    # exp(b) has 5 elements: inside the region it would be computed for all of x.
    kept: list[Graph] = []
    assert apply([x, b, c], F.tanh(x * F.exp(b) + c), fuse_pointwise, N=3, keep=kept) == {"Exp": 1, "Fused": 1}
    assert len(kept[0].nodes[-1].inputs) == 3
    # Dimensions that may be equal, but need not be, do not allow fusion.
    other = data("M", 4, 5, name="m")
    assert apply([x, other], F.tanh(F.neg(x) + other), fuse_pointwise, N=3, M=3) == {"Neg": 1, "Fused": 1}


def test_a_constant_that_keeps_its_rank(apply: Any) -> None:
    x, one = data(1), np.ones(1, np.float32)
    assert apply([x], F.neg(F.p_relu(F.constant(value=one), F.exp(x))), fuse_pointwise) == {"Fused": 1}
    assert apply([x], F.neg(F.tanh(F.constant(value=one[None]) + F.exp(x))), fuse_pointwise)["Fused"] == 1


def test_single_nodes_and_parameters_stay(apply: Any) -> None:
    x = data(3, 4)
    w = Value(TensorType("float32", (3, 4)), "w", role="parameter")
    assert apply([x], F.relu(x), fuse_pointwise) == {"Relu": 1}
    found = apply([x, w], F.add(x, F.sqrt(F.exp(w))), fuse_pointwise)
    assert found == {"Exp": 1, "Sqrt": 1, "Add": 1}


def test_values_read_outside(apply: Any) -> None:
    x = data(3, 3)
    a = F.exp(x)
    b = F.tanh(a * 2.0)
    # The graph's outputs are results of regions of their own.
    assert apply([x], [b, a], fuse_pointwise) == {"Exp": 1, "Fused": 1}
    # A path that leaves the region and comes back: exp is read by the product and by what follows it.
    c = F.add(F.mat_mul(a, a), F.neg(a))
    found = apply([x], c, fuse_pointwise)
    assert found == {"Exp": 1, "MatMul": 1, "Fused": 1}


def test_shape_readers_do_not_hold_a_region_apart(apply: Any) -> None:
    x = data("N", 4)
    a = F.exp(x)
    y = F.reshape(F.tanh(F.neg(a)), F.concat(F.shape(a), np.array([1]), axis=0))
    assert apply([x], y, fuse_pointwise, N=3)["Fused"] == 1


def test_updates_are_read(apply: Any) -> None:
    x, state = data(3), Value(TensorType("float32", (3,)), "s", role="state")
    new = F.add(state, x)
    y = F.exp(F.neg(new))
    assert apply([x, state], y, fuse_pointwise, updates=[(state, new)]) == {"Add": 1, "Fused": 1}


def test_constants_of_one_element(apply: Any) -> None:
    x, scalar = data(3), data(name="s")
    y = F.exp(x * np.array([2.0], np.float32)) + np.float32(1.0)
    kept: list[Graph] = []
    assert apply([x], y, fuse_pointwise, keep=kept) == {"Fused": 1}
    assert len(kept[0].nodes[-1].inputs) == 1
    # Here the constant's axis is the result's.
    z = F.exp(scalar * np.array([2.0], np.float32))
    assert apply([scalar], z, fuse_pointwise, keep=kept) == {"Fused": 1}
    # And here that of one of its two readers.
    row, matrix, two = data(4), data(1, 4, name="m"), F.constant(value=np.full((1, 1), 2, np.float32))
    z = F.add(matrix * two, row * two)
    assert apply([row, matrix], z, fuse_pointwise) == {"Fused": 1}


def test_limits(apply: Any) -> None:
    x = data(3)
    y = x
    for _ in range(2 * NODE_LIMIT + 1):
        y = F.sin(y)
    assert apply([x], y, fuse_pointwise) == {"Fused": 2, "Sin": 1}
    many = [data(3, name=f"x{i}") for i in range(OPERAND_LIMIT + 8)]
    total = many[0]
    for value in many[1:]:
        total = F.add(total, value)
    kept: list[Graph] = []
    assert apply(many, total, fuse_pointwise, keep=kept) == {"Fused": 2}
    assert max(len(n.inputs) for n in kept[0].nodes) <= OPERAND_LIMIT


def test_work_is_linear(steps: Any) -> None:
    def work(length: int) -> int:
        x = data(4)
        y = x
        for i in range(length):
            y = F.tanh(y) if i % 3 else F.add(F.mat_mul(y, np.eye(4, dtype=np.float32)), y)
        graph = Graph([x], [y])
        return int(steps(lambda: fuse_pointwise(graph)))

    assert work(2_000) < 9 * work(250)


UNARY = [F.exp, F.neg, F.tanh, F.relu, F.sigmoid, F.abs]
BINARY = [F.add, F.mul, F.sub, F.max, F.min]


@in_one_item()
@pytest.mark.parametrize("seed", range(30))
def test_random_graphs(seed: int) -> None:
    """Random graphs of pointwise nodes, reductions, transposes and products give the same results."""
    rng = np.random.default_rng(seed)
    inputs = [data(4, 4, name="a"), data(4, 4, name="b"), data(1, 4, name="c"), data(4, 1, name="d"), data(name="e")]
    values: list[Any] = list(inputs)
    for _ in range(40):
        kind = rng.random()
        x, y = (values[int(rng.integers(max(0, len(values) - 8), len(values)))] for _ in range(2))
        if kind < 0.4:
            values.append(F.tanh(UNARY[int(rng.integers(len(UNARY)))](x)))
        elif kind < 0.85:
            values.append(F.tanh(BINARY[int(rng.integers(len(BINARY)))](x, y)))
        elif kind < 0.92 and x.rank == 2:
            values.append(F.reduce_mean(x, np.array([int(rng.integers(2))])))
        elif x.shape == y.shape == (4, 4):
            values.append(F.mat_mul(x, y))
    graph = Graph(inputs, [values[-1], values[int(rng.integers(5, len(values)))]])
    fused = fuse_pointwise(graph)
    arrays = [rng.standard_normal(v.tensor.static_shape).astype(np.float32) for v in inputs]
    for found, expected in zip(evaluate(fused, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert len(fused.nodes) <= len(graph.nodes)
