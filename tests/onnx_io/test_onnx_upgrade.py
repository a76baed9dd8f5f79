"""Nodes of older opsets: imported, upgraded and evaluated, they have the results of ONNX Runtime for the file."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.checks.verify import compare_outputs
from graphkit.errors import UnsupportedError
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.importer import import_model
from graphkit.onnx_io.upgrade import next_rule
from graphkit.ops.evaluate import evaluate

GENERATOR = np.random.default_rng(0)


def normal(*shape):
    return GENERATOR.standard_normal(shape).astype(np.float32)


def single(op, opset, x, inits=(), outputs=1, declared=None, **attrs):
    names = [f"y{i}" for i in range(outputs)]
    tensors = [numpy_helper.from_array(np.asarray(a), f"c{i}") for i, a in enumerate(inits)]
    node = helper.make_node(op, ["x", *(t.name for t in tensors)], names, name="node", **attrs)
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    infos = [helper.make_tensor_value_info("x", dtype, declared or x.shape)]
    untyped = [onnx.ValueInfoProto(name=n) for n in names]
    graph = helper.make_graph([node], "g", infos, untyped, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=5)


def evaluated(proto, x):
    found = import_model(proto)
    arrays = [found.params.get(n, x) for n in found.graph.input_names]
    return dict(zip(found.graph.output_names, evaluate(found.graph, arrays), strict=True))


def i64(*values):
    return np.array(values, np.int64)


X = normal(2, 3, 4)
IMAGE = normal(1, 4, 5, 6)
VECTOR = np.array([0.5, 1.0, 1.5, 2.0], np.float32)

CASES = [
    ("Squeeze", 11, normal(1, 3, 1), (), {"axes": [0, 2]}),
    ("Unsqueeze", 11, X, (), {"axes": [0, 2]}),
    ("ReduceSum", 11, X, (), {"axes": [0, -1], "keepdims": 0}),
    ("ReduceMean", 13, X, (), {"axes": [1]}),
    ("ReduceMax", 12, X, (), {}),
    ("ReduceLogSumExp", 11, X, (), {"axes": [2]}),
    ("Split", 11, X, (), {"axis": 1, "split": [1, 2], "outputs": 2}),
    ("Split", 11, X, (), {"axis": 2, "outputs": 2}),
    ("Split", 13, X, (i64(1, 3),), {"axis": 2, "outputs": 2}),
    ("Split", 13, X, (), {"axis": 2, "outputs": 4}),
    ("Slice", 9, X, (), {"axes": [1, 2], "starts": [1, -3], "ends": [3, -1]}),
    ("Slice", 9, X, (), {"starts": [0, 1], "ends": [1, 9]}),
    ("Pad", 10, X, (), {"pads": [0, 1, 2, 0, 0, 1], "value": 1.5}),
    ("Pad", 10, X, (), {"pads": [0, 1, 2, 0, 0, 1], "mode": "edge"}),
    ("TopK", 9, X, (), {"k": 2, "outputs": 2}),
    ("TopK", 10, X, (i64(2),), {"axis": 1, "outputs": 2}),
    ("OneHot", 9, np.array([0, 2, 1]), (i64(3), np.array([0.0, 1.0], np.float32)), {}),
    ("Scatter", 9, X, (i64(1, 0).reshape(1, 1, 2), normal(1, 1, 2)), {"axis": 2}),
    ("Clip", 6 + 1, X, (), {"min": -0.5}),
    ("Clip", 10, X, (), {"max": 0.25}),
    ("Clip", 10, X, (), {}),
    ("Dropout", 7, X, (), {"ratio": 0.3}),
    ("Dropout", 10, X, (), {"ratio": 0.3}),
    ("Softmax", 11, X, (), {}),
    ("Softmax", 11, X, (), {"axis": -1}),
    ("LogSoftmax", 7, X, (), {"axis": 0}),
    ("Hardmax", 11, X, (), {"axis": 1}),
    ("BatchNormalization", 7, IMAGE, (VECTOR, VECTOR, VECTOR, VECTOR), {"epsilon": 1e-3}),
    ("BatchNormalization", 9, IMAGE, (VECTOR, VECTOR, VECTOR, VECTOR), {}),
    ("Upsample", 7, IMAGE, (), {"scales": [1.0, 1.0, 2.0, 3.0]}),
    ("Upsample", 9, IMAGE, (np.array([1, 1, 2, 2], np.float32),), {"mode": "linear"}),
    ("Resize", 10, IMAGE, (np.array([1, 1, 2, 1.5], np.float32),), {}),
    ("Resize", 10, IMAGE, (np.array([1, 1, 0.5, 0.5], np.float32),), {}),
    ("Resize", 10, IMAGE, (np.array([1, 1, 2, 2], np.float32),), {"mode": "linear"}),
    ("Cast", 9, X, (), {"to": TensorProto.INT32}),
    ("Flatten", 9, X, (), {"axis": 2}),
    ("Gemm", 7, normal(2, 3), (normal(3, 4), normal(4)), {"alpha": 0.5}),
    ("Add", 7, X, (normal(4),), {}),
    ("MaxPool", 8, IMAGE, (), {"kernel_shape": [2, 2], "outputs": 2}),
    ("AveragePool", 7, IMAGE, (), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("LRN", 7, IMAGE, (), {"size": 3}),
    ("Affine", 8, X, (), {"alpha": 2.0, "beta": 0.5}),
    ("ScaledTanh", 8, X, (), {"alpha": 2.0, "beta": 0.5}),
    ("ParametricSoftplus", 8, X, (), {"alpha": 2.0, "beta": 0.5}),
    ("ImageScaler", 8, IMAGE, (), {"scale": 2.0, "bias": [1.0, 2.0, 3.0, 4.0]}),
    ("Crop", 8, IMAGE, (), {"border": [1, 0, 2, 1]}),
    ("Crop", 9, IMAGE, (), {"border": [1, 2, 0, 0], "scale": [2, 3]}),
    ("Scale", 8, X, (), {"scale": 0.5}),
    ("DynamicSlice", 8, X, (i64(0, -3), i64(2, 9), i64(1, 2)), {}),
    ("DynamicSlice", 8, X, (i64(1), i64(2)), {}),
    ("MeanVarianceNormalization", 8, IMAGE, (), {}),
    ("MeanVarianceNormalization", 8, IMAGE, (), {"across_channels": 1}),
    ("MeanVarianceNormalization", 8, IMAGE, (), {"normalize_variance": 0}),
    ("MeanVarianceNormalization", 8, IMAGE, (), {"across_channels": 1, "normalize_variance": 0}),
    ("ThresholdedRelu", 8, X, (), {"alpha": 0.25}),
    ("Clip", 13, X, (np.array([-0.5], np.float32), np.array([0.25], np.float32)), {}),
]


@in_one_item()
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}")
def test_upgraded_nodes_compute_what_the_file_says(case):
    op, opset, x, inits, attrs = case
    proto = single(op, opset, x, inits, **attrs)
    for difference in compare_outputs(evaluated(proto, x), OnnxRuntimeModel(proto, optimize=False).run({"x": x})):
        assert difference.passed, str(difference)


@pytest.mark.parametrize(("opset", "dtype"), [(7, np.float32), (10, np.bool_)])
def test_the_mask_of_dropout_had_the_type_of_the_data(opset, dtype):
    found = evaluated(single("Dropout", opset, X, outputs=2, ratio=0.3), X)
    np.testing.assert_array_equal(found["y0"], X)
    assert found["y1"].dtype == dtype
    assert found["y1"].all()


@in_one_item()
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_coercion_to_a_matrix_needs_no_known_shape(op):
    proto = single(op, 11, X, axis=1, declared=["A", "B", "C"])
    (difference,) = compare_outputs(evaluated(proto, X), OnnxRuntimeModel(proto).run({"x": X}))
    assert difference.passed, str(difference)


def test_group_normalization_per_group_becomes_per_channel():
    scale, bias = np.array([1.0, 2.0], np.float32), np.array([0.5, -0.5], np.float32)
    proto = single("GroupNormalization", 18, IMAGE, (scale, bias), num_groups=2)
    y = evaluated(proto, IMAGE)["y0"]
    grouped = IMAGE.reshape(1, 2, -1)
    normal_ = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(grouped.var(2, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, (normal_ * scale[:, None] + bias[:, None]).reshape(IMAGE.shape), rtol=1e-4, atol=1e-5)


def test_batch_normalization_per_activation():
    parts = [normal(4, 5, 6), normal(4, 5, 6), normal(4, 5, 6), np.abs(normal(4, 5, 6)) + 1]
    scale, bias, mean, var = parts
    y = evaluated(single("BatchNormalization", 7, IMAGE, parts, spatial=0), IMAGE)["y0"]
    np.testing.assert_allclose(y, (IMAGE - mean) / np.sqrt(var + 1e-5) * scale + bias, rtol=1e-4, atol=1e-5)


def test_one_hot_of_negative_indices_was_all_off():
    proto = single("OneHot", 9, i64(-1, 1), (i64(3), np.array([0.0, 1.0], np.float32)))
    np.testing.assert_array_equal(evaluated(proto, i64(-1, 1))["y0"], [[0, 0, 0], [0, 1, 0]])


# The first opsets, which ONNX Runtime does not read: (operator, opset, x, initialisers, attributes, expected).
CHANNEL = normal(3)
FIRST = [
    ("Add", 1, X, (CHANNEL,), {"broadcast": 1, "axis": 1, "consumed_inputs": [0, 0]}, X + CHANNEL[:, None]),
    ("Sub", 6, X, (normal(2, 3),), {"broadcast": 1, "axis": 0}, None),
    ("Mul", 6, X, (CHANNEL[:1],), {"broadcast": 1}, X * CHANNEL[0]),
    ("Div", 6, X, (np.float32(2),), {"broadcast": 1, "axis": 0}, X / 2),
    ("Pow", 1, np.abs(X), (CHANNEL,), {"broadcast": 1, "axis": -2}, np.abs(X) ** CHANNEL[:, None]),
    ("Greater", 1, X, (X[0, 0],), {"broadcast": 1}, X[0, 0] < X),
    ("Equal", 1, i64(1, 2), (i64(1, 3),), {}, np.array([True, False])),
    ("Relu", 1, X, (), {"consumed_inputs": [0]}, np.maximum(X, 0)),
    ("Gemm", 6, X[0], (X[1].T.copy(), CHANNEL), {"broadcast": 1}, X[0] @ X[1].T + CHANNEL),
    ("PRelu", 6, IMAGE, (VECTOR,), {}, np.where(IMAGE < 0, IMAGE * VECTOR[:, None, None], IMAGE)),
    ("PRelu", 1, IMAGE, (VECTOR[:1],), {"consumed_inputs": [0, 0]}, np.where(IMAGE < 0, IMAGE * 0.5, IMAGE)),
    ("Dropout", 6, X, (), {"is_test": 1, "ratio": 0.4}, X),
    ("Clip", 1, X, (), {"min": -0.5, "max": 0.5, "consumed_inputs": [0]}, X.clip(-0.5, 0.5)),
    ("Clip", 6, X, (), {}, X),
    ("Cast", 5, X, (), {"to": "INT32"}, X.astype(np.int32)),
    ("Concat", 3, X, (X,), {}, np.concatenate([X, X], 1)),
    ("Reshape", 4, X, (), {"shape": [0, -1]}, X.reshape(2, 12)),
    ("Pad", 1, X, (), {"paddings": [0, 1, 0, 0, 0, 2]}, np.pad(X, [(0, 0), (1, 0), (0, 2)])),
    ("Split", 1, X, (i64(1, 2),), {"axis": 1, "outputs": 2}, X[:, :1]),
    ("Tile", 5, X, (np.float32(3), np.float32(1)), {}, np.tile(X, (1, 3, 1))),
    ("Upsample", 6, IMAGE, (), {"height_scale": 2.0, "width_scale": 1.0}, IMAGE.repeat(2, axis=2)),
    ("GlobalLpPool", 1, IMAGE, (), {"p": 1.0}, np.abs(IMAGE).sum((2, 3), keepdims=True)),
    ("Selu", 1, X, (), {}, 1.0507 * np.where(X > 0, X, 1.6732 * (np.exp(X) - 1))),
    ("Not", 1, X > 0, (), {}, X <= 0),
]


@in_one_item()
@pytest.mark.parametrize("case", FIRST, ids=lambda c: f"{c[0]}-{c[1]}")
def test_the_first_opsets(case):
    op, opset, x, inits, attrs, expected = case
    if op == "Sub":
        expected = x - inits[0][:, :, None]
    found = evaluated(single(op, opset, x, inits, **attrs), x)["y0"]
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spatial", [0, 1])
def test_batch_normalization_of_an_engine_in_test_mode(spatial):
    parts = [VECTOR] * 4 if spatial else [np.abs(normal(4, 5, 6)) + 1] * 4
    shape = (4, 1, 1) if spatial else (4, 5, 6)
    attrs = {"is_test": 1, "spatial": spatial, "consumed_inputs": [0, 0, 0, 1, 1]}
    y = evaluated(single("BatchNormalization", 1, IMAGE, parts, **attrs), IMAGE)["y0"]
    w = parts[0].reshape(shape)
    np.testing.assert_allclose(y, (IMAGE - w) / np.sqrt(w + 1e-5) * w + w, rtol=1e-4, atol=1e-5)


@in_one_item()
@pytest.mark.parametrize("lengths", [None, [2, 0, 4]])
@pytest.mark.parametrize("backwards", [0, 1])
def test_the_batched_scan(lengths, backwards):
    """Opset 8: sums over time for each element of the batch, up to its length."""
    row = helper.make_tensor_value_info("", TensorProto.FLOAT, [2])

    def info(name):
        renamed = onnx.ValueInfoProto()
        renamed.CopyFrom(row)
        renamed.name = name
        return renamed

    nodes = [
        helper.make_node("Add", ["s", "v"], ["t"]),
        helper.make_node("Identity", ["t"], ["out"]),
    ]
    body = helper.make_graph(nodes, "body", [info("s"), info("v")], [info("t"), info("out")])
    x, start = normal(3, 4, 2), normal(3, 2)
    tensors = [numpy_helper.from_array(start, "start")]
    if lengths is not None:
        tensors.append(numpy_helper.from_array(i64(*lengths), "lengths"))
    inputs = ["" if lengths is None else "lengths", "start", "x"]
    node = helper.make_node("Scan", inputs, ["y0", "y1"], body=body, num_scan_inputs=1, directions=[backwards])
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [onnx.ValueInfoProto(name="y0"), onnx.ValueInfoProto(name="y1")], tensors,
    )  # fmt: skip
    found = evaluated(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=5), x)
    for b in range(3):
        count = 4 if lengths is None else lengths[b]
        steps = x[b, :count][::-1] if backwards else x[b, :count]
        sums = start[b] + np.cumsum(steps, axis=0, dtype=np.float32)
        np.testing.assert_allclose(found["y0"][b], sums[-1] if count else start[b], rtol=1e-5)
        np.testing.assert_allclose(found["y1"][b, :count], sums, rtol=1e-5)
        assert not found["y1"][b, count:].any()


def _signature(schema):
    inputs = [(i.name.lower(), i.option) for i in schema.inputs]
    return len(inputs), {(n, a.type) for n, a in schema.attributes.items()}


# Changed signatures that need no rule: optional operands or attributes were added whose absence means the old
# behaviour, no operator of that name is implemented, or (Scan 9) the node is built another way.
_ADDED_ONLY = {
    "ArgMax", "ArgMin", "Attention", "AveragePool", "Cast", "CastLike", "Constant", "DepthToSpace", "DequantizeLinear",
    "GRU", "GatherND", "LSTM", "LpPool", "MaxPool", "QuantizeLinear", "RNN", "Range", "Reshape",
    "ScatterElements", "ScatterND", "Shape", "SpaceToDepth", "Pad 18", "Scan 9",
    "TopK 11",
}  # fmt: skip


def test_every_signature_that_changed_has_a_rule():
    history: dict[str, list] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            history.setdefault(schema.name, []).append(schema)
    without = set()
    for name, schemas in history.items():
        ordered = sorted(schemas, key=lambda s: s.since_version)
        for old, new in itertools.pairwise(ordered):
            if _signature(old) == _signature(new):
                continue
            if name not in _ADDED_ONLY and f"{name} {new.since_version}" not in _ADDED_ONLY:
                rule = next_rule("", name, new.since_version - 1)
                if rule is None or rule.below < new.since_version:
                    without.add(f"{name} {old.since_version} -> {new.since_version}")
    assert not without


RATIOS = tuple(itertools.product((0.4, 0.5, 0.7, 1.0, 1.5, 2.0), (0.3, 1.0, 1.3)))


@in_one_item("values")
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("fed", [False, True], ids=("constant", "fed"))
def test_resize_rounded_up_along_axes_that_shrink(fed, mode):
    """Each axis for itself, whether the scales are a constant of the file or fed."""
    info = helper.make_tensor_value_info
    infos = [info("x", TensorProto.FLOAT, IMAGE.shape), info("scales", TensorProto.FLOAT, [4])]
    for height, width in RATIOS:
        scales = np.array([1, 1, height, width], np.float32)
        node = helper.make_node("Resize", ["x", "scales"], ["y"], mode=mode)
        held = [] if fed else [numpy_helper.from_array(scales, "scales")]
        graph = helper.make_graph([node], "g", infos[: 1 + fed], [onnx.ValueInfoProto(name="y")], held)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=5)
        feeds = {"x": IMAGE, "scales": scales} if fed else {"x": IMAGE}
        reports = compare_outputs(gk.load(proto).run(feeds), OnnxRuntimeModel(proto).run(feeds))
        assert all(r.passed for r in reports), (height, width, *map(str, reports))


def test_coercion_to_a_matrix_of_nothing():
    x = np.zeros((2, 3, 0), np.float32)
    proto = single("Softmax", 11, x, axis=1)
    assert evaluated(proto, x)["y0"].shape == OnnxRuntimeModel(proto).run({"x": x})["y0"].shape == (2, 3, 0)


@in_one_item()
@pytest.mark.parametrize("how", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil", "linear", "cubic"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 1.5], [1, 1, 0.6, 0.5], [1, 1, 1, 3]])
def test_half_pixels_without_the_half(how, scales):
    """tf_half_pixel_for_nn of opsets 11 and 12, which ONNX Runtime takes in all; only its floor has a new name."""
    attrs = {"mode": how} if how in ("linear", "cubic") else {"nearest_mode": how}
    inits = (np.zeros(0, np.float32), np.array(scales, np.float32))
    proto = single("Resize", 11, IMAGE, inits, coordinate_transformation_mode="tf_half_pixel_for_nn", **attrs)
    expected = OnnxRuntimeModel(proto, optimize=False).run({"x": IMAGE})
    (difference,) = compare_outputs(evaluated(proto, IMAGE), expected)
    assert difference.passed, str(difference)
    net = gk.load(proto)
    if how != "floor":
        with pytest.raises(UnsupportedError, match="tf_half_pixel_for_nn"):
            net.to_onnx()
        return
    (difference,) = compare_outputs(OnnxRuntimeModel(net.to_onnx()).run({"x": IMAGE}), expected)
    assert difference.passed, str(difference)


@in_one_item()
@pytest.mark.parametrize("opset", [1, 7, 9])
def test_batch_normalization_that_saves_the_statistics_of_its_batch(opset):
    attrs = {"consumed_inputs": [0, 0, 0, 1, 1]} if opset == 1 else {}
    scale, bias = VECTOR, VECTOR[::-1].copy()
    found = evaluated(single("BatchNormalization", opset, IMAGE, (scale, bias, VECTOR, VECTOR), 5, **attrs), IMAGE)
    mean, variance = IMAGE.mean((0, 2, 3)), IMAGE.var((0, 2, 3))
    column = (4, 1, 1)
    y = (IMAGE - mean.reshape(column)) / np.sqrt(variance + 1e-5).reshape(column) * scale.reshape(column)
    expected = [y + bias.reshape(column), *(0.9 * VECTOR + 0.1 * v for v in (mean, variance)), mean, variance]
    for ours, theirs in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_statistics_of_a_batch_of_unknown_rank():
    proto = single("BatchNormalization", 9, IMAGE, (VECTOR,) * 4, 5)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedError, match="need a tensor of known rank"):
        import_model(proto)
