"""Random numbers. Their distributions are those of MXNet; the numbers themselves are not.

Distributions are transformed from uniform and normal numbers: an exponential one is -log(1 - u), for example.
rejection.py has the gamma and Poisson distributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.call import Call, converter, rank_of, require_elements, reshape, scalar, sizes_of
from graphkit.mxnet_io.operators import rejection
from graphkit.mxnet_io.operators.rejection import Source
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, constant
from graphkit.ops.axes import i64

# The smallest uniform number that is not 0 in float32, to keep logarithms finite.
_LEAST = 2.0**-24
# By so much, a sum of probabilities may exceed 1.
_ROUNDING = 1e-6

_Parameters = Sequence[Value]
_Draw = Callable[[str, DType], Value]


def _of_shape(shape: Sequence[int]) -> _Draw:
    return lambda function, dtype: getattr(F, function)(shape=tuple(shape), dtype=dtype)


def _like(x: Value) -> _Draw:
    return lambda function, dtype: getattr(F, f"{function}_like")(x, dtype=dtype)


# --- distributions: of a source and the parameters ---------------------------------------------------------


def _uniform(source: Source, p: _Parameters) -> Value:
    low, high = p
    result: Value = F.add(low, F.mul(F.sub(high, low), source.uniform()))
    return result


def _normal(source: Source, p: _Parameters) -> Value:
    mean, deviation = p
    result: Value = F.add(mean, F.mul(deviation, source.normal()))
    return result


def _waiting(source: Source) -> Value:
    """Exponential numbers of mean 1."""
    u = source.uniform()
    result: Value = F.neg(F.log(F.sub(scalar(1.0, u), u)))
    return result


def _exponential_of_rate(source: Source, p: _Parameters) -> Value:
    result: Value = F.div(_waiting(source), p[0])
    return result


def _exponential_of_scale(source: Source, p: _Parameters) -> Value:
    result: Value = F.mul(_waiting(source), p[0])
    return result


def _gumbel(source: Source, p: _Parameters) -> Value:
    location, scale = p
    waiting = _waiting(source)
    result: Value = F.sub(location, F.mul(scale, F.log(F.max(waiting, scalar(_LEAST, waiting)))))
    return result


def _logistic(source: Source, p: _Parameters) -> Value:
    location, scale = p
    u = source.uniform()
    u = F.max(u, scalar(_LEAST, u))
    result: Value = F.add(location, F.mul(scale, F.sub(F.log(u), F.log(F.sub(scalar(1.0, u), u)))))
    return result


def _rayleigh(source: Source, p: _Parameters) -> Value:
    waiting = _waiting(source)
    result: Value = F.mul(p[0], F.sqrt(F.mul(waiting, scalar(2.0, waiting))))
    return result


def _weibull(source: Source, p: _Parameters) -> Value:
    result: Value = F.pow(_waiting(source), F.reciprocal(p[0]))
    return result


def _pareto(source: Source, p: _Parameters) -> Value:
    grown = F.exp(F.div(_waiting(source), p[0]))
    result: Value = F.sub(grown, scalar(1.0, grown))
    return result


def _power(source: Source, p: _Parameters) -> Value:
    result: Value = F.pow(source.uniform(), F.reciprocal(p[0]))
    return result


_Distribution = Callable[[Source, _Parameters], Value]


class _Parameter(NamedTuple):
    """The default of a parameter and its range.

    Attributes:
        default: The number that holds if the attribute is absent.
        least: The smallest number.
        open: Whether `least` itself is excluded.
    """

    default: float
    least: float = -math.inf
    open: bool = False


_Defaults = dict[str, _Parameter]
_ANY0, _ANY1 = _Parameter(0.0), _Parameter(1.0)
_POSITIVE, _NOT_NEGATIVE = _Parameter(1.0, 0.0, True), _Parameter(1.0, 0.0)
# MXNet's name -> the distribution, and its parameters by name. The ranges are those that MXNet checks.
_OF_MXNET: dict[str, tuple[_Distribution, _Defaults]] = {
    "uniform": (_uniform, {"low": _ANY0, "high": _ANY1}),
    "normal": (_normal, {"loc": _ANY0, "scale": _POSITIVE}),
    "exponential": (_exponential_of_rate, {"lam": _POSITIVE}),
    "gamma": (rejection.gamma, {"alpha": _POSITIVE, "beta": _POSITIVE}),
    "poisson": (rejection.poisson, {"lam": _NOT_NEGATIVE}),
    "negative_binomial": (rejection.negative_binomial, {"k": _NOT_NEGATIVE, "p": _POSITIVE}),
    "generalized_negative_binomial": (
        rejection.generalized_negative_binomial, {"mu": _NOT_NEGATIVE, "alpha": _NOT_NEGATIVE},
    ),
}  # fmt: skip
_OF_NUMPY: dict[str, tuple[_Distribution, _Defaults]] = {
    "uniform": (_uniform, {"low": _ANY0, "high": _ANY1}), "normal": (_normal, {"loc": _ANY0, "scale": _NOT_NEGATIVE}),
    "exponential": (_exponential_of_scale, {"scale": _NOT_NEGATIVE}),
    "gumbel": (_gumbel, {"loc": _ANY0, "scale": _NOT_NEGATIVE}),
    "logistic": (_logistic, {"loc": _ANY0, "scale": _NOT_NEGATIVE}), "rayleigh": (_rayleigh, {"scale": _NOT_NEGATIVE}),
    "weibull": (_weibull, {"a": _POSITIVE}), "pareto": (_pareto, {"a": _POSITIVE}),
    "powerd": (_power, {"a": _POSITIVE}),
    "gamma": (rejection.gamma, {"shape": _POSITIVE, "scale": _POSITIVE}),
}  # fmt: skip


# --- forms of the operators -------------------------------------------------------------------------------


def _shape(call: Call, name: str = "shape") -> tuple[int, ...]:
    shape = call.attributes.integers(name)
    if any(size < 1 for size in shape):
        raise UnsupportedError(f"{name} {shape}: sizes that are inferred from readers")
    return shape


def _number(call: Call, name: str, parameter: _Parameter) -> float:
    """Return an attribute. Raises InvalidModel if it is out of the range of the parameter."""
    found = call.attributes.number(name, parameter.default)
    if found < parameter.least or (parameter.open and found == parameter.least):
        raise InvalidModel(
            f"{name} is {found:g}; it must be {'greater than' if parameter.open else 'at least'} {parameter.least:g}"
        )
    return found


def _numbers(call: Call, defaults: _Defaults) -> list[float]:
    found = [_number(call, name, parameter) for name, parameter in defaults.items()]
    if "low" in defaults and found[0] > found[1]:
        raise InvalidModel(f"low is {found[0]:g} and high {found[1]:g}; low must not be greater than high")
    if "p" in defaults and found[1] > 1:
        raise InvalidModel(f"p is {found[1]:g}; a probability must not be greater than 1")
    return found


def _rounded(distribution: _Distribution, draw: _Draw, parameters: Sequence[float | Value], dtype: DType) -> Value:
    """Draw in float32, or in float64 if that is the type of the result. Round the numbers once."""
    if not dtype.is_float:
        raise InvalidModel(f"dtype is {dtype}; random numbers of this distribution have a floating point type")
    wide = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    values = [F.cast(p, to=wide) if isinstance(p, Value) else _constant(p, wide) for p in parameters]
    result: Value = F.cast(distribution(Source(draw, wide), values), to=dtype)
    return result


def _of_numbers(distribution: _Distribution, defaults: _Defaults, call: Call) -> Value:
    """The parameters are numbers. Without a shape, the result has the shape [1]."""
    attributes = call.attributes
    attributes.ignore("ctx")
    dtype = attributes.dtype("dtype", "float32")
    return _rounded(distribution, _of_shape(_shape(call) or (1,)), _numbers(call, defaults), dtype)


def _constant(number: float, dtype: DType) -> Value:
    return constant(np.asarray(number, dtype.numpy))


def _like_operand(distribution: _Distribution, defaults: _Defaults, call: Call) -> Value:
    """The parameters are numbers; the result has the operand's shape and element type."""
    x = call.x
    return _rounded(distribution, _like(x), _numbers(call, defaults), x.dtype)


