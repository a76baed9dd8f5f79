"""A pass is imported when a graph has an operator that it may change, and does nothing to other graphs."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from functools import cache
from itertools import islice

import pytest
from interrupted_imports import run_in_new_process

import graphkit as gk
from graphkit.checks.samples import all_cases
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import registry
from graphkit.passes.core._index import PASSES
from graphkit.passes.core.declare import CONTROL, _has_any, deferred

LIMITED = [name for name, (_, at, *_) in PASSES.items() if at is not None]


@cache
def graphs() -> list[Graph]:
    """A graph of each operator alone, and networks with their gradients."""
    found = []
    for cls in registry:
        for case in islice(all_cases(cls), 1):
            operands = [None if kind is None else Value(kind) for kind in case.types]
            found.append(Graph([v for v in operands if v is not None], Node(case.op, operands).outputs))
    for name, options in (("lenet", {}), ("resnet", {"image": (3, 32, 32)}), ("lstm_lm", {"hidden": 8})):
        net = gk.models.build(name, **options)
        found += [net.graph, gk.grad(net).graph]
    return found


@pytest.mark.parametrize("name", LIMITED)
def test_pass_needs_its_operators(name: str) -> None:
    step = deferred(name)
    importlib.import_module(step.__module__)
    function = inspect.unwrap(step)
    assert step.at is not None
    others = [graph for graph in graphs() if not _has_any(graph, step.at)]
    assert len(others) > 100
    for graph in others:
        result = function(graph)
        assert result is graph or str(result) == str(graph)


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
for y in (gk.relu(x), gk.tanh(x)):
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
graph = Graph([x], [gk.clip(x, 0.0, 6.0)])
for found in (deferred("fuse_activation"), step or importlib.import_module(path).fuse_activation):
    found(graph)
    assert found._apply.__globals__ is vars(sys.modules[path])
""")
