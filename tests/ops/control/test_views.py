"""The views of If, Loop and Scan: the roles of operands and results."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.control.operators import If, Loop, Scan
from graphkit.ops.control.views import IfView, LoopView, capture_count, is_if

ROW = TensorType(DType.FLOAT32, (3,))


def values(count: int, kind: TensorType = ROW) -> list[Value]:
    return [Value(kind, f"v{i}") for i in range(count)]


def scan(**attributes: object) -> Node:
    """Two states, two scan inputs, one capture; two scan outputs."""
    s, t, x, y, w = values(5)
    body = Graph([s, t, x, y, w], [F.add(s, x), F.mul(t, y), F.add(x, y), F.mul(s, w)])
    operands = [*values(2), *values(2, TensorType(DType.FLOAT32, (4, 3))), *values(1)]
    if "scan_input_axes" in attributes:
        operands[3] = Value(TensorType(DType.FLOAT32, (3, 4)))
    return Node(Scan(body=body, num_scan_inputs=2, captures=1, **attributes), operands)


def test_scan():
    node = scan()
    view = LoopView.of(node)
    body = node.op.body
    assert not view.is_loop
    assert view.entry == ()
    assert [s.initial for s in view.states] == list(node.inputs[:2])
    assert [s.before for s in view.states] == list(body.inputs[:2])
    assert [s.after for s in view.states] == list(body.outputs[:2])
    assert [s.final for s in view.states] == list(node.outputs[:2])
    assert [tuple(s) for s in view.scan_inputs] == [
        (body.inputs[2], node.inputs[2], 0, 0),
        (body.inputs[3], node.inputs[3], 0, 0),
    ]
    assert [tuple(s) for s in view.scan_outputs] == [
        (body.outputs[2], node.outputs[2], 0, 0),
        (body.outputs[3], node.outputs[3], 0, 0),
    ]
    assert [tuple(c) for c in view.captures] == [(body.inputs[4], node.inputs[4])]


def test_axes_and_directions():
    view = LoopView.of(
        scan(
            scan_input_axes=(0, 1),
            scan_input_directions=(0, 1),
            scan_output_axes=(1, 0),
            scan_output_directions=(1, 0),
        )
    )
    assert view.scan_input_places == [(0, 0), (1, 1)]
    assert view.scan_output_places == [(1, 1), (0, 0)]
    assert [(s.axis, s.backwards) for s in view.scan_outputs] == view.scan_output_places


def loop(operands: list[Value | None], captures: int) -> Node:
    """One state, `captures` captures; one scan output."""
    number, going = Value(TensorType(DType.INT64, ())), Value(TensorType(DType.BOOL, ()))
    state, *rest = values(1 + captures)
    body = Graph([number, going, state, *rest], [going, F.neg(state), F.exp(state)])
    return Node(Loop(body=body, captures=captures), operands)


def test_loop():
    limit = F.constant(value=np.array(3))
    node = loop([limit, None, *values(2)], 1)
    view = LoopView.of(node)
    body = node.op.body
    assert view.is_loop
    assert view.operands[: view.lead] == (limit, None)
    assert list(view.entry) == list(body.inputs[:2])
    assert [tuple(s) for s in view.states] == [(node.inputs[2], body.inputs[2], body.outputs[1], node.outputs[0])]
    assert view.scan_inputs == ()
    assert [tuple(s) for s in view.scan_outputs] == [(body.outputs[2], node.outputs[1], 0, 0)]
    assert [tuple(c) for c in view.captures] == [(body.inputs[3], node.inputs[3])]


def test_other_operands():
    node = loop([None, None, *values(2)], 1)
    others = [None, None, *values(2)]
    view = LoopView.of(node, others)
    assert [s.initial for s in view.states] == [others[2]]
    assert [c.outer for c in view.captures] == [others[3]]


def test_absent_operands_at_the_end_have_their_places():
    number, going = Value(TensorType(DType.INT64, ())), Value(TensorType(DType.BOOL, ()))
    body = Graph([number, going], [going, F.exp(F.cast(number, to=DType.FLOAT32))])
    limit = F.constant(value=np.array(3))
    view = LoopView.of(Node(Loop(body=body), [limit]))
    assert view.operands == (limit, None)
    assert (view.states, view.captures) == ((), ())
    assert len(view.scan_outputs) == 1


@pytest.mark.parametrize("length", [0, 3])
def test_views_of_what_the_front_end_makes(length):
    x = gk.input("x", [length, 3])
    start = gk.input("start", [3])
    final, stacked = gk.scan(lambda s, row: (s + row, s * row), start, x)
    view = LoopView.of(final.node)
    assert view.state_count == 1
    assert view.states[0].final is final
    assert view.scan_inputs[0].outer is x
    assert view.scan_outputs[0].outer is stacked


def branch() -> Graph:
    a, b = values(2)
    return Graph([a, b], [F.add(a, b)])


def test_if():
    x, y = values(2)
    flag, then, other = Value(TensorType(DType.BOOL, ())), branch(), branch()
    node = Node(If(then_branch=then, else_branch=other), [flag, x, y])
    view = IfView.of(node)
    assert is_if(node)
    assert view.condition is flag
    assert list(view.captures) == [x, y]
    assert view.branches == (then, other)
    assert view.chosen is None
    replaced = view.with_branches(other, then)
    assert IfView.of(Node(replaced, node.inputs)).branches == (other, then)


@pytest.mark.parametrize("condition", [True, False])
def test_the_branch_that_a_known_condition_chooses(condition: bool):
    branches = {True: branch(), False: branch()}
    operands = [F.constant(value=np.array(condition)), *values(2)]
    node = Node(If(then_branch=branches[True], else_branch=branches[False]), operands)
    assert IfView.of(node).chosen is branches[condition]
    # The same node on an operand that is not known.
    assert IfView.of(node, [Value(TensorType(DType.BOOL, ())), *operands[1:]]).chosen is None


def test_how_many_operands_are_captured():
    flag = Value(TensorType(DType.BOOL, ()))
    assert capture_count(Node(If(then_branch=branch(), else_branch=branch()), [flag, *values(2)])) == 2
    assert capture_count(scan()) == 1
    assert not is_if(scan())
