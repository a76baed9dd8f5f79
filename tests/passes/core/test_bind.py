"""Binding dimension names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import InputError, TypeMismatch
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F, Op
from graphkit.passes.core.bind import bind


def f32(*shape: Any) -> TensorType:
    return TensorType("float32", shape)


def test_names_become_sizes_everywhere() -> None:
    x, w = Value(f32("N", "K"), "x"), Value(f32("K", 5), "w", role="parameter")
    y = F.mat_mul(x, w)
    graph = Graph([x, w], [F.reshape(y, np.array([-1]))], output_names=["y"])
    bound = bind(graph, {"x": (3, 4)})
    assert [v.shape for v in bound.inputs] == [(3, 4), (4, 5)]
    assert bound.inputs[1].role == "parameter"
    assert bound.outputs[0].shape == (15,)
    assert bound.output_names == ("y",)
    assert graph.inputs[0].shape != (3, 4)


def test_names_may_stay_symbolic() -> None:
    x = Value(f32("N", 2), "x")
    bound = bind(Graph([x], [F.exp(x)]), {"x": f32("2*M", 2)})
    assert str(bound.outputs[0].type) == "float32[2*M, 2]"


def test_unchanged_nodes_are_reused() -> None:
    x, y = Value(f32("N"), "x"), Value(f32(3), "y")
    same = F.exp(y)
    graph = Graph([x, y], [F.neg(x), same])
    bound = bind(graph, {"x": (2,)})
    assert bound.outputs[1] is same
    assert bound.inputs[1] is y
    assert bind(graph, {"y": (3,)}) is graph


def test_equal_nodes_are_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    h = x = Value(f32("N", 4), "x")
    for _ in range(20):
        h = F.exp(F.reshape(F.neg(h), np.array([-1, 4])))
    graph = Graph([x], [h])
    inferred: list[str] = []
    original = Op.infer_types

    def counted(self: Op, inputs: Any) -> Any:
        inferred.append(self.name)
        return original(self, inputs)

    monkeypatch.setattr(Op, "infer_types", counted)
    assert bind(graph, {"x": (3, 4)}).outputs[0].shape == (3, 4)
    assert sorted(inferred) == ["Exp", "Neg", "Reshape"]


def test_updates_follow() -> None:
    x, s = Value(f32("N"), "x"), Value(f32("N"), "s", role="state")
    bound = bind(Graph([x, s], [], [(s, F.add(s, x))]), {"x": (2,)})
    assert bound.updates[0][0].shape == bound.updates[0][1].shape == (2,)


@in_one_item()
@pytest.mark.parametrize(
    ("declared", "given", "message"),
    [
        ({"a": ["N"]}, {"b": [1]}, "no input 'b'"),
        ({"a": ["N"]}, {"a": [1, 2]}, "of rank 1"),
        ({"a": ["N", 3]}, {"a": [1, 2]}, "axis 1 is 2, not 3"),
        ({"a": ["N"], "b": ["N"]}, {"a": [1], "b": [2]}, "dimension N is 1 in input 'a' and 2 in input 'b'"),
        ({"a": ["N", "N"]}, {"a": [1, 2]}, "dimension N is 1 in input 'a' and 2 in input 'a'"),
        ({"a": ["N+1"], "b": ["N"]}, {"a": [4], "b": [4]}, r"axis 0 is 4, not N \+ 1 = 5, as 'b' says"),
        ({"a": ["2*N"]}, {"a": [3]}, "axis 0 is 3, not 2\\*N"),
    ],
)
def test_misfits(declared: dict[str, list[Any]], given: dict[str, list[int]], message: str) -> None:
    inputs = [Value(f32(*shape), name) for name, shape in declared.items()]
    graph = Graph(inputs, [F.exp(v) for v in inputs])
    with pytest.raises(InputError, match=message):
        bind(graph, given)


def test_other_element_type() -> None:
    x = Value(f32("N"), "x")
    with pytest.raises(InputError, match=r"'x' is float32\[N\]; float64\[2\] given"):
        bind(Graph([x], [F.exp(x)]), {"x": TensorType("float64", (2,))})


def test_expressions_are_checked_and_solved() -> None:
    a, b, c = Value(f32("N+1"), "a"), Value(f32("N"), "b"), Value(f32("2*M + 1"), "c")
    graph = Graph([a, b, c], [F.exp(a), F.exp(b), F.expand(np.ones(1, np.float32), F.shape(c))])
    assert bind(graph, {"a": [5], "b": [4]}).outputs[0].shape == (5,)
    solved = bind(graph, {"a": [5], "c": [7]})
    assert [v.shape for v in solved.inputs] == [(5,), (4,), (7,)]
    with pytest.raises(InputError, match="axis 0 is 0"):
        bind(graph, {"a": [0]})


def test_undecided_equalities_are_checked() -> None:
    x, y = Value(f32("N", 2), "x"), Value(f32("M", 2), "y")
    graph = Graph([x, y], [F.neg(F.add(x, y, name="joint"))])
    assert bind(graph, {"x": [3, 2], "y": [1, 2]}).outputs[0].shape == (3, 2)
    with pytest.raises(TypeMismatch, match=r"node 'joint' Add.*\[3, 2\].*\[4, 2\]"):
        bind(graph, {"x": [3, 2], "y": [4, 2]})


def test_unknown_rank() -> None:
    x = Value(TensorType("float32"), "x")
    assert bind(Graph([x], [F.exp(x)]), {"x": (2, 3)}).outputs[0].shape == (2, 3)


def test_branches_are_bound_and_bodies_stay() -> None:
    x, p = Value(f32("N"), "x"), Value(TensorType(DType.BOOL, ()), "p")
    inner = Value(f32("N"))
    branch = Graph([inner], [F.exp(inner)])
    bound = bind(Graph([x, p], [F.if_(p, x, then_branch=branch, else_branch=branch)]), {"x": (4,)})
    assert bound.outputs[0].shape == (4,)
    assert all(g.outputs[0].shape == (4,) for g in bound.nodes[0].op.subgraphs().values())

    # The body's N is the size of every iteration, not that of the first.
    count, keep, state = Value(TensorType("int64", ())), Value(TensorType(DType.BOOL, ())), Value(f32("N"))
    body = Graph([count, keep, state], [keep, F.concat(state, state, axis=0)])
    looped = bind(Graph([x], [F.loop(np.array(3), None, x, body=body)]), {"x": (4,)})
    assert looped.nodes[-1].op.subgraphs()["body"] is body
    assert looped.outputs[0].shape != (4,)


def test_long_chain() -> None:
    x = value = Value(f32("N"), "x")
    for _ in range(20_000):
        value = F.neg(value)
    assert bind(Graph([x], [value]), {"x": (2,)}).outputs[0].shape == (2,)
