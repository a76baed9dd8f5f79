from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import TypeMismatch, UsageError
from graphkit.ops.evaluate import evaluate

nn = gk.nn


def run(output, *arrays):
    """The output for arrays of the data inputs, with the parameters' initial values, and the model."""
    net = gk.Model(output, seed=3)
    feeds = dict(zip(net.inputs, arrays, strict=True))
    values = [feeds[n] if n in feeds else net.params[n] for n in net.graph.input_names]
    (result,) = evaluate(net.graph, values)
    assert output.shape is None or len(output.shape) == result.ndim
    for declared, actual in zip(output.shape or (), result.shape, strict=False):
        assert not isinstance(declared, int) or declared == actual
    return result, net


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# --- linear, embedding ------------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize("shape", [(5, 4), (4,), (2, 3, 4), (2, 1, 3, 4), (0, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape, bias):
    x = gk.input("x", shape)
    result, net = run(nn.linear(x, 6, bias=bias, name="fc"), data := normal(*shape))
    assert {n: a.shape for n, a in net.params.items()} == {"fc_weight": (6, 4), **({"fc_bias": (6,)} if bias else {})}
    expected = data @ net.params["fc_weight"].T + (net.params["fc_bias"] if bias else 0.0)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    operators = [n.op.name for n in net.graph.nodes]
    assert operators == (
        ["Gemm"] if len(shape) == 2 else ["Transpose", "MatMul", "Add"] if bias else ["Transpose", "MatMul"]
    )


def test_linear_of_unknown_rank_needs_in_features():
    x = gk.input("x", None)
    with pytest.raises(UsageError, match=r"'fc' \(linear\).*rank of the operand is not known.*declare.*in_features="):
        nn.linear(x, 6, name="fc")
    result, net = run(nn.linear(x, 6, in_features=4), data := normal(2, 3, 4))
    np.testing.assert_allclose(
        result, data @ net.params["linear_weight"].T + net.params["linear_bias"], rtol=1e-5, atol=1e-5
    )


def test_an_unknown_in_feature_size_names_the_layer_and_its_scope():
    with (
        gk.name_scope("head"),
        pytest.raises(UsageError, match=r"layer 'head/fc' \(linear\).*axis -1 has the symbolic size K, but"),
    ):
        nn.linear(gk.input("x", ["N", "K"]), 6, name="fc")
    with pytest.raises(TypeMismatch, match=r"in_features=5, but axis -1 has size 4"):
        nn.linear(gk.input("x", ["N", 4]), 6, in_features=5)
    with pytest.raises(TypeMismatch, match="floating-point operand"):
        nn.linear(gk.input("x", ["N", 4], "int64"), 6)
    with pytest.raises(UsageError, match="units must be a positive integer"):
        nn.linear(gk.input("x", ["N", 4]), 0)


def test_weights_can_be_shared():
    x = gk.input("x", ["N", 4])
    first = nn.linear(x, 4, name="fc")
    weight, bias = first.node.inputs[1:]
    net = gk.Model(nn.linear(first, 4, weight=weight, bias=bias))
    assert list(net.params) == ["fc_weight", "fc_bias"]
    with pytest.raises(TypeMismatch, match=r"must have shape \[5, 4\]"):
        nn.linear(x, 5, weight=weight)


def test_default_start_is_pytorchs():
    fc = gk.Model(nn.linear(gk.input("x", ["N", 100]), 400, name="fc"))
    conv = gk.Model(nn.conv2d(gk.input("x", ["N", 16, 8, 8]), 64, 5, groups=4, name="conv"))
    for net, name, bound in ((fc, "fc", 0.1), (conv, "conv", 0.1)):
        for kind in ("weight", "bias"):
            values = net.params[f"{name}_{kind}"]
            assert 0.8 * bound < np.abs(values).max() <= bound


def test_layers_follow_the_operand_dtype():
    net = gk.Model(nn.linear(gk.input("x", ["N", 4], "float64"), 6))
    assert {a.dtype for a in net.params.values()} == {np.dtype("float64")}


