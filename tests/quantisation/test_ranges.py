"""Collectors of ranges, compared with numpy, with scipy's divergence, and with ONNX Runtime's parameters."""

import numpy as np
import pytest
from combinations import in_one_item
from onnxruntime.quantization.quant_utils import compute_scale_zp
from scipy.special import rel_entr

from graphkit.errors import UsageError
from graphkit.onnx_io.quantise.scales import (
    GRIDS,
    Range,
    bias_integers,
    fitting_bias,
    in_blocks,
    integers,
    packed,
    parameters,
    weight_scales,
)
from graphkit.quantisation.ranges import Entropy, Histogram, MinMax, Percentile, collectors

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers():
    """Each test draws the same numbers, in any order of the tests."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def fed(collector, *batches):
    for batch in batches:
        collector.add(np.asarray(batch, np.float32))
    return collector


def test_minmax_over_batches():
    assert fed(MinMax(), [1, 5], [-3], []).range() == (-3, 5)
    assert MinMax().range() == (0, 0)


@in_one_item()
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_histogram_counts_every_value(scale):
    batches = [RNG.standard_normal(n) * factor * scale for n, factor in ((100, 1), (300, 0.1), (200, 50))]
    found = fed(Histogram(), *batches)
    values = np.concatenate(batches).astype(np.float32).astype(np.float64)
    assert found.counts.sum() == 600
    expected, _ = np.histogram(values, found.edges)
    # A value that rounding puts on an edge may be in either bin.
    assert np.abs(np.cumsum(found.counts - expected)).max() <= 1
    assert found.extremes == (values.min(), values.max())


def test_histogram_counts_zeros_before_the_first_number():
    found = fed(Histogram(), [0, 0, 0], [1.0])
    assert found.counts.sum() == 4
    assert found.counts[len(found.counts) // 2] == 3


def test_the_size_of_batches_does_not_change_the_histogram():
    values = np.concatenate([[4.0], RNG.uniform(-4, 4, 999)])
    one, many = fed(Histogram(), values), fed(Histogram(), *np.split(values, 10))
    np.testing.assert_array_equal(one.counts, many.counts)


@in_one_item()
@pytest.mark.parametrize("percentage", [90.0, 99.0, 99.9, 100.0])
def test_percentile_is_that_of_numpy(percentage):
    values = RNG.standard_normal(20_000).astype(np.float32)
    collector = fed(Percentile(percentage), values)
    low, high = collector.range()
    cut = (100 - percentage) / 2
    width = collector.histogram.edges[1] - collector.histogram.edges[0]
    wanted = np.percentile(values, [cut, 100 - cut])
    if percentage < 99.5:  # further out, numbers are too far apart
        np.testing.assert_allclose([low, high], wanted, atol=2 * width)
    inside = np.mean((values >= low) & (values <= high))
    assert inside >= percentage / 100 - 1e-9


def test_percentile_of_numbers_with_one_sign_cuts_one_side():
    values = np.linspace(0, 1, 10_001)
    low, high = fed(Percentile(99.0), values).range()
    assert low == 0
    assert high == pytest.approx(0.99, abs=1e-3)
    low, high = fed(Percentile(99.0), -values).range()
    assert (low, high) == (pytest.approx(-0.99, abs=1e-3), 0)


def test_entropy_cuts_off_outliers():
    values = np.concatenate([RNG.standard_normal(100_000), [50.0]])
    low, high = fed(Entropy(), values).range()
    assert 2 < high < 10
    assert -10 < low < -2


def test_entropy_keeps_a_uniform_distribution():
    low, high = fed(Entropy(), RNG.uniform(0, 1, 100_000)).range()
    assert low >= 0
    assert high == pytest.approx(1, abs=0.02)


def test_entropy_does_not_cut_because_of_zeros():
    """Nine of ten values are 0, as after Relu."""
    values = np.where(RNG.uniform(size=200_000) < 0.9, 0, RNG.uniform(0, 1, 200_000))
    assert fed(Entropy(), values).range().high > 0.95


def test_entropy_chooses_the_smallest_divergence_of_scipy():
    collector = fed(Entropy(), [*RNG.standard_normal(50_000), 12.0])
    counts = collector.histogram.counts
    half = len(counts) // 2
    magnitudes = (counts[half:] + counts[:half][::-1]).astype(np.float64)
    magnitudes[0] = magnitudes[1]

    def divergence(bins):
        """As written in the slides of TensorRT, level by level."""
        p = magnitudes[:bins].copy()
        q = np.zeros(bins)
        for level in range(128):
            places = slice(level * bins // 128, (level + 1) * bins // 128)
            filled = p[places] > 0
            if filled.any():
                q[places][filled] = p[places].sum() / filled.sum()
        p[-1] += magnitudes[bins:].sum()
        filled = np.where(q > 0, q / q.sum(), np.finfo(np.float64).tiny)
        return rel_entr(p / p.sum(), filled / filled.sum()).sum()

    best = min(range(128, half + 1, 16), key=divergence)
    low, high = collector.range()
    least, most = collector.histogram.extremes
    threshold = best * collector.histogram.edges[half + 1]
    assert (low, high) == (max(least, -threshold), min(most, threshold))


@in_one_item()
@pytest.mark.parametrize("make", [MinMax, Percentile, Entropy])
@pytest.mark.parametrize("value", [0.0, 3.0, -2.0])
def test_constant_tensors(make, value):
    low, high = fed(make(), np.full(10, value), np.full(3, value)).range()
    found = parameters(Range(low, high), GRIDS["uint8"], np.dtype(np.float32))
    numbers = np.clip(np.rint(value / found.scale) + float(found.zero), 0, 255)
    assert (numbers - float(found.zero)) * found.scale == pytest.approx(value, rel=1e-2)


@in_one_item()
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 2.0), (0.5, 3.0), (-4.0, -1.0), (0.0, 0.0), (1e-40, 2e-40), (-3e38, 3e38), (7.0, 7.0)]
)
def test_parameters_equal_those_of_onnxruntime(kind, low, high):
    grid = GRIDS[kind]
    low, high = np.float32(low), np.float32(high)
    least, most = np.array(grid.least, grid.dtype), np.array(grid.most, grid.dtype)
    zero, scale = compute_scale_zp(np.array(low), np.array(high), least, most, grid.symmetric)
    found = parameters(Range(float(low), float(high)), grid, np.dtype(np.float32))
    np.testing.assert_array_equal(found.scale, scale)
    np.testing.assert_array_equal(found.zero, zero)
    assert found.zero.dtype == grid.dtype


def test_channels_of_zeros_have_scale_1():
    weight = np.array([[0, 0], [1, -2], [1e-42, 0]], np.float32)
    scale = weight_scales(weight, 0)
    np.testing.assert_array_equal(scale, np.array([1, 4 / 254, 1], np.float32))
    np.testing.assert_array_equal(integers(weight, scale, GRIDS["int8"], 0), [[0, 0], [64, -127], [0, 0]])


def test_scales_rise_until_the_bias_fits_into_int32():
    weight = np.array([[1e-9], [1.0]], np.float32)
    bias = np.array([5.0, 5.0], np.float32)
    plain = weight_scales(weight, 0)
    scale = fitting_bias(plain, bias, 0.01)
    assert scale[1] == plain[1]
    of_bias = np.float32(0.01) * scale
    numbers = bias_integers(bias, of_bias)
    np.testing.assert_allclose(numbers * of_bias.astype(np.float64), bias, rtol=1e-3)


@in_one_item()
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("terms", [32, 40, 7])
def test_blocks_are_within_half_a_step(bits, terms):
    matrix = RNG.standard_normal((5, terms)).astype(np.float32)
    matrix[2] = 0
    matrix[3] = np.abs(matrix[3]) + 5  # no zero in its range
    found = in_blocks(matrix, bits, 16)
    wide = found.numbers.astype(np.float64) - found.zeros[..., None]
    restored = (wide * found.scales[..., None]).reshape(5, -1)[:, :terms]
    steps = np.repeat(found.scales, 16, axis=1)[:, :terms]
    assert np.all(np.abs(restored - matrix) <= steps * 1.001)
    assert np.median(np.abs(restored - matrix) / steps) <= 0.5
    np.testing.assert_array_equal(restored[2], 0)


def test_packing_puts_the_first_number_into_the_low_bits():
    np.testing.assert_array_equal(packed(np.array([[1, 2, 15]], np.uint8), 4), [[0x21, 0x0F]])


@in_one_item()
@pytest.mark.parametrize(("method", "percentage"), [("maximum", 99.0), ("minmax", 40.0), ("percentile", 101.0)])
def test_wrong_methods(method, percentage):
    with pytest.raises(UsageError):
        collectors(method, percentage)