def _of_tensors(distribution: _Distribution, call: Call) -> Value:
    """For each element of the parameters, a block of numbers: the result is [*parameter, *shape]."""
    shape = _shape(call)
    dtype = call.attributes.dtype("dtype", "float32")
    spread = []
    for operand in call.operands():
        rank = rank_of(operand)
        wide = F.unsqueeze(operand, i64(*range(rank, rank + len(shape)))) if shape else operand
        sizes = F.concat(F.shape(operand), i64(*shape), axis=0)
        spread.append(F.expand(wide, sizes) if shape else wide)
    return _rounded(distribution, _like(spread[0]), spread, dtype)


def _of_numpy(distribution: _Distribution, defaults: _Defaults, call: Call) -> Value:
    """A parameter is an attribute, or an operand if the attribute is None. `size` is the shape of the result.

    In the operators that end with _n, the shape of the operands follows `size`.
    """
    attributes = call.attributes
    attributes.ignore("ctx")
    dtype = attributes.dtype("dtype", "float32")
    operands = iter(call.operands())
    parameters = [
        _number(call, name, parameter) if name in attributes else next(operands) for name, parameter in defaults.items()
    ]
    tensors = [p for p in parameters if isinstance(p, Value)]
    size = _shape(call, "size")
    if not tensors:
        return _rounded(distribution, _of_shape(size), parameters, dtype)
    shape = tensors[0] if len(tensors) == 1 else F.add(*(F.cast(p, to=DType.FLOAT64) for p in tensors))
    if size:
        sizes = F.concat(i64(*size), F.shape(shape), axis=0) if call.op.endswith("_n") else i64(*size)
        shape = F.expand(shape, sizes)
    return _rounded(distribution, _like(shape), parameters, dtype)


