"""Batch normalisation of data with the channels last, in training, with the residual and the activation that follow.

The pass `channels_last` puts these operators into training graphs; `fuse_batch_norm` absorbs the operators that follow
them. The forward operator passes its statistics to the gradient. The gradient recomputes which elements the activation
cuts off.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError, UsageError
from graphkit.ir.types import FLOATS, HALVES, DType, TensorType, dtype_of
from graphkit.ops._base import DOMAIN, F, Op, Rand, Sample, op
from graphkit.ops.nn.statistics import check_vector, count_along, sum_over
from graphkit.ops.operands import check_stored, fits
from graphkit.ops.pointwise import scalar_like

_ACTIVATIONS = ("", "Relu", "Clip")


def _of(kind: str, *shape: int) -> Rand:
    return Rand(shape, -2.0, 2.0, kind)


def _wide(kind: DType) -> DType:
    """Return the type of the statistics of elements of this type."""
    return DType.FLOAT32 if kind in HALVES else kind


class _ChannelsLastNorm(Op):
    """Base of the two operators: y = activation((x - mean) * inv_std_dev * scale + b + residual).

    `activation` is "", "Relu" or "Clip", which limits to [activation_alpha, activation_beta]. Everything is computed in
    the type of scale. If this is float32, arrays of x's shape may be float16 or bfloat16. `made`: type of the first
    result (default: that of scale).
    """

    activation: str = ""
    activation_alpha: float = 0.0
    activation_beta: float = 0.0
    made: DType | None = None

    def first(self, scale: TensorType) -> DType:
        """The type of the first result."""
        return self.made or scale.dtype

    def check_types(self, scale: TensorType, *arrays: TensorType | None) -> None:
        """Raise TypeMismatch unless arrays and first result have scale's type, or a 16-bit one if that is float32."""
        check_stored(scale.dtype, self.first(scale), *(v.dtype for v in arrays if v is not None))

    @property
    def limits(self) -> tuple[float, float]:
        """Bounds of the activation: y is clipped to [low, high]."""
        if self.activation not in _ACTIVATIONS:
            raise UsageError(f"activation must be one of {', '.join(map(repr, _ACTIVATIONS))}, not {self.activation!r}")
        if self.activation == "Clip":
            return self.activation_alpha, self.activation_beta
        return (0.0 if self.activation else -math.inf), math.inf

    def limited(self, y: Any) -> Any:
        """Build the activation of y in the graph."""
        if self.activation == "Clip":
            return F.clip(y, *(scalar_like(bound, y) for bound in self.limits))
        return F.relu(y) if self.activation else y

    def passed(self, z: Any, g: Any) -> Any:
        """Build the activation's gradient: g where it passes z (its operand or result) unchanged, else 0."""
        zero = scalar_like(0.0, g)
        if self.activation == "Clip":
            low, high = (scalar_like(bound, z) for bound in self.limits)
            return F.where(F.or_(F.less(z, low), F.greater(z, high)), zero, g)
        return F.where(F.less_or_equal(z, zero), zero, g) if self.activation else g

    def axes(self, x: Any) -> tuple[int, ...]:
        """Return the axes of the statistics: all but the last. Raises UnsupportedError for an unknown rank."""
        if x.rank is None:
            raise UnsupportedError(f"{self.name} in standard operators needs an operand of known rank, not {x}")
        return tuple(range(x.rank - 1))

    def check(self, x: TensorType, *vectors: TensorType) -> None:
        """Raise TypeMismatch if x has too few axes, or if a vector does not have one element per channel."""
        if x.shape is None:
            return
        if len(x.shape) < 2:
            raise TypeMismatch(f"{x} has no channels behind its batch axis")
        for vector in vectors:
            check_vector(vector, x.shape[-1], "a vector")


