"""The native functions that plan memory give the same results as those in Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.autodiff.templates import Templates
from graphkit.executor.devices.extension import import_extension
from graphkit.executor.lower import registry
from graphkit.executor.lower.native_kernel import SharedKernels
from graphkit.executor.memory.placement import place_values
from graphkit.executor.memory.plan_graph import StepMemory, plan_graph
from graphkit.ir import graph as graphs
from graphkit.ir.graph import Graph, Node, Value, native_sweeps
from graphkit.ops import F


@pytest.fixture(autouse=True)
def extension() -> None:
    import_extension()
    assert native_sweeps() is not None


def in_python(compute: Callable[[], Any]) -> Any:
    native, graphs._native = graphs._native, None
    try:
        return compute()
    finally:
        graphs._native = native


def many_readers() -> gk.Model:
    """Return a network with a sum of 40 terms, views, a value that one node reads twice, and normalisation."""
    x = gk.input("x", ["N", 2, 4])
    parts = [F.tanh(gk.nn.linear(x, 4, name=f"fc{i}")) for i in range(40)]
    total = F.sum(*parts)
    flat = gk.nn.batch_norm(F.reshape(F.mul(total, total), np.array([0, 8])), name="norm")
    return gk.Model({"y": F.relu(F.add(flat, F.reshape(total, np.array([0, 8]))))})


def convolutional() -> gk.Model:
    x = gk.input("x", ["N", 2, 6, 6])
    y = gk.nn.batch_norm(gk.nn.conv2d(x, 4, 3, pad=1, name="conv"), name="norm")
    return gk.Model({"y": F.flatten(F.relu(y))})


@pytest.mark.parametrize("make", [many_readers, convolutional])
def test_plans_and_keys_of_training_steps_are_equal(make: Callable[[], gk.Model], monkeypatch: Any) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def recorded(*args: Any, **options: Any) -> Any:
        calls.append((args, options))
        return plan_graph(*args, **options)

    monkeypatch.setattr(registry, "plan_graph", recorded)
    net = make()
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(1e-3, momentum=0.9), threads=1, seed=1)
    (kind,) = net.input_types.values()
    shape = net.graph.outputs[0].tensor.known_shape
    trainer.step({"x": np.ones([2, *kind.known_shape[1:]], np.float32)}, np.ones([2, *shape[1:]], np.float32))
    assert calls
    for (graph, placement, needs), options in calls:
        for inplace in (False, True):
            chosen = {**options, "inplace": inplace}
            plan = plan_graph(graph, placement, needs, **chosen)
            assert plan == in_python(partial(plan_graph, graph, placement, needs, **chosen))
        keys = SharedKernels(placement, {})._keys
        assert keys(placement.steps) == in_python(partial(keys, placement.steps))


def test_operands_that_share_a_storage_are_overwritten_only_together() -> None:
    x = gk.input("x", [4])
    base = F.exp(x)
    view = F.reshape(base, np.array([4]))
    added, joined = F.add(base, view), F.neg(base)
    graph = Graph([x], [added, joined])
    placement = place_values(graph)

    def plan(*permitted: tuple[int, int]) -> Any:
        needs = [StepMemory(0, permitted if node.op.name == "Add" else (), False) for node in placement.steps]
        return plan_graph(graph, placement, needs, inplace=True, share=True)

    for permitted in ([(0, 0)], [(0, 0), (1, 0)], [(5, 0), (0, 3), (1, 0)]):
        assert plan(*permitted) == in_python(lambda permitted=permitted: plan(*permitted))


def test_a_graph_with_few_and_many_repeated_operands() -> None:
    x = gk.input("x", [4])
    bases = [F.add(x, np.float32(i)) for i in range(30)]
    total = F.sum(*[v for v in bases for _ in range(3)])
    graph = Graph([x], [F.neg(total)])
    placement = place_values(graph)
    needs = [StepMemory(i, [(k, 0) for k in range(len(n.inputs))], False) for i, n in enumerate(placement.steps)]

    def plan() -> Any:
        return plan_graph(graph, placement, needs, inplace=True, share=True)

    assert plan() == in_python(plan)


def test_types_and_constants_of_templates_are_equal() -> None:
    x, y = gk.input("x", [4, "N"]), gk.input("y", [4])
    one, two = F.constant(value=np.ones(4, np.float32)), F.constant(value=np.full(4, 2, np.float32))
    templates = Templates()
    for values in ([x, None, y, x], [one, two, one, F.add(y, one)], [F.sequence_construct(y)]):
        parts = templates.parts(values)
        assert parts == in_python(lambda values=values: templates.parts(values))
    assert templates.parts([F.sequence_construct(y)]) is None
    assert templates.parts([one]) != templates.parts([two])


def test_wrong_arguments_are_errors() -> None:
    native = native_sweeps()
    assert native is not None
    error = import_extension().Error
    x = gk.input("x", [4])
    (node,) = Graph([x], [F.neg(x)]).nodes
    with pytest.raises(error, match="no storage"):
        native.storages_read((node,), {})
    with pytest.raises(error, match="not a tuple"):
        native.tasks(int, (node,), [[x]], {}, {}, None, [0], {}, {})
    with pytest.raises(error, match="one type for each result"):
        native.remade(node, node.op, (x,), node.scope, ())
    with pytest.raises(error, match="neither a node nor a value"):
        native.kernel_keys((x,), {}, {}, frozenset(), max, max)  # type: ignore[arg-type]
    assert isinstance(node, Node)
    assert isinstance(x, Value)