for _name, (_draw, _defaults) in _OF_MXNET.items():
    _short = (_name,) if _name in ("uniform", "normal") else ()
    converter(f"_random_{_name}", f"random_{_name}", *_short)(partial(_of_numbers, _draw, _defaults))
    converter(f"_random_{_name}_like")(partial(_like_operand, _draw, _defaults))
    converter(f"_sample_{_name}", f"sample_{_name}")(partial(_of_tensors, _draw))
for _name, (_draw, _defaults) in _OF_NUMPY.items():
    converter(f"_npi_{_name}")(partial(_of_numpy, _draw, _defaults))
for _name in ("uniform", "normal"):
    converter(f"_npi_{_name}_n")(partial(_of_numpy, *_OF_NUMPY[_name]))


@converter("_random_randint", "random_randint", "_npi_random_randint")
def random_integers(call: Call) -> Value:
    """Integers from low to high - 1. They are drawn in float64, so ranges beyond 2^53 are refused."""
    attributes = call.attributes
    attributes.ignore("ctx")
    low, high = attributes.integer("low", 0), attributes.integer("high", 1)
    if not low < high or max(abs(low), abs(high)) > 2**53:
        raise UnsupportedError(f"low {low}, high {high}")
    shape = _shape(call) or (1,)
    u = F.random_uniform(shape=shape, dtype=DType.FLOAT64)
    drawn = F.add(F.floor(F.mul(u, scalar(float(high - low), u))), scalar(float(low), u))
    result: Value = F.cast(drawn, to=attributes.dtype("dtype", "int32"))
    return result


@converter("_npi_bernoulli")
def bernoulli(call: Call) -> Value:
    """1 with a probability, or with the probability sigmoid(logit)."""
    attributes = call.attributes
    attributes.ignore("ctx")
    logits = attributes.flag("is_logit", False)
    name, other = ("logit", "prob") if logits else ("prob", "logit")
    attributes.ignore(other)
    size = _shape(call, "size")
    given = name in attributes
    chance = _constant(attributes.number(name, 0.0), DType.FLOAT32) if given else call.x
    chance = F.sigmoid(chance) if logits else chance
    chance = F.expand(chance, i64(*size)) if size else chance
    drawn = F.less(F.random_uniform_like(chance), chance)
    result: Value = F.cast(drawn, to=attributes.dtype("dtype", "float32"))
    return result


