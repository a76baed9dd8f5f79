"""Export: ONNX Runtime computes the results of the graph from the file; names, roles and metadata are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto

import graphkit as gk
from graphkit.checks.verify import compare_outputs
from graphkit.errors import UnsupportedError, UsageError
from graphkit.ir import dims
from graphkit.ir.graph import Graph, Value
from graphkit.ir.subgraph import checkpoint, close_over
from graphkit.ir.types import TensorType
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.exporter import export
from graphkit.onnx_io.importer import import_model
from graphkit.ops import DOMAIN, F, Op, op, registry
from graphkit.ops.evaluate import evaluate, evaluate_with_updates

TARGETS = (13, 15, 17, 18, 20, 21, 23, 26)
GENERATOR = np.random.default_rng(0)


def normal(*shape):
    return GENERATOR.standard_normal(shape).astype(np.float32)


def value(name, *shape, dtype="float32", role="data"):
    return Value(TensorType(dtype, shape), name, role=role)


def check(graph, feeds, params=None, opset=21, **options):
    """Export, let ONNX Runtime and graphkit's own importer run the file, and compare both with the graph."""
    params = params or {}
    proto = export(graph, params, opset=opset, **options)
    onnx.checker.check_model(proto)
    arrays = [params[n] if n in params else feeds[n] for n in graph.input_names]
    expected = dict(zip(graph.output_names, evaluate(graph, arrays), strict=True))
    for difference in compare_outputs(OnnxRuntimeModel(proto).run(feeds), expected):
        assert difference.passed, f"opset {opset}: {difference}"
    again = import_model(proto.SerializeToString())
    given = [again.params[n] if n in again.params else feeds[n] for n in again.graph.input_names]
    found = dict(zip(again.graph.output_names, evaluate(again.graph, given), strict=True))
    for difference in compare_outputs(found, expected):
        assert difference.passed, f"opset {opset}, imported: {difference}"
    return proto


def perceptron():
    x, w, b = value("x", dims.symbol("N"), 3), value("w", 3, 4, role="parameter"), value("b", 4, role="parameter")
    h = F.relu(F.add(F.mat_mul(x, w, name="project"), b), name="act")
    return Graph([x, w, b], [h], name="net", output_names=["scores"]), {"w": normal(3, 4), "b": normal(4)}


@in_one_item()
@pytest.mark.parametrize("opset", TARGETS)
def test_a_network_at_every_target(opset):
    graph, params = perceptron()
    proto = check(graph, {"x": normal(5, 3)}, params, opset)
    assert proto.opset_import[0].version == opset
    assert [i.name for i in proto.graph.input] == ["x"]
    assert [o.name for o in proto.graph.output] == ["scores"]
    assert {t.name for t in proto.graph.initializer} == {"w", "b"}
    assert {n.name for n in proto.graph.node} >= {"project", "act"}
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert (proto.producer_name, proto.producer_version) == ("graphkit", gk.__version__)


def test_targets_outside_the_range():
    graph, params = perceptron()
    for opset in (12, 99):
        with pytest.raises(UnsupportedError, match=f"opset {opset}; 13 to"):
            export(graph, params, opset=opset)


def test_missing_unknown_and_misfitting_parameters():
    graph, params = perceptron()
    with pytest.raises(UsageError, match="parameter 'b' has no value"):
        export(graph, {"w": params["w"]})
    with pytest.raises(UsageError, match="no parameter 'bb'; did you mean 'b'"):
        export(graph, {**params, "bb": params["b"]})
    with pytest.raises(UsageError, match=r"parameter 'w' is float32\[3, 4\]; its array is float32\[4, 3\]"):
        export(graph, {**params, "w": params["w"].T})


def test_parameters_as_inputs():
    graph, params = perceptron()
    proto = export(graph, {"w": params["w"]}, as_inputs=True)
    assert [i.name for i in proto.graph.input] == ["x", "w", "b"]
    model = OnnxRuntimeModel(proto)
    x, b = normal(2, 3), np.full(4, 9, np.float32)
    expected = np.maximum(x @ params["w"] + b, 0)
    np.testing.assert_allclose(model.run({"x": x, "b": b})["scores"], expected, rtol=1e-5)


