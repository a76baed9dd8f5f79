"""Rotary embeddings and biases that depend on distances."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.onnx_io.importer import import_model

NAMES = {5: "B", 7: "L"}


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


@in_one_item()
@pytest.mark.parametrize("shape", [(5, 7, 24), (5, 3, 7, 8)])
@pytest.mark.parametrize("place", [(1,), (5, 7)])
@pytest.mark.parametrize("attrs", [{}, {"interleaved": 1}, {"num_heads": 3, "rotary_embedding_dim": 4}], ids=str)
def test_rotary_embedding(node, agree, rng, shape, place, attrs):
    part = attrs.get("rotary_embedding_dim", 8)
    caches = [normal(rng, 20, part // 2) for _ in range(2)]
    agree(node("RotaryEmbedding", normal(rng, *shape), rng.integers(0, 12, place), *caches, names=NAMES, **attrs))


def test_rotary_embedding_of_half_floats(node, agree, rng):
    operands = [normal(rng, 20, 4, dtype=np.float16) for _ in range(2)]
    x = normal(rng, 5, 7, 24, dtype=np.float16)
    agree(node("RotaryEmbedding", x, rng.integers(0, 20, (5, 7)), *operands, names=NAMES), rtol=1e-2, atol=5e-3)


def test_packed_batches_are_refused(node, rng):
    case = node("RotaryEmbedding", normal(rng, 1, 7, 8), np.zeros(1, np.int64), normal(rng, 9, 4), normal(rng, 9, 4),
                is_packed_batching=1)  # fmt: skip
    with pytest.raises(UnsupportedError, match="is_packed_batching"):
        import_model(case.proto)


def test_rotations_of_gemma(node, agree, rng):
    # As its schema writes it.
    angle, parts = normal(rng, 5, 7, 4), [normal(rng, 5, 2, 7, 4, dtype=np.float16) for _ in range(4)]
    sin, cos = (f(angle).astype(np.float16)[:, None] for f in (np.sin, np.cos))
    q, q_turned, k, k_turned = parts
    expected = {"y0": q * cos + q_turned * sin, "y1": k * cos + k_turned * sin}
    case = node("GemmaRotaryEmbedding", angle, *parts, outputs=(True, True), names=NAMES)
    agree(case, expected, rtol=1e-2, atol=5e-3)


def bucket(distance, both, count, furthest):
    """Return the bucket of the distance from query to key, like Mesh TensorFlow's function for T5."""
    found, back = 0, -distance
    if both:
        count //= 2
        found += count if back < 0 else 0
        back = abs(back)
    else:
        back = max(back, 0)
    exact = count // 2
    if back < exact:
        return found + back
    ratio = np.float32(np.log(np.float32(back / exact))) / np.float32(np.log(furthest / exact))
    return found + min(exact + int(ratio * np.float32(count - exact)), count - 1)


@in_one_item("values")
@pytest.mark.parametrize("both", [0, 1])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20)])
def test_relative_position_bias(node, agree, rng, both, buckets, furthest):
    table, length = normal(rng, buckets, 3), 150
    found = [[bucket(k - q, both, buckets, furthest) for k in range(length)] for q in range(length)]
    expected = table[np.array(found)].transpose(2, 0, 1)[None]
    sizes = [np.array([length])] * 2
    case = node("RelativePositionBias", table, *sizes, constants=(1, 2), is_bidirectional=both, max_distance=furthest)
    agree(case, {"y0": expected})


def test_distances_that_fit_no_buckets(node, rng):
    case = node("RelativePositionBias", normal(rng, 32, 3), np.array([4]), np.array([4]), max_distance=5)
    with pytest.raises(InvalidModel, match="max_distance=5 does not fit 32 buckets"):
        import_model(case.proto)


def test_gated_relative_position_bias(node, agree, rng):
    # As its schema writes it.
    heads, size, width = 2, 4, 6
    query, query_bias, places = normal(rng, 5, 7, heads * size), normal(rng, heads * size), normal(rng, 1, heads, 7, 7)
    weight, bias, eco = normal(rng, size, width), normal(rng, width), normal(rng, 1, heads, 1, 1)
    q = (query + query_bias).reshape(5, 7, heads, size).transpose(0, 2, 1, 3)
    gates = 1 / (1 + np.exp(-(q @ weight + bias).reshape(5, heads, 7, 2, width // 2).sum(-1)))
    u, r = gates[..., :1], gates[..., 1:]
    expected = (u * (r * eco - 1) + 2) * places
    case = node(
        "GatedRelativePositionBias", query, query_bias, places, weight, bias, eco, names={5: "B"}, num_heads=heads
    )
    agree(case, {"y0": expected.astype(np.float32)})