@converter("_sample_multinomial", "sample_multinomial")
def multinomial(call: Call) -> Value | list[Value]:
    """Classes drawn with the probabilities of a vector, or of each row; with get_prob, also their log-probabilities."""
    attributes = call.attributes
    dtype, shape = attributes.dtype("dtype", "int32"), _shape(call)
    x = call.x
    if rank_of(x) > 2:
        raise UnsupportedError(f"probabilities of rank {x.rank}")
    rows = F.unsqueeze(x, i64(0)) if x.rank == 1 else x
    logits = F.log(rows)
    drawn = F.multinomial(logits, sample_size=math.prod(shape), dtype=DType.INT64)
    sizes = F.concat(*([sizes_of(x, 0)] if x.rank == 2 else []), i64(*shape), axis=0)
    classes = F.cast(F.reshape(drawn, sizes), to=dtype)
    if not attributes.flag("get_prob", False):
        result: Value = classes
        return result
    return [classes, F.reshape(F.gather_elements(logits, drawn, axis=1), sizes)]


@converter("_npi_choice")
def choice(call: Call) -> Value:
    """Positions of an axis drawn at random, with probabilities if `weighted`, with or without replacement (int64)."""
    attributes = call.attributes
    attributes.ignore("ctx")
    number, size = attributes.optional_integer("a"), _shape(call, "size")
    weighted, replace = attributes.flag("weighted", False), attributes.flag("replace", True)
    draws = math.prod(size)
    if number is not None and (number < 1 or (draws > number and not replace)):
        raise InvalidModel(f"{draws} draws from {number} numbers, replace {replace}")
    require_elements(max(draws, number or 1))
    if weighted:
        logits = F.log(call[len(call) - 1])
    else:
        count = sizes_of(call.x, 0) if number is None else i64(number)
        logits = F.constant_of_shape(count, value=np.zeros(1, np.float32))
    if replace:
        found = F.multinomial(F.unsqueeze(logits, i64(0)), sample_size=draws, dtype=DType.INT64)
    else:
        # The largest of logits with Gumbel noise are a draw without replacement.
        noise = F.neg(F.log(F.neg(F.log(F.random_uniform_like(logits)))))
        found = F.top_k(F.add(logits, noise), i64(draws), axis=0)[1]
    return reshape(found, size)


@converter("_npi_multinomial")
def multinomial_counts(call: Call) -> Value:
    """How often each class is drawn in n draws: int64 [*size, classes].

    The last class has the rest of the probability, as in numpy.
    """
    attributes = call.attributes
    n, size = attributes.integer("n", 0), _shape(call, "size")
    given = attributes.numbers("pvals")
    if n < 0 or any(not 0 <= p <= 1 for p in given) or sum(given) > 1 + _ROUNDING:
        raise InvalidModel(f"n {n} and pvals {given}: probabilities of at least 0 with a sum of at most 1 are expected")
    require_elements(n, *size, max(len(given), 1))
    chances = F.cast(constant(np.asarray(given)) if given else call.x, to=DType.FLOAT64)
    rest = F.sub(np.float64(1), F.reduce_sum(chances[:-1], i64(0), keepdims=True))
    chances = F.cast(F.concat(chances[:-1], F.max(rest, np.float64(0)), axis=0), to=DType.FLOAT32)
    draws = F.multinomial(F.log(F.unsqueeze(chances, i64(0))), sample_size=n * math.prod(size), dtype=DType.INT64)
    classes = F.range(np.int64(0), F.squeeze(sizes_of(chances, 0), i64(0)), np.int64(1))
    hits = F.cast(F.equal(F.unsqueeze(reshape(draws, [*size, n]), i64(-1)), classes), to=np.int64)
    result: Value = F.reduce_sum(hits, i64(-2), keepdims=False)
    return result


@converter("_shuffle", "shuffle", "_npi_shuffle")
def shuffle(call: Call) -> Value:
    """The slices along axis 0 in random order."""
    x = call.x
    count = sizes_of(x, 0)
    keys = F.random_uniform_like(F.constant_of_shape(count, value=np.zeros(1, np.float32)))
    order = F.top_k(keys, count, axis=0)[1]
    result: Value = F.gather(x, order, axis=0, name=call.name)
    return result
