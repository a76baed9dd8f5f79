"""The pass that makes groups: results stay, every node has a decision, and reasons say why a node stays."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

import graphkit as gk
from graphkit.autodiff.reverse_mode import gradient
from graphkit.backend import Backend
from graphkit.checks.random_nodes import build
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.distribution.backends import Decision, group_for_backends


def by_name(executor: Executor) -> dict[str, Decision]:
    return {each.node: each for each in executor.backend_decisions}


def check_random_network(seed: int, make) -> None:
    net, graph = build(seed)
    rng = random.Random(seed)
    share = rng.choice([0.4, 0.7, 1.0])
    chosen: dict[int, bool] = {}

    def supports(node: Node) -> bool:
        return chosen.setdefault(node.serial, rng.random() < share)

    options = {"control_flow": rng.random() < 0.5, "dynamic": rng.random() < 0.5, "min_nodes": rng.randint(1, 3)}
    backends = [make("first", supports, **options), make("second", **options)][: rng.randint(1, 2)]
    params = ParamStore({n: TensorType(DType.FLOAT32, a.shape) for n, a in net.params.items()}, net.params)
    feeds = {graph.name_of(v): net.arrays[v] for v in graph.inputs if v.role == "data"}
    expected = Executor(graph, params, threads=1).run(feeds)
    executor = Executor(graph, params, threads=1, backends=backends)
    for _ in range(2):
        found = executor.run(feeds)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4, err_msg=f"seed {seed}, {name}")
    assert all(bool(each.group) != bool(each.reason) for each in executor.backend_decisions)


@pytest.mark.parametrize("seed", range(8))
def test_random_networks(seed: int, make) -> None:
    check_random_network(seed, make)


@pytest.mark.full
@pytest.mark.parametrize("first", range(100, 500, 50))
def test_many_random_networks(first: int, make) -> None:
    for seed in range(first, first + 50):
        check_random_network(seed, make)


def test_decisions_name_groups_and_reasons(image_net, make) -> None:
    executor = image_net.compile(backends=make(supports=["Conv", "Relu"]))
    found = by_name(executor)
    assert found["conv"] == Decision("conv", "Conv", "toy/0", "")
    assert found["conv2"].group == found["relu"].group == found["relu_1"].group == "toy/1"
    assert found["fc"] == Decision("fc", "Gemm", "", "toy: it does not support Gemm here.")
    assert gk.backend.explain(executor).splitlines()[0] == "4 nodes of 8 in 2 groups"


@pytest.mark.filterwarnings("ignore::graphkit.errors.BackendWarning")
def test_text_of_supports_is_the_reason(image_net, make) -> None:
    executor = image_net.compile(backends=make(supports=lambda node: f"no {node.op.name}"))
    assert by_name(executor)["conv"].reason == "toy: no Conv."


def test_first_backend_chooses_first(image_net, make) -> None:
    found = by_name(image_net.compile(backends=[make("a", ["Conv"]), make("b")]))
    assert found["conv"].group == "a/0"
    assert found["norm"].group == "b/0"
    assert found["fc"].group == "b/1"


@pytest.mark.filterwarnings("ignore::graphkit.errors.BackendWarning")
def test_views_alone_are_no_group(make) -> None:
    x = gk.input("x", ["N", 4])
    net = gk.Model(gk.exp(gk.reshape(x, [-1, 2])))
    assert by_name(net.compile(backends=make(supports=["Reshape"])))["reshape"].reason == (
        "toy: its group has 0 nodes (without views), fewer than min_nodes=1."
    )


def test_small_groups_stay(image_net, make) -> None:
    found = by_name(image_net.compile(backends=make(supports=["Conv", "Relu"], min_nodes=2)))
    assert found["conv"].reason == "toy: its group has 1 node (without views), fewer than min_nodes=2."
    assert found["conv2"].group == "toy/0"
    found = by_name(image_net.compile(backends=make(supports=["Conv", "Gemm"], min_flops=5000)))
    assert found["conv"].group == "toy/0"
    assert found["fc"].reason == "toy: its group has 640 FLOPs, fewer than min_flops=5000."


def test_random_nodes_stay(make) -> None:
    x = gk.input("x", [3])
    net = gk.Model({"y": gk.random_uniform_like(x) * 0 + gk.exp(x)})
    executor = net.compile(backends=make())
    assert {each.operator: each.reason for each in executor.backend_decisions if not each.group} == {
        "RandomUniformLike": "toy: it draws random numbers."
    }
    np.testing.assert_allclose(executor.run({"x": np.ones(3, np.float32)})["y"], np.e * np.ones(3), rtol=1e-6)


@pytest.mark.filterwarnings("ignore::graphkit.errors.BackendWarning")
def test_values_that_are_not_numbers_stay(make) -> None:
    x = gk.input("x", [2], "string")
    net = gk.Model({"y": gk.string_normalizer(x, case_change_action="UPPER")})
    (decision,) = net.compile(backends=make()).backend_decisions
    assert "is not a tensor of numbers" in decision.reason


def test_sizes_that_depend_on_data(make) -> None:
    x = gk.input("x", [4])
    net = gk.Model({"y": gk.non_zero(gk.exp(x)), "z": gk.exp(x) + 1})
    feeds = {"x": np.arange(4, dtype=np.float32)}
    fixed, dynamic = net.compile(backends=make()), net.compile(backends=make(dynamic=True))
    reason = next(each.reason for each in fixed.backend_decisions if each.operator == "NonZero")
    assert "depends on data" in reason
    assert all(each.group for each in dynamic.backend_decisions)
    for executor in (fixed, dynamic):
        np.testing.assert_array_equal(executor.run(feeds)["y"], [[0, 1, 2, 3]])


@pytest.mark.parametrize("control_flow", [False, True])
def test_control_flow_needs_permission(control_flow: bool, make) -> None:
    x = gk.input("x", [3])
    y = gk.cond(gk.reduce_sum(x, keepdims=False) > 0, lambda: gk.exp(x), lambda: gk.tanh(x))
    net = gk.Model({"y": y})
    executor = net.compile(backends=make(control_flow=control_flow))
    groups = {each.operator: each for each in executor.backend_decisions}
    assert bool(groups["If"].group) is control_flow
    if not control_flow:
        assert groups["If"].reason == "toy: the backend takes no If, Loop and Scan."
    for sign in (1, -1):
        feeds = {"x": sign * np.arange(3, dtype=np.float32)}
        np.testing.assert_allclose(executor.run(feeds)["y"], net.run(feeds)["y"], rtol=1e-6)


def test_unsupported_node_inside_keeps_control_flow(make) -> None:
    x = gk.input("x", [3])
    net = gk.Model({"y": gk.cond(gk.reduce_sum(x, keepdims=False) > 0, lambda: gk.exp(x), lambda: gk.tanh(x))})
    backend = make(supports=lambda node: node.op.name != "Tanh", control_flow=True)
    reason = {each.operator: each.reason for each in net.compile(backends=backend).backend_decisions}["If"]
    assert reason == "toy: it contains Tanh: it does not support Tanh here."


def grouped(outputs: list[Value], *backends: Backend) -> Graph:
    inputs = dict.fromkeys(v for n in gk.Model(outputs).graph.nodes for v in n.operands if v.is_input)
    return group_for_backends(run_passes(Graph(list(inputs), outputs), CLEANUP), backends=backends)


def test_gradient_of_a_group_is_that_of_its_nodes(make) -> None:
    x = Value(TensorType(DType.FLOAT64, (3,)), "x")
    loss = F.reduce_sum(F.mul(F.tanh(x), F.exp(x)), keepdims=False)
    graph = grouped([loss], make())
    (node,) = graph.nodes
    assert node.op.name == "BackendGroup"
    (dx,) = gradient(graph.outputs, [graph.inputs[0]])
    (plain,) = gradient([loss], [x])
    array = np.array([0.1, -0.4, 2.0])
    wanted = evaluate(Graph([x], [plain]), [array])
    np.testing.assert_allclose(evaluate(Graph(graph.inputs, [dx]), [array]), wanted, rtol=1e-12)


def test_group_computes_the_reference_of_its_nodes(make) -> None:
    x = Value(TensorType(DType.FLOAT32, ("N", 2)), "x")
    graph = grouped([F.tanh(F.exp(x)), F.exp(x)], make())
    array = np.array([[0.5, 1.0]], np.float32)
    found = evaluate(graph, [array])
    np.testing.assert_allclose(found[0], np.tanh(np.exp(array)), rtol=1e-6)
    np.testing.assert_allclose(found[1], np.exp(array), rtol=1e-6)
    assert [str(v.type) for v in graph.outputs] == ["float32[N, 2]"] * 2


def test_same_graph_without_groups(make) -> None:
    x = Value(TensorType(DType.FLOAT32, (2,)), "x")
    graph = Graph([x], [F.exp(x)])
    assert group_for_backends(graph, backends=[make(supports=[])]) is graph
    assert group_for_backends(graph) is graph


def test_check_of_the_pass_finds_random_nodes() -> None:
    from graphkit.ops.internal.backend_group import BackendGroup
    from graphkit.ops.math.random import RandomUniformLike

    x = Value(TensorType(DType.FLOAT32, (2,)), "x")
    body = Graph([x], [Node(RandomUniformLike(), [x]).output])
    node = Node(BackendGroup(body=body, backend="toy", group="toy/0"), [x])
    with pytest.raises(gk.errors.CheckFailed, match="group_for_backends ensures"):
        group_for_backends.verify(Graph([x], [node.output]))


@pytest.mark.full
def test_hundred_thousand_nodes_take_seconds(make) -> None:
    x = Value(TensorType(DType.FLOAT32, (2,)), "x")
    value, kept = x, x
    for i in range(100_000):
        value = F.tanh(value) if i % 3 else F.add(F.exp(kept), value)
        kept = value if i % 7 == 0 else kept
    graph = Graph([x], [value])
    begin = time.process_time()
    decisions: list[Decision] = []
    made = group_for_backends(graph, backends=[make(supports=["Tanh", "Add"])], decisions=decisions)
    assert time.process_time() - begin < 60
    assert len(made.nodes) < len(graph.nodes) == len(decisions)
