"""Normalisation over a batch, a layer, an instance, a group of channels, or neighbouring channels.

All but LRN share one gradient. With h = (x - mean) * r, r = 1 / sqrt(var + epsilon), statistics over some axes, and
g the gradient by h: dx = r * (g - mean(g) - h * mean(g * h)), means over the same axes. (Ioffe and Szegedy 2015.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError, UsageError
from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, DType, TensorType, broadcast_shapes
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Rand, Sample, op
from graphkit.ops._pointwise import scalar_like, unbroadcast

_HALVES = frozenset({DType.FLOAT16, DType.BFLOAT16})
# onnx.TensorProto's numbers of the types that statistics may have.
_STASH = {1: DType.FLOAT32, 10: DType.FLOAT16, 11: DType.FLOAT64, 16: DType.BFLOAT16}
_VARIANCE = Rand((3,), 0.5, 2.0)


# --- what the families share ------------------------------------------------------------------------


def _channel_shape(rank: int) -> tuple[int, ...]:
    """The shape in which a vector of channels broadcasts against [N, C, *spatial]; [N] has one channel."""
    return (-1, *(1,) * (rank - 2))


def _channel_axes(rank: int) -> tuple[int, ...]:
    return tuple(i for i in range(rank) if i != 1)


def _check_vector(vector: TensorType | None, channels: Dim, what: str) -> None:
    if vector is not None and vector.shape is not None and (
        len(vector.shape) != 1 or not dims.may_equal(vector.shape[0], channels)
    ):
        raise TypeMismatch(f"{what} {vector} does not fit {channels} channels")


def _known_rank(node: Node, x: Any) -> int:
    if x.rank is None:
        raise UnsupportedError(f"{node.describe()}: the gradient needs an operand of known rank")
    return x.rank


def _as(x: Any, dtype: DType) -> Any:
    return x if x.dtype is dtype else F.cast(x, to=dtype)


def _wide(dtype: DType) -> DType:
    """The type that statistics are computed in."""
    return DType.FLOAT32 if dtype in _HALVES else dtype


def _columns(vector: Any, rank: int) -> Any:
    """A vector of channels, broadcastable against [N, C, *spatial]."""
    return F.unsqueeze(vector, np.arange(1, rank - 1)) if rank > 2 else vector


def _mean(x: Any, axes: Sequence[int]) -> Any:
    return F.reduce_mean(x, np.asarray(axes, np.int64), keepdims=True)


def _total(x: Any, axes: Sequence[int]) -> Any:
    return F.reduce_sum(x, np.asarray(axes, np.int64), keepdims=False)


def _per_channel(x: Any) -> Any:
    """The sum of [N, C, *spatial] for each channel: [C]; of [N], which is one channel: [1]."""
    return F.reduce_sum(x, np.asarray(_channel_axes(x.rank), np.int64), keepdims=x.rank == 1)


def _count(x: Any, axes: Sequence[int]) -> Any:
    """The number of elements along `axes`, as a scalar of x's dtype."""
    sizes = [x.shape[i] for i in axes]
    if not any(isinstance(n, DimExpr) for n in sizes):
        return scalar_like(float(math.prod(sizes)), x)
    product = F.reduce_prod(F.gather(F.shape(x), np.asarray(axes, np.int64)), keepdims=False)
    return F.cast(product, to=x.dtype)


def _standardised(x: Any, axes: Sequence[int], epsilon: float) -> tuple[Any, Any]:
    """((x - mean) * r, r) in the graph; r = 1 / sqrt(var + epsilon), with the biased variance over `axes`."""
    centred = F.sub(x, _mean(x, axes))
    r = F.reciprocal(F.sqrt(F.add(_mean(F.mul(centred, centred), axes), scalar_like(epsilon, x))))
    return F.mul(centred, r), r


def _input_gradient(g: Any, h: Any, r: Any, axes: Sequence[int]) -> Any:
    """The shared gradient in the graph, see above."""
    return F.mul(r, F.sub(F.sub(g, _mean(g, axes)), F.mul(h, _mean(F.mul(g, h), axes))))


def _input_gradient_array(xp: Any, g: Any, h: Any, r: Any, axes: tuple[int, ...]) -> Any:
    return r * (g - xp.mean(g, axis=axes, keepdims=True) - h * xp.mean(g * h, axis=axes, keepdims=True))


