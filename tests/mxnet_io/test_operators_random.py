"""Random numbers: their distributions, by means, deviations and bounds of many numbers."""

import math

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import InvalidModel
from tests.mxnet_io.operator_cases import case
from tests.mxnet_io.operator_checks import imported

COUNT = 20000
EULER = 0.5772156649
ROOT3 = math.sqrt(3.0)
LOWS, HIGHS = np.float32([0, 10]), np.float32([1, 14])
X = np.zeros((100, 200), np.float32)
ANY = np.zeros(0, np.float32)

# A case, the mean and the deviation of the numbers, and their bounds.
NUMBERS = [
    (case("_random_uniform", gives=ANY, low=-1.0, high=3.0, shape=(COUNT,)), 1, 2 / ROOT3, -1, 3),
    (case("uniform", gives=ANY, shape=(100, 200), dtype="None"), 0.5, 0.5 / ROOT3, 0, 1),
    (case("_random_normal", gives=ANY, loc=2.0, scale=0.5, shape=(COUNT,), ctx="cpu(0)"), 2, 0.5, -1, 5),
    (case("_random_exponential", gives=ANY, lam=4.0, shape=(COUNT,)), 0.25, 0.25, 0, 5),
    (case("_random_uniform_like", X, gives=ANY, low=1.0, high=2.0), 1.5, 0.5 / ROOT3, 1, 2),
    (case("_random_normal_like", X, gives=ANY, loc=1.0), 1, 1, -5, 7),
    (case("_random_exponential_like", X, gives=ANY, lam=0.5), 2, 2, 0, 40),
    (case("_random_randint", gives=ANY, low=-2, high=3, shape=(COUNT,)), 0, math.sqrt(2), -2, 2),
    (case("_npi_uniform", gives=ANY, low=0.0, high=2.0, size=(COUNT,)), 1, 1 / ROOT3, 0, 2),
    (case("_npi_normal", X[0] + 3, gives=ANY, loc="None", scale=0.5, size=(100, 200)), 3, 0.5, 0, 6),
    (case("_npi_normal_n", X[0] + 3, gives=ANY, loc="None", scale=0.5, size=(100,)), 3, 0.5, 0, 6),
    (case("_npi_exponential", gives=ANY, scale=2.0, size=(COUNT,)), 2, 2, 0, 40),
    (case("_npi_gumbel", gives=ANY, loc=1.0, scale=2.0, size=(COUNT,)), 1 + 2 * EULER, math.pi * 2 / math.sqrt(6),
         -6, 40),
    (case("_npi_logistic", gives=ANY, loc=1.0, scale=2.0, size=(COUNT,)), 1, 2 * math.pi / ROOT3, -40, 40),
    (case("_npi_rayleigh", gives=ANY, scale=2.0, size=(COUNT,)), 2 * math.sqrt(math.pi / 2),
         2 * math.sqrt(2 - math.pi / 2), 0, 15),
    (case("_npi_weibull", gives=ANY, a=2.0, size=(COUNT,)), math.gamma(1.5), math.sqrt(1 - math.gamma(1.5) ** 2), 0, 6),
    (case("_npi_pareto", gives=ANY, a=5.0, size=(COUNT,)), 0.25, math.sqrt(5 / 48), 0, 40),
    (case("_npi_powerd", gives=ANY, a=3.0, size=(COUNT,)), 0.75, math.sqrt(3 / 80), 0, 1),
    (case("_npi_bernoulli", gives=ANY, prob=0.3, logit="None", size=(COUNT,), is_logit=False), 0.3, math.sqrt(0.21),
         0, 1),
    (case("_npi_bernoulli", X, gives=ANY, prob="None", logit="None", size="None", is_logit=True), 0.5, 0.5, 0, 1),
    (case("_random_gamma", gives=ANY, alpha=2.0, beta=3.0, shape=(COUNT,)), 6, math.sqrt(18), 0, 120),
    (case("_random_gamma_like", X, gives=ANY, alpha=0.3, beta=3.0), 0.9, math.sqrt(2.7), 0, 80),
    (case("_npi_gamma", X[0] + 5, gives=ANY, shape="None", scale=0.5, size=(100, 200)), 2.5, math.sqrt(1.25), 0, 25),
    (case("_random_poisson", gives=ANY, lam=4.0, shape=(COUNT,)), 4, 2, 0, 30),
    # In float16, uniform numbers can be 1.
    (case("_random_poisson_like", X.astype(np.float16), gives=ANY, lam=4.0), 4, 2, 0, 30),
    (case("_random_gamma", gives=ANY, alpha=2.0, beta=3.0, shape=(COUNT,), dtype="float16"), 6, math.sqrt(18), 0, 120),
    (case("_random_exponential", gives=ANY, lam=4.0, shape=(COUNT,), dtype="float16"), 0.25, 0.25, 0, 5),
    (case("_random_poisson_like", X, gives=ANY, lam=30.0), 30, math.sqrt(30), 0, 90),
    (case("_random_negative_binomial", gives=ANY, k=3, p=0.4, shape=(COUNT,)), 4.5, math.sqrt(11.25), 0, 80),
    (case("_random_negative_binomial_like", X, gives=ANY, k=2, p=0.05), 38, math.sqrt(760), 0, 900),
    (case("_random_generalized_negative_binomial", gives=ANY, mu=2.0, alpha=0.3, shape=(COUNT,)), 2, math.sqrt(3.2),
         0, 60),
    (case("_random_generalized_negative_binomial_like", X, gives=ANY, mu=2.0, alpha=0.0), 2, math.sqrt(2), 0, 25),
    # Elements are dropped, and the others are divided by 1 - p.
    (case("Dropout", X + 1, gives=ANY, p=0.2, mode="always"), 1, 0.5, 0, 1.25),
]  # fmt: skip