@op
class ChannelsLastBatchNorm(_ChannelsLastNorm):
    """BatchNormalization of x: [N, *spatial, C] in training mode, with an optional residual and activation.

    y = activation((x - mean) / sqrt(var + epsilon) * scale + b + residual). residual: of x's shape; all other operands:
    [C]. `activation` is "", "Relu" or "Clip", which limits to [activation_alpha, activation_beta]. `made`: type of y
    (default: that of scale).

    Outputs: y, running_mean, running_var, mean, inv_std_dev. mean, and inv_std_dev = 1 / sqrt(var + epsilon), are those
    of x. running_mean = input_mean * momentum + mean * (1 - momentum), and running_var likewise from input_var and the
    biased variance of x. If scale is float16 or bfloat16, mean and inv_std_dev are float32.
    """

    epsilon: float = 1e-5
    momentum: float = 0.9
    domain = DOMAIN
    inputs = ("x", "scale", "b", "input_mean", "input_var", "residual?")
    outputs = ("y", "running_mean", "running_var", "mean", "inv_std_dev")
    types = {
        **dict.fromkeys(("x", "scale", "residual"), FLOATS), **dict.fromkeys(("b", "input_mean", "input_var"), "scale"),
    }  # fmt: skip
    inplace = ((5, 0),)
    samples = lambda: (
        Sample((2, 3, 4, 5), (5,), (5,), (5,), Rand((5,), 0.5, 2.0)),
        Sample((4, 3, 3), (3,), (3,), (3,), Rand((3,), 0.5, 2.0), activation="Relu", momentum=0.5, epsilon=0.0625),
        Sample((2, 3, 3, 2), (2,), (2,), (2,), Rand((2,), 0.5, 2.0), (2, 3, 3, 2), activation="Relu"),
        Sample(
            (2, 3, 3, 2), (2,), (2,), (2,), Rand((2,), 0.5, 2.0),
            activation="Clip", activation_alpha=-0.25, activation_beta=0.5,
        ),
        *(
            Sample(
                _of(kind, 2, 3, 3, 2), *[_of("float32", 2)] * 3, Rand((2,), 0.5, 2.0, "float32"), residual,
                activation="Relu", made=made, grad=False,
            )
            for kind, residual, made in (
                ("bfloat16", None, DType.BFLOAT16), ("float16", _of("float32", 2, 3, 3, 2), None),
                ("float32", _of("float16", 2, 3, 3, 2), DType.FLOAT16),
            )
        ),
    )  # fmt: skip

    def infer(self, x: TensorType, *vectors: TensorType) -> Any:
        scale, residual = vectors[0], vectors[4] if len(vectors) > 4 else None
        self.check(x, *vectors[:4])
        self.check_types(scale, x, residual)
        if residual is not None and not fits(residual.shape, x.shape):
            raise TypeMismatch(f"the residual {residual} does not fit {x}")
        vector = TensorType(scale.dtype, scale.shape)
        statistic = TensorType(_wide(scale.dtype), scale.shape)
        return TensorType(self.first(scale), x.shape), vector, vector, statistic, statistic

    def reference(self, xp: Any, x: Any, scale: Any, b: Any, mean: Any, var: Any, residual: Any = None) -> Any:
        axes, x = tuple(range(x.ndim - 1)), x.astype(scale.dtype)
        current = xp.mean(x, axis=axes)
        centred = x - current
        spread = xp.mean(centred * centred, axis=axes)
        r = 1.0 / xp.sqrt(spread + self.epsilon)
        y = centred * (r * scale) + b
        if residual is not None:
            y = y + residual.astype(scale.dtype)
        keep = self.momentum
        running = mean * keep + current * (1 - keep)
        kind = dtype_of(scale.dtype)
        wide, made = _wide(kind).numpy, (self.made or kind).numpy
        statistics = current.astype(wide), r.astype(wide)
        return xp.clip(y, *self.limits).astype(made), running, var * keep + spread * (1 - keep), *statistics

    def expand(self, x: Any, scale: Any, b: Any, mean: Any, var: Any, residual: Any = None) -> Any:
        axes, kind = self.axes(x), scale.dtype
        x, residual = (v if v is None or v.dtype is kind else F.cast(v, to=kind) for v in (x, residual))
        current = F.reduce_mean(x, np.asarray(axes), keepdims=False)
        centred = F.sub(x, current)
        spread = F.reduce_mean(F.mul(centred, centred), np.asarray(axes), keepdims=False)
        r = F.reciprocal(F.sqrt(F.add(spread, scalar_like(self.epsilon, x))))
        y = F.add(F.mul(centred, F.mul(r, scale)), b)
        keep, take = scalar_like(self.momentum, x), scalar_like(1 - self.momentum, x)
        running = (F.add(F.mul(old, keep), F.mul(new, take)) for old, new in ((mean, current), (var, spread)))
        statistics = (F.cast(v, to=_wide(x.dtype)) for v in (current, r))
        y = self.limited(y if residual is None else F.add(y, residual))
        return y if self.made in (None, kind) else F.cast(y, to=self.made), *running, *statistics


