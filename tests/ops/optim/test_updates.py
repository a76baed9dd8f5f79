"""Optimizer updates over several steps against torch.optim's documented loops, written out in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.autodiff import gradient
from graphkit.errors import MissingGradient, TypeMismatch, UsageError
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F, registry
from graphkit.ops.evaluate import evaluate
from graphkit.ops.optim import ELEMENTWISE_UPDATES
from graphkit.ops.optim.updates import Update

STEPS = 5
RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((3, 4))
GRADS = [RNG.standard_normal((3, 4)) for _ in range(STEPS)]


def sgd(lr: float, momentum: float, dampening: float, nesterov: bool, weight_decay: float) -> np.ndarray:
    w, buffer = WEIGHT.copy(), None
    for grad in GRADS:
        g = grad + weight_decay * w
        if momentum:
            buffer = g.copy() if buffer is None else momentum * buffer + (1 - dampening) * g
            g = g + momentum * buffer if nesterov else buffer
        w = w - lr * g
    return w


def adam(lr: float, beta1: float, beta2: float, epsilon: float, weight_decay: float, decoupled: bool) -> np.ndarray:
    w, m, v = WEIGHT.copy(), np.zeros_like(WEIGHT), np.zeros_like(WEIGHT)
    for t, grad in enumerate(GRADS, start=1):
        g = grad
        if decoupled:
            w = w - lr * weight_decay * w
        else:
            g = grad + weight_decay * w
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        w = w - lr * m_hat / (np.sqrt(v_hat) + epsilon)
    return w


def steps(operator: Any, slots: int, lr: float, order: Any, dtype: str, expanded: bool, symbolic: bool) -> np.ndarray:
    """Run the update for all steps; `order(weight, grad, slots, lr, step)` gives the operands."""
    kind = TensorType(dtype, ("a", "b") if symbolic else (3, 4))
    values = [Value(kind, n) for n in ("weight", "grad", *(f"slot{i}" for i in range(slots)))]
    rate, step = Value(TensorType("float32", ()), "lr"), Value(TensorType("int64", ()), "step")
    operands = order(values[0], values[1], values[2:], rate, step)
    node_outputs = operator(*operands)
    outputs = node_outputs if isinstance(node_outputs, tuple) else (node_outputs,)
    if expanded:
        node = outputs[0].node
        outputs = node.op.expand(*node.inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    graph = Graph([*values, rate, step], outputs)
    state = [WEIGHT.astype(dtype), *(np.zeros((3, 4), dtype) for _ in range(slots))]
    for t, grad in enumerate(GRADS, start=1):
        state = evaluate(graph, [state[0], grad.astype(dtype), *state[1:], np.float32(lr), np.array(t)])
        assert all(a.dtype == np.dtype(dtype) for a in state)
    return state[0]


FORMS = pytest.mark.parametrize(
    ("dtype", "expanded", "symbolic"),
    [("float64", False, False), ("float64", True, True), ("float32", False, True), ("float32", True, False)],
)
TOLERANCE = {"float64": 1e-12, "float32": 2e-6}


@FORMS
@in_one_item()
@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0},
        {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.1},
        {"momentum": 0.9, "dampening": 0.0, "nesterov": False, "weight_decay": 0.1},
        {"momentum": 0.9, "dampening": 0.0, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.9, "dampening": 0.25, "nesterov": False, "weight_decay": 0.0},
    ],
)
def test_sgd(options: dict[str, Any], dtype: str, expanded: bool, symbolic: bool) -> None:
    slots = 1 if options["momentum"] else 0

    def order(w: Value, g: Value, s: list[Value], lr: Value, t: Value) -> list[Value]:
        return [w, g, lr, *s, *([t] if options["dampening"] else [])]

    got = steps(lambda *v: F.sgd_update(*v, **options), slots, 0.125, order, dtype, expanded, symbolic)
    np.testing.assert_allclose(got, sgd(0.125, **options), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@FORMS
@in_one_item()
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.25])
@pytest.mark.parametrize("epsilon", [1e-8, 0.125])
def test_adam(epsilon: float, weight_decay: float, decoupled: bool, dtype: str, expanded: bool, symbolic: bool) -> None:
    update = F.adam_w_update if decoupled else F.adam_update
    options = {"beta1": 0.9, "beta2": 0.999, "epsilon": epsilon, "weight_decay": weight_decay}

    def order(w: Value, g: Value, s: list[Value], lr: Value, t: Value) -> list[Value]:
        return [w, g, *s, lr, t]

    got = steps(lambda *v: update(*v, **options), 2, 0.125, order, dtype, expanded, symbolic)
    wanted = adam(0.125, decoupled=decoupled, **options)
    np.testing.assert_allclose(got, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_defaults_are_those_of_torch() -> None:
    assert (F.adam_update.op().weight_decay, F.adam_w_update.op().weight_decay) == (0.0, 0.01)
    defaults = F.adam_update.op()
    assert (defaults.beta1, defaults.beta2, defaults.epsilon) == (0.9, 0.999, 1e-8)


def operands(*names: str, shape: tuple[int, ...] = (2, 3)) -> list[Value]:
    return [Value(TensorType("float32", () if n in ("lr", "step") else shape), n) for n in names]


def test_misfits_are_named() -> None:
    weight, grad, lr, velocity = operands("weight", "grad", "lr", "velocity")
    (other,) = operands("grad", shape=(3, 2))
    with pytest.raises(TypeMismatch, match=r"grad float32\[3, 2\] does not fit weight float32\[2, 3\]"):
        F.sgd_update(weight, other, lr)
    with pytest.raises(TypeMismatch, match="velocity"):
        F.sgd_update(weight, grad, lr, momentum=0.5)
    with pytest.raises(TypeMismatch, match="velocity"):
        F.sgd_update(weight, grad, lr, velocity)
    with pytest.raises(UsageError, match="nesterov"):
        F.sgd_update(weight, grad, lr, nesterov=True)
    with pytest.raises(TypeMismatch, match="dampening needs the operand step"):
        F.sgd_update(weight, grad, lr, velocity, momentum=0.5, dampening=0.5)
    with pytest.raises(TypeMismatch, match="lr must be a scalar"):
        F.sgd_update(weight, grad, velocity)


@in_one_item()
@pytest.mark.parametrize("name", ["sgd_update", "adam_update", "adam_w_update"])
def test_updates_are_not_differentiated(name: str) -> None:
    weight, grad, mean, variance, lr, step = operands("weight", "grad", "mean", "variance", "lr", "step")
    if name == "sgd_update":
        new = F.sgd_update(weight, grad, lr)
    else:
        new = getattr(F, name)(weight, grad, mean, variance, lr, step)[0]
    operator = new.node.op.name
    with pytest.raises(MissingGradient, match=operator):
        gradient([new], [weight])


def test_elementwise_updates_are_listed():
    elementwise = {cls.name for cls in registry if issubclass(cls, Update) and cls.elementwise}
    assert elementwise == set(ELEMENTWISE_UPDATES)