def drawn(cases, folder):
    model, feeds = imported(cases, folder)
    return list(model.run(feeds).values())


def test_moments(tmp_path):
    found = drawn([item for item, *_ in NUMBERS], tmp_path)
    for (item, mean, deviation, least, most), result in zip(NUMBERS, found, strict=True):
        numbers = result.astype(np.float64)
        assert numbers.size == COUNT, item
        error = 5 * deviation / math.sqrt(COUNT)
        assert abs(numbers.mean() - mean) < error, item
        assert abs(numbers.std() / deviation - 1) < 0.06, item
        assert least <= numbers.min(), item
        assert numbers.max() <= most, item


def test_a_block_of_numbers_for_each_parameter(tmp_path):
    uniform, normal, exponential = drawn(
        [
            case("_sample_uniform", LOWS, HIGHS, gives=ANY, shape=(5000,)),
            case("_sample_normal", LOWS, HIGHS, gives=ANY, shape=(50, 100)),
            case("_sample_exponential", HIGHS, gives=ANY, shape=(5000,)),
        ],
        tmp_path,
    )
    assert (uniform.shape, normal.shape, exponential.shape) == ((2, 5000), (2, 50, 100), (2, 5000))
    np.testing.assert_allclose(uniform.mean(1), [0.5, 12], rtol=0.05)
    assert uniform[1].min() >= 10
    np.testing.assert_allclose(normal.std((1, 2)), HIGHS, rtol=0.1)
    np.testing.assert_allclose(exponential.mean(1), 1 / HIGHS, rtol=0.1)


