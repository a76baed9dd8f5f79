"""Normalisation within one image: over instances, groups of channels, chosen axes, neighbouring channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError, UsageError
from graphkit.ir import dims
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, TensorType
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Sample, op
from graphkit.ops.nn.statistics import (
    channel_axes,
    channel_shape,
    check_vector,
    columns,
    input_gradient,
    input_gradient_array,
    mean_over,
    per_channel,
    standardised,
    statistics,
    sum_over,
)
from graphkit.ops.operands import check_gradient, converted, wide_type
from graphkit.ops.pointwise import scalar_like


def _check_affine(x: TensorType, scale: TensorType, b: TensorType) -> None:
    if x.shape is None:
        return
    if len(x.shape) < 3:
        raise TypeMismatch(f"{x} has no spatial axis")
    check_vector(scale, x.shape[1], "scale")
    check_vector(b, x.shape[1], "bias")


@op
class InstanceNormalization(Op):
    """(x - mean) / sqrt(var + epsilon) * scale + b over the spatial axes of x: [N, C, *spatial]; scale, b: [C]."""

    epsilon: float = 1e-5
    per_example = ("x",)
    inputs = ("x", "scale", "b")
    types = {"x": FLOATS, "scale": "x", "b": "x"}
    onnx = Onnx("InstanceNormalization", since=22)
    symbolic_inference = True
    samples = lambda: (
        Sample((2, 3, 3, 4), (3,), (3,)),
        Sample((2, 3, 4), (3,), (3,), epsilon=0.0625),
        Sample((0, 2, 3), (2,), (2,)),
    )

    def infer(self, x: TensorType, scale: TensorType, b: TensorType) -> TensorType:
        _check_affine(x, scale, b)
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any, scale: Any, b: Any) -> Any:
        mean, var = statistics(xp, x, tuple(range(2, x.ndim)))
        column = channel_shape(x.ndim)
        return (x - mean) / xp.sqrt(var + self.epsilon) * scale.reshape(column) + b.reshape(column)

    def grad(self, node: Node, dy: Any) -> Any:
        operands: Any = node.inputs
        x, scale, _ = operands
        return F.group_norm_grad(dy, x, scale, epsilon=self.epsilon)


@op
class GroupNormalization(Op):
    """(x - mean) / sqrt(var + epsilon) * scale + bias over the channels of a group and all spatial axes.

    x: [N, C, *spatial]. Each of the `num_groups` groups has C / num_groups neighbouring channels. scale, bias: [C].
    Wu and He 2018, arXiv:1803.08494. `stash_type` is stored for ONNX, and has no effect in graphkit.
    """

    epsilon: float = 1e-5
    num_groups: int
    stash_type: int = 1
    per_example = ("x",)
    inputs = ("x", "scale", "bias")
    types = {"x": FLOATS, "scale": "x", "bias": "x"}
    onnx = Onnx("GroupNormalization", since=21)
    symbolic_inference = True
    samples = lambda: (
        Sample((2, 4, 2, 3), (4,), (4,), num_groups=2),
        Sample((2, 6, 3), (6,), (6,), num_groups=3, epsilon=0.0625),
        Sample((2, 3, 4), (3,), (3,), num_groups=1),
        # The standard's function body cannot reshape an empty tensor.
        Sample((0, 4, 2), (4,), (4,), num_groups=2, onnx=False),
    )

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        _check_affine(x, scale, bias)
        channels = 0 if x.shape is None else x.shape[1]
        if self.num_groups < 1 or not dims.may_equal(dims.mod(channels, self.num_groups), 0):
            raise TypeMismatch(f"the channels of {x} cannot be divided into {self.num_groups} groups")
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any, scale: Any, bias: Any) -> Any:
        grouped = x.reshape(x.shape[0], self.num_groups, x.shape[1] // self.num_groups, *x.shape[2:])
        mean, var = statistics(xp, grouped, tuple(range(2, grouped.ndim)))
        h = ((grouped - mean) / xp.sqrt(var + self.epsilon)).reshape(x.shape)
        column = channel_shape(x.ndim)
        return h * scale.reshape(column) + bias.reshape(column)

    def grad(self, node: Node, dy: Any) -> Any:
        operands: Any = node.inputs
        x, scale, _ = operands
        return F.group_norm_grad(dy, x, scale, num_groups=self.num_groups, epsilon=self.epsilon)


@op
class GroupNormGrad(Op):
    """Gradient of GroupNormalization with respect to x, scale and bias.

    dy, x: [N, C, *spatial]; scale: [C]. The statistics are computed from x. num_groups: None (default) means that each
    channel is a group, as in InstanceNormalization. Outputs: dx, shaped like x; dscale and db, [C].
    """

    num_groups: int | None = None
    epsilon: float = 1e-5
    domain = DOMAIN
    inputs = ("dy", "x", "scale")
    outputs = ("dx", "dscale", "db")
    types = {"dy": FLOATS, "x": "dy", "scale": "dy"}
    composite = True
    samples = lambda: (
        Sample((2, 4, 2, 3), (2, 4, 2, 3), (4,), num_groups=2),
        Sample((2, 6, 3), (2, 6, 3), (6,), num_groups=3, epsilon=0.0625),
        Sample((2, 3, 3, 4), (2, 3, 3, 4), (3,)),
        Sample((1, 3, 5), (1, 3, 5), (3,), num_groups=1),
        Sample((0, 4, 2), (0, 4, 2), (4,), num_groups=2),
    )

    def infer(self, dy: TensorType, x: TensorType, scale: TensorType) -> Any:
        check_gradient(dy, x)
        _check_affine(x, scale, scale)
        vector = TensorType(scale.dtype, scale.shape)
        return TensorType(x.dtype, x.shape), vector, vector

    def reference(self, xp: Any, dy: Any, x: Any, scale: Any) -> Any:
        groups = x.shape[1] if self.num_groups is None else self.num_groups
        grouped = (x.shape[0], groups, x.shape[1] // groups if groups else 1, *x.shape[2:])
        axes = tuple(range(2, x.ndim + 1))
        data = x.reshape(grouped)
        mean, var = statistics(xp, data, axes)
        r = 1.0 / xp.sqrt(var + self.epsilon)
        h = (data - mean) * r
        dx = input_gradient_array(xp, (dy * scale.reshape(channel_shape(x.ndim))).reshape(grouped), h, r, axes)
        summed = channel_axes(x.ndim)
        return dx.reshape(x.shape), xp.sum(dy * h.reshape(x.shape), axis=summed), xp.sum(dy, axis=summed)

    def expand(self, dy: Any, x: Any, scale: Any) -> Any:
        if x.rank is None:
            raise UnsupportedError(f"GroupNormGrad in standard operators needs an operand of known rank, not {x}")
        rank, wide = x.rank, wide_type(x.dtype)
        g, data, factor = (converted(v, wide) for v in (dy, x, scale))
        if self.num_groups is None:
            h, r = standardised(data, range(2, rank), self.epsilon)
            dx = input_gradient(F.mul(g, columns(factor, rank)), h, r, range(2, rank))
            results = dx, per_channel(F.mul(g, h)), per_channel(g)
        else:
            results = self._expanded(g, data, factor, rank)
        return tuple(converted(v, x.dtype) for v in results)

    def _expanded(self, g: Any, x: Any, scale: Any, rank: int) -> Any:
        groups = np.array([self.num_groups], np.int64)
        per_group = F.div(F.shape(x, start=1, end=2), groups)
        grouped = F.concat(F.shape(x, start=0, end=1), groups, per_group, F.shape(x, start=2), axis=0)
        given = F.reshape(g, grouped)
        h, r = standardised(F.reshape(x, grouped), range(2, rank + 1), self.epsilon)
        column = F.concat(groups, per_group, np.ones(rank - 2, np.int64), axis=0)
        dx = input_gradient(F.mul(given, F.reshape(scale, column)), h, r, range(2, rank + 1))
        axes = (0, *range(3, rank + 1))
        d_scale, d_bias = sum_over(F.mul(given, h), axes), sum_over(given, axes)
        return F.reshape(dx, F.shape(x)), F.reshape(d_scale, F.shape(scale)), F.reshape(d_bias, F.shape(scale))


@op
class MeanVarianceNormalization(Op):
    """(x - mean) / (sqrt(var) + 1e-9) over `axes`."""

    axes: tuple[int, ...] = (0, 2, 3)
    inputs = ("x",)
    types = {"x": FLOATS}
    onnx = Onnx("MeanVarianceNormalization", since=13)
    composite = True
    samples = lambda: (
        Sample((2, 3, 2, 4)),
        Sample((2, 3, 4), axes=(1, -1)),
        Sample((2, 5), axes=(1,)),
        # Empty axes mean all axes, according to the function body in the standard. ONNX Runtime rejects this, and
        # onnx's reference reduces no axis.
        Sample((2, 3), axes=(), onnx=False),
    )

    def infer(self, x: TensorType) -> TensorType:
        if x.shape is not None and any(not -len(x.shape) <= a < len(x.shape) for a in self.axes):
            raise TypeMismatch(f"axes {self.axes} are out of range for {x}")
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any) -> Any:
        mean, var = statistics(xp, x, self.axes or tuple(range(x.ndim)))  # empty axes mean all axes, as in ReduceMean
        return (x - mean) / (xp.sqrt(var) + 1e-9)

    def expand(self, x: Any) -> Any:
        centred = F.sub(x, mean_over(x, self.axes))
        variance = mean_over(F.mul(centred, centred), self.axes)
        # If all elements are equal, the gradient of the deviation is 0 instead of that of sqrt at 0, which is infinite.
        zero, one = scalar_like(0.0, x), scalar_like(1.0, x)
        constant = F.equal(variance, zero)
        deviation = F.where(constant, zero, F.sqrt(F.where(constant, one, variance)))
        return F.div(centred, F.add(deviation, scalar_like(1e-9, x)))


@op
class LRN(Op):
    """Local response normalisation: x / (bias + alpha / size * s) ** beta.

    s is the sum of squares over a window of `size` channels: the channel itself, (size - 1) // 2 channels before it,
    and size // 2 channels after it. Channels that do not exist count as 0. x: [N, C, *spatial].
    """

    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0
    size: int
    per_example = ("x",)
    inputs = ("x",)
    types = {"x": FLOATS}
    onnx = Onnx("LRN", since=13)
    symbolic_inference = True
    samples = lambda: (
        Sample((2, 5, 2, 3), size=3, alpha=0.5),
        # ONNX Runtime takes odd sizes only; onnx's evaluator sums the wrong channels.
        Sample((1, 4, 2, 2), size=4, alpha=1.0, beta=0.5, bias=2.0, onnx=False),
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
        """Build the mean of squares over neighbouring channels as an average pool along the channels."""
        if x.rank is None:
            raise UnsupportedError(f"LRN in standard operators needs an operand of known rank, not {x}")
        before = (self.size - 1) // 2
        one, rest = np.array([1], np.int64), np.array([-1], np.int64)
        planes = F.concat(F.shape(x, start=0, end=1), one, F.shape(x, start=1, end=2), rest, axis=0)
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


@op
class LpNormalization(Op):
    """x / norm along one axis, where norm is the norm of order p = 1 or 2; 0 where the norm is 0."""

    axis: int = -1
    p: int = 2
    inputs = ("x",)
    types = {"x": FLOATS}
    composite = True
    onnx = Onnx("LpNormalization", since=22)
    samples = lambda: (
        Sample((2, 3)),
        Sample((2, 3, 4), axis=1),
        Sample((2, 3), axis=0, p=1),
        Sample((2, 3, 2), axis=-2, p=1),
        # grad=False: not continuous if all elements are 0.
        Sample(np.array([[0.0, 0.0], [3.0, -4.0]], np.float32), grad=False),
        Sample(np.array([[0.0, 0.0], [3.0, -4.0]], np.float32), p=1, grad=False),
        Sample((0, 3)),
    )

    def infer(self, x: TensorType) -> TensorType:
        if self.p not in (1, 2):
            raise UsageError(f"LpNormalization: p must be 1 or 2, not {self.p}")
        if x.shape is not None and not -len(x.shape) <= self.axis < len(x.shape):
            raise TypeMismatch(f"axis {self.axis} is out of range for {x}")
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any) -> Any:
        size = xp.abs(x)
        total = xp.sum(size if self.p == 1 else size * size, axis=self.axis, keepdims=True)
        norm = total if self.p == 1 else xp.sqrt(total)
        return xp.where(norm == 0, 0, x / xp.where(norm == 0, 1, norm)).astype(x.dtype)

    def expand(self, x: Any) -> Any:
        axes = np.array([self.axis], np.int64)
        total = F.reduce_sum(F.abs(x) if self.p == 1 else F.mul(x, x), axes, keepdims=True)
        # If all elements are 0, divide by 1: the result is 0, and the gradient is finite.
        safe = F.where(F.equal(total, scalar_like(0.0, x)), scalar_like(1.0, x), total)
        return F.div(x, safe if self.p == 1 else F.sqrt(safe))
