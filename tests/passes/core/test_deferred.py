"""A pass is imported when a graph has an operator that it may change, and does nothing to other graphs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice

import pytest
from combinations import in_one_item
from deciding_graphs import deciding_graphs
from interrupted_imports import run_in_new_process

import graphkit as gk
from graphkit.checks.samples import all_cases
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F, registry
from graphkit.ops._op import declared
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core._index import PASSES
from graphkit.passes.core.declare import CONTROL, Pass, _any_graph, _has_any
from graphkit.passes.core.relevance import _SMALL, CONDITIONS, RESHAPES
from graphkit.passes.core.sweep import operators
from graphkit.passes.pipeline import BOUND, INFERENCE, array_passes, arrays_bound, inference_passes

LIMITED = {name: frozenset(at) for name, (_, at, *_) in PASSES.items() if at is not None}
BESIDE = {name: [frozenset(names) for names in groups] for name, (_, _, groups, *_) in PASSES.items() if groups}
# Passes that are imported for certain nodes of any operator.
CONDITIONAL = {name: CONDITIONS[name] for name in ("widen_halves", "known_ranks", "expand_composites")}


@cache
def graphs() -> tuple[Graph, ...]:
    return tuple(_graphs())


def _graphs() -> Iterator[Graph]:
    """A graph of each operator alone, networks with their gradients, and small graphs for each listed operator."""
    for cls in registry:
        for case in islice(all_cases(cls), 1):
            operands = [None if kind is None else Value(kind) for kind in case.types]
            yield Graph([v for v in operands if v is not None], Node(case.op, operands).outputs)
    small = {"layers": 18, "image": (3, 32, 32)}
    for name, options in (("lenet", {}), ("resnet", small), ("lstm_lm", {"hidden": 8})):
        net = gk.models.build(name, **options)
        yield from (net.graph, gk.grad(net).graph)
    yield from deciding_graphs()


def pipelines() -> list[Sequence[Pass[...]]]:
    """For a CPU that has all kernels, for one that rounds products and has whole composites, and for a GPU."""

    def whole(node: Node) -> bool:
        return any(word in node.op.name for word in ("Recurrence", "Attention"))

    return [
        (*CLEANUP, *INFERENCE, *BOUND),
        (*CLEANUP, *inference_passes("bf16", whole), *BOUND),
        (*CLEANUP, *array_passes(lambda node: True, "f16", whole), *arrays_bound()),
    ]


@cache
def changed() -> dict[str, dict[frozenset[str], list[Graph]]]:
    """For each pass, the graphs that it changes if it is applied to every graph, by their operators."""
    found: dict[str, dict[frozenset[str], list[Graph]]] = {}
    orders = pipelines()
    for graph in graphs():
        # Pipelines begin with the same passes, so the result of a pass and the text of a graph are computed once.
        made: dict[tuple[Pass[...], Graph], Graph] = {}
        text = cache(str)
        for passes in orders:
            before = graph
            for step in passes:
                if (step, before) not in made:
                    made[step, before] = step._apply(before)
                    after = made[step, before]
                    if step.name in {*LIMITED, *CONDITIONS} and after is not before and text(after) != text(before):
                        present = before.operators.union(operators(before))  # `operators` counts no constants
                        found.setdefault(step.name, {}).setdefault(present, []).append(before)
                before = made[step, before]
    return found


@in_one_item()
@pytest.mark.parametrize("name", LIMITED)
def test_pass_changes_no_graph_without_its_operators(name: str) -> None:
    for present in changed()[name]:
        for names in (LIMITED[name], *BESIDE.get(name, ())):
            assert not present.isdisjoint(names), sorted(present)


# The operators of `simplify` are those of its rules.
@in_one_item()
@pytest.mark.parametrize("name", LIMITED.keys() - {"simplify"})
def test_each_listed_operator_decides_about_a_graph(name: str) -> None:
    """A graph that the pass changes has this operator, and no other one of the list."""
    alone = {
        operator for operator in LIMITED[name] for present in changed()[name] if present & LIMITED[name] == {operator}
    }
    assert LIMITED[name] == alone


@in_one_item()
@pytest.mark.parametrize("name", CONDITIONS.keys() - {"widen_halves", "known_ranks"})
def test_condition_holds_for_each_graph_that_the_pass_changes(name: str) -> None:
    small = [graph for found in changed()[name].values() for graph in found if len(graph.nodes) <= _SMALL]
    assert small
    for graph in small:
        assert _any_graph(graph, CONDITIONS[name]), str(graph)


@pytest.mark.parametrize("name", [*RESHAPES, "Transpose", "Conv", "Clip"])
def test_conditions_accept_operators_of_other_domains_with_standard_names(name: str) -> None:
    body = {"domain": "com.example", "inputs": (), "infer": lambda self: TensorType("float32", [2])}
    made = Node(declared(type(name, (gk.Op,), body))(), ()).output
    for condition in CONDITIONS.values():
        condition(Graph([], [made]))


def test_conditional_passes_change_no_graph_without_such_nodes() -> None:
    for name in CONDITIONAL:
        importlib.import_module(f"graphkit.passes.{PASSES[name][0]}")
    half, unranked = Value(TensorType("float16", [3])), Value(TensorType("float32"))
    filters, row = Value(TensorType("float32", [4, 3, 2])), gk.input("x", [3])
    made = [
        Graph([half], [F.exp(half)]),
        Graph([unranked, filters], [F.conv(unranked, filters)]),
        gk.Model(gk.map(lambda row: gk.cast(gk.exp(gk.cast(row, to="float16")), to="float32"), row)).graph,
    ]
    passes = {step.name: step for step in INFERENCE if step.name in CONDITIONAL}
    assert passes.keys() == CONDITIONAL.keys()
    changing: set[str] = set()
    for graph in (*graphs(), *made):
        for name, step in passes.items():
            has_node = _any_graph(graph, CONDITIONAL[name])
            if has_node and name in changing:
                continue
            after = step._apply(graph)
            if after is not graph and str(after) != str(graph):
                assert has_node, (name, str(graph))
                changing.add(name)
    assert changing == CONDITIONAL.keys()


def test_operators_in_bodies_count() -> None:
    x = gk.input("x", [3])
    looped = gk.Model(gk.map(lambda row: gk.cast(gk.relu(row), to="float64"), x)).graph
    assert looped.operators & CONTROL
    assert _has_any(looped, frozenset({"Relu"}))
    assert not _has_any(looped, frozenset({"Tanh"}))


def test_module_is_imported_at_first_use() -> None:
    code = """
