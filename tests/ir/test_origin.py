"""Errors name a node without a name by its origin."""

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import GraphkitError, MissingGradient, TypeMismatch
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node
from graphkit.ir.origin import label, titled
from graphkit.ops import F, Op, op, registry
from graphkit.passes.core.sweep import rewrite, run_passes
from graphkit.train import losses


def test_named_nodes_are_described_by_name() -> None:
    x = gk.input("x", [2])
    assert F.relu(x, name="act").node.describe() == "node 'act' Relu(x: float32[2])"


def test_failed_construction_names_line_of_caller() -> None:
    x, y = gk.input("x", [2, 3]), gk.input("y", [2, 3])
    with pytest.raises(TypeMismatch, match=r"^node MatMul\(x: .*\) \(made at test_origin\.py:\d+\): the inner"):
        F.mat_mul(x, y)


def test_unnamed_node_tells_its_name_scope() -> None:
    x = gk.input("x", [2])
    with gk.name_scope("block1"), gk.name_scope("inner"):
        node = F.relu(x).node
    assert node.describe() == "node Relu(x: float32[2]) (made in scope 'block1/inner')"


def test_unnamed_node_tells_nearest_named_producer() -> None:
    node = F.relu(F.neg(F.abs(gk.input("x", [2]), name="magnitude"))).node
    assert node.describe() == "node Relu(Neg: float32[2]) (after node 'magnitude')"


def test_named_result_stands_for_node() -> None:
    x = gk.input("x", [2])
    node = Node(F.relu(x).node.op, [x], output_names=["y"])
    assert node.describe() == "node of 'y' Relu(x: float32[2])"
    assert label(node) == "'y'"


def test_search_for_named_producer_is_bounded() -> None:
    value = gk.input("x", [2])
    for _ in range(3000):
        value = F.neg(value)
    assert value.node.describe() == "node Neg(Neg: float32[2])"


def test_gradient_nodes_name_differentiated_node() -> None:
    x = gk.input("x", [2])
    y = F.exp(F.tanh(x, name="squash"))
    (found,) = gk.gradient([F.reduce_sum(y)], [x])
    assert "made by the gradient of node 'squash'" in found.node.describe()


def test_gradient_of_unnamed_node_names_its_scope() -> None:
    x = gk.input("x", [2])
    with gk.name_scope("head"):
        y = F.tanh(x)
    (found,) = gk.gradient([F.reduce_sum(y)], [x])
    assert "made by the gradient of a Tanh made in scope 'head'" in found.node.describe()


def test_missing_gradient_names_unnamed_node_by_origin() -> None:
    @op
    class NoRule(Op):
        """An operator without a gradient."""

        domain = "test.origin"
        inputs = ("x",)

        def infer(self, x):
            return x

    try:
        x = gk.input("x", [4])
        with gk.name_scope("tail"):
            y = F.no_rule(F.exp(x, name="grow"))
        with pytest.raises(MissingGradient, match=r"node NoRule \(made in scope .tail.\)\n"):
            gk.gradient([F.reduce_sum(y)], [x])
    finally:
        registry.remove(NoRule)


def test_nodes_of_a_pass_name_the_pass() -> None:
    x = gk.input("x", [2])
    graph = Graph([x], [F.relu(x)])
    changed = run_passes(graph, [("doubled", lambda g: rewrite(g, lambda n, o: (F.add(o[0], o[0]),)))])
    assert changed.nodes[0].describe() == "node Add(x: float32[2], x: float32[2]) (made by pass doubled)"


def test_rebuilt_node_keeps_what_made_it() -> None:
    x, wide = gk.input("x", [2]), gk.input("wide", [3])
    with gk.name_scope("block"):
        node = F.relu(x).node
    graph = run_passes(Graph([x], [node.output]), [("idle", lambda g: rewrite(g, lambda n, o: None, inputs={x: wide}))])
    assert graph.nodes[0].describe() == "node Relu(wide: float32[3]) (made in scope 'block')"
    assert node.rebuilt([gk.input("z", [2])]).describe() == "node Relu(z: float32[2]) (made in scope 'block')"


def test_nodes_of_a_layer_name_the_layer() -> None:
    x = gk.input("x", [2, 5, 4])
    with gk.name_scope("block"):
        y = gk.nn.linear(x, 3, name="fc")
    transposed = y.node.inputs[0].node.inputs[1].node
    assert transposed.op.name == "Transpose"
    assert "made by layer 'fc' (linear) in scope 'block'" in gk.ir.origin.origin(transposed)


def test_nodes_of_a_loss_name_the_loss() -> None:
    x = gk.input("x", [2, 3])
    graph = losses.attach(Graph([x], [F.relu(x, name="act")]), "mse")
    made = [node for node in graph.nodes if not node.name]
    assert made
    assert all("made by loss mse" in gk.ir.origin.origin(node) for node in made)


def test_scopes_and_attributes_keep_the_maker() -> None:
    x = gk.input("x", [2])
    with context.made_by("pass p"), gk.name_scope("s"), gk.attr_scope(key="1"):
        inside = F.relu(x).node
        with context.detached():
            bare = F.relu(x).node
    assert inside.describe().endswith("(made by pass p in scope 's')")
    assert inside.meta == {"key": "1"}
    assert bare.describe().endswith("(made by pass p)")
    assert not bare.meta


def test_no_error_text_has_an_empty_graph_name() -> None:
    x, other = gk.input("x", [2]), gk.input("other", [2])
    with pytest.raises(GraphkitError, match=r"^the graph of input 'x' depends on values"):
        Graph([x], [F.relu(other)])
    with pytest.raises(GraphkitError, match=r"^the model of input 'x' has no input 'z'"):
        gk.Model(F.relu(x), name="").infer_shapes(z=[2])


def test_titles_of_many_inputs_are_short() -> None:
    values = [gk.input(f"x{i}", [2]) for i in range(1000)]
    assert titled(Graph(values, [])) == "the graph of inputs 'x0', 'x1', 'x2' and 997 more"
    assert titled(Graph([], [F.constant(value=np.ones(2))])) == "the graph without a name"
    assert titled(Graph(values, [], name="net"), "model") == "model 'net'"


@pytest.mark.parametrize("module", ["graphkit.cli.inspect", "graphkit.models.own"])
def test_own_files_are_not_shown(module):
    code = compile("def build():\n    return gk.transpose(gk.input('x', [2]), perm=[1])", "_own.py", "exec")
    names = {"__name__": module, "gk": gk}
    exec(code, names)
    with pytest.raises(GraphkitError) as found:
        names["build"]()
    assert "_own.py" not in str(found.value)
    assert ("test_origin.py" in str(found.value)) == (module == "graphkit.models.own")
