"""Normalisations with a sum before them, and the embeddings of BERT."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.importer import import_model

NAMES = {5: "B", 7: "L"}


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def given(present, array):
    return array if present else None


@in_one_item()
@pytest.mark.parametrize("skip", [(5, 7, 8), (1, 7, 8), (7, 8)])
@pytest.mark.parametrize(("beta", "bias"), [(True, False), (True, True), (False, True), (False, False)])
@pytest.mark.parametrize("total", [False, True])
def test_skip_layer_normalization(node, agree, rng, skip, beta, bias, total):
    operands = [normal(rng, 5, 7, 8), normal(rng, *skip), normal(rng, 8)]
    operands += [given(beta, normal(rng, 8)), given(bias, normal(rng, 8))]
    agree(node("SkipLayerNormalization", *operands, names=NAMES, outputs=(True, False, False, total), epsilon=1e-5))


def test_the_default_epsilon(node, agree, rng):
    x = 1e-4 * normal(rng, 5, 7, 8)
    agree(node("SkipLayerNormalization", x, x, normal(rng, 8), normal(rng, 8), names=NAMES), atol=1e-4)


@in_one_item()
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(5, 7, 8), (5, 8)])
def test_skip_simplified(node, agree, rng, bias, shape):
    operands = [normal(rng, *shape), normal(rng, *shape), normal(rng, 8), given(bias, normal(rng, 8))]
    agree(node("SkipSimplifiedLayerNormalization", *operands, names=NAMES, outputs=(True, False, False, True)))


@in_one_item()
@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("opset", [13, 21])
def test_simplified(node, agree, rng, axis, opset):
    # ONNX Runtime writes it into the standard's domain.
    x = normal(rng, 5, 7, 8)
    scale = normal(rng, *x.shape[axis:])
    case = node(
        "SimplifiedLayerNormalization", x, scale, domain="", opset=opset, names=NAMES, outputs=(True, True), axis=axis,
        epsilon=1e-6, stash_type=1,
    )  # fmt: skip
    expected = case.reference()
    # The kernel gives the reciprocals without the axes that were reduced.
    expected["y1"] = (1 / np.sqrt(np.mean(x * x, tuple(range(axis % 3, 3)), keepdims=True) + 1e-6)).astype(np.float32)
    agree(case, expected)


@pytest.mark.parametrize("opset", [9, 16])
def test_layer_normalization_before_the_standard_had_it(node, agree, rng, opset):
    operands = [normal(rng, 5, 7, 8), normal(rng, 8), normal(rng, 8)]
    agree(node("LayerNormalization", *operands, domain="", opset=opset, names=NAMES, axis=-1, epsilon=1e-3))


def test_layer_normalization_of_the_other_domain(node, agree, rng):
    operands = [normal(rng, 5, 7, 8), normal(rng, 8), normal(rng, 8)]
    standard = node("LayerNormalization", *operands, domain="", axis=-1, epsilon=1e-3)
    agree(node("LayerNormalization", *operands, names=NAMES, axis=-1, epsilon=1e-3), standard.reference())


@in_one_item()
@pytest.mark.parametrize("activation", ["silu", "sigmoid", "swish"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gated_rms_norm(node, agree, rng, activation, dtype):
    operands = [normal(rng, 5, 7, 12, dtype=dtype), normal(rng, 4, dtype=dtype), normal(rng, 5, 7, 12, dtype=dtype)]
    agree(node("GatedRMSNorm", *operands, names=NAMES, activation=activation, epsilon=1e-4))


def group_norm(x, gamma, beta, groups, silu):
    """With channels last."""
    batch, channels = x.shape[0], x.shape[-1]
    parts = x.reshape(batch, -1, groups, channels // groups)
    parts = (parts - parts.mean((1, 3), keepdims=True)) / np.sqrt(parts.var((1, 3), keepdims=True) + 1e-5)
    y = parts.reshape(x.shape) * gamma + beta
    return (y / (1 + np.exp(-y)) if silu else y).astype(np.float32)


@in_one_item()
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("silu", [0, 1])
def test_group_norm(node, agree, rng, channels_last, silu):
    x, gamma, beta = normal(rng, 5, 3, 2, 8), normal(rng, 8), normal(rng, 8)
    expected = group_norm(x, gamma, beta, 4, silu)
    if not channels_last:
        x, expected = (np.moveaxis(a, -1, 1) for a in (x, expected))
    case = node("GroupNorm", x, gamma, beta, names=NAMES, channels_last=channels_last, groups=4, activation=silu)
    agree(case, {"y0": expected})


@in_one_item()
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("skip", [(5, 8), (5, 1, 1, 8), (5, 3, 2, 8)])
def test_skip_group_norm(node, agree, rng, channels_last, skip):
    x, gamma, beta, bias = normal(rng, 5, 3, 2, 8), normal(rng, 8), normal(rng, 8), normal(rng, 8)
    more = normal(rng, *skip)
    total = x + (more[:, None, None] if more.ndim == 2 else more) + bias
    expected = [group_norm(total, gamma, beta, 2, 1), total]
    if not channels_last:
        x, *expected = (np.moveaxis(a, -1, 1) for a in (x, *expected))
        more = more if more.ndim == 2 else np.moveaxis(more, -1, 1)
    case = node(
        "SkipGroupNorm", x, gamma, beta, more, bias, names=NAMES, outputs=(True, True), channels_last=channels_last,
        groups=2, activation=1,
    )  # fmt: skip
    agree(case, dict(zip(("y0", "y1"), expected, strict=True)))


@in_one_item()
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("places", [None, 5, 1])
def test_embeddings(node, agree, rng, segments, mask, places):
    ids = rng.integers(0, 20, (5, 7), np.int32)
    operands = [
        ids,
        given(segments, rng.integers(0, 2, (5, 7), np.int32)),
        normal(rng, 20, 8),
        normal(rng, 9, 8),
        given(segments, normal(rng, 2, 8)),
        normal(rng, 8),
        normal(rng, 8),
        given(mask, rng.integers(0, 2, (5, 7), np.int32)),
        None if places is None else rng.integers(0, 9, (places, 7), np.int32),
    ]
    agree(node("EmbedLayerNormalization", *operands, names=NAMES, outputs=(True, True, True), epsilon=1e-5))


def test_an_activation_that_is_not_known(node, rng):
    case = node("GatedRMSNorm", normal(rng, 2, 4), normal(rng, 4), normal(rng, 2, 4), activation="wave")
    with pytest.raises(UnsupportedError, match="wave"):
        import_model(case.proto)