def _statistics(xp: Any, x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """(mean, biased variance) over `axes`, which stay with size 1."""
    mean = xp.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    return mean, xp.mean(centred * centred, axis=axes, keepdims=True)


# --- batch ----------------------------------------------------------------------------------------


@op
class BatchNormalization(Op):
    """(x - mean) / sqrt(var + epsilon) * scale + b, per channel of x: [N, C, *spatial]; the vectors are [C].

    With training_mode the statistics are those of x, and two more outputs are the running ones:
    running = input * momentum + current * (1 - momentum), with the biased variance.
    """

    epsilon: float = 1e-5
    momentum: float = 0.9
    training_mode: bool = False
    inputs = ("x", "scale", "b", "input_mean", "input_var")
    outputs = ("y", "running_mean", "running_var")
    types = {"x": FLOATS, "scale": FLOATS, "b": "scale", "input_mean": FLOATS, "input_var": "input_mean"}
    onnx = Onnx("BatchNormalization", since=15)
    samples = (
        Sample((2, 3, 4, 5), (3,), (3,), (3,), _VARIANCE),
        Sample((4, 3), (3,), (3,), (3,), _VARIANCE, epsilon=1e-2),
        Sample((0, 3, 2), (3,), (3,), (3,), _VARIANCE),
        Sample((2, 3, 2, 3), (3,), (3,), (3,), _VARIANCE, training_mode=True),
        Sample((4, 3, 3), (3,), (3,), (3,), _VARIANCE, training_mode=True, momentum=0.7, epsilon=1e-3),
        Sample((5, 3), (3,), (3,), (3,), _VARIANCE, training_mode=True),
    )

    def infer(self, x: TensorType, scale: TensorType, b: TensorType, mean: TensorType, var: TensorType) -> Any:
        if x.shape is not None:
            if not x.shape:
                raise TypeMismatch(f"{x} has no batch axis")
            channels = x.shape[1] if len(x.shape) > 1 else 1
            for what, vector in (("scale", scale), ("b", b), ("input_mean", mean), ("input_var", var)):
                _check_vector(vector, channels, what)
        y = TensorType(x.dtype, x.shape)
        return (y, TensorType(mean.dtype, mean.shape), TensorType(var.dtype, var.shape)) if self.training_mode else y

    def reference(self, xp: Any, x: Any, scale: Any, b: Any, mean: Any, var: Any) -> Any:
        column = _channel_shape(x.ndim)
        if not self.training_mode:
            factor = scale / xp.sqrt(var + self.epsilon)
            return (x - mean.reshape(column)) * factor.reshape(column) + b.reshape(column)
        current, spread = _statistics(xp, x, _channel_axes(x.ndim))
        y = (x - current) / xp.sqrt(spread + self.epsilon) * scale.reshape(column) + b.reshape(column)
        keep = self.momentum
        running = mean * keep + current.reshape(-1) * (1 - keep)
        return y, running, var * keep + spread.reshape(-1) * (1 - keep)

    def grad(self, node: Node, dy: Any, d_mean: Any = None, d_var: Any = None) -> Any:
        return self._training(node, dy, d_mean, d_var) if self.training_mode else self._inference(node, dy)

    def _inference(self, node: Node, dy: Any) -> Any:
        x, scale, b, mean, var = node.inputs
        rank, dtype = _known_rank(node, x), x.dtype
        shift = _columns(_as(mean, dtype), rank)
        r = F.reciprocal(F.sqrt(F.add(_as(var, dtype), scalar_like(self.epsilon, x))))
        factor = F.mul(_as(scale, dtype), r)
        dx = F.mul(dy, _columns(factor, rank))
        total = _per_channel(dy)
        with_x = _per_channel(F.mul(dy, F.sub(x, shift)))
        d_var = F.mul(F.mul(with_x, F.mul(factor, F.mul(r, r))), scalar_like(-0.5, x))
        return (
            dx,
            _as(F.mul(with_x, r), scale.dtype),
            _as(total, b.dtype),
            _as(F.neg(F.mul(total, factor)), mean.dtype),
            _as(d_var, var.dtype),
        )

    def _training(self, node: Node, dy: Any, d_mean: Any, d_var: Any) -> Any:
        x, scale, _, mean, var = node.inputs
        dx = d_scale = d_b = d_input_mean = d_input_var = None
        if dy is not None:
            dx, d_scale, d_b = F.batch_norm_grad(dy, x, scale, epsilon=self.epsilon)
        if d_mean is None and d_var is None:
            return dx, d_scale, d_b, None, None
        # The running statistics depend on x, too, by the part that this batch has in them.
        rank = _known_rank(node, x)
        axes = _channel_axes(rank)
        parts = [] if dx is None else [dx]
        part = F.div(scalar_like(1.0 - self.momentum, x), _count(x, axes))
        if d_mean is not None:
            parts.append(F.expand(_columns(F.mul(_as(d_mean, x.dtype), part), rank), F.shape(x)))
            d_input_mean = F.mul(d_mean, scalar_like(self.momentum, mean))
        if d_var is not None:
            slope = F.mul(_as(d_var, x.dtype), F.add(part, part))
            parts.append(F.mul(_columns(slope, rank), F.sub(x, _mean(x, axes))))
            d_input_var = F.mul(d_var, scalar_like(self.momentum, var))
        return parts[0] if len(parts) == 1 else F.sum(*parts), d_scale, d_b, d_input_mean, d_input_var


@op
class BatchNormGrad(Op):
    """Gradient of BatchNormalization's y in training mode, by x, scale and b; the statistics are computed from x."""

    epsilon: float = 1e-5
    domain = DOMAIN
    inputs = ("dy", "x", "scale")
    outputs = ("dx", "dscale", "db")
    types = {"dy": FLOATS, "x": "dy", "scale": FLOATS}
    samples = (
        Sample((2, 3, 2, 3), (2, 3, 2, 3), (3,)),
        Sample((4, 3), (4, 3), (3,), epsilon=1e-2),
        Sample((3, 2, 4), (3, 2, 4), (2,)),
    )

    def infer(self, dy: TensorType, x: TensorType, scale: TensorType) -> Any:
        vector = TensorType(scale.dtype, scale.shape)
        return TensorType(x.dtype, x.shape), vector, vector

    def reference(self, xp: Any, dy: Any, x: Any, scale: Any) -> Any:
        axes = _channel_axes(x.ndim)
        mean, var = _statistics(xp, x, axes)
        r = 1.0 / xp.sqrt(var + self.epsilon)
        h = (x - mean) * r
        dx = _input_gradient_array(xp, dy, h, r, axes) * scale.reshape(_channel_shape(x.ndim))
        return dx, xp.sum(dy * h, axis=axes).reshape(scale.shape), xp.sum(dy, axis=axes).reshape(scale.shape)

    def expand(self, dy: Any, x: Any, scale: Any) -> Any:
        rank, wide = x.rank, _wide(x.dtype)
        if rank is None:
            raise UnsupportedError(f"BatchNormGrad in standard operators needs an operand of known rank, not {x}")
        axes = _channel_axes(rank)
        g = _as(dy, wide)
        h, r = _standardised(_as(x, wide), axes, self.epsilon)
        dx = F.mul(_input_gradient(g, h, r, axes), _columns(_as(scale, wide), rank))
        d_scale, d_b = _per_channel(F.mul(g, h)), _per_channel(g)
        return _as(dx, x.dtype), _as(d_scale, scale.dtype), _as(d_b, scale.dtype)


# --- layer ----------------------------------------------------------------------------------------


class _LayerNorm(Op):
    """Statistics over the axes from `axis` on; `scale` broadcasts to x. They are computed in at least `stash_type`."""

    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1

    @property
    def stash(self) -> DType:
        if self.stash_type not in _STASH:
            raise UsageError(f"{self.name}: stash_type={self.stash_type} is not one of {', '.join(map(str, _STASH))}")
        return _STASH[self.stash_type]

    def axes(self, rank: int) -> tuple[int, ...]:
        """The normalised axes; raises TypeMismatch when `axis` is out of range."""
        if not -rank <= self.axis < rank:
            raise TypeMismatch(f"axis {self.axis} is out of range for rank {rank}")
        return tuple(range(self.axis % rank, rank))

    def checked(self, x: TensorType, *factors: TensorType | None) -> tuple[int, ...] | None:
        """The normalised axes, None when the rank of x is unknown; `factors` must broadcast to x."""
        if x.shape is None:
            return None
        axes = self.axes(len(x.shape))
        for factor in factors:
            if factor is None or factor.shape is None:
                continue
            joint = broadcast_shapes([x.shape, factor.shape])
            if joint is None or len(joint) != len(x.shape) or not all(map(dims.may_equal, joint, x.shape)):
                raise TypeMismatch(f"{factor} does not broadcast to {x}")
        return axes


@op
class LayerNormalization(_LayerNorm):
    """(x - mean) * r * scale + b, where r = 1 / sqrt(var + epsilon), over the axes from `axis` on; also mean and r."""

    inputs = ("x", "scale", "b?")
    outputs = ("y", "mean", "inv_std_dev")
    types = {"x": FLOATS, "scale": "x", "b": "x"}
    onnx = Onnx("LayerNormalization", since=17)
    # ONNX Runtime and onnx's evaluator give float64 statistics for float64 operands, against the standard's text.
    samples = (
        Sample((2, 3, 4), (4,), (4,)),
        Sample((2, 3, 4), (4,)),
        Sample((2, 3, 4), (3, 4), (3, 4), axis=1, epsilon=1e-2),
        Sample((2, 3, 4), (2, 3, 4), (2, 3, 4), axis=-3),
        Sample((2, 3, 4), (4,), (), axis=1),
        Sample((0, 4), (4,), (4,)),
    )

    def infer(self, x: TensorType, scale: TensorType, b: TensorType | None = None) -> Any:
        axes = self.checked(x, scale, b)
        shape = None
        if axes is not None:
            shape = tuple(1 if i in axes else n for i, n in enumerate(x.known_shape))
        statistic = TensorType(self.stash, shape)
        return TensorType(x.dtype, x.shape), statistic, statistic

    def reference(self, xp: Any, x: Any, scale: Any, b: Any = None) -> Any:
        mean, var = _statistics(xp, x, self.axes(x.ndim))
        r = 1.0 / xp.sqrt(var + self.epsilon)
        y = (x - mean) * r * scale
        return y if b is None else y + b, mean, r

    def grad(self, node: Node, dy: Any, d_mean: Any = None, d_r: Any = None) -> Any:
        x, scale = node.inputs[:2]
        b = node.inputs[2] if len(node.inputs) > 2 else None
        axes = self.axes(_known_rank(node, x))
        _, mean, r = node.outputs
        dx = d_scale = d_b = None
        if dy is not None:
            # Statistics that are narrower than x would spoil the gradient.
            kept = (mean, r) if x.dtype.itemsize <= mean.dtype.itemsize else ()
            dx, d_scale, total = F.layer_norm_grad(dy, x, scale, *kept, axis=self.axis, epsilon=self.epsilon)
            if b is not None:
                d_b = total if b.shape is not None and b.shape == scale.shape else unbroadcast(dy, b)
        parts = [] if dx is None else [dx]
        wide = mean.dtype if x.dtype.itemsize <= mean.dtype.itemsize else x.dtype
        share = F.reciprocal(_count(_as(x, wide), axes))
        if d_mean is not None:
            parts.append(_as(F.expand(F.mul(_as(d_mean, wide), share), F.shape(x)), x.dtype))
        if d_r is not None:
            h, exact = _standardised(_as(x, wide), axes, self.epsilon)
            slope = F.mul(F.mul(_as(d_r, wide), share), F.mul(exact, exact))
            parts.append(_as(F.neg(F.mul(slope, h)), x.dtype))
        gradients = (F.sum(*parts) if len(parts) > 1 else parts[0], d_scale, d_b)
        return gradients[: len(node.inputs)]


@op
class LayerNormGrad(_LayerNorm):
    """Gradient of LayerNormalization's y by x, scale, and a bias of scale's shape.

    `mean` and `inv_std_dev` are the forward operator's outputs; when absent they are computed from x.
    """

    domain = DOMAIN
    inputs = ("dy", "x", "scale", "mean?", "inv_std_dev?")
    outputs = ("dx", "dscale", "db")
    types = {"dy": FLOATS, "x": "dy", "scale": "dy", "mean": FLOATS, "inv_std_dev": "mean"}
    samples = (
        Sample((2, 3, 4), (2, 3, 4), (4,)),
        Sample((2, 3, 4), (2, 3, 4), (4,), (2, 3, 1), Rand((2, 3, 1), 0.5, 2.0)),
        Sample((2, 3, 4), (2, 3, 4), (3, 4), axis=1, epsilon=1e-2),
        Sample((2, 3, 4), (2, 3, 4), (1,), (2, 1, 1), Rand((2, 1, 1), 0.5, 2.0), axis=-2),
        Sample((0, 4), (0, 4), (4,)),
    )

    def infer(self, dy: TensorType, x: TensorType, scale: TensorType, *_: Any) -> Any:
        self.checked(x, scale)
        vector = TensorType(scale.dtype, scale.shape)
        return TensorType(x.dtype, x.shape), vector, vector

    def reference(self, xp: Any, dy: Any, x: Any, scale: Any, mean: Any = None, r: Any = None) -> Any:
        axes = self.axes(x.ndim)
        if mean is None or r is None:
            mean, var = _statistics(xp, x, axes)
            r = 1.0 / xp.sqrt(var + self.epsilon)
        h = (x - mean) * r
        dx = _input_gradient_array(xp, dy * scale, h, r, axes)
        lead = x.ndim - scale.ndim
        summed = (*range(lead), *(lead + i for i, n in enumerate(scale.shape) if n == 1))
        return dx, xp.sum(dy * h, axis=summed).reshape(scale.shape), xp.sum(dy, axis=summed).reshape(scale.shape)

    def expand(self, dy: Any, x: Any, scale: Any, mean: Any = None, r: Any = None) -> Any:
        if x.rank is None:
            raise UnsupportedError(f"LayerNormGrad in standard operators needs an operand of known rank, not {x}")
        axes, wide = self.axes(x.rank), _wide(x.dtype)
        g, data = _as(dy, wide), _as(x, wide)
        if mean is None or r is None:
            h, r = _standardised(data, axes, self.epsilon)
        else:
            r = _as(r, wide)
            h = F.mul(F.sub(data, _as(mean, wide)), r)
        dx = _input_gradient(F.mul(g, _as(scale, wide)), h, r, axes)
        d_scale, d_b = unbroadcast(F.mul(g, h), scale), unbroadcast(g, scale)
        return _as(dx, x.dtype), _as(d_scale, scale.dtype), _as(d_b, scale.dtype)


@op
class RMSNormalization(_LayerNorm):
    """x / sqrt(mean(x * x) + epsilon) * scale, over the axes from `axis` on."""

    inputs = ("x", "scale")
    types = {"x": FLOATS, "scale": FLOATS}
    onnx = Onnx("RMSNormalization", since=23)
    samples = (
        Sample((2, 3, 4), (4,)),
        Sample((2, 3, 4), (3, 4), axis=1, epsilon=1e-2),
        Sample((2, 3, 4), (), axis=-3),
        Sample((0, 4), (4,)),
    )

    def infer(self, x: TensorType, scale: TensorType) -> TensorType:
        self.checked(x, scale)
        return TensorType(scale.dtype, x.shape)

    def reference(self, xp: Any, x: Any, scale: Any) -> Any:
        return x / xp.sqrt(xp.mean(x * x, axis=self.axes(x.ndim), keepdims=True) + self.epsilon) * scale

    def grad(self, node: Node, dy: Any) -> Any:
        x, scale = node.inputs
        return F.rms_norm_grad(dy, x, scale, axis=self.axis, epsilon=self.epsilon)


@op
class RMSNormGrad(_LayerNorm):
    """Gradient of RMSNormalization by x and scale."""

    domain = DOMAIN
    inputs = ("dy", "x", "scale")
    outputs = ("dx", "dscale")
    types = {"dy": FLOATS, "x": FLOATS, "scale": "dy"}
    samples = (
        Sample((2, 3, 4), (2, 3, 4), (4,)),
        Sample((2, 3, 4), (2, 3, 4), (3, 1), axis=1, epsilon=1e-2),
        Sample((0, 4), (0, 4), (4,)),
    )

    def infer(self, dy: TensorType, x: TensorType, scale: TensorType) -> Any:
        self.checked(x, scale)
        return TensorType(x.dtype, x.shape), TensorType(scale.dtype, scale.shape)

    def reference(self, xp: Any, dy: Any, x: Any, scale: Any) -> Any:
        axes = self.axes(x.ndim)
        r = 1.0 / xp.sqrt(xp.mean(x * x, axis=axes, keepdims=True) + self.epsilon)
        h, g = x * r, dy * scale
        lead = x.ndim - scale.ndim
        summed = (*range(lead), *(lead + i for i, n in enumerate(scale.shape) if n == 1))
        dx = r * (g - h * xp.mean(g * h, axis=axes, keepdims=True))
        return dx, xp.sum(dy * h, axis=summed).reshape(scale.shape)

    def expand(self, dy: Any, x: Any, scale: Any) -> Any:
        if x.rank is None:
            raise UnsupportedError(f"RMSNormGrad in standard operators needs an operand of known rank, not {x}")
        axes, wide = self.axes(x.rank), _wide(x.dtype)
        data = _as(x, wide)
        r = F.reciprocal(F.sqrt(F.add(_mean(F.mul(data, data), axes), scalar_like(self.epsilon, data))))
        h, g = F.mul(data, r), F.mul(_as(dy, wide), _as(scale, wide))
        dx = F.mul(r, F.sub(g, F.mul(h, _mean(F.mul(g, h), axes))))
        return _as(dx, x.dtype), _as(unbroadcast(F.mul(_as(dy, wide), h), scale), scale.dtype)


# --- instance and group -----------------------------------------------------------------------------


def _check_affine(x: TensorType, scale: TensorType, b: TensorType) -> None:
    if x.shape is None:
        return
    if len(x.shape) < 3:
        raise TypeMismatch(f"{x} has no spatial axis")
    _check_vector(scale, x.shape[1], "scale")
    _check_vector(b, x.shape[1], "bias")


@op
class InstanceNormalization(Op):
    """(x - mean) / sqrt(var + epsilon) * scale + b over the spatial axes of x: [N, C, *spatial]; scale, b: [C]."""

    epsilon: float = 1e-5
    inputs = ("x", "scale", "b")
    types = {"x": FLOATS, "scale": "x", "b": "x"}
    onnx = Onnx("InstanceNormalization", since=22)
    samples = (Sample((2, 3, 3, 4), (3,), (3,)), Sample((2, 3, 4), (3,), (3,), epsilon=1e-2), Sample((0, 2, 3), (2,), (2,)))

    def infer(self, x: TensorType, scale: TensorType, b: TensorType) -> TensorType:
        _check_affine(x, scale, b)
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any, scale: Any, b: Any) -> Any:
        mean, var = _statistics(xp, x, tuple(range(2, x.ndim)))
        column = _channel_shape(x.ndim)
        return (x - mean) / xp.sqrt(var + self.epsilon) * scale.reshape(column) + b.reshape(column)

    def grad(self, node: Node, dy: Any) -> Any:
        x, scale, _ = node.inputs
        rank = _known_rank(node, x)
        h, r = _standardised(x, range(2, rank), self.epsilon)
        dx = _input_gradient(F.mul(dy, _columns(scale, rank)), h, r, range(2, rank))
        return dx, _per_channel(F.mul(dy, h)), _per_channel(dy)


