"""Data movement, pictures, transforms, hashes and experts."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import UnsupportedError, UnsupportedOperator
from graphkit.onnx_io.importer import import_model

NAMES = {5: "B", 7: "L"}


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def test_sample_op(node, agree, rng):
    agree(node("SampleOp", normal(rng, 5, 3), names=NAMES))


@in_one_item()
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_expand_dims(node, agree, rng, axis):
    agree(node("ExpandDims", normal(rng, 5, 3), np.array(axis, np.int32), names=NAMES, constants=(1,)))


@pytest.mark.parametrize("index", [np.array([[0], [4]], np.int32), np.array([[[0, 1], [2, 2]]])])
def test_gather_nd(node, agree, rng, index):
    agree(node("GatherND", normal(rng, 5, 3), index, names=NAMES))


@in_one_item()
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("diagonal", [None, np.array(-1), np.array([2])])
def test_trilu(node, agree, rng, upper, diagonal):
    agree(node("Trilu", normal(rng, 5, 4, 7), diagonal, names=NAMES, upper=upper))


@in_one_item()
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize("step", [None, 2, -3])
def test_range(node, agree, dtype, step):
    start, limit = (9, -2) if step == -3 else (1, 8)
    operands = [np.array(start, dtype), np.array([limit], dtype), None if step is None else np.array(step, dtype)]
    agree(node("Range", *operands))


@in_one_item()
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("shape", [(4,), (1, 4)])
def test_pad(node, agree, rng, mode, shape):
    pads = np.array([1, 0, 2, 1]).reshape(shape)
    value = np.array([0.5], np.float32) if mode == "constant" else None
    agree(node("Pad", normal(rng, 5, 3), pads, value, names=NAMES, mode=mode))


def test_unique(node, agree):
    x = np.array([2, 1, 1, 3, 4, 3], np.float32)
    agree(node("Unique", x, outputs=(True, True, True)))


@in_one_item("values")
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample(node, agree, rng, mode, padding):
    grid = rng.uniform(-1.2, 1.2, (5, 3, 4, 2)).astype(np.float32)
    case = node("GridSample", normal(rng, 5, 2, 6, 8), grid, names=NAMES, mode=mode, padding_mode=padding)
    agree(case, atol=1e-4)


@in_one_item()
@pytest.mark.parametrize("bad", [None, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("attrs", "counts"), [({}, "ni"), ({"isnan_only": 1}, "n"), ({"isinf_only": 1}, "i")])
def test_is_all_finite(node, agree, rng, bad, attrs, counts):
    x, y = normal(rng, 5, 3), normal(rng, 2)
    if bad is not None:
        x[2, 1] = bad
    fine = bad is None or ("n" if np.isnan(bad) else "i") not in counts
    agree(node("IsAllFinite", x, y, np.zeros(0, np.float32), names=NAMES, **attrs), {"y0": np.array(fine)})


@in_one_item()
@pytest.mark.parametrize(("axis", "size", "step"), [(-1, 2, 1), (1, 3, 2), (0, 5, 1), (2, 4, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_unfold(node, agree, rng, axis, size, step, dtype):
    x = (10 * normal(rng, 5, 7, 4)).astype(dtype)
    agree(node("UnfoldTensor", x, names=NAMES, dim=axis, size=size, step=step))


@in_one_item()
@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [6, 20])
def test_no_repeated_runs(node, agree, rng, size, length):
    ids = rng.integers(0, 4, (5, length))
    agree(node("NGramRepeatBlock", ids, normal(rng, 5, 8), names=NAMES, ngram_size=size))


def test_embedding(node, agree, rng):
    table, ids = normal(rng, 9, 3), rng.integers(0, 9, (5, 2))
    agree(node("TorchEmbedding", table, ids, names=NAMES), {"y0": table[ids]})


@in_one_item()
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 4), (1, 6), (9, 1)])
def test_crop_and_resize(node, agree, rng, mode, size):
    boxes = rng.uniform(-0.2, 1.2, (6, 4)).astype(np.float32)
    case = node(
        "CropAndResize", normal(rng, 5, 2, 8, 11), boxes, rng.integers(0, 5, 6, np.int32), np.array(size, np.int32),
        names=NAMES, constants=(3,), mode=mode, extrapolation_value=0.25,
    )  # fmt: skip
    agree(case)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inverse(node, agree, rng, dtype):
    x = normal(rng, 5, 3, 3, dtype=dtype) + 4 * np.eye(3, dtype=dtype)
    agree(node("Inverse", x, names=NAMES), strict=False)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances(node, agree, rng, metric):
    agree(node("CDist", normal(rng, 5, 3), normal(rng, 7, 3), names=NAMES, metric=metric), atol=1e-4)


def test_transforms_of_real_signals(node, agree, rng):
    x = normal(rng, 5, 8)
    spectrum = np.fft.rfft(x)
    pairs = np.stack((spectrum.real, spectrum.imag), -1).astype(np.float32)
    agree(node("Rfft", x, names=NAMES, signal_ndim=1, onesided=1, normalized=0), {"y0": pairs}, atol=1e-4)
    agree(node("Irfft", pairs, names=NAMES, signal_ndim=1), {"y0": x}, atol=1e-4)


@pytest.mark.parametrize("op", ["ComplexMul", "ComplexMulConj"])
def test_complex_products(node, agree, rng, op):
    a, b = normal(rng, 5, 7, 2), normal(rng, 1, 7, 2)
    left, right = (x[..., 0] + 1j * x[..., 1] for x in (a, b))
    expected = left * (right.conj() if op == "ComplexMulConj" else right)
    agree(node(op, a, b, names=NAMES), {"y0": np.stack((expected.real, expected.imag), -1).astype(np.float32)})


@in_one_item()
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64])
@pytest.mark.parametrize("attrs", [{}, {"seed": 7, "positive": 0}], ids=str)
def test_hashes(node, agree, rng, dtype, attrs):
    x = (1e4 * rng.standard_normal((5, 3))).astype(dtype if np.issubdtype(dtype, np.floating) else np.int64)
    agree(node("MurmurHash3", x.astype(dtype), names=NAMES, **attrs), strict=False)


@in_one_item()
@pytest.mark.parametrize("shape", [(7, 6), (5, 7, 6)])
@pytest.mark.parametrize(
    "attrs",
    [
        {"k": 2, "activation_type": "gelu"},
        {"k": 1, "activation_type": "silu"},
        {"k": 3, "normalize_routing_weights": 1, "activation_type": "identity"},
        {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0},
        {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "swiglu_limit": 0.5},
    ],
    ids=str,
)
def test_experts(node, agree, rng, shape, attrs):
    experts, hidden, inner = 4, 6, 8
    width = inner * (2 if attrs.get("swiglu_fusion") else 1)
    tokens = int(np.prod(shape[:-1]))
    case = node(
        "MoE", normal(rng, *shape), normal(rng, tokens, experts), normal(rng, experts, width, hidden),
        normal(rng, experts, width), normal(rng, experts, hidden, inner), normal(rng, experts, hidden), names=NAMES,
        **attrs,
    )  # fmt: skip
    agree(case, atol=1e-4)


def test_what_is_refused(node, rng):
    with pytest.raises(UnsupportedError, match="strings"):
        import_model(node("MurmurHash3", np.array(["a"], object)).proto)
    with pytest.raises(UnsupportedError, match="metric 'cosine'"):
        import_model(node("CDist", normal(rng, 2, 3), normal(rng, 2, 3), metric="cosine").proto)
    with pytest.raises(UnsupportedOperator, match=r"com\.microsoft\.BeamSearch: 'node'"):
        import_model(node("BeamSearch", rng.integers(0, 4, (5, 3), np.int32)).proto)


@pytest.mark.parametrize(
    ("domain", "hint"), [("com.microsoft.nchwc", "ORT_ENABLE_EXTENDED"), ("ai.onnx.contrib", "onnxruntime-extensions")]
)
def test_what_to_do_about_other_domains(node, rng, domain, hint):
    with pytest.raises(UnsupportedOperator, match=rf"{domain}\.Conv: 'node'\n.*{hint}"):
        import_model(node("Conv", normal(rng, 2, 3), domain=domain).proto)
