"""Operators of one and two operands, their forms with a number, comparisons, and activations."""

import math

import numpy as np
import pytest
from combinations import in_one_item

from tests.mxnet_io.operator_cases import case, floats, positive
from tests.mxnet_io.operator_checks import check

X = floats(2, 3)
Y = floats(2, 3, seed=1)
INSIDE = np.tanh(X)  # between -1 and 1
ABOVE = positive(2, 3) + np.float32(0.6)  # above 1
HALVES = np.array([-2.5, -1.5, -0.5, -0.2, 0.0, 0.2, 0.5, 1.5, 2.5], np.float32)
EDGES = np.array([np.nan, np.inf, -np.inf, 0.0, 1.0], np.float32)
erf = np.vectorize(math.erf, otypes=[np.float64])


def softplus(x):
    return np.log1p(np.exp(x.astype(np.float64)))


def mish(x):
    return x * np.tanh(softplus(x))


ONE_OPERAND = [
    *(
        case(op, X, gives=function(X.astype(np.float64)))
        for op, function in {
            "abs": np.abs,
            "arcsinh": np.arcsinh,
            "arctan": np.arctan,
            "cos": np.cos,
            "cosh": np.cosh,
            "erf": erf,
            "exp": np.exp,
            "negative": np.negative,
            "reciprocal": np.reciprocal,
            "sin": np.sin,
            "sinh": np.sinh,
            "tan": np.tan,
            "tanh": np.tanh,
            "square": np.square,
            "cbrt": np.cbrt,
            "rcbrt": lambda x: 1 / np.cbrt(x),
            "expm1": np.expm1,
            "degrees": np.degrees,
            "radians": np.radians,
            "sign": np.sign,
            "ceil": np.ceil,
            "floor": np.floor,
            "_copy": lambda x: x,
            "identity": lambda x: x,
            "BlockGrad": lambda x: x,
            "stop_gradient": lambda x: x,
            "make_loss": lambda x: x,
            "relu": lambda x: np.maximum(x, 0),
            "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
            "softsign": lambda x: x / (1 + np.abs(x)),
            "zeros_like": np.zeros_like,
            "ones_like": np.ones_like,
            "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
            "log_sigmoid": lambda x: -softplus(-x),
            "mish": mish,
            "_contrib_div_sqrt_dim": lambda x: x / np.sqrt(3.0),
            "logical_not": lambda x: 1.0 * (x == 0),
            "_npi_exp": np.exp,
            "_npi_absolute": np.abs,
            "_npx_relu": lambda x: np.maximum(x, 0),
            "_npi_square": np.square,
            "_npi_tanh": np.tanh,
        }.items()
    ),
    *(
        case(op, INSIDE, gives=function(INSIDE.astype(np.float64)))
        for op, function in {"arccos": np.arccos, "arcsin": np.arcsin, "arctanh": np.arctanh}.items()
    ),
    *(
        case(op, ABOVE, gives=function(ABOVE.astype(np.float64)))
        for op, function in {
            "arccosh": np.arccosh,
            "log": np.log,
            "log2": np.log2,
            "log10": np.log10,
            "log1p": np.log1p,
            "sqrt": np.sqrt,
            "rsqrt": lambda x: 1 / np.sqrt(x),
            "_npi_log": np.log,
            "_npi_sqrt": np.sqrt,
        }.items()
    ),
    # Halves: round goes away from zero; rint, up to MXNet 1.9, downwards.
    case("round", HALVES, gives=np.sign(HALVES) * np.floor(np.abs(HALVES) + 0.5)),
    case("rint", HALVES, gives=np.ceil(HALVES - 0.5)),
    case("fix", HALVES, gives=np.trunc(HALVES)),
    case("trunc", HALVES, gives=np.trunc(HALVES)),
    # Small numbers, where log(1 + x) and exp(x) - 1 in float32 lose all digits.
    case("log1p", np.float32([1e-7, -3e-6, 0.5]), gives=np.log1p(np.float64(np.float32([1e-7, -3e-6, 0.5])))),
    case("hard_sigmoid", X, gives=np.clip(0.3 * X + 0.4, 0, 1), alpha=0.3, beta=0.4),
    case("clip", X, gives=np.clip(X, -0.5, 0.25), a_min=-0.5, a_max=0.25),
    case("smooth_l1", X, gives=np.where(np.abs(X) < 0.25, 2 * X**2, np.abs(X) - 0.125), scalar=2.0),
    case("smooth_l1", X, gives=np.where(np.abs(X) < 1, X**2 / 2, np.abs(X) - 0.5)),
    case("_contrib_round_ste", HALVES, gives=np.sign(HALVES) * np.floor(np.abs(HALVES) + 0.5)),
    case("_contrib_sign_ste", HALVES, gives=np.sign(HALVES)),
    case("cast_storage", X, gives=X, stype="default"),
    case("_scatter_plus_scalar", X, gives=X + 2, scalar=2.0),
    case("_identity_with_attr_like_rhs", X, Y, gives=X, labels=[1]),
    case("_contrib_quadratic", X, gives=2 * X**2 - X + 3, a=2.0, b=-1.0, c=3.0),
    case("_contrib_gradientmultiplier", X, gives=X, scalar=0.5),
]
TYPES = [
    case("Cast", X, gives=X.astype(np.float16), dtype="float16"),
    case("cast", 3 * X, gives=np.trunc(3 * X).astype(np.int32), dtype="int32"),
    case("Cast", X, gives=X.astype(np.float64), dtype="float64"),
    case("amp_cast", X, gives=X.astype(np.float16), dtype="float16"),
    case(
        "amp_multicast",
        X.astype(np.float16),
        Y,
        gives=[X.astype(np.float16).astype(np.float32), Y],
        num_outputs=2,
        tolerance=1e-3,
    ),
    case("exp", floats(4, dtype=np.float16), gives=np.exp(floats(4, dtype=np.float16).astype(np.float64))),
    case("exp", floats(4, dtype=np.float64), gives=np.exp(floats(4, dtype=np.float64))),
    case("sigmoid", floats(4, dtype=np.float64), gives=1 / (1 + np.exp(-floats(4, dtype=np.float64)))),
    case("_plus_scalar", np.array([1, 2], np.int32), gives=np.array([4, 5], np.int32), scalar=3),
    case("broadcast_add", floats(4, dtype=np.float64), np.ones(1), gives=floats(4, dtype=np.float64) + 1),
    case("elemwise_mul", np.array([2, 3], np.int64), np.array([4, 5], np.int64), gives=np.array([8, 15], np.int64)),
]