import sys
import graphkit as gk
from graphkit.passes.pipeline import fuse_gelu
x = gk.input("x", [3])
for y in (gk.tanh(x), x * gk.tanh(x)):
    graph = gk.Model(y).graph
    assert fuse_gelu(graph) is graph
    print("graphkit.passes.fuse.gelu" in sys.modules)
from graphkit.passes.fuse import gelu
assert gelu.fuse_gelu is fuse_gelu
assert "GELU" in fuse_gelu.__doc__
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("is_deferred", [False, True])
def test_an_interrupted_import_is_repeated(is_deferred: bool) -> None:
    """The interrupted module has defined the pass, but not yet a function that the pass calls."""
    run_in_new_process(f"""
from importlib.util import find_spec
from graphkit.passes.core.declare import deferred

path = "graphkit.passes.fuse.activation"
step = deferred("fuse_activation") if {is_deferred} else None
body = ast.parse(open(find_spec(path).origin, encoding="utf-8").read()).body
names = [getattr(statement, "name", None) for statement in body]
assert names.index("fuse_activation") < names.index("_formula")
interrupt(path, (names.index("fuse_activation") + 1.5) / len(body))

import graphkit as gk
from graphkit.ir.graph import Graph
x = gk.input("x", ["N", 4])
graph = Graph([x], [x * gk.sigmoid(x)])
for found in (deferred("fuse_activation"), step or importlib.import_module(path).fuse_activation):
    found(graph)
    assert found._apply.__globals__ is vars(sys.modules[path])
""")