@op
class ChannelsLastBatchNormGrad(_ChannelsLastNorm):
    """Gradient of ChannelsLastBatchNorm with respect to x, scale, b and the residual.

    Reads the operands and statistics of ChannelsLastBatchNorm. `addend` is a second gradient with respect to y, which
    is added to dy. Elements that the activation cuts off get no gradient. Pass `y` if a residual was added; otherwise y
    can be computed from x.
    """

    domain = DOMAIN
    inputs = ("dy", "x", "scale", "b", "mean", "inv_std_dev", "y?", "addend?")
    outputs = ("dx", "dscale", "db", "dresidual")
    types = dict.fromkeys(("dy", "x", "scale", "y", "addend", "mean", "inv_std_dev"), FLOATS) | {"b": "scale"}
    inplace = ((0, 0), (0, 3), (7, 0), (7, 3))
    samples = lambda: (
        Sample((2, 3, 4, 5), (2, 3, 4, 5), (5,), (5,), (5,), Rand((5,), 0.5, 2.0)),
        Sample((4, 3, 3), (4, 3, 3), (3,), (3,), (3,), Rand((3,), 0.5, 2.0), activation="Relu"),
        Sample((4, 2, 3), (4, 2, 3), (3,), (3,), (3,), Rand((3,), 0.5, 2.0), (4, 2, 3), activation="Relu"),
        Sample((4, 2, 3), (4, 2, 3), (3,), (3,), (3,), Rand((3,), 0.5, 2.0), (4, 2, 3), (4, 2, 3), activation="Relu"),
        Sample(
            (4, 2, 3), (4, 2, 3), (3,), (3,), (3,), Rand((3,), 0.5, 2.0), None, (4, 2, 3),
            activation="Clip", activation_alpha=-0.25, activation_beta=0.5,
        ),
        *(
            Sample(
                _of(dy, 4, 2, 3), _of(x, 4, 2, 3), *[_of("float32", 3)] * 3, Rand((3,), 0.5, 2.0, "float32"), y,
                _of(addend, 4, 2, 3), activation="Relu", made=made, grad=False,
            )
            for dy, x, y, addend, made in (
                ("bfloat16", "bfloat16", None, "float32", DType.BFLOAT16),
                ("float32", "float16", None, "float16", None),
                ("float16", "float32", _of("float32", 4, 2, 3), "float32", DType.FLOAT16),
            )
        ),
    )  # fmt: skip

    def infer(self, dy: TensorType, x: TensorType, *others: TensorType | None) -> Any:
        self.check(x, *(v for v in others[:4] if v is not None))
        for same in (dy, *others[4:]):
            if same is not None and not fits(same.shape, x.shape):
                raise TypeMismatch(f"{same} does not fit {x}")
        scale: Any = others[0]
        self.check_types(scale, dy, x, *others[4:])
        vector = TensorType(scale.dtype, scale.shape)
        return TensorType(self.first(scale), x.shape), vector, vector, TensorType(scale.dtype, x.shape)

    def reference(
        self, xp: Any, dy: Any, x: Any, scale: Any, b: Any, mean: Any, r: Any, y: Any = None, addend: Any = None
    ) -> Any:
        low, high = self.limits
        made = scale.dtype if self.made is None else self.made.numpy
        dy, x, y, addend, mean, r = (v if v is None else v.astype(scale.dtype) for v in (dy, x, y, addend, mean, r))
        centred = x - mean
        g = dy if addend is None else dy + addend
        if self.activation:
            z = centred * (r * scale) + b if y is None else y
            passed = z > low if self.activation == "Relu" else (z >= low) & (z <= high)
            g = xp.where(passed, g, xp.zeros_like(g))
        axes = tuple(range(x.ndim - 1))
        count = max(x.size // max(x.shape[-1], 1), 1)
        total, slope = xp.sum(g, axis=axes), xp.sum(g * centred, axis=axes) * r
        dx = (g - total / count - centred * (r * slope / count)) * (scale * r)
        return dx.astype(made), slope, total, g

    def expand(self, dy: Any, x: Any, scale: Any, b: Any, mean: Any, r: Any, y: Any = None, addend: Any = None) -> Any:
        axes, kind = self.axes(x), scale.dtype
        dy, x, y, addend, mean, r = (
            v if v is None or v.dtype is kind else F.cast(v, to=kind) for v in (dy, x, y, addend, mean, r)
        )
        centred, factor = F.sub(x, mean), F.mul(r, scale)
        z = F.add(F.mul(centred, factor), b) if y is None else y
        g = self.passed(z, dy if addend is None else F.add(dy, addend))
        share = F.reciprocal(count_along(x, axes))
        total = sum_over(g, axes)
        slope = F.mul(sum_over(F.mul(g, centred), axes), r)
        tilt = F.mul(centred, F.mul(F.mul(r, slope), share))
        dx = F.mul(F.sub(F.sub(g, F.mul(total, share)), tilt), factor)
        return dx if self.made in (None, kind) else F.cast(dx, to=self.made), slope, total, g
