"""Gradients of equal nodes are copies of a template. They equal those that the gradient rules make."""

from collections.abc import Callable

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.autodiff.templates import Templates
from graphkit.ir import graph as ir
from graphkit.ir.graph import Graph, Value
from graphkit.ops import F
from graphkit.ops.nn.activation import Tanh


def layers(count: int) -> Value:
    h = gk.input("x", ["N", 4])
    for i in range(count):
        with gk.attr_scope(ctx_group="first" if i < count // 2 else "second"):
            normed = gk.nn.layer_norm(h, name=f"norm{i}")
            h = F.add(h, F.mul(F.tanh(gk.nn.linear(normed, 4, name=f"fc{i}")), np.float32(0.5)))
    return F.reduce_sum(h, keepdims=False)


def powers(count: int) -> Value:
    """Powers with constant and variable exponents, whose gradients differ although their types are equal."""
    x, b = gk.input("x", ["N", 4]), gk.input("b", [4])
    fixed = [F.pow(x, F.constant(value=np.full(4, i % 2 + 2, np.float32))) for i in range(count)]
    return F.reduce_sum(F.sum(*fixed, *[F.pow(F.tanh(x), b) for _ in range(count)]), keepdims=False)


def squares(count: int) -> Value:
    """Products of different values and of a value with itself."""
    x, b = gk.input("x", [4]), gk.input("b", [4])
    return F.reduce_sum(F.sum(*[F.mul(x, b) for _ in range(count)], F.mul(x, x), F.mul(b, b)), keepdims=False)


def selections(count: int) -> Value:
    """Results of unknown sizes, which must stay different dimensions."""
    x, chosen = gk.input("x", ["N", 4]), gk.input("chosen", ["N"], "bool")
    kept = [F.tanh(F.compress(x, chosen, axis=0)) for _ in range(count)]
    return F.sum(*[F.reduce_sum(v, keepdims=False) for v in kept])


def differentiated(y: Value) -> Graph:
    inputs = list(dict.fromkeys(v for node in ir.topological([y]) for v in node.operands if v.is_input))
    floats = [v for v in inputs if v.dtype.is_float]
    return Graph(inputs, gk.gradient([y], floats, meta={"part": "backward"}))


def listing(graph: Graph) -> str:
    """Return the text of a graph, with metadata and scopes."""
    return "\n".join([str(graph), *(f"{n.name} {n.scope.maker} {dict(n.meta)}" for n in graph.nodes)])


@in_one_item()
@pytest.mark.parametrize("network", [layers, powers, squares, selections])
@pytest.mark.parametrize("native", [True, False])
def test_copied_gradients_equal_those_of_rules(
    network: Callable[[int], Value], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(ir, "_native", None)
    y = network(4)
    copied = listing(differentiated(y))
    monkeypatch.setattr(Templates, "key", lambda *_: None)
    assert copied == listing(differentiated(y))


def test_rule_is_called_once_for_equal_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, rule = [], Tanh.grad
    monkeypatch.setattr(Tanh, "grad", lambda *given: calls.append(given) or rule(*given))
    differentiated(layers(6))
    assert len(calls) == 2  # one for each group


def test_serial_numbers_of_copies_follow_the_order_of_the_rule() -> None:
    graph = differentiated(layers(3))
    for node in graph.nodes:
        assert all(v.node is None or v.node.serial < node.serial for v in node.operands)
        assert all(v.serial > node.serial for v in node.outputs)
