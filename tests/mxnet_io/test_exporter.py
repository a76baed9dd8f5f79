"""Checkpoints that graphkit writes for MXNet: read again, they compute the same; what MXNet lacks is an error.

That MXNet 1.9.1 computes the same from such files was verified for the networks of `gk.models`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir.graph import Value

RNG = np.random.default_rng(0)


def _random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _layers(x: Value) -> Value:
    """A convolution with padding on one side, normalisations, pools, and a classifier."""
    bias = gk.parameter("c", [6], init="ones")
    h = gk.conv(x, gk.parameter("w", [6, 3, 3, 2]), bias, pads=[1, 0, 1, 1], strides=[2, 1])
    h = gk.relu(gk.nn.batch_norm(h, name="bn"))
    h = gk.max_pool(h, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=True)[0]
    h = gk.average_pool(h, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=True)
    h = gk.conv_transpose(h, gk.parameter("t", [6, 4, 2, 2]), strides=[2, 2], output_padding=[1, 0])
    h = gk.nn.instance_norm(gk.nn.group_norm(h, groups=2))
    return gk.softmax(gk.nn.linear(gk.flatten(gk.global_average_pool(h)), 5, name="fc"))


def _pointwise(x: Value) -> Value:
    parts = [gk.leaky_relu(x, alpha=0.2), gk.elu(x), gk.selu(x), gk.gelu(x), gk.gelu(x, approximate="tanh")]
    parts += [gk.softplus(x), gk.hard_swish(x), gk.hard_sigmoid(x), gk.clip(x, np.float32(-0.5)), gk.swish(x)]
    parts += [gk.erf(x), 1.0 - x, 2.0 / (x * x + 1.0), gk.abs(x) ** 1.5, gk.exp(x), gk.max(x, np.float32(0.1), x * 0.5)]
    parts += [gk.where(x > np.float32(0.2), x, gk.neg(x)), gk.cast(gk.not_(x <= np.float32(0.0)), to="float32")]
    parts += [
        gk.p_relu(x, gk.parameter("slopes", [3, 1, 1])),
        gk.sum(x, x, x),
        gk.sum(x, gk.parameter("row", [7], init="ones")),
    ]
    return gk.concat(*parts, axis=1)


def _moves(x: Value) -> Value:
    h = gk.transpose(x, perm=(0, 2, 3, 1))
    h = gk.pad(h, np.array([0, 0, 1, 0, 0, 0, 2, 1]), np.float32(0.5))
    h = gk.slice(h, [1, -2], [100, -9], [1, 2], [2, -1])
    a, b = gk.split(h, np.array([1, 3]), axis=3)
    h = gk.concat(gk.tile(a, [1, 1, 1, 3]), b, axis=-1)
    h = gk.squeeze(gk.unsqueeze(h, [1, 2]), [1])
    h = gk.reshape(h, [0, 1, -1, 6])
    return gk.expand(gk.reduce_mean(h, [2], keepdims=True), [1, 1, 4, 1])


def _reductions(x: Value) -> Value:
    reduced = [f(x, [1, -1], keepdims=True) for f in (gk.reduce_sum, gk.reduce_mean, gk.reduce_max, gk.reduce_min)]
    reduced += [f(x, [1, -1], keepdims=True) for f in (gk.reduce_l1, gk.reduce_l2, gk.reduce_sum_square)]
    return gk.concat(*reduced, axis=1)


def _products(x: Value) -> Value:
    h = gk.reshape(x, [2, 3, 56])
    h = gk.mat_mul(h, gk.parameter("m", [56, 6]))
    h = gk.nn.layer_norm(gk.mat_mul(h, gk.transpose(h, perm=(0, 2, 1))))
    return gk.gemm(gk.reshape(h, [2, 9]), gk.parameter("g", [4, 9]), transB=True)


def _recurrent(kind: Callable[..., Value]) -> Callable[[Value], Value]:
    def build(x: Value) -> Value:
        steps = gk.transpose(gk.reshape(x, [2, 8, 21]), perm=(1, 0, 2))
        result: Value = kind(steps, 5, direction="bidirectional")[0]
        return result

    return build


NETWORKS: Mapping[str, Callable[[Value], Value]] = {
    "layers": _layers,
    "pointwise": _pointwise,
    "moves": _moves,
    "reductions": _reductions,
    "products": _products,
    "lstm": _recurrent(gk.nn.lstm),
    "rnn": _recurrent(gk.nn.rnn),
}


@in_one_item()
@pytest.mark.parametrize("name", NETWORKS)
def test_a_written_checkpoint_computes_the_same(tmp_path: Path, name: str) -> None:
    x = gk.input("x", [2, 3, 8, 7])
    net = gk.Model({"y": NETWORKS[name](x)}, name=name, seed=0)
    net.save_mxnet(tmp_path / "net", 4)
    again = gk.load(tmp_path / "net")
    assert again.inputs == ("x",)
    feeds = {"x": _random(2, 3, 8, 7)}
    (expected,), (found,) = net.run(feeds).values(), again.run(feeds).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_names_roles_and_types_stay(tmp_path: Path) -> None:
    ids = gk.input("ids", ["N", 4], "int64")
    h = gk.nn.batch_norm(gk.flatten(gk.nn.embedding(ids, 9, 2, name="rows")), name="bn")
    net = gk.Model({"y": gk.nn.linear(h, 3, name="fc")}, name="net", seed=0)
    net.save_mxnet(tmp_path / "net")
    arrays = gk.mxnet_io.read_arrays(tmp_path / "net-0000.params")
    assert [name for name in arrays if name.startswith("aux:")] == ["aux:bn_running_mean", "aux:bn_running_var"]
    again = gk.load(tmp_path / "net", epoch=0)
    assert set(again.trainable) == set(net.trainable)
    assert str(again.input_types["ids"]) == "int64[ids_0, 4]"
    document = json.loads((tmp_path / "net-symbol.json").read_text())
    assert document["attrs"] == {"mxnet_version": ["int", 10901]}
    assert document["arg_nodes"] == [i for i, n in enumerate(document["nodes"]) if n["op"] == "null"]


def test_an_mxnet_model_keeps_its_names_after_training(tmp_path: Path) -> None:
    x = gk.input("x", ["N", 4])
    gk.Model({"y": gk.nn.linear(x, 3, name="fc")}, seed=0).save_mxnet(tmp_path / "net")
    net = gk.load(tmp_path / "net")
    trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.5))
    trainer.step(_random(8, 4), np.zeros(8, np.int64))
    net.save_mxnet(tmp_path / "net", 1)
    again = gk.load(tmp_path / "net")
    assert tuple(again.params) == tuple(net.params) == ("fc_weight", "fc_bias")
    np.testing.assert_array_equal(again.params["fc_weight"], net.params["fc_weight"])


def test_given_shapes_fix_the_symbol(tmp_path: Path) -> None:
    x = gk.input("x", ["N", "T", 4])
    net = gk.Model({"y": gk.reshape(x, gk.concat(gk.shape(x, end=1), [-1], axis=0))}, name="net")
    net.save_mxnet(tmp_path / "net", shapes={"x": (2, 3, 4)})
    assert str(gk.load(tmp_path / "net").output_types) == str({"reshape_output": gk.TensorType("float32", [2, 12])})


def test_all_operators_that_mxnet_lacks_are_listed(tmp_path: Path) -> None:
    x = gk.input("x", [3, 3])
    net = gk.Model({"a": gk.det(x), "b": gk.cum_sum(x, 0), "c": gk.cum_sum(x, 1)}, name="net")
    with pytest.raises(gk.errors.UnsupportedOperator) as caught:
        net.save_mxnet(tmp_path / "net")
    assert "2 operators cannot be written for MXNet" in str(caught.value)
    assert "CumSum: 'cum_sum', 'cum_sum_1'" in str(caught.value)
    assert not list(tmp_path.iterdir())


@in_one_item()
@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda x: gk.max_pool(x, kernel_shape=[2, 2], dilations=[2, 2])[0], "pooling with dilation"),
        (lambda x: gk.average_pool(x, kernel_shape=[2, 2], pads=[0, 0, 1, 1]), "pads both ends of an axis equally"),
        (lambda x: gk.pad(x, np.array([1, 0, 0, 0, 0, 0, 0, 0])), "does not pad the batch"),
        (lambda x: gk.reduce_sum(x, keepdims=False), "has no scalars"),
        (lambda x: gk.resize(x, None, np.float32([1, 1, 1.5, 1.5])), "enlarges by integers"),
        (lambda x: gk.where(x > np.float32(0), x, gk.input("c", ["M", 1])), "broadcasts to known shapes"),
        (lambda x: gk.flatten(x, axis=2), "keeps the first axis"),
    ],
)
def test_an_attribute_that_mxnet_lacks_names_the_node(
    tmp_path: Path, build: Callable[[Value], Value], words: str
) -> None:
    net = gk.Model({"y": build(gk.input("x", [2, 3, 6, 6]))}, name="net")
    with pytest.raises(gk.errors.UnsupportedError, match=rf"model 'net': node .*{words}"):
        net.save_mxnet(tmp_path / "net")


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    net = gk.Model({"y": gk.relu(gk.input("x", [2]))}, name="net")
    with pytest.raises(gk.errors.RuntimeFailure, match="cannot write"):
        net.save_mxnet(tmp_path / "missing" / "net")


def test_a_negative_epoch_is_refused(tmp_path: Path) -> None:
    net = gk.Model({"y": gk.relu(gk.input("x", [2]))}, name="net")
    with pytest.raises(gk.errors.UsageError, match="must not be negative: -1"):
        net.save_mxnet(tmp_path / "net", -1)


def test_a_long_chain_of_operators_on_a_weight_is_computed(tmp_path: Path) -> None:
    w = gk.parameter("w", [3, 4])
    chain = w
    for _ in range(3000):
        chain = gk.tanh(chain)
    net = gk.Model({"y": gk.mat_mul(gk.input("x", ["N", 3]), chain)}, name="net", seed=0)
    net.save_mxnet(tmp_path / "net")
    feeds = {"x": _random(2, 3)}
    (expected,), (found,) = net.run(feeds).values(), gk.load(tmp_path / "net").run(feeds).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_missing_operators_of_sizes_ask_for_shapes(tmp_path: Path) -> None:
    x = gk.input("x", ["N", 4])
    net = gk.Model({"y": gk.cast(gk.shape(x), to="float32")}, name="net")
    with pytest.raises(gk.errors.UnsupportedOperator, match=r"Shape: 'shape'\nWith shapes of the inputs"):
        net.save_mxnet(tmp_path / "net")
    net.save_mxnet(tmp_path / "net", shapes={"x": (2, 4)})


def test_random_numbers_from_parameters_are_not_written_as_constants(tmp_path: Path) -> None:
    chances = gk.parameter("chances", [3], init="ones")
    net = gk.Model({"y": gk.input("x", ["N", 3]) * gk.bernoulli(chances)}, name="net", seed=0)
    with pytest.raises(gk.errors.UnsupportedOperator, match="Bernoulli: 'bernoulli'"):
        net.save_mxnet(tmp_path / "net")