def test_embedding():
    indices = gk.input("i", ["N", 3], "int64")
    result, net = run(nn.embedding(indices, 10, 4, name="words"), data := np.array([[1, 9, 0], [3, 3, 2]]))
    np.testing.assert_array_equal(result, net.params["words_weight"][data])
    with pytest.raises(TypeMismatch, match="integer indices"):
        nn.embedding(gk.input("x", ["N"]), 10, 4)


# --- convolution ------------------------------------------------------------------------------------


def naive_conv(x, w, b, stride, pads, dilation, groups):
    """The sum over channels and taps, written out for any number of spatial axes."""
    rank = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    span = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation, strict=True)]
    out = [(n - s) // st + 1 for n, s, st in zip(x.shape[2:], span, stride, strict=True)]
    y = np.zeros((len(x), len(w), *out))
    inputs, outputs = w.shape[1], len(w) // groups
    for position in np.ndindex(*out):
        window = tuple(
            slice(p * st, p * st + s, d) for p, st, s, d in zip(position, stride, span, dilation, strict=True)
        )
        for o in range(len(w)):
            group = o // outputs
            patch = x[(slice(None), slice(group * inputs, (group + 1) * inputs), *window)]
            y[(slice(None), o, *position)] = (patch * w[o]).sum(axis=tuple(range(1, rank + 2)))
    return y + b.reshape(1, -1, *[1] * rank)


@in_one_item()
@pytest.mark.parametrize(
    ("layer", "size", "options", "pads"),
    [
        (nn.conv2d, (6, 7), {"kernel": 3}, [(0, 0), (0, 0)]),
        (nn.conv2d, (6, 7), {"kernel": (3, 2), "stride": (2, 1), "pad": (1, 0)}, [(1, 1), (0, 0)]),
        (nn.conv2d, (6, 7), {"kernel": 3, "pad": (0, 1, 2, 3), "dilation": 2}, [(0, 2), (1, 3)]),
        (nn.conv2d, (6, 7), {"kernel": (3, 4), "pad": "same"}, [(1, 1), (1, 2)]),
        (nn.conv2d, (6, 7), {"kernel": 3, "pad": "same", "stride": 2}, [(0, 1), (1, 1)]),
        (nn.conv2d, (6, 7), {"kernel": 3, "pad": "valid", "groups": 2}, [(0, 0), (0, 0)]),
        (nn.conv1d, (9,), {"kernel": 3, "stride": 2, "pad": 1}, [(1, 1)]),
        (nn.conv3d, (4, 3, 5), {"kernel": 2, "pad": (0, 1, 0)}, [(0, 0), (1, 1), (0, 0)]),
    ],
)
def test_convolutions(layer, size, options, pads):
    rank = len(size)
    x = gk.input("x", ["N", 4, *size])
    result, net = run(layer(x, 6, **options, name="c"), data := normal(2, 4, *size))

    def each(value):
        return (value,) * rank if isinstance(value, int) else value

    expected = naive_conv(
        data, net.params["c_weight"], net.params["c_bias"], each(options.get("stride", 1)), pads,
        each(options.get("dilation", 1)), options.get("groups", 1),
    )  # fmt: skip
    assert net.params["c_weight"].shape == (6, 4 // options.get("groups", 1), *each(options["kernel"]))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_conv_transpose_is_the_transpose_of_conv():
    # <conv(x), y> = <x, conv_transpose(y)> with one weight.
    small, big = gk.input("y", [2, 6, 4, 5]), gk.input("x", [2, 4, 8, 10])
    up = nn.conv_transpose2d(small, 4, (3, 4), stride=2, pad=1, output_pad=(1, 0), bias=False, name="up")
    y, x = normal(2, 6, 4, 5), normal(2, 4, 8, 10)
    raised, net = run(up, y)
    weight = net.params["up_weight"]
    assert weight.shape == (6, 4, 3, 4)
    assert raised.shape == (2, 4, 8, 10)
    lowered, _ = run(nn.conv2d(big, 6, (3, 4), stride=2, pad=1, bias=False, weight=gk.constant(weight)), x)
    assert float((lowered * y).sum()) == pytest.approx(float((x * raised).sum()), rel=1e-4)


@in_one_item()
@pytest.mark.parametrize("shape", [[1, 1, 8, 8], ["N", 1, 8, 8], ["N", 1, "H", 8]])
def test_a_kernel_larger_than_its_input_is_refused(shape):
    x = gk.input("x", shape)
    with pytest.raises(TypeMismatch, match=r"node 'conv2d' Conv\(.*the kernel is larger than the padded input"):
        gk.nn.conv2d(x, 4, 9)
    assert gk.nn.conv2d(x, 4, 9, pad=1).tensor.shape[-1] == 2
    assert gk.nn.max_pool2d(x, 9, stride=1).tensor.shape[-1] == 0  # as in ONNX Runtime


def test_padding_that_removes_a_transposed_convolution_is_refused():
    with pytest.raises(TypeMismatch, match=r"ConvTranspose\(.*the padding removes all of the output"):
        gk.nn.conv_transpose2d(gk.input("x", ["N", 1, 2, 2]), 4, 3, pad=2)


def test_convolution_errors_name_the_layer():
    x = gk.input("x", ["N", "C", 8, 8])
    with pytest.raises(UsageError, match=r"'stem' \(conv2d\).*axis 1 has the symbolic size C, .*in_channels="):
        nn.conv2d(x, 8, 3, name="stem")
    assert nn.conv2d(x, 8, 3, in_channels=4).shape[1] == 8
    with pytest.raises(TypeMismatch, match=r"\(conv2d\).*of rank 4; it has rank 2"):
        nn.conv2d(gk.input("x", ["N", 3]), 8, 3)
    with pytest.raises(TypeMismatch, match="4 input and 6 output channels cannot be divided into 4 groups"):
        nn.conv2d(gk.input("x", ["N", 4, 8, 8]), 6, 3, groups=4)
    with pytest.raises(UsageError, match="kernel must be an integer or 2 integers"):
        nn.conv2d(gk.input("x", ["N", 4, 8, 8]), 6, (3, 3, 3))
    with pytest.raises(UsageError, match="'same' or 'valid'"):
        nn.conv2d(gk.input("x", ["N", 4, 8, 8]), 6, 3, pad="full")


# --- normalisation ----------------------------------------------------------------------------------


def randomised(net, seed=0):
    """Give every parameter and statistic random values, statistics positive."""
    draw = np.random.default_rng(seed)
    for name, value in net.params.items():
        noise = draw.standard_normal(value.shape).astype(value.dtype)
        net.params[name] = np.abs(noise) + 0.5 if name.endswith("_running_var") else noise
    return net


def evaluated(net, x):
    return evaluate(net.graph, [x, *(net.params[n] for n in net.graph.input_names[1:])])[0]


def column(values, rank):
    return values.reshape(-1, *[1] * (rank - 2))


def test_batch_norm_uses_running_statistics_of_role_state():
    x = gk.input("x", ["N", 3, "H", 5])
    net = gk.Model(nn.batch_norm(x, name="bn", epsilon=1e-3))
    assert [(v.name, v.role) for v in net.graph.inputs[1:]] == [
        ("bn_weight", "parameter"), ("bn_bias", "parameter"), ("bn_running_mean", "state"), ("bn_running_var", "state"),
    ]  # fmt: skip
    np.testing.assert_array_equal(net.params["bn_running_var"], np.ones(3))
    p, data = randomised(net).params, normal(2, 3, 4, 5)
    expected = (data - column(p["bn_running_mean"], 4)) / np.sqrt(column(p["bn_running_var"], 4) + 1e-3)
    expected = expected * column(p["bn_weight"], 4) + column(p["bn_bias"], 4)
    np.testing.assert_allclose(evaluated(net, data), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match=r"'bn' \(batch_norm\).*channels="):
        nn.batch_norm(gk.input("x", ["N", "C"]), name="bn")


def test_batch_norm_without_affine_has_statistics_only():
    net = gk.Model(nn.batch_norm(gk.input("x", ["N", 3]), affine=False, name="bn"))
    assert list(net.params) == ["bn_running_mean", "bn_running_var"]


@in_one_item()
@pytest.mark.parametrize("axis", [-1, 1, -2])
def test_layer_norm(axis):
    net = randomised(gk.Model(nn.layer_norm(gk.input("x", ["N", 3, 4]), axis=axis, name="ln")))
    data, axes = normal(2, 3, 4), tuple(range(axis % 3, 3))
    mean, var = data.mean(axes, keepdims=True), data.var(axes, keepdims=True)
    expected = (data - mean) / np.sqrt(var + 1e-5) * net.params["ln_weight"] + net.params["ln_bias"]
    np.testing.assert_allclose(evaluated(net, data), expected, rtol=1e-4, atol=1e-5)


def test_rms_norm():
    net = randomised(gk.Model(nn.rms_norm(gk.input("x", ["N", 3, 4]), name="rms")))
    data = normal(2, 3, 4)
    expected = data / np.sqrt((data**2).mean(-1, keepdims=True) + 1e-5) * net.params["rms_weight"]
    np.testing.assert_allclose(evaluated(net, data), expected, rtol=1e-4, atol=1e-5)


@in_one_item()
@pytest.mark.parametrize("groups", [None, 1, 2, 6])
def test_instance_and_group_norm(groups):
    x = gk.input("x", ["N", 6, 4, "W"])
    net = randomised(gk.Model(nn.instance_norm(x, name="n") if groups is None else nn.group_norm(x, groups, name="n")))
    data = normal(2, 6, 4, 5)
    split = data.reshape(2, groups or 6, -1)
    whitened = (split - split.mean(-1, keepdims=True)) / np.sqrt(split.var(-1, keepdims=True) + 1e-5)
    expected = whitened.reshape(data.shape) * column(net.params["n_weight"], 4) + column(net.params["n_bias"], 4)
    np.testing.assert_allclose(evaluated(net, data), expected, rtol=1e-4, atol=1e-4)


def test_normalisation_errors():
    with pytest.raises(TypeMismatch, match="6 channels cannot be divided into 4 equal groups"):
        nn.group_norm(gk.input("x", ["N", 6, 4]), 4)
    with pytest.raises(UsageError, match=r"'ln' \(layer_norm\).*size of axis 1, and T is not known"):
        nn.layer_norm(gk.input("x", ["N", "T"]), name="ln")


# --- pooling, dropout -------------------------------------------------------------------------------


def test_pools():
    x = gk.input("x", ["N", 2, 4, 6])
    data = normal(3, 2, 4, 6)
    blocks = data.reshape(3, 2, 2, 2, 3, 2)
    np.testing.assert_allclose(run(nn.max_pool2d(x, 2), data)[0], blocks.max((3, 5)))
    np.testing.assert_allclose(run(nn.avg_pool2d(x, 2), data)[0], blocks.mean((3, 5)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        run(nn.global_avg_pool(x), data)[0], data.mean((2, 3), keepdims=True), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(run(nn.global_max_pool(x), data)[0], data.max((2, 3), keepdims=True))
    assert nn.max_pool2d(x, 3, stride=2, pad=1).shape[1:] == (2, 2, 3)
    assert nn.avg_pool2d(x, 3, stride=2, pad="same").shape[1:] == (2, 2, 3)


def test_average_over_padding():
    x, ones = gk.input("x", [1, 1, 2, 2]), np.ones((1, 1, 2, 2), np.float32)
    assert run(nn.avg_pool2d(x, 2, pad=1), ones)[0].max() == 1.0
    assert run(nn.avg_pool2d(x, 2, pad=1, count_include_pad=True), ones)[0][0, 0, 0, 0] == 0.25


def test_dropout_is_the_identity_in_an_inference_graph():
    x, data = gk.input("x", ["N", 4]), normal(3, 4)
    np.testing.assert_array_equal(run(nn.dropout(x, 0.9), data)[0], data)
    with pytest.raises(UsageError, match=r"^layer dropout: ratio must be in \[0, 1\)"):
        nn.dropout(x, 1.0)
    with pytest.raises(UsageError, match=r"^layer 'drop' \(dropout\): ratio"):
        nn.dropout(x, 1.0, name="drop")


# --- inputs -----------------------------------------------------------------------------------------


def test_inputs():
    x = gk.input("x", ["N", "2*N + 1", 3], dtype="int64")
    assert (str(x.type), x.role) == ("int64[N, 2*N + 1, 3]", "data")
    a, b = gk.input("x", [None, None]).shape
    assert a != b
    assert gk.input("x", None).rank is None
    for name, shape in (("", [1]), ("x", [-1]), ("x", "N"), ("x", 3), ("x", [1.5])):
        with pytest.raises(UsageError):
            gk.input(name, shape)
