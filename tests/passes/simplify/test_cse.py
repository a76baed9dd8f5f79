"""Common subexpressions."""

from __future__ import annotations

import pickle

import numpy as np

from graphkit.frontend.scopes import attr_scope
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.model import Model
from graphkit.ops import F
from graphkit.passes.core.draws import is_random
from graphkit.passes.simplify.cse import cse

VECTOR = TensorType("float32", ("N",))


def test_equal_nodes_merge() -> None:
    x = Value(VECTOR, "x")
    graph = Graph([x], [F.add(F.exp(x), F.exp(x)), F.mul(F.exp(x), np.float32(2)), F.mul(F.exp(x), np.float32(2))])
    merged = cse(graph)
    assert sorted(n.op.name for n in merged.nodes) == ["Add", "Constant", "Exp", "Mul"]
    assert merged.output_names == graph.output_names
    assert merged.outputs[1] is merged.outputs[2]


def test_nodes_of_different_groups_stay_apart() -> None:
    """Nodes without a group, or without operands, belong to any."""
    x, results = Value(VECTOR, "x"), []
    for group in ("first", "second", "first", "second"):
        with attr_scope(ctx_group=group):
            results += [F.exp(x), F.constant(value=np.float32(2))]
    merged = cse(Graph([x], [*results, F.exp(x)]))
    assert sorted(n.op.name for n in merged.nodes) == ["Constant", "Exp", "Exp"]
    first, second = merged.outputs[0], merged.outputs[2]
    assert all(y is first for y in merged.outputs[4::4])
    assert merged.outputs[6] is second
    assert second is not first


def test_attributes_and_order_of_operands_matter() -> None:
    x, y = Value(VECTOR, "x"), Value(VECTOR, "y")
    graph = Graph([x, y], [F.sub(x, y), F.sub(y, x), F.elu(x, alpha=1.0), F.elu(x, alpha=2.0)])
    assert len(cse(graph).nodes) == 4


def test_float_attributes_are_compared_by_bits() -> None:
    x, k = Value(VECTOR, "x"), Value(TensorType("int64", ("N",)), "k")
    labels = [F.label_encoder(k, keys_int64s=[1, 2], values_floats=[1.0, zero]) for zero in (0.0, -0.0, 0.0)]
    rectified = [F.leaky_relu(x, alpha=alpha) for alpha in (0.0, -0.0, float("nan"), 0.0, -0.0, float("nan"))]
    merged = cse(Graph([x, k], [*labels, *rectified]))
    assert len(merged.nodes) == 5
    values = np.array([-1.0], np.float32)
    results = Model.from_graph(merged, {}).run({"x": values, "k": np.array([2])})
    found = [str(y[0]) for y in results.values()]
    assert found == ["0.0", "-0.0", "0.0", "-0.0", "0.0", "nan", "-0.0", "0.0", "nan"]


def test_equal_attributes_have_equal_hashes() -> None:
    first, second = [F.leaky_relu(Value(VECTOR, "x"), alpha=float("nan")).node.op for _ in range(2)]
    for other in (second, pickle.loads(pickle.dumps(first)), first.replace(alpha=-first.alpha).replace(alpha=np.nan)):
        assert first == other
        assert hash(first) == hash(other)


def test_constants_are_equal_by_bytes() -> None:
    zero, minus = np.array([0.0], np.float32), np.array([-0.0], np.float32)
    nan = np.array([np.nan], np.float32)
    values = [F.constant(value=a.copy()) for a in (zero, zero, minus, nan, nan, zero.astype(np.float64))]
    assert len(cse(Graph([], values)).nodes) == 4


def test_random_nodes_without_a_state_stay_apart() -> None:
    rng = Value(TensorType("uint64", (2,)), "rng", role="rng")
    draw = [F.random_normal(shape=(2,)) for _ in range(2)]
    assert len(cse(Graph([rng], draw)).nodes) == 2
    draw = [F.random_normal(rng, shape=(2,), stream=stream) for stream in (0, 1, 0)]
    assert len(cse(Graph([rng], draw)).nodes) == 2
    flag = Value(TensorType(DType.BOOL, ()), "flag")
    branch = Graph([], [F.random_normal(shape=(2,))])
    choices = [F.if_(flag, then_branch=branch, else_branch=branch) for _ in range(2)]
    assert is_random(choices[0].node.op)
    assert len(cse(Graph([flag], choices)).nodes) == 2


def test_subgraphs_are_entered() -> None:
    flag, x = Value(TensorType(DType.BOOL, ()), "flag"), Value(VECTOR, "x")
    inner = Value(VECTOR)
    branch = Graph([inner], [F.add(F.exp(inner), F.exp(inner))])
    merged = cse(Graph([flag, x], [F.if_(flag, x, then_branch=branch, else_branch=branch)]))
    assert [len(g.nodes) for g in merged.nodes[0].op.subgraphs().values()] == [2, 2]


def test_updates_and_long_chains() -> None:
    x, s = Value(VECTOR, "x"), Value(VECTOR, "s", role="state")
    merged = cse(Graph([x, s], [F.add(s, x)], [(s, F.add(s, x))]))
    assert merged.outputs[0] is merged.updates[0][1]
    a = b = x
    for _ in range(5_000):
        a, b = F.neg(a), F.neg(b)
    assert len(cse(Graph([x], [a, b])).nodes) == 5_000


def test_merged_graph_is_left_alone_until_it_gets_new_nodes() -> None:
    x = Value(TensorType(DType.FLOAT32, (3,)), "x")
    merged = cse(Graph([x], [F.add(F.exp(x), F.exp(x))]))
    assert cse(merged) is merged
    assert cse(merged.replace(name="other")).nodes == merged.nodes
    more = merged.replace(outputs=[*merged.outputs, F.exp(x)])
    assert len(more.nodes) == 3
    assert len(cse(more).nodes) == 2
