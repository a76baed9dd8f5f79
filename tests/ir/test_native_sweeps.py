"""The native sweeps over graphs give the same results as those in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from python_sweeps import in_python

import graphkit as gk
from graphkit.errors import GraphkitError, InvalidModel
from graphkit.executor.devices.extension import import_extension
from graphkit.ir.graph import Graph, Node, Value, native_sweeps, topological
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops._op import number_of
from graphkit.ops.internal.fused import Fused
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.bind import bind
from graphkit.passes.core.sweep import Readers, fuse, rewrite, run_passes
from graphkit.passes.pipeline import INFERENCE
from graphkit.passes.simplify.cse import cse


@pytest.fixture(autouse=True)
def extension() -> None:
    import_extension()
    assert native_sweeps() is not None


def random_values(seed: int) -> list[Value]:
    """Return two inputs and the results of 60 nodes. Some nodes have several results or an absent operand."""
    rng = np.random.default_rng(seed)
    values = [gk.input("a", [4, "N"]), gk.input("b", [4, "N"])]
    for _ in range(60):
        x, y = (values[int(i)] for i in rng.integers(0, len(values), 2))
        kind = int(rng.integers(0, 4))
        if kind == 0:
            parts = F.split(x, np.array([1, 3]), axis=0)
            values.append(F.concat(*parts, axis=0))
        elif kind == 1:
            values.append(F.clip(x, None, np.float32(2)))
        else:
            values.append(F.add(x, y) if kind == 2 else F.relu(x))
    return values


@in_one_item()
@pytest.mark.parametrize("seed", range(10))
def test_topological_order_is_equal(seed: int) -> None:
    values = random_values(seed)
    rng = np.random.default_rng(seed)
    roots = [None, *(values[int(i)] for i in rng.integers(0, len(values), 5))]
    for stop in ([], [values[int(i)] for i in rng.integers(0, len(values), 8)]):
        assert topological(roots, stop) == in_python(topological, roots, stop)


def shown(graph: Graph) -> list[object]:
    """Return everything that a sweep determines: the text, and facts about copies that the text lacks."""
    values = [(v.index, v.role, v.attrs, v.type, v.name, v.node is node) for node in graph.nodes for v in node.outputs]
    serials = [s for node in graph.nodes for s in (node.serial, *(v.serial for v in node.outputs))]
    ranks = sorted(range(len(serials)), key=serials.__getitem__)
    return [str(graph), values, [(node.name, node.meta, node.scope) for node in graph.nodes], ranks]


@in_one_item()
@pytest.mark.parametrize("seed", range(10))
def test_rewritten_graph_is_equal(seed: int) -> None:
    values = random_values(seed)
    graph = gk.Model({f"y{i}": v for i, v in enumerate(values[-4:])}).graph

    def halved(node: Node, operands: Sequence[Value | None]) -> list[Value]:
        return [F.reshape(F.add(*node.rebuilt(operands).outputs, np.float32(1)), np.array([4, -1]))]

    def rewritten() -> list[object]:
        return shown(rewrite(graph, halved, at=["Clip"]))

    assert rewritten() == in_python(rewritten)


@in_one_item()
@pytest.mark.parametrize("seed", range(10))
def test_nodes_after_given_operators_are_equal(seed: int) -> None:
    values = random_values(seed)
    graph = gk.Model({f"y{i}": v for i, v in enumerate(values[-4:])}).graph

    def visited() -> list[object]:
        found: list[object] = []

        def rule(node: Node, operands: Sequence[Value | None]) -> list[Value] | None:
            found.append((node.name, node.op.name, str(node)))
            # A Relu becomes a Neg, whose readers are not visited.
            return [F.neg(operands[0])] if node.op.name == "Relu" else None

        rewritten = rewrite(graph, rule, at=["Clip"], after=["Relu", "Split"])
        return [found, shown(rewritten)]

    assert visited() == in_python(visited)


@in_one_item()
@pytest.mark.parametrize("seed", range(10))
def test_given_operators_after_others_are_equal(seed: int) -> None:
    values = random_values(seed)
    graph = gk.Model({f"y{i}": v for i, v in enumerate(values[-4:])}).graph

    def visited() -> list[str]:
        found: list[str] = []
        rewrite(graph, lambda node, _: found.append(str(node)), at=["Clip"], after=["Relu", "Split"], among=["Add"])
        return found

    assert visited() == in_python(visited)


def test_equal_nodes_with_attributes_are_merged_unless_groups_differ() -> None:
    x = gk.input("x", [2])

    def merged() -> list[object]:
        parts = []
        for group in ("a", "b", "a"):
            with gk.attr_scope(ctx_group=group):
                parts.append(F.add(F.relu(x), F.constant(value=np.float32(2))))
        parts.append(F.add(F.relu(x), F.constant(value=np.float32(2))))
        graph = cse(Graph([x], parts))
        return [(node.op.name, node.meta.get("ctx_group")) for node in graph.nodes]

    found = merged()
    assert found == in_python(merged)
    assert [name for name, _ in found].count("Constant") == 1
    assert [name for name, _ in found].count("Relu") == 2


def test_equal_regions_have_equal_numbers() -> None:
    def numbers() -> list[bool]:
        x, y = gk.input("x", [2, 3]), gk.input("y", [3])
        bodies = [F.neg(F.add(x, y)), F.neg(F.add(x, y)), F.neg(F.add(x, x)), F.abs(F.add(x, y))]
        found = [number_of(Fused(body=Graph([x, y], [body]))) for body in bodies]
        return [number == found[0] for number in found]

    assert numbers() == in_python(numbers) == [True, True, False, False]


def test_equal_regions_with_one_body_are_merged() -> None:
    x, operand = gk.input("x", [2]), Value(TensorType("float32", (2,)))
    body = Graph([operand], [F.tanh(F.exp(operand))])

    def merged() -> int:
        return len(cse(Graph([x], [Node(Fused(body=body), [x]).output for _ in range(3)])).nodes)

    assert merged() == in_python(merged) == 1


def test_wrong_graphs_are_the_same_errors() -> None:
    x, state, other = (gk.input(name, [2]) for name in ("x", "state", "other"))
    wide = gk.input("wide", [3])
    cases: list[tuple[Any, ...]] = [
        ([x, x], [F.neg(x)]),
        ([x], [F.neg(other)]),
        ([x], [other]),
        ([x], [1]),
        ([x, state], [x], [(state, F.neg(x)), (state, x)]),
        ([x], [x], [(state, x)]),
        ([x, wide], [x], [(wide, x)]),
    ]

    def message(case: tuple[Any, ...]) -> str:
        with pytest.raises(GraphkitError) as error:
            Graph(*case)
        return f"{type(error.value)}: {error.value}"

    for case in cases:
        assert message(case) == in_python(message, case)


@in_one_item()
@pytest.mark.parametrize("seed", range(10))
def test_counted_uses_are_equal(seed: int) -> None:
    values = random_values(seed)
    graph = gk.Model({f"y{i}": v for i, v in enumerate(values[-4:])}).graph

    def counted() -> list[int]:
        found = []

        def rule(node: Node, readers: Readers) -> list[Value] | None:
            x = node.inputs[0]
            found.append(readers.count(x))
            return [x] if node.op.name == "Clip" else None

        fuse(graph, rule, at=["Clip", "Concat"])
        return found

    assert counted() == in_python(counted)


@pytest.mark.parametrize("name", ["lenet", "lstm_lm"])
def test_passes_give_equal_graphs(name: str) -> None:
    graph = gk.models.build(name).graph

    def prepared() -> list[object]:
        return shown(run_passes(graph, (*CLEANUP, *INFERENCE)))

    assert prepared() == in_python(prepared)


@pytest.mark.parametrize("seed", range(4))
def test_bound_graph_is_equal(seed: int) -> None:
    values = random_values(seed)
    graph = gk.Model({f"y{i}": v for i, v in enumerate(values[-4:])}).graph

    def bound() -> list[object]:
        return shown(bind(graph, {graph.name_of(v): (4, 7) for v in graph.inputs}))

    assert bound() == in_python(bound)


def test_missing_input_is_named() -> None:
    x, y = gk.input("x", [2]), gk.input("y", [2])
    total = F.add(x, F.relu(y))
    with pytest.raises(InvalidModel, match="inputs: y"):
        Graph([x], [total])
    Graph([x, y], [total])


class Named:
    """An operator whose objects have names of their own."""

    domain = ""

    def __init__(self, name: str):
        self.name = name

    def infer_types(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (inputs[0],)

    def subgraphs(self) -> dict[str, Graph]:
        return {}

    def attributes(self) -> dict[str, Any]:
        return {}


def test_operators_of_one_class_may_have_different_names() -> None:
    x, native = gk.input("x", [2]), native_sweeps()
    assert native is not None
    first = Node(Named("First"), [x])
    nodes = (first, Node(Named("Second"), first.outputs))
    positions = [native.copy_until(nodes, 0, frozenset([name]), {}, None) for name in ("First", "Second", "Third")]
    assert positions == [0, 1, 2]


def test_order_after_a_visit_that_failed() -> None:
    values = random_values(0)
    native = native_sweeps()
    assert native is not None
    broken = Node(Named("Broken"), [*values[-5:]])
    wrong: Any = object()
    broken.inputs = (*values[-5:], wrong)
    with pytest.raises(import_extension().Error, match="neither a node nor a value"):
        native.topological([broken.output, *values], set())
    assert topological(values) == in_python(topological, values)


@pytest.mark.parametrize("start", [-1, 3])
def test_start_outside_of_the_nodes_is_an_error(start: int) -> None:
    x, native = gk.input("x", [2]), native_sweeps()
    assert native is not None
    nodes, names = Graph([x], [F.neg(F.neg(x))]).nodes, frozenset[str]()
    expected = f"2 nodes cannot start at position {start}"
    with pytest.raises(import_extension().Error, match=expected):
        native.copy_until(nodes, start, names, {}, None)
    with pytest.raises(import_extension().Error, match=expected):
        native.merge_until(nodes, start, {}, {}, {}, id, set())
    with pytest.raises(import_extension().Error, match=expected):
        native.bind_until(nodes, start, names, {}, {}, id)


def test_other_objects_are_rejected() -> None:
    native = native_sweeps()
    assert native is not None
    error = import_extension().Error
    with pytest.raises(error, match="neither a node nor a value"):
        native.topological([object()], set())
    with pytest.raises(error, match="neither a node nor a value"):
        native.copied(object(), ())
    with pytest.raises(AttributeError, match="op"):
        import_extension().GraphSweeps(object, Value, iter([]), max, {}, TensorType)
    with pytest.raises(error, match="op is not in __slots__"):
        import_extension().GraphSweeps(type("Other", (), {"op": 1}), Value, iter([]), max, {}, TensorType)