def test_counts_for_each_parameter(tmp_path):
    found = drawn(
        [
            case("_sample_gamma", np.float32([2, 0.5]), np.float32([3, 1]), gives=ANY, shape=(20000,)),
            case("_sample_poisson", np.float32([4.5, 30]), gives=ANY, shape=(20000,)),
            case("_sample_negative_binomial", np.float32([3, 0.5]), np.float32([0.4, 0.2]), gives=ANY, shape=(20000,)),
            case("_sample_generalized_negative_binomial", np.float32([2, 8]), np.float32([0.3, 0]), gives=ANY,
                 shape=(20000,)),
        ],
        tmp_path,
    )  # fmt: skip
    moments = [
        ([6, 0.5], [18, 0.5]), ([4.5, 30], [4.5, 30]), ([4.5, 2], [11.25, 10]), ([2, 8], [3.2, 8]),
    ]  # fmt: skip
    for numbers, (mean, variance) in zip(found, moments, strict=True):
        assert numbers.shape == (2, 20000)
        np.testing.assert_allclose(numbers.mean(1), mean, atol=5 * np.sqrt(max(variance) / 20000))
        np.testing.assert_allclose(numbers.var(1), variance, rtol=0.12)


@in_one_item()
@pytest.mark.parametrize("rate", [0.7, 9.5, 10.5, 60.0])
def test_poisson_numbers_have_the_probabilities(rate, tmp_path):
    (numbers,) = drawn([case("_sample_poisson", np.float32([rate]), gives=ANY, shape=(COUNT,))], tmp_path)
    assert np.all(numbers == np.floor(numbers))
    steps = np.arange(200)
    logs = steps * math.log(rate) - rate - np.array([math.lgamma(k + 1) for k in steps])
    wanted = np.cumsum(np.exp(logs))
    found = np.cumsum(np.bincount(numbers[0].astype(int), minlength=200)[:200]) / COUNT
    assert np.abs(found - wanted).max() < 1.95 / math.sqrt(COUNT)  # Kolmogorov and Smirnov, probability 0.001


def test_limits_of_the_parameters(tmp_path):
    rates = np.float32([0, -1, np.nan, 1e6])
    poisson, gamma = drawn(
        [
            case("_sample_poisson", rates, gives=ANY, shape=(50,)),
            case("_sample_gamma", rates, np.ones(4, np.float32), gives=ANY, shape=(50,)),
        ],
        tmp_path,
    )
    for numbers in (poisson, gamma):
        assert np.all(numbers[0] == 0)
        assert np.isnan(numbers[1:3]).all()
        assert np.abs(numbers[3] / 1e6 - 1).max() < 0.01


def test_numbers_out_of_the_range_of_a_parameter(tmp_path):
    wrong = [
        ("_random_gamma", {"alpha": 1, "beta": -1}, "beta is -1; it must be greater than 0"),
        ("_random_gamma", {"alpha": 0}, "alpha is 0; it must be greater than 0"),
        ("_random_poisson", {"lam": -1}, "lam is -1; it must be at least 0"),
        ("_random_negative_binomial", {"p": 1.5}, "p is 1.5; a probability must not be greater than 1"),
        ("_random_normal", {"scale": 0}, "scale is 0"),
        ("_random_uniform", {"low": 2, "high": 1}, "low is 2 and high 1"),
        ("_random_uniform", {"dtype": "int32"}, "dtype is int32"),
        ("_npi_weibull", {"a": 0}, "a is 0; it must be greater than 0"),
    ]
    for op, attributes, message in wrong:
        with pytest.raises(InvalidModel, match=message):
            imported([case(op, gives=ANY, **attributes)], tmp_path)
    tensors = {
        "gamma": ([-1, 1, np.nan, 1], [1, -1, 1, 1]),
        "negative_binomial": ([-1, 2, 2, 2, 2, 2], [0.5, -0.5, 0, 1.5, np.nan, 0.5]),
        "generalized_negative_binomial": ([-1, -1, 2, 2], [1, 0, -1, 1]),
    }
    cases = [case(f"_sample_{op}", *np.float32(p), gives=ANY, shape=(3,)) for op, p in tensors.items()]
    for numbers in drawn(cases, tmp_path):
        assert np.isnan(numbers[:-1]).all()
        assert np.isfinite(numbers[-1]).all()


def test_blocks_are_float32_by_default(tmp_path):
    means = [np.array([2, 5], dtype) for dtype in ("float64", "float16", "int32")]
    names = ("poisson", "exponential")
    found = drawn([case(f"_sample_{name}", x, gives=ANY, shape=(4,)) for name in names for x in means], tmp_path)
    assert {str(numbers.dtype) for numbers in found} == {"float32"}