def test_outputs_that_are_inputs_or_repeated():
    x = value("x", 2)
    y = F.neg(x)
    graph = Graph([x], [x, y, y, F.constant(value=np.float32(2))], output_names=["same", "y", "again", "two"])
    proto = check(graph, {"x": normal(2)})
    assert [o.name for o in proto.graph.output] == ["same", "y", "again", "two"]
    assert [n.op_type for n in proto.graph.node].count("Identity") == 2


def test_an_input_is_handed_through_by_its_own_name():
    x, w = value("x", 2), value("w", 3, role="parameter")
    graph = Graph([x, w], [x, F.neg(x), w], output_names=["x", "y", "w"])
    proto = check(graph, {"x": normal(2)}, {"w": normal(3)})
    assert [o.name for o in proto.graph.output] == ["x", "y", "w"]
    assert [n.op_type for n in proto.graph.node] == ["Neg"]


def test_output_names_are_never_taken_by_other_values():
    x = value("x", 2)
    a = F.neg(x, name="y")
    graph = Graph([x], [F.relu(a, name="z"), a], output_names=["y", "x"])
    proto = export(graph, {})
    assert [o.name for o in proto.graph.output] == ["y", "x_1"]
    onnx.checker.check_model(proto)


def test_updates_on_request():
    x, s = value("x", 2), value("s", 2, role="state")
    graph = Graph([x, s], [F.add(x, s)], [(s, F.mul(s, x))], output_names=["y"])
    params, feed = {"s": normal(2)}, normal(2)
    assert [o.name for o in export(graph, params).graph.output] == ["y"]
    proto = export(graph, params, with_updates=True)
    (y,), (new,) = evaluate_with_updates(graph, [feed, params["s"]])
    found = OnnxRuntimeModel(proto).run({"x": feed})
    np.testing.assert_allclose(found["y"], y)
    np.testing.assert_allclose(found["s_updated"], new)


def test_roles_survive_a_round_trip():
    x = value("x", 2)
    scale, slot = value("scale", role="parameter"), value("slot", 2, role="state")
    big = F.constant(value=normal(400, 2))
    graph = Graph([x, scale, slot], [F.add(F.mul(F.mul(x, scale), slot), F.reduce_sum(big, np.array([0])))])
    params = {"scale": np.float32(2), "slot": normal(2)}
    again = import_model(check(graph, {"x": normal(2)}, params))
    assert [(v.name, v.role) for v in again.graph.inputs] == [("x", "data"), ("scale", "parameter"), ("slot", "state")]


def test_metadata():
    graph, params = perceptron()
    meta = {"author": "me", "onnx.doc_string": "about", "onnx.producer_name": "somebody", "onnx.model_version": "7"}
    proto = export(graph, params, meta=meta, name="other")
    assert (proto.doc_string, proto.model_version, proto.graph.name) == ("about", 7, "other")
    again = import_model(proto.SerializeToString()).meta
    assert again["author"] == "me"
    assert again["onnx.producer_name"] == "graphkit"


def test_trailing_outputs_that_nothing_reads_are_left_out():
    x = value("x", 1, 1, 4)
    pooled, _ = F.max_pool(x, kernel_shape=(2,))
    proto = check(Graph([x], [pooled]), {"x": normal(1, 1, 4)})
    assert [len(n.output) for n in proto.graph.node] == [1]


def test_anonymous_and_computed_dimensions():
    n = dims.symbol("N")
    x = Value(TensorType("float32", [n, dims.fresh(), 2 * n + 1, "odd name"]), "x")
    proto = export(Graph([x], [F.relu(x)]), {})
    shape = proto.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param for d in shape] == ["N", "", "2*N + 1", "odd name"]
    assert import_model(proto).graph.inputs[0].shape[2] == 2 * n + 1


# --- control flow ---------------------------------------------------------------------------------


def conditional():
    """An If whose branches capture an outer value and a parameter, nested once."""
    p, q = value("p", dtype="bool"), value("q", dtype="bool")
    x, w = value("x", 2), value("w", 2, role="parameter")
    outer = F.exp(x, name="outer")

    def branches(cond, then, other, mark):
        captured: list[Value] = []
        for results in (then, other):
            _, captured = close_over(results, (), mark, captured)
        then_graph, other_graph = (close_over(r, (), mark, captured)[0] for r in (then, other))
        return F.if_(cond, *captured, then_branch=then_graph, else_branch=other_graph)

    mark = checkpoint()
    inner_mark = checkpoint()
    inner = branches(q, [F.mul(outer, w)], [F.sub(outer, w)], inner_mark)
    inner = inner[0] if isinstance(inner, tuple) else inner
    result = branches(p, [F.neg(inner)], [outer], mark)
    result = result[0] if isinstance(result, tuple) else result
    return Graph([p, q, x, w], [result], output_names=["y"]), {"w": normal(2)}


