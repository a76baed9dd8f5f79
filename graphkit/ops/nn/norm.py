"""Normalisation over a batch or a layer, and the gradient operators, each one pass for a native kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.errors import TypeMismatch, UnsupportedError, UsageError
from graphkit.ir import dims
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, DType, TensorType, broadcast_shapes
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Rand, Sample, op
from graphkit.ops.nn.statistics import (
    channel_axes,
    channel_shape,
    check_vector,
    columns,
    count_along,
    input_gradient,
    input_gradient_array,
    known_rank,
    mean_over,
    per_channel,
    standardised,
    statistics,
)
from graphkit.ops.operands import check_gradient, check_stored, converted, wide_type
from graphkit.ops.pointwise import scalar_like, unbroadcast

# onnx.TensorProto's numbers of the types that statistics may have.
_STASH = {1: DType.FLOAT32, 10: DType.FLOAT16, 11: DType.FLOAT64, 16: DType.BFLOAT16}
_VARIANCE = Rand((3,), 0.5, 2.0)


# --- batch ----------------------------------------------------------------------------------------


@op
class BatchNormalization(Op):
    """(x - mean) / sqrt(var + epsilon) * scale + b, for each channel of x.

    x: [N, C, *spatial]; all other operands: [C]. By default, mean and var are input_mean and input_var. With
    training_mode, they are computed from x, and there are two more outputs, the new running mean and variance:
    running = input * momentum + current * (1 - momentum). `input` is input_mean or input_var, and `current` is the mean
    or the biased variance of x.
    """

    epsilon: float = 1e-5
    momentum: float = 0.9
    training_mode: bool = False
    inputs = ("x", "scale", "b", "input_mean", "input_var")
    outputs = ("y", "running_mean", "running_var")
    types = {"x": FLOATS, "scale": FLOATS, "b": "scale", "input_mean": FLOATS, "input_var": "input_mean"}
    onnx = Onnx("BatchNormalization", since=15)
    symbolic_inference = True
    samples = lambda: (
        Sample((2, 3, 4, 5), (3,), (3,), (3,), _VARIANCE),
        Sample((4, 3), (3,), (3,), (3,), _VARIANCE, epsilon=0.0625),
        Sample((0, 3, 2), (3,), (3,), (3,), _VARIANCE),
        Sample((2, 3, 2, 3), (3,), (3,), (3,), _VARIANCE, training_mode=True, momentum=0.75),
        Sample((4, 3, 3), (3,), (3,), (3,), _VARIANCE, training_mode=True, momentum=0.5, epsilon=0.0625),
        Sample((5, 3), (3,), (3,), (3,), _VARIANCE, training_mode=True, momentum=0.25),
    )

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        return not self.training_mode and self._has_examples(("x",), inputs, batched)

    def infer(self, x: TensorType, scale: TensorType, b: TensorType, mean: TensorType, var: TensorType) -> Any:
        if x.shape is not None:
            if not x.shape:
                raise TypeMismatch(f"{x} has no batch axis")
            channels = x.shape[1] if len(x.shape) > 1 else 1
            for what, vector in (("scale", scale), ("b", b), ("input_mean", mean), ("input_var", var)):
                check_vector(vector, channels, what)
        y = TensorType(x.dtype, x.shape)
        return (y, TensorType(mean.dtype, mean.shape), TensorType(var.dtype, var.shape)) if self.training_mode else y

    def reference(self, xp: Any, x: Any, scale: Any, b: Any, mean: Any, var: Any) -> Any:
        column = channel_shape(x.ndim)
        if not self.training_mode:
            factor = scale / xp.sqrt(var + self.epsilon)
            return (x - mean.reshape(column)) * factor.reshape(column) + b.reshape(column)
        current, spread = statistics(xp, x, channel_axes(x.ndim))
        y = (x - current) / xp.sqrt(spread + self.epsilon) * scale.reshape(column) + b.reshape(column)
        keep = self.momentum
        running = mean * keep + current.reshape(-1) * (1 - keep)
        return y, running, var * keep + spread.reshape(-1) * (1 - keep)

    def grad(self, node: Node, dy: Any, d_mean: Any = None, d_var: Any = None) -> Any:
        return self._training(node, dy, d_mean, d_var) if self.training_mode else self._inference(node, dy)

    def _inference(self, node: Node, dy: Any) -> Any:
        operands: Any = node.inputs
        x, scale, b, mean, var = operands
        rank, dtype = known_rank(node, x), x.dtype
        shift = columns(converted(mean, dtype), rank)
        r = F.reciprocal(F.sqrt(F.add(converted(var, dtype), scalar_like(self.epsilon, x))))
        factor = F.mul(converted(scale, dtype), r)
        dx = F.mul(dy, columns(factor, rank))
        total = per_channel(dy)
        with_x = per_channel(F.mul(dy, F.sub(x, shift)))
        d_var = F.mul(F.mul(with_x, F.mul(factor, F.mul(r, r))), scalar_like(-0.5, x))
        return (
            dx,
            converted(F.mul(with_x, r), scale.dtype),
            converted(total, b.dtype),
            converted(F.neg(F.mul(total, factor)), mean.dtype),
            converted(d_var, var.dtype),
        )

    def _training(self, node: Node, dy: Any, d_mean: Any, d_var: Any) -> Any:
        operands: Any = node.inputs
        x, scale, _, mean, var = operands
        dx = d_scale = d_b = d_input_mean = d_input_var = None
        if dy is not None:
            dx, d_scale, d_b = F.batch_norm_grad(dy, x, scale, epsilon=self.epsilon)
        if d_mean is None and d_var is None:
            return dx, d_scale, d_b, None, None
        # The running statistics depend on x, too: (1 - momentum) times the statistics of this batch.
        rank = known_rank(node, x)
        axes = channel_axes(rank)
        parts = [] if dx is None else [dx]
        part = F.div(scalar_like(1.0 - self.momentum, x), count_along(x, axes))
        if d_mean is not None:
            parts.append(F.expand(columns(F.mul(converted(d_mean, x.dtype), part), rank), F.shape(x)))
            d_input_mean = F.mul(d_mean, scalar_like(self.momentum, mean))
        if d_var is not None:
            slope = F.mul(converted(d_var, x.dtype), F.add(part, part))
            parts.append(F.mul(columns(slope, rank), F.sub(x, mean_over(x, axes))))
            d_input_var = F.mul(d_var, scalar_like(self.momentum, var))
        return parts[0] if len(parts) == 1 else F.sum(*parts), d_scale, d_b, d_input_mean, d_input_var


@op
class BatchNormGrad(Op):
    """Gradient of BatchNormalization's y in training mode with respect to x, scale and b.

    dy, x: [N, C, *spatial]; scale: [C]. The statistics are computed from x. Outputs: dx, shaped like x; dscale and db,
    [C].
    """

    epsilon: float = 1e-5
    domain = DOMAIN
    inputs = ("dy", "x", "scale")
    outputs = ("dx", "dscale", "db")
    types = {"dy": FLOATS, "x": "dy", "scale": FLOATS}
    samples = lambda: (
        Sample((2, 3, 2, 3), (2, 3, 2, 3), (3,)),
        Sample((4, 3), (4, 3), (3,), epsilon=0.0625),
        Sample((3, 2, 4), (3, 2, 4), (2,)),
    )

    def infer(self, dy: TensorType, x: TensorType, scale: TensorType) -> Any:
        check_gradient(dy, x)
        vector = TensorType(scale.dtype, scale.shape)
        return TensorType(x.dtype, x.shape), vector, vector

    def reference(self, xp: Any, dy: Any, x: Any, scale: Any) -> Any:
        axes = channel_axes(x.ndim)
        mean, var = statistics(xp, x, axes)
        r = 1.0 / xp.sqrt(var + self.epsilon)
        h = (x - mean) * r
        dx = input_gradient_array(xp, dy, h, r, axes) * scale.reshape(channel_shape(x.ndim))
        return dx, xp.sum(dy * h, axis=axes).reshape(scale.shape), xp.sum(dy, axis=axes).reshape(scale.shape)

    def expand(self, dy: Any, x: Any, scale: Any) -> Any:
        rank, wide = x.rank, wide_type(x.dtype)
        if rank is None:
            raise UnsupportedError(f"BatchNormGrad in standard operators needs an operand of known rank, not {x}")
        axes = channel_axes(rank)
        g = converted(dy, wide)
        h, r = standardised(converted(x, wide), axes, self.epsilon)
        dx = F.mul(input_gradient(g, h, r, axes), columns(converted(scale, wide), rank))
        d_scale, d_b = per_channel(F.mul(g, h)), per_channel(g)
        return converted(dx, x.dtype), converted(d_scale, scale.dtype), converted(d_b, scale.dtype)


# --- layer ----------------------------------------------------------------------------------------


class NormOfLastAxes(Op):
    """Base of normalisations over the axes from `axis` to the last.

    `scale` broadcasts to x. Statistics are computed in at least `stash_type`.
    """

    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1
    symbolic_inference = True

    @property
    def stash(self) -> DType:
        if self.stash_type not in _STASH:
            raise UsageError(f"{self.name}: stash_type={self.stash_type} is not one of {', '.join(map(str, _STASH))}")
        return _STASH[self.stash_type]

    def axes(self, rank: int) -> tuple[int, ...]:
        """Return the normalised axes. Raises TypeMismatch if `axis` is out of range."""
        if not -rank <= self.axis < rank:
            raise TypeMismatch(f"axis {self.axis} is out of range for rank {rank}")
        return tuple(range(self.axis % rank, rank))

    def checked(self, x: TensorType, *factors: TensorType | None) -> tuple[int, ...] | None:
        """Return the normalised axes; None for an unknown rank. Raises TypeMismatch unless `factors` broadcast to x."""
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
class LayerNormalization(NormOfLastAxes):
    """(x - mean) * r * scale + b, where r = 1 / sqrt(var + epsilon), over the axes from `axis` on.

    scale and b broadcast to x. Outputs: y; mean and r, with size 1 on the normalised axes. stash_type is the ONNX code
    of their type: 1 for float32, 10 for float16, 11 for float64, 16 for bfloat16.
    """

    inputs = ("x", "scale", "b?")
    outputs = ("y", "mean", "inv_std_dev")
    types = {"x": FLOATS, "scale": "x", "b": "x"}
    onnx = Onnx("LayerNormalization", since=17)
    # stash_type=11 is float64, which the standard does not allow: gradients through statistics can be checked.
    samples = lambda: (
        Sample((2, 3, 4), (4,), (4,)),
        Sample((2, 3, 4), (3, 4), (3, 4), axis=1, epsilon=0.0625),
        Sample((2, 3, 4), (2, 3, 4), (2, 3, 4), axis=-3),
        Sample((2, 3, 4), (4,), (), axis=1),
        Sample((0, 4), (4,)),
        Sample((2, 3, 4), (4,), (4,), stash_type=11, onnx=False),
        Sample((2, 3, 4), (4,), stash_type=11, onnx=False),
        Sample((2, 3, 4), (3, 4), (4,), axis=1, epsilon=0.0625, stash_type=11, onnx=False),
        Sample((2, 3, 4), (2, 3, 4), (), axis=-3, stash_type=11, onnx=False),
    )

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        rank = len(inputs[0].known_shape)
        return (
            self._has_examples(("x",), inputs, batched)
            and self.axis % rank != 0
            and all(t is None or len(t.known_shape) < rank or t.known_shape[0] == 1 for t in inputs[1:])
        )

    def infer(self, x: TensorType, scale: TensorType, b: TensorType | None = None) -> Any:
        axes = self.checked(x, scale, b)
        shape = None
        if axes is not None:
            shape = tuple(1 if i in axes else n for i, n in enumerate(x.known_shape))
        statistic = TensorType(self.stash, shape)
        return TensorType(x.dtype, x.shape), statistic, statistic

    def reference(self, xp: Any, x: Any, scale: Any, b: Any = None) -> Any:
        mean, var = statistics(xp, x, self.axes(x.ndim))
        r = 1.0 / xp.sqrt(var + self.epsilon)
        y = (x - mean) * r * scale
        return y if b is None else y + b, mean, r

    def grad(self, node: Node, dy: Any, d_mean: Any = None, d_r: Any = None) -> Any:
        operands: Any = node.inputs
        x, scale = operands[:2]
        b = operands[2] if len(operands) > 2 else None
        axes = self.axes(known_rank(node, x))
        _, mean, r = node.outputs
        dx = d_scale = d_b = None
        if dy is not None:
            # Do not reuse statistics that are less precise than x.
            kept = (mean, r) if x.dtype.itemsize <= mean.dtype.itemsize else ()
            dx, d_scale, total = F.layer_norm_grad(dy, x, scale, *kept, axis=self.axis, epsilon=self.epsilon)
            if b is not None:
                d_b = total if b.shape is not None and b.shape == scale.shape else unbroadcast(dy, b)
        parts = [] if dx is None else [dx]
        wide = mean.dtype if x.dtype.itemsize <= mean.dtype.itemsize else x.dtype
        share = F.reciprocal(count_along(converted(x, wide), axes))
        if d_mean is not None:
            parts.append(converted(F.expand(F.mul(converted(d_mean, wide), share), F.shape(x)), x.dtype))
        if d_r is not None:
            h, exact = standardised(converted(x, wide), axes, self.epsilon)
            slope = F.mul(F.mul(converted(d_r, wide), share), F.mul(exact, exact))
            parts.append(converted(F.neg(F.mul(slope, h)), x.dtype))
        gradients = (F.sum(*parts) if len(parts) > 1 else parts[0], d_scale, d_b)
        return gradients[: len(operands)]


@op
class LayerNormGrad(NormOfLastAxes):
    """Gradient of LayerNormalization's y with respect to x, scale, and a bias of scale's shape.

    dy: the gradient with respect to y, of x's shape. Outputs: dx, shaped like x; dscale and db, shaped like scale.
    `mean` and `inv_std_dev` are the forward operator's outputs; when absent they are computed from x. The computation
    uses the type of scale, or a wider one. If that is float32, dy and x may be float16 or bfloat16; `made`, if given,
    is the type of dx.
    """

    made: DType | None = None
    domain = DOMAIN
    inputs = ("dy", "x", "scale", "mean?", "inv_std_dev?")
    outputs = ("dx", "dscale", "db")
    types = {"dy": FLOATS, "x": FLOATS, "scale": FLOATS, "mean": FLOATS, "inv_std_dev": "mean"}
    samples = lambda: (
        Sample((2, 3, 4), (2, 3, 4), (4,)),
        Sample((2, 3, 4), (2, 3, 4), (4,), (2, 3, 1), Rand((2, 3, 1), 0.5, 2.0)),
        Sample((2, 3, 4), (2, 3, 4), (3, 4), axis=1, epsilon=0.0625),
        Sample((2, 3, 4), (2, 3, 4), (1,), (2, 1, 1), Rand((2, 1, 1), 0.5, 2.0), axis=-2),
        Sample((0, 4), (0, 4), (4,)),
        *(
            Sample(
                Rand((2, 3, 4), dtype=dy), Rand((2, 3, 4), dtype=x), Rand((4,), dtype="float32"), made=made, grad=False
            )
            for dy, x, made in (
                ("bfloat16", "bfloat16", DType.BFLOAT16), ("float32", "float16", None),
                ("float16", "float32", DType.FLOAT16),
            )
        ),
    )  # fmt: skip

    def infer(self, dy: TensorType, x: TensorType, scale: TensorType, *_: Any) -> Any:
        self.checked(x, scale)
        check_gradient(dy, x)
        made = self.made or scale.dtype
        check_stored(scale.dtype, dy.dtype, x.dtype, made)
        vector = TensorType(scale.dtype, scale.shape)
        return TensorType(made, x.shape), vector, vector

    def reference(self, xp: Any, dy: Any, x: Any, scale: Any, mean: Any = None, r: Any = None) -> Any:
        axes, x, dy = self.axes(x.ndim), x.astype(scale.dtype), dy.astype(scale.dtype)
        if mean is None or r is None:
            mean, var = statistics(xp, x, axes)
            r = 1.0 / xp.sqrt(var + self.epsilon)
        h = (x - mean) * r
        dx = input_gradient_array(xp, dy * scale, h, r, axes)
        lead = x.ndim - scale.ndim
        summed = (*range(lead), *(lead + i for i, n in enumerate(scale.shape) if n == 1))
        dx = dx if self.made is None else dx.astype(self.made.numpy)
        return dx, xp.sum(dy * h, axis=summed).reshape(scale.shape), xp.sum(dy, axis=summed).reshape(scale.shape)

    def expand(self, dy: Any, x: Any, scale: Any, mean: Any = None, r: Any = None) -> Any:
        if x.rank is None:
            raise UnsupportedError(f"LayerNormGrad in standard operators needs an operand of known rank, not {x}")
        axes, wide = self.axes(x.rank), wide_type(scale.dtype)
        g, data = converted(dy, wide), converted(x, wide)
        if mean is None or r is None:
            h, r = standardised(data, axes, self.epsilon)
        else:
            r = converted(r, wide)
            h = F.mul(F.sub(data, converted(mean, wide)), r)
        dx = input_gradient(F.mul(g, converted(scale, wide)), h, r, axes)
        d_scale, d_b = unbroadcast(F.mul(g, h), scale), unbroadcast(g, scale)
        return converted(dx, self.made or scale.dtype), converted(d_scale, scale.dtype), converted(d_b, scale.dtype)


@op
class RMSNormalization(NormOfLastAxes):
    """x / sqrt(mean(x * x) + epsilon) * scale, where the mean is taken over the axes from `axis` on.

    scale broadcasts to x. The result has the type of scale.
    """

    inputs = ("x", "scale")
    types = {"x": FLOATS, "scale": FLOATS}
    onnx = Onnx("RMSNormalization", since=23)
    samples = lambda: (
        Sample((2, 3, 4), (4,)),
        Sample((2, 3, 4), (3, 4), axis=1, epsilon=0.0625),
        Sample((2, 3, 4), (), axis=-3),
        Sample((0, 4), (4,)),
    )

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        rank = len(inputs[0].known_shape)
        return (
            self._has_examples(("x",), inputs, batched)
            and self.axis % rank != 0
            and all(t is None or len(t.known_shape) < rank or t.known_shape[0] == 1 for t in inputs[1:])
        )

    def infer(self, x: TensorType, scale: TensorType) -> TensorType:
        self.checked(x, scale)
        return TensorType(scale.dtype, x.shape)

    def reference(self, xp: Any, x: Any, scale: Any) -> Any:
        return x / xp.sqrt(xp.mean(x * x, axis=self.axes(x.ndim), keepdims=True) + self.epsilon) * scale

    def grad(self, node: Node, dy: Any) -> Any:
        operands: Any = node.inputs
        x, scale = operands
        return F.rms_norm_grad(dy, x, scale, axis=self.axis, epsilon=self.epsilon)


@op
class RMSNormGrad(NormOfLastAxes):
    """Gradient of RMSNormalization with respect to x and scale.

    dy: the gradient with respect to the result, of x's shape. Outputs: dx and dscale, shaped like x and scale.
    """

    domain = DOMAIN
    inputs = ("dy", "x", "scale")
    outputs = ("dx", "dscale")
    types = {"dy": FLOATS, "x": FLOATS, "scale": "dy"}
    samples = lambda: (
        Sample((2, 3, 4), (2, 3, 4), (4,)),
        Sample((2, 3, 4), (2, 3, 4), (3, 1), axis=1, epsilon=0.0625),
        Sample((0, 4), (0, 4), (4,)),
    )

    def infer(self, dy: TensorType, x: TensorType, scale: TensorType) -> Any:
        self.checked(x, scale)
        check_gradient(dy, x)
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
        axes, wide = self.axes(x.rank), wide_type(x.dtype)
        data = converted(x, wide)
        r = F.reciprocal(F.sqrt(F.add(mean_over(F.mul(data, data), axes), scalar_like(self.epsilon, data))))
        h, g = F.mul(data, r), F.mul(converted(dy, wide), converted(scale, wide))
        dx = F.mul(r, F.sub(g, F.mul(h, mean_over(F.mul(g, h), axes))))
        return converted(dx, x.dtype), converted(unbroadcast(F.mul(converted(dy, wide), h), scale), scale.dtype)
