"""Operators of MXNet's numpy interface, gamma, gammaln and erfinv."""

import math

import numpy as np
import pytest
from combinations import in_one_item

from tests.mxnet_io.operator_cases import case, floats, positive
from tests.mxnet_io.operator_checks import check

X = floats(2, 3, 4)
A, B = floats(3, 4), floats(3, 4, seed=1)
COARSE, OTHER = np.float32([[-1, 0, 1], [2, 0, 0]]), np.float32([[-1, 1, 1], [0, 0, 2]])
EDGES = np.float32([np.nan, np.inf, -np.inf, 0.0, 1.0])
FLAGS = np.array([[True, False, True], [True, True, True]])
POINTS = np.float32([0.5, 1, 2, 3.7, 12.25, 30.5, 1e-3, -0.5, -1.5, -2.25, 0.99999, 2.00001])
INTEGERS, MASKS = np.int32([1, 6, -3]), np.int32([3, 5, 4])

COMPARISONS = {
    "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater, "greater_equal": np.greater_equal,
    "less": np.less, "less_equal": np.less_equal,
}  # fmt: skip
BOOLS = [
    *(case(f"_npi_{name}", COARSE, OTHER, gives=function(COARSE, OTHER)) for name, function in COMPARISONS.items()),
    *(
        case(f"_npi_{name}_scalar", COARSE, gives=function(COARSE, 1), scalar=1.0)
        for name, function in COMPARISONS.items()
    ),
    *(
        case(f"_npi_{name}", EDGES, gives=getattr(np, name)(EDGES))
        for name in ("isnan", "isinf", "isposinf", "isneginf", "isfinite")
    ),
    case("_npi_logical_not", COARSE, gives=COARSE == 0),
    case("_np_all", COARSE, gives=np.array(False)),
    case("_np_all", FLAGS, gives=FLAGS.all(1), axis=1),
    case("_np_any", COARSE, gives=(COARSE != 0).any(0, keepdims=True), axis=0, keepdims=True),
    case("_np_sometrue", COARSE, gives=(COARSE != 0).any(1), axis=(1,)),
]
UNARY = {
    "abs": np.abs, "arcsinh": np.arcsinh, "arctan": np.arctan, "cbrt": np.cbrt, "ceil": np.ceil, "cos": np.cos,
    "cosh": np.cosh, "degrees": np.degrees, "expm1": np.expm1, "fix": np.fix, "floor": np.floor,
         "negative": np.negative,
    "radians": np.radians, "reciprocal": np.reciprocal, "sign": np.sign, "sin": np.sin, "sinh": np.sinh, "tan": np.tan,
    "trunc": np.trunc,
}  # fmt: skip
ABOVE = positive(3, 4) + np.float32(0.6)
INSIDE = np.tanh(A)
NUMBER_FORMS = {
    "subtract": lambda x: x - 1.5, "multiply": lambda x: x * 1.5, "true_divide": lambda x: x / 1.5,
    "power": lambda x: x**1.5, "rpower": lambda x: 1.5**x, "maximum": lambda x: np.maximum(x, 1.5),
    "minimum": lambda x: np.minimum(x, 1.5), "rmod": lambda x: 1.5 % x, "hypot": lambda x: np.hypot(x, 1.5),
}  # fmt: skip
ELEMENTS = [
    *(case(f"_npi_{name}", A, gives=function(A.astype(np.float64))) for name, function in UNARY.items()),
    *(case(f"_npi_{n}", INSIDE, gives=getattr(np, n)(INSIDE.astype(float))) for n in ("arccos", "arcsin", "arctanh")),
    *(
        case(f"_npi_{n}", ABOVE, gives=getattr(np, n)(ABOVE.astype(float)))
        for n in ("arccosh", "log10", "log1p", "log2")
    ),
    *(case(f"_npi_{name}_scalar", ABOVE, gives=function(ABOVE), scalar=1.5) for name, function in NUMBER_FORMS.items()),
    case("_np_copy", A, gives=A),
    case("_npx_sigmoid", A, gives=1 / (1 + np.exp(-A))),
    case("_np_diagflat", A[:2, :2], gives=np.diagflat(A[:2, :2], 1), k=1),
]
ARITHMETIC = [
    case("_npi_arctan2", floats(50), floats(50, seed=1), gives=np.arctan2(floats(50), floats(50, seed=1))),
    case(
        "_npi_arctan2",
        np.float32([1, -1, 0, 0]),
        np.float32([0, 0, 0, -1]),
        gives=np.float32([1, -1, 0, 2]) * np.pi / 2,
    ),
    case("_npi_arctan2_scalar", A, gives=np.arctan2(A, 0.5), scalar=0.5),
    case("_npi_rarctan2_scalar", A, gives=np.arctan2(0.5, A), scalar=0.5),
    case("_npi_copysign", A, B, gives=np.copysign(A, B)),
    case("_npi_copysign_scalar", A, gives=-np.abs(A), scalar=-2.0),
    case("_npi_rcopysign_scalar", A, gives=np.copysign(2, A), scalar=2.0),
    case("_npi_ldexp", A, np.float32(3 * np.ones((3, 4))), gives=8 * A),
    case("_npi_ldexp_scalar", A, gives=4 * A, scalar=2.0),
    case("_npi_rldexp_scalar", A, gives=3 * 2.0**A, scalar=3.0),
    *(
        case(f"_npi_bitwise_{name}", INTEGERS, MASKS, gives=getattr(np, f"bitwise_{name}")(INTEGERS, MASKS))
        for name in ("and", "or", "xor")
    ),
    *(
        case(
            f"_npi_bitwise_{name}_scalar",
            INTEGERS,
            gives=getattr(np, f"bitwise_{name}")(INTEGERS, 3).astype(np.int32),
            scalar=3,
        )
        for name in ("and", "or", "xor")
    ),
    case("_npi_bitwise_not", INTEGERS, gives=~INTEGERS),
    case("_npi_around", np.float32([1.26, -1.24, 2.5, -2.5]), gives=np.float32([1.3, -1.2, 2.5, -2.5]), decimals=1),
    case("_npi_around", np.float32([1.26, -1.24, 2.5, -2.5, 0.5]), gives=np.float32([1, -1, 2, -2, 0])),
    case("_npi_nan_to_num", EDGES, gives=np.nan_to_num(EDGES)),
    case("_npi_nan_to_num", EDGES, gives=np.float32([2, 3, -4, 0, 1]), nan=2.0, posinf=3.0, neginf=-4.0),
    case("_npi_where_lscalar", FLAGS, A[:2, :3], gives=np.where(FLAGS, 2, A[:2, :3]), scalar=2.0),
    case("_npi_where_rscalar", FLAGS, A[:2, :3], gives=np.where(FLAGS, A[:2, :3], 2), scalar=2.0),
    case("_npi_where_scalar2", FLAGS, gives=np.where(FLAGS, 2.0, 3.0).astype(np.float32), x=2.0, y=3.0),
    case("_npi_polyval", np.float32([2, -1, 3]), A, gives=2 * A**2 - A + 3),
    case("_npi_add", A, B[:1], gives=A + B[:1]),
    case("_npi_subtract", A, B, gives=A - B),
    case("_npi_multiply", A, B, gives=A * B),
    case("_npi_true_divide", A, B, gives=A / B),
    case("_npi_power", positive(3, 4), B, gives=positive(3, 4) ** B),
    case("_npi_maximum", A, B, gives=np.maximum(A, B)),
    case("_npi_minimum", A, B, gives=np.minimum(A, B)),
    case("_npi_mod", A, B, gives=np.mod(A, B)),
    case("_npi_hypot", A, B, gives=np.hypot(A, B)),
    case("_npi_add_scalar", A, gives=A + 1.5, scalar=1.5),
    case("_npi_rsubtract_scalar", A, gives=1.5 - A, scalar=1.5),
    case("_npi_rtrue_divide_scalar", A, gives=1.5 / A, scalar=1.5),
    case("_npi_mod_scalar", A, gives=A % 0.7, scalar=0.7),
    case("_npi_clip", A, gives=np.clip(A, -0.5, 0.5), a_min=-0.5, a_max=0.5),
    case("_npi_clip", A, gives=np.maximum(A, -0.5), a_min=-0.5, a_max=None),
    case("_npi_rint", np.float32([0.5, 1.5, -0.5]), gives=np.float32([0, 1, -1])),
]
WHOLE, TRUE = np.int32([[1, -3], [5, 2]]), np.array([[True, False], [True, True]])
REALS = np.float32([[0.5, 2], [1, -1]])
MIXED_TYPES = [
    case("_npi_add", WHOLE, REALS, gives=np.float32(WHOLE + REALS)),
    case("_npi_multiply", REALS, TRUE, gives=REALS * TRUE),
    case("_npi_subtract", REALS.astype(np.float16), REALS, gives=REALS * 0),
    case("_npi_power", REALS, WHOLE, gives=np.float32(REALS**WHOLE)),
    case("_npi_mod", WHOLE, REALS, gives=np.float32(WHOLE % REALS)),
    case("_npi_true_divide", WHOLE, WHOLE + 4, gives=np.float32(WHOLE / (WHOLE + 4))),
    case("_npi_true_divide", WHOLE, REALS, gives=np.float32(WHOLE / REALS)),
    case("_npi_add_scalar", WHOLE, gives=WHOLE + 2, scalar=2.0, is_int=True),
    case("_npi_multiply_scalar", WHOLE, gives=WHOLE * 1.5, typed=True, scalar=1.5, is_int=False),
    case("_npi_multiply_scalar", TRUE, gives=TRUE * 2.5, typed=True, scalar=2.5, is_int=False),
    case("_npi_true_divide_scalar", WHOLE, gives=np.float32(WHOLE / 2), scalar=2.0),
    case("_npi_rtrue_divide_scalar", WHOLE, gives=np.float32(2 / WHOLE), scalar=2.0),
    case("_npi_mean", WHOLE, gives=np.float32(1.25)),
    case("_np_sum", TRUE, gives=np.array(3)),
    case("_npi_floor", WHOLE, gives=WHOLE),
    case("round", WHOLE, gives=WHOLE),
    case("_npi_around", WHOLE, gives=WHOLE),
]
STATISTICS = [
    case("_npi_var", X, gives=X.var(1), axis=1),
    case("_npi_var", X, gives=X.var(), tolerance=1e-4),
    case("_npi_std", X, gives=X.std((0, 2), ddof=1, keepdims=True), axis=(0, 2), ddof=1, keepdims=True),
    case("_npi_average", X, gives=X.mean(1), axis=1, weighted=False),
    case("_npi_average", X, positive(2, 3, 4), gives=np.average(X, 2, positive(2, 3, 4)), axis=2),
    case(
        "_npi_average", X, positive(3), gives=[np.average(X, 1, positive(3)), positive(3).sum()], axis=1, returned=True
    ),
    case("_npi_unique", np.float32([3, 1, 3, 2]), gives=np.float32([1, 2, 3])),
    case(
        "_npi_unique",
        np.float32([[3, 1], [3, 2]]),
        return_index=True,
        return_inverse=True,
        return_counts=True,
        gives=list(np.unique([3.0, 1, 3, 2], True, True, True)),
    ),
    case("_npi_diff", X, gives=np.diff(X, 2), n=2),
    case("_npi_diff", X, gives=np.diff(X, axis=0), axis=0),
    case("_npi_einsum", A, B, gives=np.einsum("ij,kj->ik", A, B), subscripts="ij,kj->ik", num_args=2),
    case("_npi_einsum", X, gives=np.einsum("ijk->ik", X), subscripts="ijk->ik", num_args=1),
    case(
        "_npi_tensordot", X, B, gives=np.tensordot(X, B, ((1, 2), (0, 1))), a_axes_summed=(1, 2), b_axes_summed=(0, 1)
    ),
    case("_npi_tensordot", X, B, gives=np.tensordot(X, B, ((1,), (0,))), a_axes_summed=(-2,), b_axes_summed=(0,)),
    case("_npi_tensordot_int_axes", X, floats(4, 5), gives=np.tensordot(X, floats(4, 5), 1), axes=1),
    case("_npi_tensordot_int_axes", A[0], B[0], gives=np.multiply.outer(A[0], B[0]), axes=0),
    case("_np_dot", A, B.T, gives=A @ B.T),
    case("_np_dot", A[0], B[0], gives=A[0] @ B[0]),
    case("_np_dot", X, B[0], gives=X @ B[0]),
    case("_np_dot", X, floats(3, 4, 2), gives=np.dot(X, floats(3, 4, 2))),
    case("_npi_matmul", X, floats(4, 5), gives=X @ floats(4, 5)),
    case("_npi_matmul", A[0], B[0], gives=A[0] @ B[0]),
    case("_np_atleast_1d", np.float32(3), A, gives=[np.float32([3]), A], num_args=2),
    case("_np_atleast_2d", A[0], A, gives=[A[:1], A], num_args=2),
    case("_np_atleast_3d", A[0], A, X, gives=[A[:1, :, None], A[..., None], X], num_args=3),
    case("_npx_nonzero", COARSE, gives=np.argwhere(COARSE)),
]
CREATION = [
    case("_npi_full_like", A, gives=np.full((3, 4), 2.5, np.float32), fill_value=2.5),
    case("_npi_full_like", A, gives=np.full((3, 4), 2, np.int64), fill_value=2, dtype="int64"),
    case("_npi_identity", gives=np.eye(3, dtype=np.float32), shape=(3, 3)),
    case("_npi_indices", gives=np.indices((2, 3)).astype(np.int32), dimensions=(2, 3)),
    case("_npi_logspace", gives=np.logspace(0, 2, 5).astype(np.float32), start=0.0, stop=2.0, num=5),
    *(
        case(f"_npi_{name}", gives=getattr(np, name)(5).astype(np.float32), M=5)
        for name in ("hanning", "hamming", "blackman")
    ),
    case("_npi_zeros", gives=np.zeros((2, 3), np.float32), shape=(2, 3)),
    case("_npi_ones", gives=np.ones((2, 3), np.int32), shape=(2, 3), dtype="int32"),
    case("_npi_full", gives=np.full((2, 3), 7, np.float32), shape=(2, 3), value=7.0, dtype="float32"),
    case("_npi_arange", gives=np.arange(2, 8, 1.5, dtype=np.float32), start=2.0, stop=8.0, step=1.5),
    case(
        "_npi_linspace",
        gives=np.linspace(0, 1, 4, endpoint=False, dtype=np.float32),
        start=0.0,
        stop=1.0,
        num=4,
        endpoint=False,
    ),
    case("_npi_eye", gives=np.eye(3, 4, 1, np.float32), N=3, M=4, k=1),
]
INVERSES = np.float32([-0.9, -0.3, 0.0, 1e-3, 0.5, 0.99, 0.999])
SPECIAL = [
    case("gammaln", POINTS, gives=[np.vectorize(math.lgamma)(POINTS.astype(float))], tolerance=1e-6),
    case("gamma", POINTS, gives=np.vectorize(math.gamma)(POINTS.astype(float)), tolerance=1e-6),
    case("gammaln", POINTS.astype(np.float64), gives=np.vectorize(math.lgamma)(POINTS.astype(np.float64)),
         tolerance=1e-11),
    case("_npx_gamma", np.float32([5, 0.5]), gives=np.float64([24, math.sqrt(math.pi)])),
    case("erfinv", np.vectorize(math.erf)(POINTS[6:].clip(-3, 3)).astype(np.float32), gives=POINTS[6:].clip(-3, 3),
         tolerance=2e-3),
    case("erfinv", np.vectorize(math.erf)(INVERSES.astype(float)).astype(np.float32), gives=INVERSES, tolerance=1e-6),
    case("_npx_erfinv", np.float32([1, -1, 2]), gives=np.float32([np.inf, -np.inf, np.nan])),
]  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("cases", [BOOLS, ELEMENTS, ARITHMETIC, MIXED_TYPES, STATISTICS, CREATION, SPECIAL])
def test_values(cases, tmp_path):
    check(cases, tmp_path)
