"""FusedConv and its kin."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.importer import import_model


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


ACTIVATIONS = [
    {},
    {"activation": "Relu"},
    {"activation": "Sigmoid"},
    {"activation": "Tanh"},
    {"activation": "LeakyRelu", "activation_params": [0.25]},
    {"activation": "Clip", "activation_params": [-0.5, 0.75]},
    {"activation": "HardSigmoid", "activation_params": [0.25, 0.75]},
]


@in_one_item()
@pytest.mark.parametrize("attrs", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("residual", [False, True])
def test_fused_conv(node, agree, rng, attrs, residual):
    operands = [normal(rng, 5, 4, 6, 7), normal(rng, 8, 2, 3, 3), normal(rng, 8)]
    operands += [normal(rng, 5, 8, 6, 7)] if residual else []
    agree(node("FusedConv", *operands, names={5: "N"}, pads=[1, 1, 1, 1], group=2, kernel_shape=[3, 3], **attrs))


def test_fused_conv_of_signals(node, agree, rng):
    operands = [normal(rng, 5, 4, 16), normal(rng, 8, 4, 3)]
    agree(node("FusedConv", *operands, names={5: "N"}, strides=[2], dilations=[2], activation="Relu"))


@pytest.mark.parametrize("op", ["NhwcConv", "NhwcFusedConv"])
def test_channels_last(node, agree, rng, op):
    x, w, b = normal(rng, 5, 6, 7, 4), normal(rng, 8, 4, 3, 3), normal(rng, 8)
    more = {"activation": "Relu"} if op == "NhwcFusedConv" else {}
    z = [normal(rng, 5, 6, 7, 8)] if op == "NhwcFusedConv" else []
    first = node("FusedConv", np.moveaxis(x, -1, 1), w, b, *(np.moveaxis(v, -1, 1) for v in z), pads=[1] * 4, **more)
    expected = {"y0": np.moveaxis(first.reference()["y0"], 1, -1)}
    agree(node(op, x, w, b, *z, names={5: "N"}, pads=[1] * 4, **more), expected)


def test_transposed_with_pads_that_are_an_operand(node, agree, rng):
    operands = [normal(rng, 5, 4, 6, 7), normal(rng, 4, 3, 3, 3), np.array([0, 1, 1, 0]), normal(rng, 3)]
    case = node(
        "ConvTransposeWithDynamicPads", *operands, names={5: "N"}, constants=(2,), strides=[2, 1], kernel_shape=[3, 3]
    )
    agree(case)


def test_pads_that_only_a_run_tells(node, rng):
    case = node(
        "ConvTransposeWithDynamicPads", normal(rng, 1, 4, 6, 7), normal(rng, 4, 3, 3, 3), np.array([0, 1, 1, 0])
    )
    with pytest.raises(UnsupportedError, match="pads that are computed at run time"):
        import_model(case.proto)
