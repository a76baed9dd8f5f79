"""Attention with statistics and its gradients, against float64, numeric differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native


def scores_of(q, k, mask, scale, hidden_score, causal):
    """The scores, and which of them no mask has replaced."""
    scores = q @ k.swapaxes(2, 3) * scale
    kept = np.ones(scores.shape, bool)
    if mask is not None and mask.dtype == bool:
        kept &= mask
        scores = np.where(mask, scores, hidden_score)
    elif mask is not None:
        scores = scores + mask.astype(np.float64)
    if causal:
        rows, keys = scores.shape[2:]
        seen = np.arange(keys) <= np.arange(rows)[:, None] + (keys - rows)
        kept &= seen
        scores = np.where(seen, scores, -np.inf)
    return scores, kept


def plain(q, k, v, dy, mask=None, scale=1.0, hidden_score=0.0, causal=False):
    """y, the largest scores, the sums, dq, dk and dv in float64."""
    q, k, v, dy = (x.astype(np.float64) for x in (q, k, v, dy))
    scores, kept = scores_of(q, k, mask, scale, hidden_score, causal)
    with np.errstate(all="ignore"):
        largest = scores.max(axis=-1, initial=-np.inf)
        raised = np.exp(scores - np.where(largest == -np.inf, 0, largest)[..., None])
        total = raised.sum(axis=-1)
        weights = raised / total[..., None]
        y = weights @ v
        dp = dy @ v.swapaxes(2, 3)
        ds = np.where(kept, weights * (dp - (dy * y).sum(axis=-1, keepdims=True)), 0) * scale
        return y, largest, total, ds @ k, ds.swapaxes(2, 3) @ q, weights.swapaxes(2, 3) @ dy


def operands(batch, heads, rows, keys, depth, value_depth, seed=0):
    rng = np.random.default_rng(seed)
    sizes = ((rows, depth), (keys, depth), (keys, value_depth), (rows, value_depth))
    return [rng.standard_normal((batch, heads, *size), dtype=np.float32) for size in sizes]


def run(q, k, v, dy, mask=None, heads_last=False, output_heads_last=False, threads=1, **options):
    """y, largest, total, dq, dk and dv of the kernels."""

    def moved(x, last):
        return np.ascontiguousarray(x.swapaxes(1, 2)) if last else x

    q, k, v = (moved(x, heads_last) for x in (q, k, v))
    dy = moved(dy, output_heads_last)
    about = {
        "mask": None if mask is None else mask.shape,
        "boolean_mask": mask is not None and mask.dtype == bool,
        "heads_last": heads_last,
        "output_heads_last": output_heads_last,
        "threads": threads,
        **options,
    }
    shape = (q.shape[0], q.shape[2], q.shape[1]) if heads_last else q.shape[:3]
    y, largest, total = np.full_like(dy, 77), np.full(shape, 77, np.float32), np.full(shape, 77, np.float32)
    native.Attention(q.shape, k.shape, v.shape, statistics=True, **about)([q, k, v, mask], [y, largest, total])
    gradients = [np.full_like(x, 77) for x in (q, k, v)]
    kernel = native.AttentionGradient(q.shape, k.shape, v.shape, **about)
    kernel([q, k, v, mask, y, largest, total, dy], gradients)
    back = [x.swapaxes(1, 2) if heads_last else x for x in gradients]
    return [y.swapaxes(1, 2) if output_heads_last else y, largest, total, *back]


def check(found, wanted):
    for name, a, b in zip(("y", "largest", "total", "dq", "dk", "dv"), found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=5e-6, err_msg=name)


SIZES = [
    (1, 1, 1, 1, 1, 1),
    (2, 3, 5, 7, 3, 2),
    (1, 2, 64, 96, 64, 64),
    (2, 2, 33, 97, 13, 17),
    (1, 2, 70, 205, 32, 40),
    (1, 1, 130, 1100, 16, 20),
    (1, 2, 1, 300, 16, 16),
    (2, 1, 3, 205, 70, 37),
    (1, 1, 200, 90, 33, 47),
    (0, 2, 4, 4, 8, 8),
    (1, 2, 0, 4, 8, 8),
    (1, 2, 3, 4, 0, 3),
]


@in_one_item("pairs")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("heads_last", "output_heads_last"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_sizes_and_layouts(size, causal, heads_last, output_heads_last, every_isa):
    arrays = operands(*size)
    options = {"scale": 1 / np.sqrt(max(size[4], 1)), "causal": causal}
    found = run(*arrays, heads_last=heads_last, output_heads_last=output_heads_last, **options)
    check(found, plain(*arrays, **options))


def test_no_keys():
    arrays = operands(1, 2, 3, 0, 4, 5)
    found = run(*arrays)
    assert np.array_equal(found[3], np.zeros((1, 2, 3, 4)))
    assert np.array_equal(found[1], np.full((1, 2, 3), -np.inf))
    assert np.array_equal(found[2], np.zeros((1, 2, 3)))


def test_gradients_equal_numeric_ones():
    """Of sum(dy * y), in float64 with steps in both directions."""
    arrays = operands(1, 2, 5, 6, 3, 4)
    mask = np.where(np.random.default_rng(3).random((5, 6)) < 0.3, -1.5, 0.25).astype(np.float32)
    options = {"scale": 0.7, "causal": True}
    gradients = run(*arrays, mask, **options)[3:]
    wide = [x.astype(np.float64) for x in arrays]
    for position, found in enumerate(gradients):
        numeric = np.empty(found.shape)
        for place in np.ndindex(found.shape):
            sums = []
            for step in (1e-5, -1e-5):
                changed = [x.copy() for x in wide]
                changed[position][place] += step
                sums.append((plain(*changed, mask, **options)[0] * wide[3]).sum())
            numeric[place] = (sums[0] - sums[1]) / 2e-5
        np.testing.assert_allclose(found, numeric, rtol=1e-4, atol=1e-5)


@in_one_item("pairs")
@pytest.mark.parametrize("size", [(2, 3, 90, 150, 24, 24), (1, 1, 70, 2100, 8, 8), (1, 2, 1100, 1100, 16, 16)], ids=str)
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_threads_do_not_change_a_bit(size, threads, causal, isa):
    """Parts of the keys, whose terms of dq are added, do not depend on the number of threads."""
    arrays, options = operands(*size), {"scale": 0.25, "causal": causal}
    alone = run(*arrays, **options)
    assert [x.tobytes() for x in alone] == [x.tobytes() for x in run(*arrays, threads=threads, **options)]
    check(alone, plain(*arrays, **options))


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
    arrays = operands(2, 3, 37, 101, 20, 12)
    rng = np.random.default_rng(2)
    mask = rng.standard_normal(shape).astype(np.float32)
    mask = np.where(rng.random(shape) < 0.2, np.float32(-1e9), mask) if mask.size > 37 else mask
    options = {"scale": 0.25, "causal": causal}
    check(run(*arrays, mask, **options), plain(*arrays, mask, **options))


@in_one_item()
@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("hidden_score", [-1e4, -np.inf, 0.5])
def test_boolean_masks(shape, hidden_score, isa):
    arrays = operands(2, 3, 70, 101, 20, 12) if len(shape) < 2 else operands(2, 3, 37, 101, 20, 12)
    mask = np.asarray(np.random.default_rng(3).random(shape) < 0.7)
    options = {"scale": 0.25, "hidden_score": hidden_score}
    check(run(*arrays, mask, **options), plain(*arrays, mask, **options))


def test_rows_that_see_no_key_make_gradients_nan(isa):
    """All weights of such a row are NaN, so that every row of dv is; its scores are replaced, so that dq is 0."""
    arrays = operands(1, 2, 100, 30, 8, 8)
    found, wanted = run(*arrays, causal=True), plain(*arrays, causal=True)
    check(found, wanted)
    assert np.isnan(found[5]).all()
    assert (found[3][:, :, :70] == 0).all()
    assert not np.isnan(found[4]).any()
    mask = np.zeros((100, 30), np.float32)
    mask[3] = -np.inf
    check(run(*arrays, mask), plain(*arrays, mask))


@in_one_item()
@pytest.mark.parametrize("boolean", [False, True])
def test_rows_that_a_mask_hides_wholly_with_causal(boolean, isa):
    """Their weights are NaN for all keys, also for those that no other row of the block sees."""
    arrays = operands(1, 3, 65, 200, 32, 7)
    sees = np.random.default_rng(4).random((1, 1, 65, 1)) < 0.7
    mask = sees if boolean else np.where(sees, np.float32(0), np.float32(-np.inf))
    options = {"causal": True, "hidden_score": -np.inf}
    for threads in (1, 4):
        check(run(*arrays, mask, threads=threads, **options), plain(*arrays, mask, **options))


def test_scores_of_equal_size_far_from_zero(isa):
    """All scores of a row are near -1e9: log(sum) + largest would round log(sum) away."""
    arrays = operands(1, 1, 20, 40, 8, 8)
    mask = np.full((20, 40), -(2.0**30), np.float32)
    found = run(*arrays, mask, scale=1e-9)
    np.testing.assert_allclose(found[2], 40, rtol=1e-6)
    np.testing.assert_allclose(
        found[5], np.repeat(arrays[3].sum(2, keepdims=True) / 40, 40, axis=2), rtol=1e-4, atol=1e-5
    )


def test_large_scores_do_not_overflow(isa):
    q, k, v, dy = operands(1, 2, 20, 250, 8, 8)
    found, wanted = run(q * 30, k, v, dy), plain(q * 30, k, v, dy)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)


@in_one_item()
@pytest.mark.parametrize("position", range(4))
def test_nan_spreads_as_in_the_formula(position, isa):
    arrays = operands(1, 1, 20, 30, 8, 8)
    arrays[position][0, 0, 7, 3] = np.nan
    for found, wanted in zip(run(*arrays), plain(*arrays), strict=True):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))


def test_working_memory_is_linear_in_positions():
    def scratch(length, heads):
        shape = (1, heads, length, 64)
        return native.AttentionGradient(shape, shape, shape, causal=True, threads=2).scratch_bytes

    for heads in (1, 8, 32):
        blocks = scratch(512, heads)
        parts = max(16 // heads, 1)
        assert scratch(16384, heads) - blocks <= (parts - 1) * heads * 16384 * 64 * 4
        assert scratch(65536, heads) - blocks <= 4 * (scratch(16384, heads) - blocks)


def test_shapes_that_do_not_go_together():
    with pytest.raises(native.Error, match="do not fit together"):
        native.AttentionGradient([1, 2, 3, 4], [1, 1, 3, 4], [1, 1, 3, 4])
    with pytest.raises(native.Error, match="four axes"):
        native.AttentionGradient([2, 3, 4], [2, 3, 4], [2, 3, 4])
    with pytest.raises(native.Error, match="does not broadcast"):
        native.AttentionGradient([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [5, 3])
    with pytest.raises(native.Error, match="each head has its own keys"):
        native.Attention([1, 4, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], statistics=True)


@pytest.mark.pytorch
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_equal_those_of_pytorch(causal):
    torch = pytest.importorskip("torch")
    arrays = operands(2, 3, 300, 300, 64, 64)
    q, k, v, dy = (torch.from_numpy(x).double() for x in arrays)
    for x in (q, k, v):
        x.requires_grad_()
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    wanted = [y, *torch.autograd.grad(y, (q, k, v), dy)]
    found = run(*arrays, scale=1 / 8, causal=causal)
    for a, b in zip([found[0], *found[3:]], wanted, strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=2e-5, atol=5e-6)
