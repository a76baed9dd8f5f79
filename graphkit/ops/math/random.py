"""Random operators. Every draw is a pure function of (seed, step), the node's stream and the element's index.

`rng` is a uint64[2] tensor (seed, step), one graph input for all random nodes (see passes/training/randomness.py); a
node without it draws at (0, 0). `rng` and `stream` have no counterpart in ONNX, whose generators are unspecified.

A node with its own `seed` draws at step 0 what onnx's reference evaluator draws for that seed: numbers of numpy's
RandomState, whatever the seed of `rng` is. At later steps, and in the iterations of loops, the generator is seeded with
seed, (seed, step) and stream together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import RuntimeFailure, TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOAT8, FLOATS, INDICES, NUMERIC, DType, TensorType, dtype_of
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Rand, Sample, op
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import scalar_like
from graphkit.ops.tensor.constants import Constant

_RNG = np.array([0x123456789ABCDEF0, 7], np.uint64)
_HIDDEN = ("rng", "stream")
_UINT64 = frozenset({DType.UINT64})


class RandomOp(Op):
    """Base of random operators. `stream` distinguishes the random nodes of one graph."""

    stream: int = 0
    random = True
    symbolic_inference = True
    types: ClassVar[Any] = {"rng": _UINT64}
    # `draw(xp, rng, shape, dtype)` returns random numbers; Uniform and Normal define it.
    draw: ClassVar[Callable[..., Any]]

    def check_rng(self, rng: TensorType | None) -> None:
        if rng is not None and not fits(rng.shape, (2,)):
            raise TypeMismatch(f"rng must be uint64[2], not {rng}")
        if self.stream:
            from graphkit.ops.math.philox import FOLD_STREAM

            if not 0 <= self.stream < FOLD_STREAM:
                raise UsageError(f"stream {self.stream} is outside [0, {FOLD_STREAM})")

    @property
    def own_seed(self) -> int | None:
        """Return the node's own seed, or None. Fractions are truncated, and NaN means None, as in onnx's evaluator."""
        seed = getattr(self, "seed", None)
        return None if seed is None or not math.isfinite(seed) else int(seed)

    def state(self, xp: Any, rng: Any) -> Any:
        """The uint64[2] state to draw from."""
        return xp.asarray(np.zeros(2, np.uint64)) if rng is None else rng

    def own_generator(self, rng: Any) -> np.random.RandomState | None:
        """The random generator of a node with its own seed."""
        seed = self.own_seed
        if seed is None:
            return None
        base, step = (0, 0) if rng is None else rng.tolist()
        if step == 0 and 0 <= seed < 1 << 32:
            return np.random.RandomState(seed)
        words = [number >> shift & 0xFFFFFFFF for number in (seed, base, step) for shift in (0, 32)]
        return np.random.RandomState([*words, self.stream])

    def uniform(self, xp: Any, rng: Any, shape: tuple[int, ...], bits: int) -> Any:
        """Return float64 numbers in [0, 1) with 24 or 53 bits; always 53 for a node with its own seed."""
        own = self.own_generator(rng)
        if own is not None:
            return xp.asarray(own.random_sample(shape))
        from graphkit.ops.math import philox

        return philox.uniform(xp, self.state(xp, rng), self.stream, shape, bits)


def _bits(dtype: DType) -> int:
    return 53 if dtype is DType.FLOAT64 else 24


class Uniform(RandomOp):
    """low + (high - low) * u, u in [0, 1) with 24 bits (53 for float64), rounded once to the result's dtype."""

    low: float = 0.0
    high: float = 1.0
    seed: float | None = None

    def draw(self, xp: Any, rng: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        u = self.uniform(xp, rng, shape, _bits(dtype))
        return self.low + (self.high - self.low) * u


class Normal(RandomOp):
    """mean + scale * z, z standard normal by Box-Muller in float64, rounded once to the result's dtype."""

    mean: float = 0.0
    scale: float = 1.0
    seed: float | None = None

    def draw(self, xp: Any, rng: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        own = self.own_generator(rng)
        if own is not None:
            z = xp.asarray(own.standard_normal(shape))
        else:
            from graphkit.ops.math import philox

            z = philox.normal(xp, self.state(xp, rng), self.stream, shape, _bits(dtype))
        return self.mean + self.scale * z


class _OfShape(RandomOp):
    """Base of operators whose result has the shape of an attribute."""

    shape: tuple[int, ...]
    dtype: DType = DType.FLOAT32
    inputs = ("rng?",)

    def infer(self, rng: TensorType | None = None) -> TensorType:
        self.check_rng(rng)
        if self.dtype not in FLOATS:
            raise TypeMismatch(f"dtype must be a float type, not {self.dtype}")
        if any(d < 0 for d in self.shape):
            raise TypeMismatch(f"shape {list(self.shape)} has a negative dimension")
        return TensorType(self.dtype, self.shape)

    def reference(self, xp: Any, rng: Any = None) -> Any:
        return self.draw(xp, rng, self.shape, self.dtype)


class _LikeTensor(RandomOp):
    """Base of operators whose result has the shape of x, and x's dtype unless `dtype` is given. x has no gradient."""

    dtype: DType | None = None
    inputs = ("x", "rng?")
    shape_only = ("x",)

    def infer(self, x: TensorType, rng: TensorType | None = None) -> TensorType:
        self.check_rng(rng)
        dtype = self.dtype or x.dtype
        if dtype not in FLOATS:
            raise TypeMismatch(f"the result must have a float type, not {dtype}")
        return TensorType(dtype, x.shape)

    def reference(self, xp: Any, x: Any, rng: Any = None) -> Any:
        return self.draw(xp, rng, x.shape, self.dtype or dtype_of(x.dtype))

    def grad(self, node: Node, dy: Any) -> Any:
        return None


# onnx=False throughout: the standard leaves the generator open, so no two implementations draw alike.
@op
class RandomUniform(_OfShape, Uniform):
    """Uniform random numbers on [low, high) of a given shape.

    In float16 and bfloat16, rounding may give `high` itself. `rng` and `stream` are filled in at compilation: leave
    them out. `seed`: a seed for this node alone.
    """

    onnx = Onnx("RandomUniform", since=22, hidden=_HIDDEN)
    samples = lambda: (
        Sample(shape=(2, 3), onnx=False),
        Sample(_RNG, shape=(5,), low=-2.0, high=3.0, stream=4, onnx=False),
        Sample(_RNG, shape=(3,), dtype="float64", onnx=False),
        Sample(_RNG, shape=(3,), dtype="float16", onnx=False),
        Sample(shape=(), seed=1.5, onnx=False),
        Sample(shape=(0, 3), onnx=False),
    )


@op
class RandomNormal(_OfShape, Normal):
    """Normal random numbers of a given shape, with the given mean and standard deviation `scale`.

    `rng` and `stream` are filled in at compilation: leave them out. `seed`: a seed for this node alone.
    """

    onnx = Onnx("RandomNormal", since=22, hidden=_HIDDEN)
    samples = lambda: (
        Sample(shape=(2, 3), onnx=False),
        Sample(_RNG, shape=(5,), mean=-2.0, scale=3.0, stream=4, onnx=False),
        Sample(_RNG, shape=(3,), dtype="float64", onnx=False),
        Sample(_RNG, shape=(3,), dtype="bfloat16", onnx=False),
        Sample(shape=(), seed=1.5, onnx=False),
        Sample(shape=(0, 3), onnx=False),
    )


@op
class RandomUniformLike(_LikeTensor, Uniform):
    """Uniform random numbers on [low, high) of the shape of x.

    In float16 and bfloat16, rounding may give `high` itself. `rng` and `stream` are filled in at compilation: leave
    them out. `seed`: a seed for this node alone.
    """

    onnx = Onnx("RandomUniformLike", since=22, hidden=_HIDDEN)
    samples = lambda: (
        Sample((2, 3), dtypes=FLOATS, onnx=False),
        Sample((5,), _RNG, low=-2.0, high=3.0, dtype="float64", stream=1, onnx=False),
        Sample(np.arange(4), dtype="float32", seed=2.0, onnx=False),
    )


@op
class RandomNormalLike(_LikeTensor, Normal):
    """Normal random numbers of the shape of x, with the given mean and standard deviation `scale`.

    `rng` and `stream` are filled in at compilation: leave them out. `seed`: a seed for this node alone.
    """

    onnx = Onnx("RandomNormalLike", since=22, hidden=_HIDDEN)
    samples = lambda: (
        Sample((2, 3), dtypes=FLOATS, onnx=False),
        Sample((5,), _RNG, mean=-2.0, scale=3.0, dtype="float64", stream=1, onnx=False),
        Sample(np.arange(4), dtype="float32", seed=2.0, onnx=False),
    )


@op
class Bernoulli(RandomOp):
    """1 with probability x, else 0, for each element. x: float probabilities; the result has x's dtype or `dtype`.

    x gets no gradient, because the draw is a step function of x. `rng` and `stream` are filled in at compilation: leave
    them out. `seed`: a seed for this node alone.
    """

    dtype: DType | None = None
    seed: float | None = None
    inputs = ("x", "rng?")
    types = {"x": FLOATS, "rng": _UINT64}
    onnx = Onnx("Bernoulli", since=22, hidden=_HIDDEN)
    samples = lambda: (
        Sample(Rand((2, 3), 0.0), onnx=False),
        Sample(Rand((5,), 0.0), _RNG, dtype="bool", stream=2, onnx=False),
        Sample(Rand((0, 3), 0.0), dtype="int32", seed=3.0, onnx=False),
        Sample(np.array([0.0, 1.0, 0.0, 1.0], np.float32), _RNG, onnx=False),
    )

    def infer(self, x: TensorType, rng: TensorType | None = None) -> TensorType:
        self.check_rng(rng)
        dtype = self.dtype or x.dtype
        if dtype not in NUMERIC and dtype is not DType.BOOL:
            raise TypeMismatch(f"dtype must be a number type or bool, not {dtype}")
        return TensorType(dtype, x.shape)

    def reference(self, xp: Any, x: Any, rng: Any = None) -> Any:
        own = self.own_generator(rng)
        if own is not None:
            # Drawn in host memory by `binomial`, as in onnx's evaluator. Comparing uniform numbers would give other
            # results.
            return xp.asarray(own.binomial(1, np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape)))
        return self.uniform(xp, rng, x.shape, _bits(dtype_of(x.dtype))) < x

    def grad(self, node: Node, dy: Any) -> Any:
        return None


@op
class Multinomial(RandomOp):
    """Draw `sample_size` classes for each row with probabilities softmax(x). x: float [batch, classes].

    The result is int32 or int64 [batch, sample_size]. Each class is drawn by inverse transform sampling from one
    uniform number. x gets no gradient, because the draw is a step function of x. `rng` and `stream` are filled in at
    compilation: leave them out. `seed`: a seed for this node alone.
    """

    dtype: DType = DType.INT32
    sample_size: int = 1
    seed: float | None = None
    inputs = ("x", "rng?")
    types = {"x": FLOATS, "rng": _UINT64}
    onnx = Onnx("Multinomial", since=22, hidden=_HIDDEN)
    samples = lambda: (
        Sample((2, 3), onnx=False),
        Sample((2, 4), _RNG, sample_size=5, dtype="int64", stream=3, onnx=False),
        Sample((0, 3), seed=2.0, sample_size=2, onnx=False),
        Sample(np.array([[-np.inf, 0.0, -np.inf]], np.float32), _RNG, sample_size=3, onnx=False),
    )

    def infer(self, x: TensorType, rng: TensorType | None = None) -> TensorType:
        self.check_rng(rng)
        if self.dtype not in INDICES or self.sample_size < 0:
            raise TypeMismatch(
                f"dtype must be int32 or int64, and sample_size at least 0, not {self.dtype} and {self.sample_size}"
            )
        if x.rank not in (None, 2):
            raise TypeMismatch(f"Multinomial takes [batch, classes], not {x}")
        batch = dims.fresh() if x.shape is None else x.shape[0]
        return TensorType(self.dtype, (batch, self.sample_size))

    def reference(self, xp: Any, x: Any, rng: Any = None) -> Any:
        shape = (x.shape[0], self.sample_size)
        u = self.uniform(xp, rng, shape, _bits(dtype_of(x.dtype)))
        weights = xp.exp(x.astype(xp.float64) - xp.max(x, axis=1, keepdims=True))
        total = xp.cumsum(weights, axis=1)
        return xp.sum(total[:, None, :] <= (u * total[:, -1:])[:, :, None], axis=2)

    def grad(self, node: Node, dy: Any) -> Any:
        return None


def _dropout_samples() -> tuple[Sample, ...]:
    return (
        Sample((2, 3)),
        Sample((2, 3), np.array(0.25, np.float32)),
        Sample((2, 3), np.array(0.25, np.float32), np.array(False)),
        Sample((4, 5), np.array(0.25, np.float32), np.array(True), _RNG, stream=3, onnx=False),
        Sample((4, 5), None, np.array(True), seed=5, onnx=False),
        Sample((2, 3), np.array(0.0, np.float32), np.array(True), _RNG),
        Sample((2, 3), np.array(1.0, np.float32), np.array(True), _RNG, onnx=False),
        Sample((0, 3), np.array(0.5, np.float32), np.array(True), _RNG),
        Sample(np.array([0.5, -2.0], DType.FLOAT8E5M2.numpy), np.array(0.25, DType.FLOAT8E5M2.numpy)),
    )


@op
class Dropout(RandomOp):
    """In training, set elements to zero with probability `ratio` and divide the others by 1 - ratio; else return x.

    data: float tensor; ratio: float scalar in [0, 1], 0.5 when absent; training_mode: bool scalar, false when absent.
    Outputs: y of data's type, and the bool mask of the elements that are kept. `rng` and `stream` are filled in at
    compilation: leave them out. `seed`: a seed for this node alone. Srivastava et al. 2014.
    """

    seed: int | None = None
    inputs = ("data", "ratio?", "training_mode?", "rng?")
    outputs = ("y", "mask")
    types = {
        "data": FLOATS | FLOAT8,
        "ratio": FLOATS | FLOAT8,
        "training_mode": frozenset({DType.BOOL}),
        "rng": _UINT64,
    }
    onnx = Onnx("Dropout", since=22, hidden=_HIDDEN)
    inplace = ((0, 0),)
    samples = _dropout_samples

    def value_check(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        ratio = inputs[1] if len(inputs) > 1 else None
        if ratio is None:
            return None
        is_known = ratio.node is not None and isinstance(ratio.node.op, Constant)
        if is_known and 0 <= float(ratio.node.op.value.array.reshape(())) <= 1:
            return None
        # ratio is only checked in training, so the key contains training_mode.
        return "ratio", *inputs[1:3]

    def infer(
        self,
        data: TensorType,
        ratio: TensorType | None = None,
        training_mode: TensorType | None = None,
        rng: TensorType | None = None,
    ) -> tuple[TensorType, TensorType]:
        self.check_rng(rng)
        for name, scalar in (("ratio", ratio), ("training_mode", training_mode)):
            if scalar is not None and not (fits(scalar.shape, ()) or fits(scalar.shape, (1,))):
                raise TypeMismatch(f"{name} must be a scalar, not {scalar}")
        if ratio is not None and ratio.floats and not 0 <= ratio.floats[0] <= 1:
            raise UsageError(f"ratio must be in [0, 1], not {ratio.floats[0]:.7g}")
        return TensorType(data.dtype, data.shape), TensorType(DType.BOOL, data.shape)

    def reference(self, xp: Any, data: Any, ratio: Any = None, training_mode: Any = None, rng: Any = None) -> Any:
        training = training_mode is not None and bool(training_mode.reshape(()))
        rate = 0.5 if ratio is None else float(ratio.reshape(()))
        if not training:
            return xp.array(data), xp.ones(data.shape, dtype=bool)
        if not 0 <= rate <= 1:
            raise RuntimeFailure(f"ratio {rate} is outside [0, 1]")
        kept = self.uniform(xp, rng, data.shape, 24) >= rate
        scale = 0.0 if rate == 1 else 1.0 / (1.0 - rate)
        return xp.where(kept, data * scale, 0).astype(data.dtype), kept

    def grad(self, node: Node, dy: Any, _dmask: Any) -> Any:
        _, ratio, training_mode, _ = self.named_inputs(node.inputs).values()
        mask = node.outputs[1]
        others = (None,) * (len(node.inputs) - 1)
        training = (False,) if training_mode is None else training_mode.tensor.constants
        if training is not None and not training[0]:
            return (dy, *others)
        scale = self._scale(ratio, dy)
        if training is None:
            # Outside training, the mask is all true and nothing is scaled.
            scale = F.where(training_mode, scale, scalar_like(1.0, dy))
        return (F.where(mask, dy * scale, scalar_like(0.0, dy)), *others)

    @staticmethod
    def _scale(ratio: Any, dy: Any) -> Any:
        """1 / (1 - ratio) as a scalar of dy's dtype; 0 for a ratio of 1."""
        if ratio is None:
            return scalar_like(2.0, dy)
        rate = ratio if ratio.dtype is dy.dtype else F.cast(ratio, to=dy.dtype)
        if rate.rank != 0:
            rate = F.reshape(rate, np.zeros(0, np.int64))
        one, zero = scalar_like(1.0, dy), scalar_like(0.0, dy)
        kept = one - rate
        nothing = F.equal(kept, zero)
        return F.where(nothing, zero, one / F.where(nothing, one, kept))


@op
class RngFoldIn(Op):
    """Derive the state of another random generator, so that each iteration of a loop draws different numbers.

    rng: uint64 [2], the seed and the step of a generator; index: an integer [] from 0 to 2**32 - 1, such as the number
    of the iteration. The result is uint64 [2]. Equal operands give equal results.
    """

    domain = DOMAIN
    inputs = ("rng", "index")
    types = {"rng": _UINT64, "index": INDICES}
    samples = lambda: (Sample(_RNG, np.array(0)), Sample(_RNG, np.array(3, np.int32)))

    def infer(self, rng: TensorType, index: TensorType) -> TensorType:
        return TensorType(DType.UINT64, (2,))

    def reference(self, xp: Any, rng: Any, index: Any) -> Any:
        from graphkit.ops.math import philox

        return philox.fold_in(xp, rng, index)