@op
class GroupNormalization(Op):
    """(x - mean) / sqrt(var + epsilon) * scale + bias over the channels of a group and all spatial axes.

    x: [N, C, *spatial], its channels in `num_groups` groups; scale, bias: [C].
    """

    epsilon: float = 1e-5
    num_groups: int
    stash_type: int = 1
    inputs = ("x", "scale", "bias")
    types = {"x": FLOATS, "scale": "x", "bias": "x"}
    onnx = Onnx("GroupNormalization", since=21)
    samples = (
        Sample((2, 4, 2, 3), (4,), (4,), num_groups=2),
        Sample((2, 6, 3), (6,), (6,), num_groups=3, epsilon=1e-2),
        Sample((2, 3, 4), (3,), (3,), num_groups=1),
        Sample((0, 4, 2), (4,), (4,), num_groups=2),
    )

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        _check_affine(x, scale, bias)
        channels = None if x.shape is None else x.shape[1]
        if self.num_groups < 1 or (isinstance(channels, int) and channels % self.num_groups):
            raise TypeMismatch(f"the channels of {x} cannot be divided into {self.num_groups} groups")
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any, scale: Any, bias: Any) -> Any:
        grouped = x.reshape(x.shape[0], self.num_groups, x.shape[1] // self.num_groups, *x.shape[2:])
        mean, var = _statistics(xp, grouped, tuple(range(2, grouped.ndim)))
        h = ((grouped - mean) / xp.sqrt(var + self.epsilon)).reshape(x.shape)
        column = _channel_shape(x.ndim)
        return h * scale.reshape(column) + bias.reshape(column)

    def grad(self, node: Node, dy: Any) -> Any:
        x, scale, bias = node.inputs
        rank = _known_rank(node, x)
        groups = np.array([self.num_groups], np.int64)
        per_group = F.div(F.shape(x, start=1, end=2), groups)
        grouped = F.concat(F.shape(x, start=0, end=1), groups, per_group, F.shape(x, start=2), axis=0)
        g = F.reshape(dy, grouped)
        h, r = _standardised(F.reshape(x, grouped), range(2, rank + 1), self.epsilon)
        column = F.concat(groups, per_group, np.ones(rank - 2, np.int64), axis=0)
        dx = _input_gradient(F.mul(g, F.reshape(scale, column)), h, r, range(2, rank + 1))
        axes = (0, *range(3, rank + 1))
        d_scale, d_bias = _total(F.mul(g, h), axes), _total(g, axes)
        return F.reshape(dx, F.shape(x)), F.reshape(d_scale, F.shape(scale)), F.reshape(d_bias, F.shape(bias))


@op
class MeanVarianceNormalization(Op):
    """(x - mean) / (sqrt(var) + 1e-9) over `axes`."""

    axes: tuple[int, ...] = (0, 2, 3)
    inputs = ("x",)
    types = {"x": FLOATS}
    onnx = Onnx("MeanVarianceNormalization", since=13)
    samples = (Sample((2, 3, 2, 4)), Sample((2, 3, 4), axes=(1, -1)), Sample((2, 5), axes=(1,)))

    def infer(self, x: TensorType) -> TensorType:
        if x.shape is not None and any(not -len(x.shape) <= a < len(x.shape) for a in self.axes):
            raise TypeMismatch(f"axes {self.axes} are out of range for {x}")
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any) -> Any:
        mean, var = _statistics(xp, x, self.axes)
        return (x - mean) / (xp.sqrt(var) + 1e-9)

    def expand(self, x: Any) -> Any:
        centred = F.sub(x, _mean(x, self.axes))
        deviation = F.sqrt(_mean(F.mul(centred, centred), self.axes))
        return F.div(centred, F.add(deviation, scalar_like(1e-9, x)))