NAMES = {
    "plus": ["elemwise_add", "_plus", "_Plus", "_add", "_grad_add", "broadcast_add", "broadcast_plus"],
    "minus": ["elemwise_sub", "_minus", "_Minus", "_sub", "broadcast_sub", "broadcast_minus"],
    "mul": ["elemwise_mul", "_mul", "_Mul", "broadcast_mul"], "div": ["elemwise_div", "_div", "_Div", "broadcast_div"],
    "maximum": ["_maximum", "_Maximum", "broadcast_maximum"], "minimum": ["_minimum", "_Minimum", "broadcast_minimum"],
    "hypot": ["_hypot", "broadcast_hypot"],
}  # fmt: skip
ARITHMETIC = {
    "plus": np.add, "minus": np.subtract, "mul": np.multiply, "div": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "hypot": np.hypot,
}  # fmt: skip
COMPARISONS = {
    "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater, "greater_equal": np.greater_equal,
    "lesser": np.less, "lesser_equal": np.less_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}  # fmt: skip
COARSE, OTHER = np.float32([[-1, 0, 1], [2, 0, 0]]), np.float32([[-1, 1, 1], [0, 0, 2]])
SIGNED, DIVISORS = np.float32([5.5, -5.5, 5.5, -5.5, 3, 0]), np.float32([3, 3, -3, -3, 0, 2])
TWO_OPERANDS = [
    *(case(name, X, Y, gives=ARITHMETIC[kind](X, Y)) for kind, names in NAMES.items() for name in names),
    *(
        case(f"broadcast_{n}", X, Y[:1], gives=ARITHMETIC[k](X, Y[:1]))
        for k, n in {"plus": "add", "hypot": "hypot"}.items()
    ),
    *(case(name, ABOVE, Y, gives=np.power(ABOVE, Y)) for name in ("_power", "_Power", "broadcast_power")),
    *(
        case(f"{prefix}_{name}", COARSE, OTHER, gives=1.0 * function(COARSE, OTHER))
        for name, function in COMPARISONS.items()
        for prefix in ("broadcast", "")
    ),
    # Comparisons keep the element type of their operands.
    case("broadcast_greater", np.int32([1, 2]), np.int32([2, 1]), gives=np.int32([0, 1])),
    case("_equal", COARSE.astype(np.float16), OTHER.astype(np.float16), gives=(COARSE == OTHER).astype(np.float16)),
    # The sign of the divisor; 0 for a divisor 0.
    case("broadcast_mod", SIGNED, DIVISORS, gives=np.float32([2.5, 0.5, -0.5, -2.5, 0, 0])),
    case("_mod", SIGNED, DIVISORS, gives=np.float32([2.5, 0.5, -0.5, -2.5, 0, 0])),
    case("broadcast_mod", np.int32([5, -5, 5]), np.int32([3, 3, -3]), gives=np.int32([2, 1, -1])),
    *(
        case(name, X, Y, floats(2, 3, seed=2), gives=X + Y + floats(2, 3, seed=2), num_args=3)
        for name in ("add_n", "ElementWiseSum", "_ElementWiseSum")
        if name != "_ElementWiseSum"
    ),
]

