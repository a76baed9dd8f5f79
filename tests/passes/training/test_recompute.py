"""Recomputation: the same results from less memory."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Node, topological
from graphkit.passes.core.sweep import rewrite
from graphkit.passes.training.recompute import recompute_marked, recompute_sqrt
from graphkit.train.programs.recomputation import prepared

RNG = np.random.default_rng(5)


def deep(layers: int, width: int = 16, dropout: float = 0.0) -> gk.Model:
    x = gk.input("x", ["N", width])
    h = x
    for i in range(layers):
        h = gk.tanh(gk.nn.linear(h, width, name=f"fc{i}"))
        if dropout:
            h = gk.nn.dropout(h, dropout)
    return gk.Model({"y": h})


def branched() -> gk.Model:
    """Skips over several layers, and two ends."""
    x = gk.input("x", ["N", 3, 8, 8])
    first = gk.relu(gk.nn.conv2d(x, 4, kernel=3, pad=1, name="a"))
    h = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(first, 4, kernel=3, pad=1, name="b"), name="bn"))
    h = gk.max_pool(h, kernel_shape=(2, 2), strides=(2, 2))[0]
    h = gk.relu(gk.nn.conv2d(h, 4, kernel=3, pad=1, name="c"))
    h = gk.resize(h, None, np.array([1, 1, 2, 2], np.float32))
    h = gk.concat(h, first, axis=1)
    h = gk.relu(gk.nn.conv2d(h, 6, kernel=3, pad=1, name="d"))
    return gk.Model({"y": gk.nn.linear(gk.flatten(h), 5, name="e")})


def step(net: gk.Model, loss: str) -> tuple[gk.Trainer, Graph]:
    trainer = gk.Trainer(net, loss, gk.optim.SGD(0.1, momentum=0.9), threads=1)
    return trainer, prepared(trainer.graph)


def run(trainer: gk.Trainer, graph: Graph, feeds: dict, *, optimize: bool) -> dict[str, np.ndarray]:
    executor = Executor(graph, trainer.executor.params, threads=1, seed=3, optimize=optimize)
    before = {n: executor.params[n] for n in executor.params}
    results = executor.run(feeds)
    after = {n: executor.params[n] for n in executor.params}
    for name, array in before.items():
        executor.params[name] = array
    return {**results, **after}


def feeds_of(net: gk.Model, loss: str) -> dict[str, np.ndarray]:
    shape = [7 if not isinstance(d, int) else d for d in net.input_types["x"].shape]
    x = RNG.standard_normal(shape).astype(np.float32)
    y = net.run({"x": x})["y"]
    target = RNG.integers(0, 5, 7) if loss == "softmax_cross_entropy" else np.zeros_like(y)
    return {"x": x, "target": target, "learning_rate": np.float32(0.1)}


@in_one_item("values")
@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    ("net", "loss"),
    [(deep(9), "mse"), (deep(6, dropout=0.4), "mse"), (branched(), "softmax_cross_entropy")],
    ids=["deep", "dropout", "branched"],
)
def test_the_step_computes_the_same(net: gk.Model, loss: str, optimize: bool) -> None:
    trainer, plain = step(net, loss)
    segments = recompute_sqrt(plain)
    assert segments.parts
    feeds = feeds_of(net, loss)
    wanted = run(trainer, plain, feeds, optimize=optimize)
    for chosen in (None, [0], segments.by_benefit()[:1]):
        graph = segments.apply(chosen)
        assert any(node.op.name == "ControlDependency" for node in graph.nodes)
        found = run(trainer, graph, feeds, optimize=optimize)
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            # Fused kernels round alike only where the same nodes meet.
            np.testing.assert_allclose(found[name], array, rtol=2e-6, atol=1e-7, err_msg=name)


def test_a_chain_takes_about_the_square_root() -> None:
    """64 equal layers: the arena shrinks by more than three times, and no layer runs more than twice."""
    _, plain = step(deep(64, width=64), "mse")
    graph = recompute_sqrt(plain).apply()
    products = [sum(n.op.name == "Gemm" for n in g.nodes) for g in (plain, graph)]
    assert products[0] < products[1] <= products[0] + 64
    shapes = {"x": (512, 64), "target": (512, 64)}
    store = gk.Trainer(deep(64, width=64), "mse", gk.optim.SGD(0.1, momentum=0.9), threads=1).executor.params
    arenas = [Executor(g, store, threads=1).specialise(shapes).arena_bytes for g in (plain, graph)]
    assert arenas[1] * 3 < arenas[0]


def test_the_last_segment_is_kept() -> None:
    """Its gradient comes at once: computing it again would save nothing."""
    _, plain = step(deep(16), "mse")
    parts = recompute_sqrt(plain).parts
    forward = [n for n in topological(plain.outputs) if n.op.name == "Tanh"]
    assert len(forward) == 16
    assert any(forward[0] in part.nodes for part in parts)
    assert all(forward[-1] not in part.nodes for part in parts)


def test_marked_nodes_are_computed_again() -> None:
    x = gk.input("x", ["N", 8])
    h = gk.tanh(gk.nn.linear(x, 8, name="a"))
    with gk.attr_scope(recompute=True):
        h = gk.sigmoid(gk.exp(h))
    net = gk.Model({"y": gk.tanh(gk.nn.linear(h, 8, name="b"))})
    trainer, plain = step(net, "mse")
    graph = recompute_marked(plain)
    counts = {name: sum(n.op.name == name for n in graph.nodes) for name in ("Exp", "Sigmoid", "Tanh")}
    assert counts == {"Exp": 2, "Sigmoid": 2, "Tanh": 2}
    feeds = feeds_of(net, "mse")
    wanted = run(trainer, plain, feeds, optimize=False)
    found = run(trainer, graph, feeds, optimize=False)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_a_copy_waits_for_its_gradient() -> None:
    """In every order of steps that the plan may choose, no copy comes before the gradient that it waits for."""
    net = deep(32)
    trainer = gk.Trainer(net, "mse", threads=1, recompute="sqrt")
    plan = trainer.plan({"x": (64, 16), "target": (64, 16)})
    position = {s.node: i for i, s in enumerate(plan.steps)}
    graph = trainer.graph
    after = [n for n in graph.nodes if n.op.name == "ControlDependency"]
    assert after
    forward = max(i for s, i in position.items() if s.startswith("reduce_mean"))
    copies = [n for n in graph.nodes if any(v is not None and v.node in after for v in n.inputs)]
    planned = [position[graph.node_name(n)] for n in copies if graph.node_name(n) in position]
    assert planned
    assert all(p > forward for p in planned)


def test_random_nodes_without_a_state_are_refused() -> None:
    """A copy would draw another mask."""
    trainer = gk.Trainer(deep(6, dropout=0.4), "mse", threads=1)
    unbound = Graph(trainer.graph.inputs, trainer.graph.outputs, trainer.graph.updates)
    drawn = rewrite(unbound, lambda n, v: Node(n.op, v[:3], n.name).outputs if n.op.name == "Dropout" else None)
    with pytest.raises(UsageError, match=r"Dropout.* would generate other random numbers"):
        recompute_sqrt(drawn).apply()


def test_a_graph_without_backward_part_stays() -> None:
    net = deep(4)
    assert recompute_sqrt(net.graph).apply().nodes == net.graph.nodes


def test_copies_keep_the_channels_last() -> None:
    """Recomputation converts nothing between layouts but the network's input, for the first segment."""
    x = gk.input("x", ["N", 3, 16, 16])
    h = x
    for i in range(8):
        h = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(h, 8, kernel=3, pad=1, name=f"conv{i}"), name=f"bn{i}"))
    net = gk.Model({"y": gk.nn.linear(gk.flatten(gk.global_average_pool(h)), 5, name="fc")})
    shapes = {"x": (4, 3, 16, 16), "target": (4,)}
    moved = []
    for recompute in (None, "sqrt"):
        plan = gk.Trainer(net, threads=1, recompute=recompute).plan(shapes)
        moved.append(sum(s.op == "Transpose" and s.kernel != "view" for s in plan.steps))
    assert moved[1] <= moved[0] + 1