@op
class LRN(Op):
    """x / (bias + alpha / size * s) ** beta, where s sums squares over `size` neighbouring channels of [N, C, *spatial]."""

    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0
    size: int
    inputs = ("x",)
    types = {"x": FLOATS}
    onnx = Onnx("LRN", since=13)
    samples = (
        Sample((2, 5, 2, 3), size=3, alpha=0.5),
        Sample((1, 4, 2, 2), size=4, alpha=1.0, beta=0.5, bias=2.0),
        Sample((1, 3, 2, 2), size=1),
    )

    def infer(self, x: TensorType) -> TensorType:
        if self.size < 1:
            raise TypeMismatch(f"size={self.size} is less than 1")
        if x.shape is not None and len(x.shape) < 2:
            raise TypeMismatch(f"{x} has no channel axis")
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any) -> Any:
        before, channels = (self.size - 1) // 2, x.shape[1]
        padded = xp.zeros((x.shape[0], channels + self.size - 1, *x.shape[2:]), dtype=x.dtype)
        padded[:, before : before + channels] = x * x
        total = xp.zeros_like(x)
        for offset in range(self.size):
            total += padded[:, offset : offset + channels]
        return x / (self.bias + self.alpha / self.size * total) ** self.beta

    def expand(self, x: Any) -> Any:
        """The mean of squares over neighbouring channels is an average pool along them."""
        if x.rank is None:
            raise UnsupportedError(f"LRN in standard operators needs an operand of known rank, not {x}")
        before = (self.size - 1) // 2
        planes = F.concat(F.shape(x, start=0, end=1), np.array([1], np.int64), F.shape(x, start=1, end=2), np.array([-1], np.int64), axis=0)
        squares = F.reshape(F.mul(x, x), planes)
        mean = F.average_pool(
            squares,
            kernel_shape=(self.size, 1),
            pads=(before, 0, self.size - 1 - before, 0),
            count_include_pad=True,
        )
        mean = F.reshape(mean, F.shape(x))
        base = F.add(F.mul(mean, scalar_like(self.alpha, x)), scalar_like(self.bias, x))
        return F.div(x, F.pow(base, scalar_like(self.beta, x)))
