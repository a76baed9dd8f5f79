"""Sweeps: the nodes for which the rule is called, and the other nodes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir.graph import Graph, Node
from graphkit.ops import F
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core import sweep
from graphkit.passes.core.sweep import fuse, rewrite, run_passes
from graphkit.passes.pipeline import BOUND, INFERENCE


def _graph(*outputs: Any, inputs: Any) -> Graph:
    return Graph(inputs, outputs)


def _operators(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def test_a_rule_is_asked_about_the_operators_that_it_names() -> None:
    x = gk.input("x", [3])
    graph = _graph(F.neg(F.relu(F.exp(x))), inputs=[x])
    asked: list[str] = []

    def rule(node: Node, operands: Any) -> Any:
        asked.append(node.op.name)
        return (operands[0],)

    assert _operators(rewrite(graph, rule, at=("Relu", "Tanh"))) == ["Exp", "Neg"]
    assert asked == ["Relu"]


def test_a_graph_without_such_operators_is_returned_itself() -> None:
    x = gk.input("x", [3])
    graph = _graph(F.exp(x), inputs=[x])

    def refuse(node: Node, operands: Any) -> Any:
        raise AssertionError(node)

    assert rewrite(graph, refuse, at=("Relu",)) is graph
    assert fuse(graph, refuse, at=("Relu",)) is graph
    assert fuse(graph, refuse, needs=("Relu",)) is graph
    other = gk.input("z", [3])
    changed = rewrite(graph, refuse, at=("Relu",), inputs={x: other})
    assert changed.inputs == (other,)
    assert changed.nodes[0].inputs == (other,)


def test_nodes_that_no_rule_is_asked_about_hand_their_readers_on() -> None:
    """Relu(Exp(x)) has two readers, also when a rule before has made it a new node."""
    x = gk.input("x", [3])
    shared = F.relu(F.exp(F.identity(x)))
    graph = _graph(F.neg(shared), F.tanh(shared), inputs=[x])
    counts: dict[str, int] = {}

    def rule(node: Node, readers: sweep.Readers) -> Any:
        if node.op.name == "Identity":
            return (node.inputs[0],)
        operand = node.inputs[0]
        assert operand is not None
        counts[node.op.name] = readers.count(operand)
        return None

    fuse(graph, rule, at=("Identity", "Neg", "Tanh"))
    assert counts == {"Neg": 2, "Tanh": 2}


def test_bodies_are_entered_whatever_a_rule_names() -> None:
    x = gk.input("x", [3])
    y = gk.cond(gk.input("p", [], dtype="bool"), lambda v: F.neg(F.neg(v)), F.exp, (x,))
    graph = gk.Model(y).graph

    def negated_twice(node: Node, readers: sweep.Readers) -> Any:
        inner = node.inputs[0].node if node.inputs[0] is not None else None
        return (inner.inputs[0],) if inner is not None and inner.op.name == "Neg" else None

    fused = fuse(graph, negated_twice, at=("Neg",))
    (branching,) = [node for node in fused.nodes if node.op.name == "If"]
    assert "Neg" not in {name for g in branching.op.subgraphs().values() for name in g.operators}


NETWORKS: dict[str, Callable[[], Graph]] = {
    "bert": lambda: gk.models.build("bert", vocab=50, width=16, heads=2, layers=2, length=8).graph,
    "lstm_lm": lambda: gk.models.build("lstm_lm", vocab=50, hidden=8, layers=1).graph,
    "mobilenetv2": lambda: gk.models.build("mobilenetv2", classes=10).graph,
    "formulas": lambda: _formulas(),
}


def _formulas() -> Graph:
    x = gk.input("x", [2, 4, 6])
    mean = F.reduce_mean(x, np.array([-1]), keepdims=True)
    centred = x - mean
    variance = F.reduce_mean(centred * centred, np.array([-1]), keepdims=True)
    h = centred / F.sqrt(variance + np.float32(1e-5))
    h = F.mul(h, F.sigmoid(h))
    h = h * (F.erf(h / np.float32(np.sqrt(2))) + np.float32(1)) * np.float32(0.5)
    h = F.min(F.max(h, np.float32(0)), np.float32(6))
    shifted = F.exp(h - F.reduce_max(h, np.array([-1]), keepdims=True))
    h = F.log(shifted / F.reduce_sum(shifted, np.array([-1]), keepdims=True))
    scores = F.softmax(F.mat_mul(h, F.transpose(h, perm=(0, 2, 1))), axis=-1)
    h = F.reshape(F.transpose(F.mat_mul(scores, h), perm=(0, 2, 1)), np.array([2, 24]))
    return gk.Model({"y": gk.relu(gk.nn.linear(h, 3, name="fc") * np.float32(2))}).graph


@in_one_item()
@pytest.mark.parametrize("name", NETWORKS)
def test_asking_about_every_node_changes_nothing_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators that passes declare as relevant (`at`) are complete."""
    graph = NETWORKS[name]()
    passes = (*CLEANUP, *INFERENCE, *BOUND)
    narrow = str(run_passes(graph, passes))

    def asking_all(original: Callable[..., Graph]) -> Callable[..., Graph]:
        return lambda *args, at=None, needs=None, **options: original(*args, **options)

    monkeypatch.setattr(sweep, "rewrite", asking_all(rewrite))
    for module in [m for key, m in sys.modules.items() if key.startswith("graphkit.passes.") and m is not sweep]:
        for function in (rewrite, fuse):
            if getattr(module, function.__name__, None) is function:
                monkeypatch.setattr(module, function.__name__, asking_all(function))
    assert str(run_passes(graph, passes)) == narrow
    assert narrow != str(graph)
