"""Attention and MultiHeadAttention: random attributes and operands."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.importer import import_model

NAMES = {5: "B", 7: "L"}


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def masks(rng, kind, batch, queries, keys, dead):
    """A mask of that kind; `dead`: it may hide every key, which leaves scores that -10000 has rounded off."""
    if kind == "none":
        return None
    if kind in ("raw", "square"):
        mask = rng.integers(0, 2, (batch, keys) if kind == "raw" else (batch, queries, keys), np.int32)
        mask[..., 0] |= not dead
        return mask
    ends = rng.integers(0 if dead else 1, keys + 1, batch)
    starts = rng.integers(0, keys + 1, batch) if dead else np.zeros(batch)
    return np.concatenate((ends, starts) if kind == "both" else (ends,)).astype(np.int32)


KINDS = ("none", "raw", "square", "ends", "both")


@in_one_item("values")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_attention(node, agree, kind, seed):
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    batch, length, hidden, heads, size = 5, 7, 6, 2, int(rng.integers(1, 5))
    past, dead = int(rng.integers(0, 4)) if rng.random() < 0.5 else None, rng.random() < 0.5
    values = size if past is not None or rng.random() < 0.5 else 3
    sizes = [heads * size, heads * size, heads * values]
    keys = length + (past or 0)
    more = normal(rng, *((batch, 1)[int(rng.integers(2))], (heads, 1)[int(rng.integers(2))], length, keys))
    attrs = {
        "num_heads": heads,
        "unidirectional": int(rng.integers(2)),
        **({"scale": 0.3} if rng.random() < 0.5 else {}),
        **({"mask_filter_value": -50.0} if dead else {}),
        **({"qkv_hidden_sizes": sizes} if values != size or rng.random() < 0.5 else {}),
    }
    case = node(
        "Attention",
        normal(rng, batch, length, hidden),
        normal(rng, hidden, sum(sizes)),
        normal(rng, sum(sizes)) if rng.random() < 0.7 else None,
        masks(rng, kind, batch, length, keys, dead),
        None if past is None else normal(rng, 2, batch, heads, past, size),
        more if past is None and rng.random() < 0.5 else None,
        outputs=(True, past is not None),
        names=NAMES,
        **attrs,
    )
    agree(case)


@in_one_item("values")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_multi_head_attention(node, agree, kind, seed):
    rng = np.random.default_rng([seed, KINDS.index(kind), 1])
    batch, heads, size, dead = 5, 2, int(rng.integers(1, 5)), rng.random() < 0.5
    length, others = 7, int(rng.integers(1, 7))
    cached = rng.random() < 0.3
    past = int(rng.integers(0, 4)) if not cached and rng.random() < 0.5 else None
    values = size if cached or past is not None else int(rng.integers(1, 5))
    keys = others + (past or 0)
    key = (batch, heads, others, size) if cached else (batch, others, heads * size)
    value = (batch, heads, others, values) if cached else (batch, others, heads * values)
    biased = not cached and rng.random() < 0.5
    bias = (batch, heads, length, keys) if rng.random() < 0.5 else (1, 1, length, keys)
    present = past is not None
    case = node(
        "MultiHeadAttention",
        normal(rng, batch, length, heads * size),
        normal(rng, *key),
        normal(rng, *value),
        normal(rng, heads * (2 * size + values)) if biased else None,
        masks(rng, kind if kind != "both" else "ends", batch, length, keys, dead),
        normal(rng, *bias) if rng.random() < 0.5 else None,
        None if past is None else normal(rng, batch, heads, past, size),
        None if past is None else normal(rng, batch, heads, past, values),
        outputs=(True, present, present),
        names=NAMES,
        num_heads=heads,
        unidirectional=int(rng.integers(2)),
        **({"scale": 0.3} if rng.random() < 0.5 else {}),
        **({"mask_filter_value": -50.0} if dead else {}),
    )
    agree(case)


def test_the_product_of_queries_and_keys(node, agree, rng):
    parts = [normal(rng, 5, 7, 8) for _ in range(3)]
    case = node("MultiHeadAttention", *parts, outputs=(True, False, False, True), names=NAMES, num_heads=2)
    case.proto.graph.output[1].type.tensor_type.elem_type = 1  # ONNX Runtime infers no type
    agree(case)


@pytest.mark.parametrize("which", ["query", "key"])
def test_packed_operands(node, agree, rng, which):
    # ONNX Runtime has these on other devices; the same operands one by one run on a CPU.
    q, k, v = (normal(rng, 5, 7, 2, 4) for _ in range(3))
    apart = node("MultiHeadAttention", *(x.reshape(5, 7, 8) for x in (q, k, v)), num_heads=2)
    operands = [np.stack((q, k, v), 3)] if which == "query" else [q.reshape(5, 7, 8), np.stack((k, v), 3)]
    agree(node("MultiHeadAttention", *operands, names=NAMES, num_heads=2), apart.reference())


def test_a_square_mask_for_all_positions(node, agree, rng):
    x, w, past = normal(rng, 5, 3, 8), normal(rng, 8, 24), normal(rng, 2, 5, 2, 4, 4)
    mask = rng.integers(0, 2, (5, 1, 9, 9), np.int32)
    mask[..., 0] = 1
    cut = np.ascontiguousarray(mask[:, 0, 4:7, :7])
    case = node("Attention", x, w, None, cut, past, num_heads=2, outputs=(True, True))
    agree(node("Attention", x, w, None, mask, past, names=NAMES, num_heads=2, outputs=(True, True)), case.reference())


def test_a_length_that_the_mask_alone_has(node, agree, rng):
    # Whether first positions follow the last ones is seen in a run.
    x, w = normal(rng, 5, 7, 8), normal(rng, 8, 24)
    for mask in (np.array([7, 3, 0, 2, 5], np.int32), np.array([7, 3, 6, 2, 5, 0, 1, 2, 0, 4], np.int32)):
        case = node("Attention", x, w, None, mask, names=NAMES, num_heads=2)
        case.proto.graph.input[2].type.tensor_type.shape.dim[0].dim_param = "M"
        agree(case, strict=False)


@pytest.mark.parametrize("attrs", [{"do_rotary": 1}, {"past_present_share_buffer": 1}])
def test_what_is_refused(node, rng, attrs):
    case = node("Attention", normal(rng, 1, 3, 8), normal(rng, 8, 24), num_heads=2, **attrs)
    with pytest.raises(UnsupportedError, match="not supported"):
        import_model(case.proto)
