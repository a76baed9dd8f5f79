"""Patterns: orders of factors, names, numbers, and other readers of intermediate values."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.passes.core.pattern import Match, Number, Op, Pattern, Scaled, Shifted, Some, match
from graphkit.passes.core.sweep import Readers, use_counts

X = Some("x")
SWISH = Op("Mul", X, Op("Sigmoid", Scaled(X, Number("alpha")), name="sigmoid"))


def data(*shape: int, name: str = "x") -> Value:
    return Value(TensorType("float32", shape), name)


def found(pattern: Pattern, result: Value, *others: Value) -> list[Match]:
    """The matches at the node of `result`, in a graph that returns `others` too."""
    inputs = {v: None for r in (result, *others) for v in _inputs(r)}
    readers = Readers(use_counts(Graph(inputs, [result, *others])))
    assert result.node is not None
    return list(match(pattern, result.node, readers))


def _inputs(value: Value) -> list[Value]:
    pending, seen = [value], []
    while pending:
        v = pending.pop()
        if v.node is None:
            seen.append(v)
        else:
            pending += v.node.operands
    return seen


@in_one_item()
@pytest.mark.parametrize("swapped", [False, True])
def test_factors_come_in_either_order(swapped: bool):
    x = data(3)
    sigmoid = F.sigmoid(x * 1.5)
    (m,) = found(SWISH, F.mul(sigmoid, x) if swapped else F.mul(x, sigmoid))
    assert m.values["x"] is x
    assert m.numbers == {"alpha": 1.5}
    assert m.node("sigmoid") is sigmoid.node


def test_one_name_is_one_value():
    x, y = data(3), data(3, name="y")
    assert not found(SWISH, F.mul(y, F.sigmoid(x * 1.5)))
    # Operands of others are not exchanged.
    assert found(Op("Sub", X, Op("Exp", X)), F.sub(x, F.exp(x)))
    assert not found(Op("Sub", X, Op("Exp", X)), F.sub(F.exp(x), x))


def test_what_is_inside_has_no_other_reader():
    x = data(3)
    sigmoid = F.sigmoid(x * 1.5)
    product = F.mul(x, sigmoid)
    assert found(SWISH, product, x, F.exp(x))
    assert not found(SWISH, product, sigmoid)
    assert not found(SWISH, product, F.exp(sigmoid.node.inputs[0]))


def test_a_value_that_the_pattern_reads_twice():
    x = data(3)
    raised = F.exp(x)
    quotient = Op("Div", Op("Exp", X, name="raised"), Op("ReduceSum", Some("raised"), rest=True))
    result = F.div(raised, F.reduce_sum(raised, np.array([0])))
    (m,) = found(quotient, result)
    assert m.values["raised"] is raised
    assert not found(quotient, result, raised)
    assert not found(quotient, F.div(F.exp(x), F.reduce_sum(raised, np.array([0]))))


def test_numbers():
    x = data(3)
    for pattern, fits in ((Number(2.0), True), (Number(2.5), False), (Number(0.0), False), (Number("any"), True)):
        assert bool(found(Shifted(X, pattern), F.add(x, np.float32(2)))) is fits
    assert found(Shifted(X, Number(0.0)), F.add(x, np.float32(0)))
    (m,) = found(Scaled(X, Number("s")), F.div(x, np.float32(4)))
    assert m.numbers == {"s": 0.25}
    assert not found(Scaled(X, Number("s")), F.mul(x, data(3, name="y")))
    assert not found(Scaled(X, Number("s")), F.mul(data(), np.ones((1, 1), np.float32)))  # another shape


def test_how_many_operands_there_are():
    x = data(3)
    for pattern, fits in ((Op("Clip", X, Number(0.0)), False), (Op("Clip", X, rest=True), True)):
        assert bool(found(pattern, F.clip(x, np.float32(0), np.float32(6)))) is fits
    no_bound = Node(F.clip.op(), (x, None, F.constant(value=np.float32(6)))).output
    assert not found(Op("Clip", X, Number("low"), Number("high")), no_bound)
