"""Graphs whose groups are at several places: where nodes are, and which pieces they are cut into."""

from __future__ import annotations

import time

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.passes.core.sweep import groups_of
from graphkit.passes.distribution.pieces import Piece, cut
from graphkit.passes.distribution.places import find_places

GROUPS = {"a": 0, "b": 1, "c": 2}


def pieces(graph: Graph, default: int | None = None, asynchronous: tuple[bool, ...] = (False,) * 3) -> list[Piece]:
    return cut(find_places(graph, GROUPS, default), asynchronous)


def in_group(group: str, x: Value, times: int = 1) -> Value:
    with gk.attr_scope(ctx_group=group):
        for _ in range(times):
            x = F.tanh(x)
    return x


def shown(found: list[Piece]) -> list[tuple[int, int, bool]]:
    return [(piece.place, len(piece.graph.nodes), piece.late) for piece in found]


def x_of(*shape: int | str) -> Value:
    return Value(TensorType("float32", shape), "x")


def test_a_place_is_left_when_nothing_is_ready_there() -> None:
    """Two chains that change places at the same time have as many pieces as one."""
    x = x_of(3)
    one = two = x
    for group in ("a", "b", "a", "b"):
        one, two = in_group(group, one, 2), in_group(group, two, 3)
    found = pieces(Graph([x], [one, two]))
    assert shown(found) == [(0, 5, False), (1, 5, False), (0, 5, False), (1, 5, False)]


def test_the_first_place_is_the_one_with_fewest_turns() -> None:
    """Both places could begin. If the right one begins, the other can compute everything else in one turn."""
    x = x_of(3)
    first, late = in_group("a", x), in_group("b", x)
    y = in_group("a", F.add(first, in_group("b", late)))
    found = pieces(Graph([x], [y]))
    assert [piece.place for piece in found] == [1, 0]


def test_work_that_goes_on_by_itself_is_begun_first() -> None:
    x = x_of(3)
    graph = Graph([x], [in_group("a", x), in_group("b", x), in_group("c", x)])
    for places in ((False, False, True), (True, False, False), (False, True, False)):
        found = pieces(graph, asynchronous=places)
        assert len(found) == 3
        turn = [piece.place for piece in found].index(places.index(True))
        assert turn <= 1, "it is the first, or the second where the order begins elsewhere"


def test_pieces_compute_what_the_graph_does() -> None:
    x = x_of("N", 3)
    h = in_group("a", x)
    g = in_group("b", h)
    y = F.mul(in_group("a", F.add(h, g)), in_group("c", g))
    graph = Graph([x], [y, g])
    data = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    values = {x: data}
    for piece in pieces(graph):
        names = piece.graph.input_names
        feeds = {name: values[v] for name, v in zip(names, piece.inputs, strict=True)}
        made = gk.Model.from_graph(piece.graph, {}).run(feeds)
        values |= dict(zip(piece.outputs, made.values(), strict=True))
    wanted = gk.Model.from_graph(graph, {}).run({"x": data})
    for value, array in zip(graph.outputs, wanted.values(), strict=True):
        np.testing.assert_allclose(values[value], array, rtol=1e-6)


def test_nodes_in_no_group() -> None:
    x = x_of(8, 8)
    w = Value(TensorType("float32", (8, 8)), "w", role="parameter")
    alone = F.exp(x)
    a = in_group("a", F.mat_mul(x, w))
    mean = F.reduce_sum(in_group("b", x), keepdims=False)
    mixed = F.add(a, mean)
    graph = Graph([x, w], [mixed, F.add(in_group("c", alone), 1.0)])
    operands = find_places(graph, GROUPS, None)
    assert mixed.node is not None
    assert alone.node is not None
    assert operands.of[mixed.node] == 0, "where most bytes of its operands are"
    assert operands.of[alone.node] == 2, "of fed inputs alone: where it is read first"
    assert operands.homes[w] == 0
    given = find_places(graph, GROUPS, 1)
    assert (given.of[mixed.node], given.of[alone.node], given.homes[w]) == (1, 1, 1)


