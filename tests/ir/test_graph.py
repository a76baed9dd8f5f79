"""Construction, names, topology, text, DOT, closing over captures."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.errors import InvalidModel, TypeMismatch, UsageError
from graphkit.ir import subgraph
from graphkit.ir.context import Scope, entered
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.printing import to_dot, to_text
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate


def float32(*shape: object, name: str = "") -> Value:
    return Value(TensorType("float32", shape), name)


def small_graph() -> Graph:
    x, w = float32("N", 3, name="x"), Value(TensorType("float32", (3,)), "w", role="parameter")
    h = F.mul(x, w)
    h = F.relu(h, name="act")
    y = F.add(h, np.float32([1, 2, 3]))
    return Graph([x, w], [y, F.neg(h)], name="small", output_names=["y", "z"])


GOLDEN = """\
graph small {
  input x: float32[N, 3]
  input w: float32[3]  # parameter
  mul: float32[N, 3] = Mul(x, w)
  act: float32[N, 3] = Relu(mul)
  constant: float32[3] = Constant() [value=float32[3][1.0, 2.0, 3.0]]
  add: float32[N, 3] = Add(act, constant)
  neg: float32[N, 3] = Neg(act)
  output y = add
  output z = neg
}"""


def test_text_is_stable() -> None:
    assert to_text(small_graph()) == GOLDEN
    assert str(small_graph()) == str(small_graph())


def test_anonymous_dimensions_are_numbered_in_order_of_appearance() -> None:
    def build() -> str:
        x, keep = float32("N", name="x"), Value(TensorType("bool", ("N",)), "keep")
        kept = F.compress(x, keep, axis=0)
        return str(Graph([x, keep], [kept, F.compress(kept, keep, axis=0)]))

    text = build()
    assert text == build()
    assert "float32[?1] = Compress(x, keep)" in text
    assert "float32[?2] = Compress(compress, keep)" in text


def test_dot() -> None:
    dot = to_dot(small_graph())
    assert dot.startswith('digraph "small" {')
    assert '"in:w" [label="w\\nfloat32[3]", shape=note];' in dot
    assert '"n:act" -> "n:add" [label="float32[N, 3]"];' in dot
    assert dot.count("{") == dot.count("}")
    assert dot == to_dot(small_graph())


def test_dot_quotes_names() -> None:
    x = float32(2, name='a"b\\c')
    assert 'in:a\\"b\\\\c' in to_dot(Graph([x], [F.neg(x)]))


def test_one_line_of_text_for_every_object() -> None:
    graph = small_graph()
    node = next(n for n in graph.nodes if n.op.name == "Relu")
    assert str(node).startswith("node 'act' Relu(Mul: float32[N, 3])")
    for item in (graph, node, node.output, node.op, node.output.type, graph.inputs[0]):
        assert "\n" not in repr(item)


def test_names_are_unique_and_explicit_ones_come_first() -> None:
    x = float32(2, name="x")
    first = F.relu(x)
    second = F.relu(first, name="relu")
    graph = Graph([x], [second])
    assert [graph.node_name(n) for n in graph.nodes] == ["relu_1", "relu"]
    assert len({graph.name_of(v) for v in graph.values}) == 3


def test_scopes_qualify_explicit_names_and_add_attributes() -> None:
    x = float32(2, name="x")
    with entered(Scope("block/", {"stage": "1"})):
        named, unnamed = F.relu(x, name="act"), F.relu(x)
    assert named.node.name == "block/act"
    assert unnamed.node.name == ""
    assert named.node.meta == {"stage": "1"}


def test_find_suggests() -> None:
    with pytest.raises(UsageError, match="did you mean 'act'"):
        small_graph().find("acct")
    graph = small_graph()
    assert graph.find("y") is graph.outputs[0]


def test_type_errors_name_node_and_both_shapes() -> None:
    a, b = float32(2, 3, name="a"), float32(4, name="b")
    with pytest.raises(TypeMismatch, match=r"node 'sum' Add\(a: float32\[2, 3\], b: float32\[4\]\)"):
        F.add(a, b, name="sum")
    with pytest.raises(TypeMismatch, match="int32"):
        F.add(a, Value(TensorType("int32", (2, 3)), "c"))


def test_missing_inputs_are_listed() -> None:
    x, y = float32(2, name="x"), float32(2, name="y")
    with pytest.raises(InvalidModel, match="y: float32"):
        Graph([x], [F.add(x, y)])
    with pytest.raises(InvalidModel, match="twice"):
        Graph([x, x], [x])


def test_updates_are_checked() -> None:
    s = Value(TensorType("float32", (2,)), "s", role="state")
    Graph([s], [], [(s, F.neg(s))])
    with pytest.raises(InvalidModel, match="another type"):
        Graph([s], [], [(s, F.reduce_sum(s))])
    with pytest.raises(InvalidModel, match="not an input"):
        Graph([s], [], [(F.neg(s), s)])


def test_topological_order_is_deterministic_and_stops() -> None:
    x = float32(2, name="x")
    a = F.exp(x)
    b = F.neg(a)
    c = F.add(a, b)
    order = topological([c])
    assert [n.op.name for n in order] == ["Exp", "Neg", "Add"]
    assert [n.op.name for n in topological([c], stop=[a])] == ["Neg", "Add"]


def test_rebuilt_keeps_what_does_not_change() -> None:
    x, z = float32(2, name="x"), float32(2, name="z")
    node = F.exp(x).node
    assert node.rebuilt([x]) is node
    other = node.rebuilt([z])
    assert other is not node
    assert other.outputs[0].type is node.outputs[0].type


def test_close_over_makes_captures_explicit() -> None:
    outer = float32(3, name="outer")
    scale = F.exp(outer)
    mark = subgraph.checkpoint()
    own = float32(3, name="own")
    inner = F.mul(F.add(own, scale), np.float32(2))
    graph, captures = subgraph.close_over([inner], [own], mark)
    assert captures == [scale]
    assert [v.role for v in graph.inputs] == ["data", "data"]
    (result,) = evaluate(graph, [np.float32([1, 2, 3]), np.float32([1, 1, 1])])
    np.testing.assert_array_equal(result, np.float32([4, 6, 8]))
    inlined = subgraph.inline(graph, [outer, scale])
    (again,) = evaluate(Graph([outer], inlined), [np.zeros(3, np.float32)])
    np.testing.assert_array_equal(again, np.float32([2, 2, 2]))


def test_close_over_shares_a_list_of_captures() -> None:
    a, b = float32(2, name="a"), float32(2, name="b")
    mark = subgraph.checkpoint()
    graph, captures = subgraph.close_over([F.neg(b)], [], mark, captured=[a])
    assert captures == [a, b]
    assert len(graph.inputs) == 2


def test_values_have_no_truth_and_cannot_be_iterated() -> None:
    x = float32(2, name="x")
    with pytest.raises(UsageError, match="truth value"):
        bool(x > 1.0)
    with pytest.raises(UsageError, match="iterated"):
        list(x)


def test_overloads() -> None:
    x = float32(4, name="x")
    y = -(((1.0 + x) * 2.0 - x / 4.0) ** 2.0)
    (result,) = evaluate(Graph([x], [y]), [np.float32([1, 2, 3, 4])])
    array = np.float32([1, 2, 3, 4])
    np.testing.assert_allclose(result, -(((1 + array) * 2 - array / 4) ** 2), rtol=1e-6)


def test_indexing() -> None:
    x = Value(TensorType("float32", ("N", 4, 5)), "x")
    array = np.arange(40, dtype=np.float32).reshape(2, 4, 5)
    for key in ((0,), (slice(None), -1), (Ellipsis, slice(1, 4, 2)), (slice(None), None, 2), (slice(None, None, -1),)):
        (result,) = evaluate(Graph([x], [x[key]]), [array])
        np.testing.assert_array_equal(result, array[key])


def test_another_name_or_metadata_leave_the_graph_as_it_was() -> None:
    graph = small_graph()
    given = {"producer": "a test"}
    renamed = graph.replace(name="other", meta=given)
    given["producer"] = "changed"
    assert (renamed.name, renamed.meta) == ("other", {"producer": "a test"})
    assert (graph.name, graph.meta) == ("small", {})
    assert renamed.nodes == graph.nodes
    assert [renamed.name_of(v) for v in renamed.values] == [graph.name_of(v) for v in graph.values]
    assert renamed.output_names == graph.output_names


def test_the_operators_of_a_graph() -> None:
    assert small_graph().operators == {"Mul", "Relu", "Add", "Neg", "Constant"}


def test_what_a_node_reads_last_is_spent_with_it() -> None:
    x, unread, s = (
        float32(2, name="x"),
        float32(2, name="unread"),
        Value(TensorType("float32", (2,)), "s", role="state"),
    )
    a = F.relu(x)
    parts = F.split(a, num_outputs=2)
    b = F.add(a, a)
    new = F.add(s, b)
    graph = Graph([x, unread, s], [F.neg(parts[0]), x], [(s, new)])
    spent = dict(zip(graph.nodes, map(set, graph.spent), strict=True))
    assert spent == {
        a.node: set(),  # x is a result
        parts[0].node: {parts[1]},
        graph.outputs[0].node: {parts[0]},
        b.node: {a},
        new.node: {s, b},
    }
    assert all(len(set(values)) == len(values) for values in graph.spent)
    assert graph.spent is graph.spent
    assert graph.replace(name="other").spent == graph.spent


def test_graph_replace_and_node_types_skip_inference() -> None:
    graph = small_graph()
    renamed = graph.replace(name="other")
    assert renamed.name == "other"
    assert renamed.output_names == graph.output_names
    node = Node(graph.nodes[0].op, graph.nodes[0].inputs, types=[TensorType("float32", (1,))])
    assert node.output.shape == (1,)
