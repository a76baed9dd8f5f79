"""The ranks of values and the transfers in the parts of a graph. tests/dist tests the results."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.internal.transfer import Elements, Receive, Send
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.bind import bind
from graphkit.passes.core.sweep import all_nodes, run_passes
from graphkit.passes.distribution.distribute import distribute, place

AB = {"a": 0, "b": 1}


def group(name):
    return gk.attr_scope(ctx_group=name)


def graph_of(**outputs):
    return run_passes(gk.Model(outputs, seed=1).graph, CLEANUP)


def parts(graph, wanted=None, groups=AB, ranks=2):
    return [p.graph for p in distribute(place(graph, groups), wanted or [None] * len(graph.outputs), ranks)]


def keys(graph, kind):
    return [node.op.key for node in all_nodes(graph) if isinstance(node.op, kind)]


def made(graph, name):
    return [node for node in all_nodes(graph) if node.op.name == name]


def test_sends_and_receives_pair_in_order():
    """Each number is sent once, from where it is received, and both ranks have theirs in one order."""
    x = gk.input("x", ["N", 4])
    h = x
    for name in "abab":
        with group(name):
            h = gk.tanh(h) + x
    both = parts(graph_of(y=h))
    orders = [[n.op.number for n in g.nodes if isinstance(n.op, (Send, Receive))] for g in both]
    assert orders[0] == orders[1] == sorted(orders[0])
    assert len(orders[0]) == 3
    for g, other in zip(both, both[::-1], strict=True):
        sent = {n.op.number: n.op for n in g.nodes if isinstance(n.op, Send)}
        received = {n.op.number: n.op for n in other.nodes if isinstance(n.op, Receive)}
        assert sent.keys() == received.keys()
        assert all(sent[k].key == received[k].key for k in sent)


def test_what_depends_on_data_alone_is_computed_where_it_is_read():
    x = gk.input("x", ["N", 4])
    mask = gk.sigmoid(x)
    with group("a"):
        h = gk.tanh(x) * mask
    with group("b"):
        y = h * mask
    first, second = parts(graph_of(y=y))
    assert made(first, "Sigmoid")
    assert made(second, "Sigmoid")
    assert keys(first, Send) == ["mul"]


def test_what_has_no_group_follows_most_bytes():
    x = gk.input("x", [4])
    with group("a"):
        small = gk.tanh(x)
    with group("b"):
        large = F.expand(gk.exp(x), np.array([100, 4]))
    first, second = parts(graph_of(y=small * large))
    assert not made(first, "Mul")
    assert made(second, "Mul")
    assert keys(first, Send) == ["tanh"]


def test_a_parameter_is_where_it_is_read_first():
    """This holds inside of a loop, too. If no reader of a parameter has a group, it is on the rank of its reader."""
    x = gk.input("x", ["N", 4])
    init = {"type": "normal", "std": 0.5}
    w, v, u = (gk.parameter(name, [4, 4], init) for name in "wvu")

    def body(h):
        with group("b"):
            h = gk.tanh(F.mat_mul(h, w))
        with group("a"):
            return gk.tanh(F.mat_mul(h, v))

    h = gk.while_loop(lambda h: F.less(gk.reduce_sum(h, keepdims=False), np.float32(3)), body, x, 3)
    graph = graph_of(y=F.mat_mul(h, u))
    owners = {graph.name_of(v): rank for v, rank in place(graph, AB).owners.items()}
    assert owners == {"w": 1, "v": 0, "u": 0}
    owners = place(graph, AB, owners={"u": 1}).owners
    assert {graph.name_of(v): rank for v, rank in owners.items()} == {"w": 1, "v": 0, "u": 1}


def test_inputs_keep_their_names():
    """Two of one name, each on a rank."""
    x = gk.input("x", ["N", 4])
    values = [Value(TensorType("float32", (4, 4)), "w", role="parameter") for _ in "ab"]
    with group("a"):
        h = F.mat_mul(x, values[0])
    with group("b"):
        y = F.mat_mul(h, values[1])
    whole = Graph([x, *values], [y])
    assert whole.input_names == ("x", "w", "w_1")
    first, second = parts(whole)
    assert first.input_names == ("x", "w", "transfers")
    assert second.input_names == ("x", "w_1", "transfers")


def test_names_that_users_have_taken():
    x = gk.input("transfers", ["N", 4])
    with group("a"):
        h = gk.tanh(x)
    with group("b"):
        h = gk.exp(h)
    (_, part) = distribute(place(graph_of(transferred=h), AB), [None], 2)
    assert (part.start, part.done) == ("transfers_1", "transferred_1")
    assert part.graph.output_names == ("transferred", "transferred_1")


def test_shapes_stay_known():
    """A received value has the type that it has in the whole graph, under other sizes too."""
    x = gk.input("x", ["N", 4])
    with group("a"):
        h = F.concat(gk.tanh(x), x, np.ones((1, 4), np.float32), axis=0)
    with group("b"):
        y = gk.exp(h)
    graph = graph_of(y=y)
    _, second = parts(graph)
    assert second.outputs[0].type == graph.outputs[0].type
    assert str(second.outputs[0].type) == "float32[2*N + 1, 4]"
    assert str(bind(second, {"x": (3, 4)}).outputs[0].type) == "float32[7, 4]"


def test_elements_that_types_tell_do_not_travel():
    x = gk.input("x", ["N", 4])
    with group("a"):
        h = F.concat(gk.tanh(x), x, axis=0)
    with group("b"):
        y = F.add(F.shape(h), np.array([1, 0]))
    graph = gk.Model({"y": y}).graph
    both = [p.graph for p in distribute(place(graph, AB), [range(2)], 2)]
    assert all(keys(g, Send) == [] for g in both)
    assert any(made(g, "Elements") for g in both)
    for g in both:
        assert [str(d) for d in g.outputs[0].tensor.value] == ["2*N + 1", "4"]
        for node in g.nodes:
            if isinstance(node.op, Elements):
                found = node.op.reference(np, *(np.zeros((3, 4)) for _ in node.inputs))
                assert found.tolist() in ([6, 4], [7, 4])


def test_a_subgraph_that_has_other_names_for_sizes():
    """In the branch, N is the second size, so sizes of received values are only known from the message."""
    x = gk.input("x", ["N", "M"])
    inner = Value(TensorType("float32", ("M", "N")), "x")
    with group("a"):
        h = gk.tanh(inner)
    with group("b"):
        y = gk.exp(h)
    branch = Graph([inner], [y])
    decision = F.greater(gk.reduce_sum(x, keepdims=False), np.float32(0))
    y = F.if_(decision, x, then_branch=branch, else_branch=branch.replace(outputs=[inner]))
    first, second = parts(gk.Model({"y": y}).graph)
    assert keys(first, Send) == ["if/then/tanh"]
    (received,) = [n for n in all_nodes(second) if isinstance(n.op, Receive)]
    assert received.op.shape == ("?", "?")


def test_a_branch_sends_inside():
    x = gk.input("x", ["N", 4])
    with group("a"):
        h = gk.tanh(x)

    def expert():
        with group("b"):
            return gk.exp(h)

    with group("a"):
        decision = F.greater(gk.reduce_sum(h, keepdims=False), np.float32(0))
    y = gk.cond(decision, expert, lambda: h)
    first, second = parts(graph_of(y=y))
    outside = [n.op.key for n in first.nodes if isinstance(n.op, Send)]
    assert outside == ["greater"]
    (branch,) = made(first, "If")
    then, other = branch.op.then_branch, branch.op.else_branch
    assert len(keys(then, Send)) == 1
    # The result is where the condition is: it comes back inside of the branch.
    assert len(keys(then, Receive)) == 1
    assert keys(other, Send) == keys(other, Receive) == []
    assert made(second, "If")


def test_control_flow_of_one_group_is_whole():
    x = gk.input("x", ["N", 4])
    with group("a"):
        h = gk.while_loop(lambda h: F.less(gk.reduce_sum(h, keepdims=False), np.float32(3)), lambda h: h + 1.0, x, 3)
    with group("b"):
        y = gk.exp(h)
    first, second = parts(graph_of(y=y))
    (loop,) = made(first, "Loop")
    assert len(loop.inputs) == 3  # no token
    assert not made(second, "Loop")


def test_counters_are_counted_by_each_rank():
    """A loop of a known number of iterations needs no message for its condition."""
    x = gk.input("x", ["N", 4])

    def body(state):
        number, h = state
        with group("a"):
            h = gk.tanh(h * F.cast(number, to="float32"))
        with group("b"):
            h = gk.exp(h + F.cast(number, to="float32"))
        return number + 1, h

    _, h = gk.while_loop(lambda s: F.less(s[0], np.int64(5)), body, (np.int64(0), x))
    first, second = parts(graph_of(y=h))
    assert sorted(keys(first, Send) + keys(second, Send)) == ["while_loop/body/tanh", "while_loop/body/x"]


def test_an_order_among_what_one_rank_computes():
    """After waits for nothing of another rank."""
    x = gk.input("x", ["N", 4])
    with group("a"):
        token = gk.tanh(x)
    with group("b"):
        h = gk.exp(x)
        y = F.control_dependency(h, token) * 2.0
    first, second = parts(Graph([x], [y, token]), [None, None])
    assert keys(first, Send) == keys(second, Send) == []
    assert not made(second, "ControlDependency")


@in_one_item()
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_without_a_part(ranks):
    x = gk.input("x", ["N", 4])
    with group("a"):
        y = gk.tanh(x)
    found = parts(graph_of(y=y), [[0]], {"a": 0}, ranks)
    assert [len(g.nodes) for g in found] == [1] + [0] * (ranks - 1)


def test_a_group_without_a_rank():
    x = gk.input("x", ["N", 4])
    with group("c"):
        y = gk.tanh(x)
    with pytest.raises(UsageError, match=r"no rank is given for 'c', of .*Tanh"):
        place(graph_of(y=y), AB)