def test_without_a_shape(tmp_path):
    number, block = drawn(
        [case("_random_uniform", gives=ANY), case("_sample_uniform", LOWS, HIGHS, gives=ANY)], tmp_path
    )
    assert (number.shape, block.shape) == ((1,), (2,))


def test_multinomial(tmp_path):
    rows = np.float32([[0.2, 0.8, 0], [0.5, 0, 0.5]])
    classes, logs, single = drawn(
        [
            case("_sample_multinomial", rows, gives=[ANY, ANY], shape=(5000,), get_prob=True),
            case("_sample_multinomial", rows[0], gives=ANY, dtype="float32"),
        ],
        tmp_path,
    )
    assert classes.dtype == np.int32
    np.testing.assert_allclose([(row == i).mean() for row in classes for i in range(3)], rows.ravel(), atol=0.03)
    np.testing.assert_allclose(logs, np.log(np.take_along_axis(rows, classes, 1)), rtol=1e-5)
    assert single.shape == ()
    assert single in (0, 1)


def test_choice_and_multinomial(tmp_path):
    chances = np.float32([0.1, 0.2, 0.7])
    cases = [
        case("_npi_choice", gives=chances, a=5, size=(4000,), ctx="cpu"),
        case("_npi_choice", chances, gives=chances, a=3, size=(2, 2000), weighted=True),
        case("_npi_choice", gives=chances, a=6, size=(6,), replace=False),
        case("_npi_choice", np.float32([0.5, 0, 0.5]), gives=chances, a=3, size=(2,), replace=False, weighted=True),
        case("_npi_choice", np.float32([10, 20, 30]), gives=chances, a="None", size=()),
        case("_npi_multinomial", gives=chances, n=20, pvals=(0.1, 0.2, 0.3), size=(200,)),
        case("_npi_multinomial", np.float64([0.1, 0.2, 0]), gives=chances, n=20, size=(200,)),
    ]
    even, weighted, shuffled, without, single, *both = drawn(cases, tmp_path)
    np.testing.assert_allclose(np.bincount(even) / 4000, [0.2] * 5, atol=0.04)
    np.testing.assert_allclose(np.bincount(weighted.ravel()) / 4000, chances, atol=0.04)
    assert sorted(shuffled) == [0, 1, 2, 3, 4, 5]
    assert sorted(without) == [0, 2]
    assert single.shape == ()
    assert single in (0, 1, 2)
    for counts in both:  # the last class has the rest
        assert counts.dtype == np.int64
        assert np.all(counts.sum(1) == 20)
        np.testing.assert_allclose(counts.mean(0) / 20, chances, atol=0.04)
        assert len(np.unique(counts, axis=0)) > 20


def test_shuffle_keeps_slices(tmp_path):
    rows = np.arange(300, dtype=np.float32).reshape(100, 3)
    (found,) = drawn([case("_shuffle", rows, gives=ANY)], tmp_path)
    np.testing.assert_array_equal(np.sort(found[:, 0]), rows[:, 0])
    np.testing.assert_array_equal(found[:, 1], found[:, 0] + 1)
    assert (found != rows).any()


def test_dropout_along_axes_is_the_identity_in_inference(tmp_path):
    (found,) = drawn([case("Dropout", X + 1, gives=ANY, p=0.5, axes=(1,))], tmp_path)
    np.testing.assert_array_equal(found, X + 1)


@pytest.mark.full
def test_onnx_runtime_draws_from_the_same_distributions(tmp_path):
    from graphkit.onnx_io.compare import OnnxRuntimeModel

    model, feeds = imported([item for item, *_ in NUMBERS], tmp_path)
    found = OnnxRuntimeModel(model.to_onnx()).run(feeds).values()
    for (item, mean, deviation, *_), numbers in zip(NUMBERS, found, strict=True):
        assert abs(numbers.mean() - mean) < 5 * deviation / math.sqrt(COUNT), item
