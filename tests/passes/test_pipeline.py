"""The whole pipeline: subgraphs, models, exported files, random graphs, and its log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item, seeds

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.frontend import control
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.onnx_io.exporter import export
from graphkit.onnx_io.importer import import_model
from graphkit.ops import DOMAIN, F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core import sweep as _base
from graphkit.passes.core.bind import bind
from graphkit.passes.core.match import FixedValues, fixed_values
from graphkit.passes.core.sweep import operators, run_passes
from graphkit.passes.pipeline import BOUND, INFERENCE, effects
from graphkit.passes.training.to_training import to_training

ALL = (*CLEANUP, *INFERENCE)


def data(*shape: Any, name: str = "x", dtype: str = "float32") -> Value:
    return Value(TensorType(dtype, shape), name)


def parameter(*shape: int, name: str = "w", role: str = "parameter") -> Value:
    return Value(TensorType("float32", shape), name, role=role)


def prepared(graph: Graph) -> Graph:
    return run_passes(graph, ALL)


def bodies(graph: Graph) -> list[Node]:
    """The nodes of the subgraphs of control flow."""
    found: list[Node] = []
    for node in graph.nodes:
        for inner in node.op.subgraphs().values() if node.op.domain == "" else ():
            found += [*inner.nodes, *bodies(inner)]
    return found


# --- subgraphs ------------------------------------------------------------------------------------


def recurrent(x: Any, w: Any, b: Any) -> Any:
    return F.tanh(F.add(F.mat_mul(x, w), b))


def test_branches(apply: Any) -> None:
    x, w, b, flag = data(2, 3), parameter(3, 3), parameter(3, name="b"), data(name="c", dtype="bool")
    y = control.cond(flag, lambda v: recurrent(v, w, b), lambda v: F.exp(F.neg(v)), (x,))
    kept: list[Graph] = []
    assert apply([x, w, b, flag], y, prepared, keep=kept) == {"If": 1}
    assert sorted(n.op.name for n in bodies(kept[0])) == ["Fused", "FusedMatMul"]


def test_loop_bodies(apply: Any) -> None:
    x, w, b = data("N", 3), parameter(3, 3), parameter(3, name="b")
    start = (F.constant(value=np.array(0)), x)
    y = control.while_loop(lambda s: F.less(s[0], 4), lambda s: (s[0] + 1, recurrent(s[1], w, b)), start)[1]
    kept: list[Graph] = []
    apply([x, w, b], y, prepared, N=2, keep=kept)
    names = [n.op.name for n in bodies(kept[0])]
    assert "FusedMatMul" in names
    assert not {"MatMul", "Tanh"} & set(names)


def test_scan_bodies(apply: Any) -> None:
    xs, start, w, b = data("T", 2, 3), data(2, 3, name="s"), parameter(3, 3), parameter(3, name="b")
    state, ys = control.scan(lambda s, x: (recurrent(F.add(s, x), w, b),) * 2, start, xs)
    kept: list[Graph] = []
    apply([xs, start, w, b], [state, ys], prepared, T=5, keep=kept)
    assert "FusedMatMul" in [n.op.name for n in bodies(kept[0])]


def test_a_body_whose_declared_types_do_not_hold_stays() -> None:
    """The body declares a state of three rows, but each iteration appends one."""
    count, going, state = data(dtype="int64"), data(dtype="bool"), data(3, 2)
    row = F.constant(value=np.ones((1, 2), np.float32))
    body = Graph([count, going, state], [going, F.concat(F.exp(F.neg(state)), row, axis=0)])
    x = data(3, 2)
    y = Node(F.loop.op(body=body), (F.constant(value=np.array(2)), None, x)).outputs
    graph = Graph([x], y)
    after = prepared(graph)
    assert sorted(n.op.name for n in bodies(after)) == sorted(n.op.name for n in bodies(graph))
    array = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(evaluate(after, [array])[0], evaluate(graph, [array])[0])


def test_a_body_given_another_type_than_it_declares_stays() -> None:
    count, going, state = data(dtype="int64"), data(dtype="bool"), data(3, 2)
    body = Graph([count, going, state], [going, F.exp(F.neg(state))])
    for shape, fused in (((3, 2), True), ((5, 2), False)):
        x = data(*shape)
        graph = Graph([x], Node(F.loop.op(body=body), (F.constant(value=np.array(2)), None, x)).outputs)
        assert ("Fused" in [n.op.name for n in bodies(prepared(graph))]) is fused


# --- models ---------------------------------------------------------------------------------------


def residual_network() -> tuple[list[Value], list[Value]]:
    x = data("N", 3, 8, 8)
    inputs = [x]

    def take(*shape: int, role: str = "parameter") -> Value:
        inputs.append(parameter(*shape, name=f"p{len(inputs)}", role=role))
        return inputs[-1]

    def unit(h: Any, channels: int, kernel: int) -> Any:
        pad = kernel // 2
        y = F.conv(h, take(channels, h.shape[1], kernel, kernel), pads=(pad,) * 4)
        vectors = [take(channels, role=role) for role in ("parameter", "parameter", "state", "state")]
        return F.batch_normalization(y, *vectors)

    h = F.relu(unit(x, 8, 3))
    h = F.relu(F.add(unit(F.relu(unit(h, 8, 3)), 8, 3), h))
    h = F.relu(F.add(unit(F.relu(unit(h, 8, 3)), 16, 1), unit(h, 16, 1)))
    h = F.clip(unit(h, 16, 1), np.float32(0), np.float32(6))
    flat = F.flatten(F.global_average_pool(h))
    return inputs, [F.gemm(flat, take(16, 10), take(10))]


def transformer() -> tuple[list[Value], list[Value]]:
    width, heads = 12, 3
    x = data("N", "T", width)
    inputs = [x]

    def take(*shape: int) -> Value:
        inputs.append(parameter(*shape, name=f"p{len(inputs)}"))
        return inputs[-1]

    def linear(h: Any, n: int) -> Any:
        return F.add(F.mat_mul(h, take(h.shape[-1], n)), take(n))

    def norm(h: Any) -> Any:
        last = np.array([-1])
        centred = h - F.reduce_mean(h, last)
        r = F.sqrt(F.reduce_mean(F.pow(centred, np.float32(2)), last) + 1e-5)
        return F.add(F.mul(centred / r, take(width)), take(width))

    def split(h: Any) -> Any:
        return F.transpose(F.reshape(h, np.array([0, 0, heads, -1])), perm=(0, 2, 1, 3))

    h: Any = x
    for _ in range(2):
        y = norm(h)
        q, k, v = (split(linear(y, width)) for _ in range(3))
        scores = F.mat_mul(q, F.transpose(k, perm=(0, 1, 3, 2))) / 2.0
        mixed = F.transpose(F.mat_mul(F.softmax(scores), v), perm=(0, 2, 1, 3))
        h = F.add(h, linear(F.reshape(mixed, np.array([0, 0, width])), width))
        y = linear(norm(h), 24)
        y = F.mul(F.mul(y, F.add(F.erf(y / np.sqrt(2.0).item()), 1.0)), 0.5)
        h = F.add(linear(y, width), h)
    return inputs, [norm(h)]


NETWORKS: list[tuple[Callable[[], Any], dict[str, int], dict[str, int]]] = [
    (residual_network, {"N": 2}, {"ChannelsLastConv": 7, "ReduceMean": 1, "Transpose": 1, "Reshape": 1, "Gemm": 1}),
    (transformer, {"N": 2, "T": 4}, {"LayerNormalization": 5, "FusedMatMul": 12, "FusedAttention": 2, "Reshape": 8}),
]


@pytest.mark.parametrize(("build", "sizes", "left"), NETWORKS)
def test_networks(apply: Any, build: Any, sizes: dict[str, int], left: dict[str, int]) -> None:
    inputs, outputs = build()
    kept: list[Graph] = []
    apply(inputs, outputs, prepared, keep=kept, tolerance=1e-4, **sizes)
    fixed = FixedValues(kept[0])
    running = [n for n in kept[0].nodes if not all(v in fixed for v in n.outputs)]
    assert Counter(n.op.name for n in running) == left
    *_, last = effects(Graph(inputs, outputs))
    assert last.nodes == len(running)
    # A second time there is nothing left to do.
    assert operators(prepared(kept[0])) == operators(kept[0])


def test_both_ways_to_find_fixed_values_agree() -> None:
    x, w, written = data(4), parameter(4), parameter(4, name="s", role="state")
    clipped = F.clip(F.neg(w), None, np.float32(2))  # the absent operand does not matter
    noise = F.mul(F.random_uniform(None, shape=(4,)), w)
    outputs = [F.add(clipped, np.float32(1)), noise, F.add(w, x), F.exp(written)]
    graph = Graph([x, w, written], outputs, [(written, F.add(written, w))])
    found, fixed = fixed_values(graph), FixedValues(graph)
    assert found == {v for v in graph.values if v in fixed}
    assert found.intersection(graph.outputs) == {outputs[0]}


@pytest.mark.parametrize(("build", "sizes", "left"), NETWORKS)
def test_prepared_graphs_bind_and_export(build: Any, sizes: dict[str, int], left: dict[str, int]) -> None:
    """Dimensions can be bound after the passes; fused operators come out of an export as standard ones."""
    inputs, outputs = build()
    graph = Graph(inputs, outputs)
    after = prepared(graph)
    rng = np.random.default_rng(0)
    arrays = [
        rng.uniform(0.5, 1.5, [sizes.get(str(d), d) for d in v.tensor.known_shape]).astype(np.float32) for v in inputs
    ]
    bound = run_passes(bind(after, {graph.name_of(inputs[0]): arrays[0].shape}), (*CLEANUP, *BOUND))
    named = dict(zip(graph.input_names, arrays, strict=True))
    imported = import_model(export(after, {n: a for n, a in named.items() if n != "x"}).SerializeToString())
    assert not any(n.op.domain == DOMAIN for n in imported.graph.nodes)
    again = [{**named, **imported.params}[name] for name in imported.graph.input_names]
    (expected,) = evaluate(graph, arrays)
    for found in (evaluate(bound, arrays), evaluate(imported.graph, again)):
        np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("build", [residual_network, transformer])
def test_gradients_keep_what_they_read(apply: Any, build: Any) -> None:
    """A graph with its gradients reads intermediate values: those stay, the results as well."""
    inputs, (y,) = build()
    parameters = [v for v in inputs if v.role == "parameter"]
    gradients = [g for g in gradient([F.reduce_mean(F.mul(y, y))], parameters[:6]) if g is not None]
    found = apply(inputs, [y, *gradients], prepared, N=2, T=4, tolerance=1e-3)
    assert found.total() > 0


def test_training_statistics_stay(apply: Any) -> None:
    inputs, outputs = residual_network()
    training = to_training(Graph(inputs, outputs))
    after = operators(prepared(training))
    assert after["ChannelsLastBatchNorm"] == operators(training)["BatchNormalization"]
    apply(training.inputs, training.outputs, prepared, updates=training.updates, N=2, tolerance=1e-3)


@pytest.mark.usefixtures("unset_parameters")
@in_one_item()
@pytest.mark.parametrize("name", gk.models.names())
def test_models_of_the_zoo(name: str) -> None:
    net = gk.models.build(name)
    before, after = operators(net.graph), operators(prepared(net.graph))
    assert after.total() > 0
    assert not {"BatchNormalization", "Dropout"} & after.keys()
    # Some transposed ones become convolutions.
    moved = after["ChannelsLastConv"] + after["ChannelsLastConvTranspose"]
    assert moved == before["Conv"] + before["ConvTranspose"]


# --- random graphs --------------------------------------------------------------------------------

UNARY = [
    F.relu, F.sigmoid, F.tanh, F.neg, F.gelu, lambda x: x * F.sigmoid(x), lambda x: F.clip(x, np.float32(0)),
    lambda x: F.transpose(F.transpose(x, perm=(0, 2, 1)), perm=(0, 2, 1)), lambda x: F.transpose(x, perm=(0, 2, 1)),
    lambda x: F.reshape(F.reshape(x, np.array([0, 16])), np.array([0, 4, 4])), lambda x: F.softmax(x),
    lambda x: x * 0.5, lambda x: F.layer_normalization(x, np.ones(4, np.float32))[0],
    lambda x: F.relu(F.transpose(x, perm=(0, 2, 1))),
]  # fmt: skip
BINARY = [F.add, F.mul, F.sub, F.mat_mul, lambda a, b: F.mat_mul(a, F.transpose(b, perm=(0, 2, 1)))]


@in_one_item()
@pytest.mark.parametrize("seed", seeds(60, default=16))
def test_random_graphs(apply: Any, seed: int) -> None:
    """Products, sums, activations, transposes and reshapes at random, with outputs in the middle."""
    rng = np.random.default_rng(seed)
    x, w, b, r = data("N", 4, 4), parameter(4, 4), parameter(4, name="b"), data("N", 4, 4, name="r")
    inputs: list[Any] = [x, w, b, r]
    values: list[Any] = [x, r]
    for _ in range(25):
        a, c = (values[int(rng.integers(max(0, len(values) - 4), len(values)))] for _ in range(2))
        kind = rng.random()
        if kind < 0.5:
            values.append(UNARY[int(rng.integers(len(UNARY)))](a))
        elif kind < 0.75:
            values.append(F.tanh(BINARY[int(rng.integers(len(BINARY)))](a, c)))
        elif kind < 0.9:
            values.append(F.mat_mul(a, w))
        else:
            values.append(F.add(a, b))
    outputs = [values[-1], values[int(rng.integers(2, len(values)))]]
    before = operators(Graph(inputs, outputs)).total()
    assert apply(inputs, outputs, prepared, N=3, tolerance=1e-4).total() <= before


@in_one_item()
@pytest.mark.parametrize("seed", seeds(30, default=10))
def test_random_convolutions(apply: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = data("N", 4, 5, 5)
    inputs: list[Any] = [x]
    values: list[Any] = [x, F.neg(x)]

    def take(*shape: int, role: str = "parameter") -> Value:
        inputs.append(parameter(*shape, name=f"p{len(inputs)}", role=role))
        return inputs[-1]  # type: ignore[no-any-return]

    def conv(a: Any) -> Any:
        return F.conv(a, take(4, 4, 3, 3), take(4) if rng.random() < 0.5 else None, pads=(1, 1, 1, 1))

    def norm(a: Any) -> Any:
        roles = ("parameter", "parameter", "state", "state")
        return F.batch_normalization(a, *(take(4, role=role) for role in roles))

    choices: list[Callable[[Any], Any]] = [
        conv, norm, F.relu, F.tanh, lambda a: F.add(a, take(4, 1, 1)), lambda a: F.mul(a, take(4, 1, 1)),
        lambda a: F.add(a, values[int(rng.integers(len(values)))]), lambda a: a * F.sigmoid(a),
    ]  # fmt: skip
    for _ in range(16):
        values.append(F.tanh(choices[int(rng.integers(len(choices)))](values[-1 - int(rng.random() < 0.2)])))
        values.append(choices[int(rng.integers(len(choices)))](values[-1]))
        values = values[-6:]
    apply(inputs, [values[-1], values[-3]], prepared, N=2, tolerance=1e-3)


# --- the runner -----------------------------------------------------------------------------------


def test_effects_and_the_debug_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    inputs, outputs = residual_network()
    graph = Graph(inputs, outputs)
    told = {e.name: e for e in effects(graph)}
    assert told["fold_batch_norm"].fixed > 0
    assert "Conv -6, FusedConv +6" in told["fuse_conv"].change
    monkeypatch.setenv("GRAPHKIT_DEBUG", "1")
    prepared(graph)
    log = capsys.readouterr().err
    assert "graphkit: pass fold_batch_norm: " in log
    assert "BatchNormalization -7" in log
    assert _base.effect(graph, graph) == f"{operators(graph).total()} nodes"


def _residual(h: Any, i: int, inputs: list[Value]) -> Any:
    w, b = parameter(4, 4, name=f"w{i}"), parameter(4, name=f"b{i}")
    inputs += [w, b]
    return F.add(h, F.relu(F.add(F.mat_mul(h, w), b)))


def _quantised(h: Any, i: int, inputs: list[Value]) -> Any:
    at = np.float32(0.1), np.uint8(3)
    w = F.dequantize_linear(np.eye(4, dtype=np.int8), np.float32(0.5))
    x = F.dequantize_linear(F.quantize_linear(h, *at), *at)
    return F.add(x, F.sigmoid(F.dequantize_linear(F.quantize_linear(F.mat_mul(x, w), *at), *at)))


def _quantised_by_its_own_maximum(h: Any, i: int, inputs: list[Value]) -> Any:
    at = F.reduce_max(h, keepdims=False), np.uint8(3)
    return F.dequantize_linear(F.quantize_linear(F.sigmoid(h), *at), *at)


def _dynamically_quantised(h: Any, i: int, inputs: list[Value]) -> Any:
    x, scale, zero = F.dynamic_quantize_linear(h)
    product = F.mat_mul_integer(x, np.eye(4, dtype=np.uint8), zero)
    return F.mul(F.cast(product, to="float32"), F.mul(scale, np.float32(0.5)))


def _by_a_sequence(h: Any, i: int, inputs: list[Value]) -> Any:
    pair = F.sequence_insert(F.sequence_construct(h), F.neg(h))
    return F.add(F.sequence_at(pair, np.int64(1)), F.sequence_at(pair, np.int64(-2)))


BLOCKS = [_residual, _quantised, _quantised_by_its_own_maximum, _dynamically_quantised, _by_a_sequence]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda f: f.__name__.strip("_"))
def test_work_is_linear(steps: Any, block: Callable[[Any, int, list[Value]], Any]) -> None:
    def work(layers: int) -> int:
        x = data("N", 4)
        h: Any = x
        inputs: list[Value] = [x]
        for i in range(layers):
            h = block(h, i, inputs)
        graph = Graph(inputs, [h])
        return int(steps(lambda: prepared(graph)))

    work(10)  # what is loaded at first use
    assert work(160) < 5 * work(40)