def test_what_makes_new_values_follows_its_operands() -> None:
    """An update runs at the place of its state, not at the default place."""
    x = x_of(4, 4)
    w = Value(TensorType("float32", (4, 4)), "w", role="parameter")
    m = Value(TensorType("float32", (4, 4)), "m", role="state")
    with gk.attr_scope(ctx_group="a"):
        y = F.mat_mul(x, w)
    gradient = F.mat_mul(F.transpose(x), y)
    moved = F.add(m, gradient)
    graph = Graph([x, w, m], [F.exp(y)], updates=[(m, moved), (w, F.sub(w, moved))])
    places = find_places(graph, GROUPS, 1)
    assert places.homes == {w: 0, m: 0}
    assert {places.of[node] for node in graph.nodes if node.op.name != "Exp"} == {0}
    found = cut(places, (True, False, True))
    assert shown(found) == [(0, 3, False), (1, 1, False), (0, 2, True)]
    assert [v.name for v in found[-1].inputs if v.role != "data"] == ["m", "w"]


def test_homes_that_are_known_stay() -> None:
    w = Value(TensorType("float32", (4, 4)), "w", role="parameter")
    graph = Graph([w], [in_group("a", w)])
    assert find_places(graph, GROUPS, None).homes == {w: 0}
    assert find_places(graph, GROUPS, None, {"w": 2, "other": 1}).homes == {w: 2}


def test_a_graph_of_updates_alone_has_them_where_parameters_were_made() -> None:
    with gk.attr_scope(ctx_group="c"):
        w = gk.parameter("w", (4, 4))
    total = Value(TensorType("float32", (4, 4)), "w/gradient_sum", role="state")
    graph = Graph([w, total], [], updates=[(w, F.sub(w, total)), (total, F.mul(total, 0.0))])
    assert set(find_places(graph, GROUPS, None).homes.values()) == {2}
    used = Graph([w], [in_group("b", w)])
    assert find_places(used, GROUPS, None).homes == {w: 1}, "but where they are read first, if groups read them"


def test_groups_are_those_of_subgraphs_too() -> None:
    flag = gk.input("flag", (), "bool")
    x = gk.input("x", [3])
    with gk.attr_scope(ctx_group="b"):
        h = gk.exp(x)

    def branch() -> Value:
        with gk.attr_scope(ctx_group="c"):
            return gk.tanh(h)

    net = gk.Model(gk.cond(flag, branch, lambda: gk.neg(h)))
    assert list(groups_of(net.graph)) == ["b", "c"]
    places = find_places(net.graph, GROUPS, None)
    found = {node.op.name: place for node, place in places.of.items()}
    assert (found["Exp"], found["If"]) == (1, 2)


def test_a_step_of_many_nodes_is_cut_in_linear_time() -> None:
    def seconds(length: int) -> float:
        x = h = x_of(4)
        for turn in range(length // 100):
            h = in_group("ab"[turn % 2], h, 100)
        graph = Graph([x], [h])
        start = time.perf_counter()
        found = pieces(graph)
        assert len(found) == length // 100
        return time.perf_counter() - start

    seconds(2000)
    short, long = seconds(4000), seconds(16000)
    assert long < 12 * short


def test_an_order_between_pieces_copies_nothing() -> None:
    x = x_of(3)
    h, g = in_group("a", x), in_group("b", x)
    found = pieces(Graph([x], [in_group("a", F.control_dependency(h, g)), g]))
    assert [(piece.place, [v.name for v in piece.inputs]) for piece in found] == [(1, ["x"]), (0, ["x"])]


@in_one_item()
@pytest.mark.parametrize("default", [None, 1])
def test_a_graph_in_one_place_is_one_piece(default: int | None) -> None:
    x = x_of("N", 3)
    found = pieces(Graph([x], [in_group("b", x, 4)]), default)
    assert shown(found) == [(1, 4, False)]
