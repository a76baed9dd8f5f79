from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import UsageError
from graphkit.frontend import initializers as init
from graphkit.frontend.parameters import parameter
from graphkit.ir.types import TensorType

ALL = [
    init.Zeros(), init.Ones(), init.Constant(0.25), init.Uniform(-1.0, 2.0), init.Normal(0.5, mean=1.0),
    init.TruncatedNormal(0.3), init.Orthogonal(2.0), init.XavierUniform(1.5), init.XavierNormal(),
    init.HeUniform("out"), init.HeNormal("in", slope=0.2), init.LeCunUniform(), init.LeCunNormal(), init.FanInUniform(),
]  # fmt: skip
SHAPE = (64, 32, 5, 3)  # fan in 480, fan out 960


def make(spec, shape=SHAPE, dtype="float32", seed=0, name="w"):
    return init.initialize(TensorType(dtype, shape), spec, seed, name)


@in_one_item()
@pytest.mark.parametrize("initializer", ALL, ids=lambda i: i.type)
def test_json_round_trip(initializer):
    stored = json.loads(json.dumps(initializer.to_dict()))
    assert stored["type"] == initializer.type
    assert init.of(stored) == initializer
    np.testing.assert_array_equal(make(stored), make(initializer))


def test_every_type_is_in_the_round_trip_table():
    assert {i.type for i in ALL} == set(init._registry)


@in_one_item()
@pytest.mark.parametrize("initializer", ALL, ids=lambda i: i.type)
def test_values_depend_on_seed_and_name_alone(initializer):
    value = make(initializer)
    make("normal", name="another")
    np.testing.assert_array_equal(value, make(initializer))
    if initializer.type not in ("zeros", "ones", "constant"):
        assert (value != make(initializer, seed=1)).any()
        assert (value != make(initializer, name="v")).any()


def test_the_stream_is_fixed():
    # Published results and resumed runs rely on these numbers.
    values = make(init.Normal(1.0), (5,), "float64", seed=7, name="fc_weight")
    normal = [0.54197451955119, 0.010282783413245716, 1.8168093363518008, -0.46277328204701423, 1.705504117281799]
    np.testing.assert_allclose(values, normal, rtol=1e-12)
    values = make(init.Uniform(0, 1), (3,), "float64", seed=7, name="fc_weight")
    np.testing.assert_allclose(values, [0.224267663281979, 0.7664653957661879, 0.8443361768701158], rtol=1e-12)


@in_one_item()
@pytest.mark.parametrize(
    ("spec", "std"),
    [
        (init.XavierNormal(gain=2.0), 2.0 * math.sqrt(2 / (480 + 960))),
        (init.XavierUniform(), math.sqrt(2 / (480 + 960))),
        (init.HeNormal(), math.sqrt(2 / 480)),
        (init.HeNormal("out"), math.sqrt(2 / 960)),
        (init.HeUniform("in", slope=0.5), math.sqrt(2 / 1.25 / 480)),
        (init.LeCunNormal(), math.sqrt(1 / 480)),
        (init.LeCunUniform(), math.sqrt(1 / 480)),
        (init.FanInUniform(), 1 / math.sqrt(3 * 480)),
        (init.FanInUniform(fan_in=12), 1 / math.sqrt(3 * 12)),
        (init.Normal(0.3), 0.3),
        (init.Uniform(-1.0, 1.0), 1 / math.sqrt(3)),
        # A normal cut at two standard deviations keeps 0.8796 of its spread.
        (init.TruncatedNormal(0.1), 0.1 * 0.87962566),
    ],
    ids=lambda v: getattr(v, "type", ""),
)
def test_spread(spec, std):
    values = make(spec, dtype="float64")
    assert values.std() == pytest.approx(std, rel=0.02)
    assert abs(values.mean()) < 4 * std / math.sqrt(values.size)
    if "uniform" in spec.type:
        assert np.abs(values).max() <= std * math.sqrt(3)


def test_normal_has_the_moments_and_tails_of_a_normal():
    values = make(init.Normal(1.0), (200_001,), "float64")
    assert abs((values**3).mean()) < 0.03
    assert (values**4).mean() == pytest.approx(3.0, abs=0.06)
    assert (np.abs(values) > 1.959964).mean() == pytest.approx(0.05, abs=0.002)


def test_truncation_holds():
    values = make(init.TruncatedNormal(1.0, mean=5.0, low=-0.5, high=3.0), (10_000,), "float64")
    assert values.min() >= 4.5
    assert values.max() <= 8.0


@in_one_item()
@pytest.mark.parametrize("shape", [(8, 20), (20, 8), (6, 2, 3), (5, 5)])
def test_orthogonal(shape):
    matrix = make(init.Orthogonal(gain=2.0), shape, "float64").reshape(shape[0], -1)
    rows, columns = matrix.shape
    product = matrix @ matrix.T if rows <= columns else matrix.T @ matrix
    np.testing.assert_allclose(product, 4.0 * np.eye(min(rows, columns)), atol=1e-12)


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (2, 0, 3)])
def test_any_float_dtype_and_empty_shapes(dtype, shape):
    for spec in ALL:
        if spec.type == "orthogonal" and 0 in shape:
            continue
        values = make(spec, shape, dtype)
        assert values.shape == shape
        assert values.dtype == (ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def test_scalars_and_integers():
    assert make("ones", ()).shape == ()
    assert make(3, (2,), "int64").tolist() == [3, 3]
    with pytest.raises(UsageError, match="floating-point values, not int64"):
        make("normal", (2,), "int64")


@in_one_item()
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("he_norml", "unknown initialiser 'he_norml'; did you mean 'he_normal'"),
        ({"type": "normal", "sdt": 1.0}, "no option 'sdt'; did you mean 'std'"),
        ({"std": 1.0}, "is not an initialiser"),
        (None, "is not an initialiser"),
        ({"type": "he_normal", "fan": "up"}, "fan is 'in' or 'out'"),
        ({"type": "uniform", "low": 2.0, "high": 1.0}, "above"),
        ({"type": "truncated_normal", "low": 8.0, "high": 9.0}, "less than 1%"),
    ],
)
def test_wrong_specs(spec, message):
    with pytest.raises(UsageError, match=message):
        init.of(spec)


def test_aliases():
    assert init.of("kaiming_normal") == init.HeNormal()
    assert init.of("glorot_uniform") == init.XavierUniform()


def test_errors_name_the_parameter():
    with pytest.raises(UsageError, match=r"'fc_bias'.*at least 2 axes"):
        make("xavier_uniform", (3,), name="fc_bias")
    with pytest.raises(UsageError, match=r"'w'.*static"):
        make("zeros", ("N", 3))


def test_parameters_keep_their_initialiser():
    value = parameter("w", [3, 4], init.HeNormal("out"), trainable=False)
    assert value.role == "parameter"
    assert value.attrs == {"init": {"type": "he_normal", "fan": "out", "slope": 0.0}, "trainable": False}
    assert init.initialize(value, value.attrs["init"], 0, "w").shape == (3, 4)
    with pytest.raises(UsageError, match=r"parameter 'w'.*N is not known"):
        parameter("w", ["N", 4])