@in_one_item("values")
@pytest.mark.parametrize("opset", TARGETS)
@pytest.mark.parametrize(("p", "q"), [(True, True), (True, False), (False, False)])
def test_captures_become_outer_names(opset, p, q):
    graph, params = conditional()
    feeds = {"p": np.array(p), "q": np.array(q), "x": normal(2)}
    proto = check(graph, feeds, params, opset)
    (node,) = (n for n in proto.graph.node if n.op_type == "If")
    assert len(node.input) == 1
    assert all(not a.g.input for a in node.attribute)


# --- graphkit's own operators ---------------------------------------------------------------------


def test_own_operators_are_written_in_standard_ones():
    x, like = value("x", 2, 3), value("like", 1, 3)
    graph = Graph([x, like], [F.reduce_to_shape_of(x, like)])
    proto = check(graph, {"x": normal(2, 3), "like": normal(1, 3)}, opset=13)
    assert {n.domain for n in proto.graph.node} == {""}


def test_an_operator_without_a_standard_form_is_named():
    @op
    class Opaque(Op):
        """x, unexplained."""

        domain = DOMAIN
        inputs = ("x",)

        def infer(self, x):
            return x

    try:
        x = value("x", 2)
        with pytest.raises(
            UnsupportedError, match=r"node 'mystery' ai.graphkit.Opaque.*cannot be expressed in standard operators"
        ):
            export(Graph([x], [F.opaque(x, name="mystery")]), {})
    finally:
        registry.remove(Opaque)


def test_random_operators_are_written_without_their_state():
    rng = value("rng", 2, dtype="uint64", role="rng")
    graph = Graph([rng], [F.random_normal(rng, shape=(3,), stream=4)], output_names=["y"])
    proto = export(graph, {})
    assert not proto.graph.input
    assert OnnxRuntimeModel(proto).run({})["y"].shape == (3,)


# --- older targets --------------------------------------------------------------------------------


def older_cases():
    x, image = value("x", 2, 3, 4), value("x", 1, 4, 5, 6)
    axes = np.array([1, -1])
    dynamic = value("x", dims.symbol("A"), dims.symbol("B"))
    vector = normal(4)
    positive = np.abs(normal(4)) + 1
    return {
        "reduce_mean": (x, F.reduce_mean(x, axes, keepdims=False)),
        "reduce_l2": (x, F.reduce_l2(x, keepdims=True)),
        "reduce_nothing": (x, F.reduce_sum_square(x, np.zeros(0, np.int64), noop_with_empty_axes=True)),
        "split_unevenly": (x, F.split(x, axis=1, num_outputs=2)[1]),
        "split_symbolic": (dynamic, F.split(dynamic, axis=1, num_outputs=2)[0]),
        "pad_axes": (x, F.pad(x, np.array([1, 0, 2, 1]), np.float32(3), np.array([2, 0]))),
        "shape_slice": (x, F.shape(x, start=1, end=-1)),
        "gelu": (x, F.gelu(x)),
        "layer_norm": (image, F.layer_normalization(image, normal(6), normal(6))[0]),
        "layer_norm_front": (x, F.layer_normalization(x, normal(3, 4), axis=1)[0]),
        "batch_norm": (image, F.batch_normalization(image, vector, vector, vector, positive)[0]),
        "float_mod": (x, F.mod(x, np.float32(0.7))),
        "softmax": (x, F.softmax(x, axis=1)),
        "hard_swish": (x, F.hard_swish(x)),
        "mish": (x, F.mish(x)),
    }


@in_one_item("values")
@pytest.mark.parametrize("opset", [13, 14, 17, 18, 21])
@pytest.mark.parametrize("case", sorted(older_cases()))
def test_older_targets_compute_the_same(case, opset):
    x, y = older_cases()[case]
    shape = tuple(d if isinstance(d, int) else 3 for d in x.shape)
    check(Graph([x], [y], output_names=["y"]), {"x": normal(*shape)}, opset=opset)


