"""Attention that writes into a cache."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.importer import import_model

NAMES = {5: "B", 7: "L"}


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def group_query(
    node, rng, lengths, step, past, total, *, rotary=False, packed=False, extra=(), dtype=np.float32, **attrs
):
    """Return a node for examples with these final `lengths`. The last `step` tokens of each are new."""
    batch, heads, groups, size = len(lengths), 6, 2, 16
    parts = [normal(rng, batch, step, n * size, dtype=dtype) for n in (heads, groups, groups)]
    caches = [None, None] if past is None else [normal(rng, batch, groups, past, size, dtype=dtype) for _ in range(2)]
    turns = [normal(rng, 32, size // 2, dtype=dtype) for _ in range(2)] if rotary else [None, None]
    operands = [np.concatenate(parts, -1), None, None] if packed else parts
    return node(
        "GroupQueryAttention",
        *operands,
        *caches,
        np.array(lengths, np.int32) - 1,
        np.array(total, np.int32),
        *turns,
        *extra,
        outputs=(True, True, True),
        names=NAMES,
        num_heads=heads,
        kv_num_heads=groups,
        do_rotary=int(rotary),
        **attrs,
    )


VARIANTS = [
    {},
    {"rotary": True},
    {"rotary": True, "rotary_interleaved": 1},
    {"packed": True, "rotary": True},
    {"scale": 0.125},
    {"softcap": 1.5},
    {"local_window_size": 3},
    {"smooth_softmax": 1},
]


@in_one_item()
@pytest.mark.parametrize("attrs", VARIANTS, ids=str)
def test_a_prompt(node, agree, rng, attrs):
    agree(group_query(node, rng, [7] * 5, 7, None, 7, **attrs))


@in_one_item()
@pytest.mark.parametrize("attrs", VARIANTS, ids=str)
def test_a_step(node, agree, rng, attrs):
    agree(group_query(node, rng, [5, 9, 3, 9, 1], 1, 8, 9, **attrs))


@in_one_item()
@pytest.mark.parametrize("attrs", VARIANTS, ids=str)
def test_a_step_in_a_buffer(node, agree, rng, attrs):
    agree(group_query(node, rng, [5, 9, 3, 9, 1], 1, 16, 9, **attrs))


def test_several_steps_at_once(node, agree, rng):
    agree(group_query(node, rng, [10], 3, 7, 10, rotary=True))


def test_half_floats(node, agree, rng):
    case = group_query(node, rng, [7] * 5, 7, None, 7, rotary=True, dtype=np.float16)
    agree(case, rtol=1e-2, atol=5e-3)


@pytest.mark.parametrize("shape", [(5, 6, 7, 7), (1, 1, 7, 7)])
def test_a_bias(node, agree, rng, shape):
    agree(group_query(node, rng, [7] * 5, 7, None, 7, extra=(None, normal(rng, *shape)), softcap=2.0))


def test_a_sink(node, agree, rng):
    agree(group_query(node, rng, [7] * 5, 7, None, 7, extra=(None, None, normal(rng, 6))))


def test_positions_that_are_an_operand(node, agree, rng):
    place = np.tile(np.arange(7), (5, 1)) + np.arange(5)[:, None]
    agree(group_query(node, rng, [7] * 5, 7, None, 7, rotary=True, extra=(place,)))


@pytest.mark.parametrize("attrs", [{"sliding_window_cache": 1}, {"k_quant_type": "PER_TENSOR"}])
def test_a_quantised_cache_is_refused(node, rng, attrs):
    case = group_query(node, rng, [7], 7, None, 7, **attrs)
    with pytest.raises(UnsupportedError, match=next(iter(attrs))):
        import_model(case.proto)


def decoder(node, rng, *, bias, mask, more, cross, **attrs):
    batch, heads, size, past, room = 5, 2, 4, 6, 9
    key = (batch, heads, past + 1, size) if cross else (batch, 1, heads * size)
    return node(
        "DecoderMaskedMultiHeadAttention",
        normal(rng, batch, 1, heads * size),
        normal(rng, *key),
        normal(rng, *key),
        rng.integers(0, 2, (batch, past + 1), np.int32) | (np.arange(past + 1) == 0).astype(np.int32) if mask else None,
        normal(rng, 1, heads, 1, past + 1) if more else None,
        *(
            [None] * 3
            if cross
            else (*(normal(rng, batch, heads, room, size) for _ in range(2)), np.array([past], np.int32))
        ),
        *(None, None),
        normal(rng, 3 * heads * size) if bias else None,
        outputs=(True, not cross, not cross),
        names=NAMES,
        num_heads=heads,
        past_present_share_buffer=int(not cross),
        **attrs,
    )


@in_one_item()
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_decoder_beside_its_encoder(node, agree, rng, mask, bias):
    agree(decoder(node, rng, bias=False, mask=mask, more=False, cross=True, **({"scale": 0.3} if bias else {})))


@in_one_item()
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize(("bias", "more"), [(False, False), (True, False), (True, True)])
def test_a_decoder_with_its_past(node, agree, rng, mask, bias, more):
    agree(decoder(node, rng, bias=bias, mask=mask, more=more, cross=False), strict=False)