SCALAR_FORMS = {
    "_plus_scalar": lambda x: x + 1.5, "_PlusScalar": lambda x: x + 1.5, "_minus_scalar": lambda x: x - 1.5,
    "_MinusScalar": lambda x: x - 1.5, "_rminus_scalar": lambda x: 1.5 - x, "_RMinusScalar": lambda x: 1.5 - x,
    "_mul_scalar": lambda x: x * 1.5, "_MulScalar": lambda x: x * 1.5, "_div_scalar": lambda x: x / 1.5,
    "_DivScalar": lambda x: x / 1.5, "_rdiv_scalar": lambda x: 1.5 / x, "_RDivScalar": lambda x: 1.5 / x,
    "_maximum_scalar": lambda x: np.maximum(x, 1.5), "_MaximumScalar": lambda x: np.maximum(x, 1.5),
    "_minimum_scalar": lambda x: np.minimum(x, 1.5), "_MinimumScalar": lambda x: np.minimum(x, 1.5),
    "_power_scalar": lambda x: x**1.5, "_PowerScalar": lambda x: x**1.5, "_rpower_scalar": lambda x: 1.5**x,
    "_RPowerScalar": lambda x: 1.5**x, "_hypot_scalar": lambda x: np.hypot(x, 1.5), "_mod_scalar": lambda x: x % 1.5,
    "_rmod_scalar": lambda x: 1.5 % x,
}  # fmt: skip
WITH_A_NUMBER = [
    *(case(name, ABOVE, gives=function(ABOVE), scalar=1.5) for name, function in SCALAR_FORMS.items()),
    *(case(f"_{name}_scalar", COARSE, gives=1.0 * f(COARSE, 1.0), scalar=1.0) for name, f in COMPARISONS.items()),
    case("_mod_scalar", SIGNED, gives=SIGNED % -3, scalar=-3.0),
    case("_plus_scalar", ABOVE.astype(np.float64), gives=ABOVE.astype(np.float64) + 0.1, scalar=0.1, is_int=False),
    case("_lesser_scalar", np.int32([1, 3]), gives=np.int32([1, 0]), scalar=2),
]

SLOPES = np.float32([0.1, 0.2, 0.3])
IMAGE = floats(2, 3, 2, 2)
ACTIVATIONS = [
    *(
        case("Activation", X, gives=function(X.astype(np.float64)), act_type=kind)
        for kind, function in {
            "relu": lambda x: np.maximum(x, 0),
            "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
            "tanh": np.tanh,
            "softrelu": softplus,
            "softsign": lambda x: x / (1 + np.abs(x)),
            "mish": mish,
            "log_sigmoid": lambda x: -softplus(-x),
        }.items()
    ),
    case("LeakyReLU", X, gives=np.where(X > 0, X, 0.25 * X)),
    case("LeakyReLU", X, gives=np.where(X > 0, X, 0.01 * X), act_type="leaky", slope=0.01),
    case("LeakyReLU", X, gives=np.where(X > 0, X, 0.5 * np.expm1(X)), act_type="elu", slope=0.5),
    case(
        "LeakyReLU", X, act_type="selu", gives=1.0507009873554805 * np.where(X > 0, X, 1.6732632423543772 * np.expm1(X))
    ),
    case("LeakyReLU", X, gives=X / 2 * (1 + erf(X / np.sqrt(2.0))), act_type="gelu"),
    case("LeakyReLU", X, gives=np.where(X > 0, X, 0.3 * X), act_type="rrelu", lower_bound=0.2, upper_bound=0.4),
    case("LeakyReLU", X, SLOPES, gives=np.where(X > 0, X, SLOPES * X), act_type="prelu", weights=[1]),
    case("LeakyReLU", X, SLOPES[:1], gives=np.where(X > 0, X, 0.1 * X), act_type="prelu", weights=[1]),
    case("LeakyReLU", IMAGE, SLOPES, gives=np.where(IMAGE > 0, IMAGE, SLOPES[:, None, None] * IMAGE), act_type="prelu"),
    case("Dropout", X, gives=X, p=0.5),
]

WHERE = [
    case("where", COARSE, X, Y, gives=np.where(COARSE != 0, X, Y)),
    case("where", np.float32([0, 2]), X, Y, gives=np.stack([Y[0], X[1]])),
    case("where", np.int32([[1, 0, 1], [0, 0, 1]]), X, Y, gives=np.where([[1, 0, 1], [0, 0, 1]], X, Y)),
    case("_npi_where", np.array([[True], [False]]), X, Y, gives=np.stack([X[0], Y[1]])),
]


@in_one_item()
@pytest.mark.parametrize("cases", [ONE_OPERAND, TYPES, TWO_OPERANDS, WITH_A_NUMBER, ACTIVATIONS + WHERE])
def test_values(cases, tmp_path):
    check(cases, tmp_path)
