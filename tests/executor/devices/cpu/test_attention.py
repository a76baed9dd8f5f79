"""Fused attention against plain attention in float64."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.checks.samples import all_cases
from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType, dtype_of
from graphkit.ops import registry
from graphkit.ops._base import DOMAIN
from graphkit.ops.evaluate import evaluate, run_node
from graphkit.ops.internal.fused_attention import FusedAttention
from graphkit.ops.xp import numpy_xp


def plain(q, k, v, mask=None, scale=1.0, hidden_score=0.0, causal=False):
    """[N, H, L, D] operands; NaN where a row sees nothing."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(2, 3) * scale
    if mask is not None:
        scores = np.where(mask, scores, hidden_score) if mask.dtype == bool else scores + mask.astype(np.float64)
    if causal:
        rows, keys = scores.shape[2:]
        scores = np.where(np.arange(keys) > np.arange(rows)[:, None] + (keys - rows), -np.inf, scores)
    with np.errstate(all="ignore"):
        raised = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
        return raised / raised.sum(axis=-1, keepdims=True) @ v


def operands(batch, heads, rows, keys, depth, value_depth, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((batch, heads, rows, depth), (batch, heads, keys, depth), (batch, heads, keys, value_depth))
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def run(q, k, v, mask=None, heads_last=False, output_heads_last=False, threads=1, **options):
    arrays = [np.ascontiguousarray(x.swapaxes(1, 2)) if heads_last else x for x in (q, k, v)]
    n, h, rows = q.shape[:3]
    y = np.full((n, rows, h, v.shape[3]) if output_heads_last else (n, h, rows, v.shape[3]), 77, np.float32)
    kernel = native.Attention(
        *(x.shape for x in arrays),
        None if mask is None else mask.shape,
        mask is not None and mask.dtype == bool,
        heads_last=heads_last,
        output_heads_last=output_heads_last,
        threads=threads,
        **options,
    )
    kernel([*arrays, mask], [y])
    return y.swapaxes(1, 2) if output_heads_last else y


SIZES = [
    (1, 1, 1, 1, 1, 1),
    (2, 3, 5, 7, 3, 2),
    (1, 2, 16, 96, 64, 64),
    (2, 2, 33, 97, 13, 17),
    (1, 3, 70, 205, 32, 40),
    (3, 1, 128, 128, 64, 64),
    (1, 2, 1, 300, 16, 16),
    (2, 2, 3, 205, 70, 37),
    (1, 2, 2, 97, 20, 150),
    (1, 1, 4, 300, 130, 260),
    (0, 2, 4, 4, 8, 8),
    (1, 2, 0, 4, 8, 8),
]


@in_one_item("pairs")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("heads_last", "output_heads_last"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_sizes_and_layouts(size, causal, heads_last, output_heads_last, every_isa):
    q, k, v = operands(*size)
    options = {"scale": 1 / np.sqrt(size[4]), "causal": causal}
    got = run(q, k, v, heads_last=heads_last, output_heads_last=output_heads_last, **options)
    np.testing.assert_allclose(got, plain(q, k, v, **options), rtol=1e-5, atol=2e-6)


@in_one_item()
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_a_bit(threads, isa):
    q, k, v = operands(2, 3, 90, 150, 24, 24)
    mask = np.random.default_rng(1).standard_normal((90, 150), dtype=np.float32)
    alone = run(q, k, v, mask, causal=True)
    assert alone.tobytes() == run(q, k, v, mask, causal=True, threads=threads).tobytes()


MASKS = [
    (37, 101),
    (1, 101),
    (37, 1),
    (101,),
    (2, 1, 1, 101),
    (1, 3, 1, 101),
    (2, 3, 37, 101),
    (3, 37, 101),
    (),
    (1, 1),
]


@in_one_item()
@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_added_masks(shape, causal, isa):
    q, k, v = operands(2, 3, 37, 101, 20, 12)
    rng = np.random.default_rng(2)
    mask = rng.standard_normal(shape).astype(np.float32)
    mask = np.where(rng.random(shape) < 0.2, np.float32(-1e9), mask) if mask.size > 37 else mask
    options = {"scale": 0.25, "causal": causal}
    np.testing.assert_allclose(run(q, k, v, mask, **options), plain(q, k, v, mask, **options), rtol=1e-5, atol=2e-6)


@in_one_item()
@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("hidden_score", [-1e4, -np.inf])
def test_boolean_masks(shape, hidden_score, isa):
    q, k, v = operands(2, 3, 37, 101, 20, 12)
    mask = np.asarray(np.random.default_rng(3).random(shape) < 0.7)
    options = {"scale": 0.25, "hidden_score": hidden_score}
    got = run(q, k, v, mask, **options)
    np.testing.assert_allclose(got, plain(q, k, v, mask, **options), rtol=1e-5, atol=2e-6)


def test_keys_that_are_hidden_block_by_block(isa):
    # The first blocks of keys are hidden from some rows, the last ones from others, all from row 3.
    q, k, v = operands(1, 1, 8, 400, 16, 16)
    mask = np.ones((8, 400), bool)
    mask[0, :399], mask[1, 1:], mask[2, 90:300], mask[3] = False, False, False, False
    got = run(q, k, v, mask, hidden_score=-np.inf)
    np.testing.assert_allclose(got, plain(q, k, v, mask, hidden_score=-np.inf), rtol=1e-5, atol=2e-6)
    assert np.isnan(got[0, 0, 3]).all()
    assert not np.isnan(got[0, 0, [0, 1, 2, 4]]).any()


def test_rows_that_see_no_key(isa):
    q, k, v = operands(1, 2, 40, 10, 8, 8)
    got = run(q, k, v, causal=True)
    assert np.isnan(got[:, :, :30]).all()
    np.testing.assert_allclose(got[:, :, 30:], plain(q, k, v, causal=True)[:, :, 30:], rtol=1e-5, atol=2e-6)


def test_large_scores_do_not_overflow(isa):
    q, k, v = operands(1, 2, 20, 250, 8, 8)
    np.testing.assert_allclose(run(q * 100, k, v), plain(q * 100, k, v), rtol=2e-3, atol=2e-4)


def test_nan_spreads_over_its_row_only(isa):
    q, k, v = operands(1, 1, 20, 30, 8, 8)
    q[0, 0, 7, 3] = np.nan
    got = run(q, k, v)
    assert np.isnan(got[0, 0, 7]).all()
    others = [i for i in range(20) if i != 7]
    np.testing.assert_allclose(got[0, 0, others], plain(q, k, v)[0, 0, others], rtol=1e-5, atol=2e-6)


def test_shapes_that_do_not_go_together():
    with pytest.raises(native.Error, match="do not fit together"):
        native.Attention([1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4])
    with pytest.raises(native.Error, match="four axes"):
        native.Attention([2, 3, 4], [2, 3, 4], [2, 3, 4])
    with pytest.raises(native.Error, match="does not broadcast"):
        native.Attention([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [5, 3])


def test_the_fused_operator_runs_natively(isa):
    pytest.importorskip("graphkit.ops.internal.fused")
    cases = [case for case in all_cases(registry.get(DOMAIN, "FusedAttention")) if case.dtype is DType.FLOAT32]
    assert len(cases) > 5
    for case in cases:
        node = case.graph().outputs[0].node
        y = np.full(node.output.tensor.static_shape, 77, np.float32)
        make_kernel("cpu", node, KernelContext(threads=2))(case.arrays, [y])
        np.testing.assert_allclose(y, run_node(node, case.arrays)[0], rtol=1e-5, atol=2e-6, err_msg=case.name)


def test_a_float32_mask_of_half_floats() -> None:
    """The mask is not rounded, neither by the operator nor by its expansion to standard operators."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 5, 4)).astype(np.float16) for _ in range(3))
    mask = np.float32(-2000.7) - np.arange(5, dtype=np.float32)
    wide = [a.astype(np.float64) for a in (q, k, v, mask)]
    inputs = [Value(TensorType(dtype_of(a.dtype), a.shape)) for a in (q, k, v, mask)]
    op = FusedAttention(scale=0.5, causal=True)
    expanded = Graph(inputs, [op.expand(*inputs)])
    for found in (op.reference(numpy_xp, q, k, v, mask), *evaluate(expanded, (q, k, v, mask))):
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, op.reference(numpy_xp, *wide), rtol=4e-3, atol=2e-3)


SHARED_MASKS = [None, (2, 1, 1, "keys"), (6, 1, "keys"), (2, 6, "rows", "keys"), ("rows", 1), ()]


@in_one_item("pairs")
@pytest.mark.parametrize("mask_shape", SHARED_MASKS, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_heads_that_share_keys(mask_shape, rows, groups, every_isa):
    """Of one query each they are the rows of one block. By any layout."""
    keys = 101
    q, k, v = (operands(2, heads, rows, keys, 20, 12)[i] for i, heads in enumerate((6, groups, groups)))
    rng = np.random.default_rng(4)
    shape = mask_shape and [{"rows": rows, "keys": keys}.get(size, size) for size in mask_shape]
    drawn = [] if shape is None else [rng.random(shape) < 0.7, rng.standard_normal(shape, np.float32)]
    wanted_k, wanted_v = (np.repeat(x, 6 // groups, axis=1) for x in (k, v))
    for mask in [np.asarray(m) for m in drawn] or [None]:
        for causal, heads_last, output_heads_last in ((False, False, True), (True, True, False)):
            got = run(
                q, k, v, mask, causal=causal, heads_last=heads_last, output_heads_last=output_heads_last,
                hidden_score=-np.inf,
            )  # fmt: skip
            wanted = plain(q, wanted_k, wanted_v, mask, causal=causal, hidden_score=-np.inf)
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6)


def test_heads_that_cannot_be_shared():
    for heads, groups in ((6, 4), (2, 3), (2, 0)):
        q, k, v = (operands(1, count, 1, 3, 4, 4)[i] for i, count in enumerate((heads, groups, groups)))
        with pytest.raises(RuntimeError, match="the shapes of query, key and value do not fit together"):
            run(q, k, v)


# --- with a past ------------------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize("past", [0, 1, 95, 96, 97, 300])
@pytest.mark.parametrize(
    ("heads", "groups", "rows"), [(2, 2, 1), (2, 2, 4), (2, 2, 5), (8, 2, 1), (10, 2, 1), (4, 2, 2)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_a_past(past, heads, groups, rows, causal, isa):
    q = operands(2, heads, rows, 1, 20, 1)[0]
    _, keys, values = operands(2, groups, 1, past + rows, 20, 12, seed=1)
    mask = np.random.default_rng(2).random((rows, past + rows)) < 0.8
    y = np.full((2, heads, rows, 12), 77, np.float32)
    whole = [np.full_like(x, 77) for x in (keys, values)]
    parts = [np.ascontiguousarray(x[:, :, part]) for part in (slice(past, None), slice(past)) for x in (keys, values)]
    options = {"scale": 0.3, "hidden_score": -1e4, "causal": causal}
    kernel = native.Attention(q.shape, *(x.shape for x in parts[:2]), mask.shape, True, past=past, threads=2, **options)
    kernel([q, *parts, mask], [y, *whole])
    np.testing.assert_array_equal(whole[0], keys)
    np.testing.assert_array_equal(whole[1], values)
    every = [np.repeat(x, heads // groups, axis=1) for x in (keys, values)]
    np.testing.assert_allclose(y, plain(q, *every, mask, **options), rtol=1e-5, atol=2e-6)


@in_one_item()
@pytest.mark.parametrize(
    "size", [(0, 2, 1, 4, 3, 2), (1, 2, 0, 4, 3, 2), (1, 2, 1, 4, 3, 0), (1, 2, 1, 4, 0, 3)], ids=str
)
def test_a_past_with_empty_axes(size):
    """The past is copied even if there are no queries."""
    batch, heads, rows, past, depth, value_depth = size
    q, k, v = operands(batch, heads, rows, rows, depth, value_depth)
    _, past_k, past_v = operands(batch, heads, rows, past, depth, value_depth, seed=1)
    y = np.full((batch, heads, rows, value_depth), 77, np.float32)
    keys, values = (np.concatenate(pair, axis=2) for pair in ((past_k, k), (past_v, v)))
    found = [np.full_like(x, 77) for x in (keys, values)]
    native.Attention(q.shape, k.shape, v.shape, None, past=past)([q, k, v, past_k, past_v], [y, *found])
    np.testing.assert_array_equal(found[0], keys)
    np.testing.assert_array_equal(found[1], values)
    np.testing.assert_allclose(y, plain(q, keys, values), rtol=1e-5, atol=2e-6)


def test_a_past_that_is_larger_than_the_caches():
    """It is written past them."""
    heads, rows, depth = 4, 4500, 128
    q, k, v = operands(1, heads, 1, 1, depth, depth)
    _, past_k, past_v = operands(1, heads, 1, rows, depth, depth, seed=1)
    found = [np.empty((1, heads, rows + 1, depth), np.float32) for _ in range(2)]
    assert sum(x.nbytes for x in found) > 16 << 20
    y = np.empty((1, heads, 1, depth), np.float32)
    kernel = native.Attention(q.shape, k.shape, v.shape, None, past=rows, scale=0.1, threads=2)
    kernel([q, k, v, past_k, past_v], [y, *found])
    keys, values = (np.concatenate(pair, axis=2) for pair in ((past_k, k), (past_v, v)))
    np.testing.assert_array_equal(found[0], keys)
    np.testing.assert_array_equal(found[1], values)
    np.testing.assert_allclose(y, plain(q, keys, values, scale=0.1), rtol=1e-5, atol=2e-6)


@in_one_item()
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads_last": True}, "with past keys, the layout must be"),
        ({"past": -1}, "with past keys, the layout must be"),
    ],
)
def test_a_past_that_cannot_be(options, message):
    with pytest.raises(native.Error, match=message):
        native.Attention((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), None, **{"past": 1, **options})