def test_training_batch_normalization_below_14():
    x = value("x", 2, 4, 3)
    vector, positive = normal(4), np.abs(normal(4)) + 1
    outputs = F.batch_normalization(x, vector, vector, vector, positive, training_mode=True)
    graph = Graph([x], outputs, output_names=["y", "mean", "var"])
    check(graph, {"x": normal(2, 4, 3)}, opset=13)


@in_one_item()
@pytest.mark.parametrize(
    ("build", "opset", "message"),
    [
        (lambda x: F.reduce_max(x, F.shape(x, start=0, end=1)), 17, "a constant at opset 17, .* attribute 'axes'"),
        (lambda x: F.pad(x, np.zeros(4, np.int64), mode="wrap"), 18, "mode='wrap'.*at opset 18"),
        (lambda x: F.reshape(x, F.shape(F.relu(x)), allowzero=True), 13, "allowzero"),
        (lambda x: F.cast(x, to="float8_e4m3fn"), 18, "opset 18"),
    ],
)
def test_what_a_target_cannot_express_is_named(build, opset, message):
    x = Value(TensorType("float32", [dims.symbol("A"), dims.symbol("B")]), "x")
    with pytest.raises(UnsupportedError, match=message):
        export(Graph([x], [build(x)]), {}, opset=opset)


@in_one_item()
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_recurrent_layers_with_the_batch_first(kind):
    """Older opsets have time first; ONNX Runtime asks for hidden_size, which the standard takes from a shape."""
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[kind]
    x, h = value("x", dims.symbol("N"), dims.symbol("T"), 3), value("h", dims.symbol("N"), 1, 5)
    w, r = value("w", 1, gates * 5, 3, role="parameter"), value("r", 1, gates * 5, 5, role="parameter")
    outputs = getattr(F, kind)(x, w, r, None, None, h, layout=1)
    params = {"w": normal(1, gates * 5, 3), "r": normal(1, gates * 5, 5)}
    feeds = {"x": normal(2, 4, 3), "h": normal(2, 1, 5)}
    proto = check(Graph([x, h, w, r], outputs), feeds, params, opset=13)
    (node,) = [n for n in proto.graph.node if n.op_type == kind.upper()]
    assert {a.name: a.i for a in node.attribute}["hidden_size"] == 5


def test_element_types_are_checked_against_the_target():
    x = value("x", 2, dtype="bfloat16")
    graph = Graph([x], [F.where(F.constant(value=np.array(True)), x, x)])
    assert export(graph, {}, opset=16).graph.node
    with pytest.raises(UnsupportedError, match=r"operand 'X' of type bfloat16\[2\] cannot be expressed at opset 13"):
        export(graph, {}, opset=13)


def test_a_long_chain():
    x = value("x", 2)
    y = x
    for _ in range(20_000):
        y = F.neg(y)
    proto = export(Graph([x], [y]), {})
    assert len(proto.graph.node) == 20_000
    assert proto.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_branches_cost_what_they_are_not_what_is_around_them(steps):
    def branching(count):
        p, x = value("p", dtype="bool"), value("x", 3)
        h = x
        for _ in range(count):
            graphs = [Graph([v], [f(v)]) for v, f in ((value("v", 3), F.exp), (value("v", 3), F.neg))]
            h = F.if_(p, h, then_branch=graphs[0], else_branch=graphs[1])
        return Graph([p, x], [h])

    few, many = branching(100), branching(400)
    assert steps(lambda: export(many, {})) < 4.4 * steps(lambda: export(few, {}))


@in_one_item()
@pytest.mark.parametrize("batch", [2, "N"])
@pytest.mark.parametrize("opset", [13, 21, 28])
def test_gradients_of_subpixel_networks_are_standard(batch: Any, opset: int) -> None:
    """PyTorch's PixelShuffle is DepthToSpace by columns, whose gradient only opset 28 has an operator for."""
    x = gk.input("x", [batch, 1, 4, 6])
    h = gk.depth_to_space(gk.nn.conv2d(x, 8, kernel=3, pad=1, name="c"), blocksize=2, mode="CRD")
    net = gk.Model({"loss": gk.reduce_sum(h * h * h, keepdims=False)}, seed=0)
    gradients = gk.grad(net, of="loss")
    if opset < 28:
        report = gk.verify(gradients, opset=opset)
        assert report.passed, str(report)
    operators = {node.op_type for node in gradients.to_onnx(opset=opset).graph.node}
    assert ("SpaceToDepth" in operators) is (opset >= 28)
