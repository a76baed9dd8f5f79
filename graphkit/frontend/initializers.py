"""gk.init: initialisers, which compute the first value of a parameter. Each can be stored as a JSON object.

The array of a parameter depends only on (seed, parameter name, initialiser, shape, dtype), never on the order in which
parameters are made. The random bits come from Philox4x64-10, whose stream numpy guarantees, keyed by SHA-256(seed,
name). Uniform numbers are the upper 53 bits, normal numbers are Box-Muller in float64.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np

from graphkit.errors import UsageError, did_you_mean
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType
from graphkit.signatures import typed_constructor

# Changes float64 values in place.
Adjust: TypeAlias = Callable[[np.ndarray], None]

# Numbers that are computed at once, so that intermediate results stay in the cache of the processor.
_BLOCK = 1 << 14


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK))


class Stream:
    """Source of random numbers for one parameter, from the seed and the name of the parameter."""

    def __init__(self, seed: int, name: str, dtype: Any = np.float64):
        """dtype: what `rounded_uniform` and `rounded_normal` round to."""
        self._dtype = np.dtype(dtype)
        digest = hashlib.sha256(f"{int(seed)}\0{name}".encode()).digest()
        self._key = int.from_bytes(digest[:16], "little")
        self._position = 0

    def _take(self, count: int) -> Iterator[np.ndarray]:
        """Yield the next `count` values of the uniform distribution in [0, 1), block by block in one float64 array."""
        bits = np.random.Philox(key=self._key)
        bits.advance(self._position // 4)  # a step of its counter is four numbers
        bits.random_raw(self._position % 4)
        self._position += count
        found = np.empty(min(count, _BLOCK))
        for block in _blocks(count):
            size = block.stop - block.start
            raw = bits.random_raw(size)
            raw >>= np.uint64(11)
            yield np.multiply(raw, 2.0**-53, out=found[:size])

    def uniform(self, count: int) -> np.ndarray:
        """float64 values in [0, 1)."""
        return self._uniform(count, np.dtype(np.float64), lambda values: None)

    def normal(self, count: int) -> np.ndarray:
        """float64 values of the standard normal distribution."""
        return self._normal(count, np.dtype(np.float64), lambda values: None)

    def rounded_uniform(self, count: int, adjust: Adjust) -> np.ndarray:
        """Values in [0, 1) that `adjust` changes block by block in float64, then rounded to `dtype`."""
        return self._uniform(count, self._dtype, adjust)

    def rounded_normal(self, count: int, adjust: Adjust) -> np.ndarray:
        """Standard normal values that `adjust` changes block by block in float64, then rounded to `dtype`."""
        return self._normal(count, self._dtype, adjust)

    def _uniform(self, count: int, dtype: np.dtype, adjust: Adjust) -> np.ndarray:
        found = np.empty(count, dtype)
        for block, values in zip(_blocks(count), self._take(count), strict=True):
            adjust(values)
            found[block] = values
        return found

    def _normal(self, count: int, dtype: np.dtype, adjust: Adjust) -> np.ndarray:
        found = np.empty(count, dtype)
        half = (count + 1) // 2
        first, second = found[:half], found[half:]
        for block, radius, angle in zip(_blocks(half), self._take(half), self._take(half), strict=True):
            np.negative(radius, out=radius)
            np.log1p(radius, out=radius)
            radius *= -2.0
            np.sqrt(radius, out=radius)
            angle *= 2.0 * math.pi
            for place, function in ((first[block], np.cos), (second[block], np.sin)):
                values = function(angle)
                values *= radius
                adjust(values)
                place[...] = values[: place.size]
        return found

    def truncated_normal(self, count: int, low: float, high: float) -> np.ndarray:
        """float64 values of the standard normal distribution, redrawn until they lie in [low, high]."""
        values = self.normal(count)
        outside = np.flatnonzero((values < low) | (values > high))
        while outside.size:
            values[outside] = self.normal(outside.size)
            outside = outside[(values[outside] < low) | (values[outside] > high)]
        return values


_registry: dict[str, type[Initializer]] = {}


@dataclasses.dataclass(frozen=True)
class Initializer:
    """Base class of initialisers. A subclass is a frozen dataclass that sets `type` and implements `sample`.

    `type` is the name by which `gk.init.of` finds the class. The fields of the dataclass are its options.
    """

    type: ClassVar[str] = ""
    # Whether the values are meaningful for integer and boolean parameters.
    any_dtype: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if cls.type:
            _registry[cls.type] = cls

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        """Return the values of a parameter of this shape, with this shape or as a vector.

        They are float64, or rounded as `stream` rounds. stream: source of random numbers, which depends on the seed and
        on the name of the parameter.
        """
        raise NotImplementedError(f"{type(self).__name__}.sample")

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON with the type and every option: `{"type": "he_normal", ...}`."""
        return {"type": self.type, **dataclasses.asdict(self)}


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (fan in, fan out) of a weight with the shape [out, in, *kernel], as in PyTorch and ONNX.

    Raises UsageError if the weight has fewer than 2 axes.
    """
    if len(shape) < 2:
        raise UsageError(
            f"this initialiser needs a weight with at least 2 axes (fan in and fan out), not shape {list(shape)}"
        )
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


# --- fixed values ---------------------------------------------------------------------------------


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class Zeros(Initializer):
    """Every element is 0."""

    type = "zeros"
    any_dtype = True

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape)


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class Ones(Initializer):
    """Every element is 1."""

    type = "ones"
    any_dtype = True

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        return np.ones(shape)


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class Constant(Initializer):
    """Every element is `value`."""

    value: float = 0.0
    type = "constant"
    any_dtype = True

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, self.value)


# --- fixed distributions --------------------------------------------------------------------------


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class Uniform(Initializer):
    """Uniform in [low, high)."""

    low: float = -0.07
    high: float = 0.07
    type = "uniform"

    def __post_init__(self) -> None:
        _require(self.low <= self.high, f"uniform: low={self.low} is above high={self.high}")

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        def adjust(values: np.ndarray) -> None:
            values *= self.high - self.low
            values += self.low

        return stream.rounded_uniform(math.prod(shape), adjust)


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class Normal(Initializer):
    """Normal with `mean` and standard deviation `std`."""

    std: float = 0.01
    mean: float = 0.0
    type = "normal"

    def __post_init__(self) -> None:
        _require(self.std >= 0, f"normal: std={self.std} is negative")

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        def adjust(values: np.ndarray) -> None:
            values *= self.std
            values += self.mean

        return stream.rounded_normal(math.prod(shape), adjust)


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class TruncatedNormal(Initializer):
    """Normal with `mean` and `std`, restricted to [mean + low * std, mean + high * std].

    `std` is the standard deviation before the restriction.
    """

    std: float = 0.02
    mean: float = 0.0
    low: float = -2.0
    high: float = 2.0
    type = "truncated_normal"

    def __post_init__(self) -> None:
        _require(self.std >= 0, f"truncated_normal: std={self.std} is negative")
        # Values outside the interval are drawn again, so the interval must contain a fair share of the distribution.
        share = 0.5 * (math.erf(self.high / math.sqrt(2)) - math.erf(self.low / math.sqrt(2)))
        _require(
            share >= 0.01, f"truncated_normal: [{self.low}, {self.high}] contains less than 1% of the distribution"
        )

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        return self.mean + self.std * stream.truncated_normal(math.prod(shape), self.low, self.high)


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class Orthogonal(Initializer):
    """A (semi-)orthogonal matrix times `gain`, over the shape flattened to [shape[0], rest] (Saxe et al. 2013)."""

    gain: float = 1.0
    type = "orthogonal"

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        _require(len(shape) >= 2, f"orthogonal: needs rank 2 and above, not shape {list(shape)}")
        rows, columns = shape[0], math.prod(shape[1:])
        matrix = stream.normal(rows * columns).reshape(rows, columns)
        q, r = np.linalg.qr(matrix.T if rows < columns else matrix)
        # The sign of R's diagonal makes the distribution uniform (Mezzadri 2007).
        q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
        return self.gain * (q.T if rows < columns else q)


# --- scaled by fan in and fan out -----------------------------------------------------------------


def _spread_uniform(stream: Stream, shape: tuple[int, ...], std: float) -> np.ndarray:
    def adjust(values: np.ndarray) -> None:
        values *= 2.0
        values -= 1.0
        values *= std * math.sqrt(3.0)

    return stream.rounded_uniform(math.prod(shape), adjust)


def _spread_normal(stream: Stream, shape: tuple[int, ...], std: float) -> np.ndarray:
    def adjust(values: np.ndarray) -> None:
        values *= std

    return stream.rounded_normal(math.prod(shape), adjust)


@dataclasses.dataclass(frozen=True)
class _Xavier(Initializer):
    gain: float = 1.0

    def std(self, shape: tuple[int, ...]) -> float:
        return self.gain * math.sqrt(2.0 / max(sum(fans(shape)), 1))


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class XavierUniform(_Xavier):
    """Uniform with variance gain^2 * 2 / (fan in + fan out) (Glorot and Bengio 2010)."""

    type = "xavier_uniform"

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        return _spread_uniform(stream, shape, self.std(shape))


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class XavierNormal(_Xavier):
    """Normal with variance gain^2 * 2 / (fan in + fan out) (Glorot and Bengio 2010)."""

    type = "xavier_normal"

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        return _spread_normal(stream, shape, self.std(shape))


@dataclasses.dataclass(frozen=True)
class _He(Initializer):
    fan: str = "in"
    slope: float = 0.0

    def __post_init__(self) -> None:
        _require(self.fan in ("in", "out"), f"{self.type}: fan is 'in' or 'out', not {self.fan!r}")

    def std(self, shape: tuple[int, ...]) -> float:
        count = fans(shape)[0 if self.fan == "in" else 1]
        return math.sqrt(2.0 / ((1.0 + self.slope**2) * max(count, 1)))


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class HeUniform(_He):
    """Uniform with variance 2 / ((1 + slope^2) * fan) (He et al. 2015).

    fan: "in" or "out", to use the fan in or the fan out. slope: negative slope of the leaky ReLU that follows; 0: ReLU.
    """

    type = "he_uniform"

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        return _spread_uniform(stream, shape, self.std(shape))


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class HeNormal(_He):
    """Normal with variance 2 / ((1 + slope^2) * fan) (He et al. 2015).

    fan: "in" or "out", to use the fan in or the fan out. slope: negative slope of the leaky ReLU that follows; 0: ReLU.
    """

    type = "he_normal"

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        return _spread_normal(stream, shape, self.std(shape))


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class LeCunUniform(Initializer):
    """Uniform with variance 1 / fan in (LeCun et al. 1998)."""

    type = "lecun_uniform"

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        return _spread_uniform(stream, shape, math.sqrt(1.0 / max(fans(shape)[0], 1)))


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class LeCunNormal(Initializer):
    """Normal with variance 1 / fan in (LeCun et al. 1998)."""

    type = "lecun_normal"

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        return _spread_normal(stream, shape, math.sqrt(1.0 / max(fans(shape)[0], 1)))


@typed_constructor("gk.init")
@dataclasses.dataclass(frozen=True)
class FanInUniform(Initializer):
    """Uniform in [-b, b) with b = 1 / sqrt(fan_in): PyTorch's default for linear and convolution layers.

    By default, `fan_in` is computed from the shape of the parameter (see `fans`). For a bias, pass the fan in of the
    layer's weight, because a vector has none.
    """

    fan_in: int | None = None
    type = "fan_in_uniform"

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        fan_in = fans(shape)[0] if self.fan_in is None else self.fan_in
        return (2.0 * stream.uniform(math.prod(shape)) - 1.0) / math.sqrt(max(fan_in, 1))


_ALIASES = {
    "glorot_uniform": "xavier_uniform",
    "glorot_normal": "xavier_normal",
    "kaiming_uniform": "he_uniform",
    "kaiming_normal": "he_normal",
}
GlorotUniform, GlorotNormal = XavierUniform, XavierNormal
KaimingUniform, KaimingNormal = HeUniform, HeNormal


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UsageError(f"initialiser {message}")


def names() -> list[str]:
    """Return the names of initialisers that `gk.init.of` accepts."""
    return sorted([*_registry, *_ALIASES])


def of(spec: Any) -> Initializer:
    """Return the initialiser for a name ("he_normal"), a number (constant), a dict from `to_dict`, or an Initializer.

    Raises UsageError for an unknown type or option.
    """
    if isinstance(spec, Initializer):
        return spec
    if isinstance(spec, (int, float)):
        return Constant(float(spec))
    if isinstance(spec, str):
        spec = {"type": spec}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("type"), str):
        raise UsageError(
            f"{spec!r} is not an initialiser: give a name, a number, a dict with a 'type', or a gk.init object"
        )
    kind = _ALIASES.get(spec["type"], spec["type"])
    if kind not in _registry:
        raise UsageError(f"unknown initialiser {spec['type']!r}{did_you_mean(spec['type'], names())}")
    cls = _registry[kind]
    options = {key: value for key, value in spec.items() if key != "type"}
    fields = [f.name for f in dataclasses.fields(cls)]
    for key in options:
        if key not in fields:
            raise UsageError(f"initialiser {kind!r} has no option {key!r}{did_you_mean(key, fields)}")
    return cls(**options)


def initialize(target: TensorType | Value, spec: Any, seed: int, name: str) -> np.ndarray:
    """Return a new array of `target`'s static shape and dtype for the parameter called `name`.

    Values are drawn in float64 and rounded once.

    Args:
        target: Type of the parameter, or the parameter.
        spec: The initialiser, in a form that `of` accepts.
        seed: Seed of the random numbers.
        name: Name of the parameter. Parameters with different names get different numbers.

    Raises:
        UsageError: The shape is not static, a random initialiser is used for a dtype that is not floating point, or the
            initialiser needs more axes.
    """
    wanted = target.tensor if isinstance(target, Value) else target
    initializer = of(spec)
    if not wanted.is_static:
        raise UsageError(f"parameter {name!r}: its shape must be static to be initialised, not {wanted}")
    if not wanted.dtype.is_float and not initializer.any_dtype:
        raise UsageError(
            f"parameter {name!r}: initialiser {initializer.type!r} makes floating-point values, not {wanted.dtype}"
        )
    shape = wanted.static_shape
    try:
        values = initializer.sample(Stream(seed, name, wanted.dtype.numpy), shape)
    except UsageError as error:
        raise UsageError(f"parameter {name!r}: {error}") from None
    return np.ascontiguousarray(values.reshape(shape).astype(wanted.dtype.numpy, copy=False)).reshape(shape)
