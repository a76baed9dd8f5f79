"""Optimizer updates that scale each parameter's step by the norms of the parameter and of the step: LARS, LAMB."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.ir.types import FLOATS, INTEGERS, TensorType
from graphkit.ops._base import F, Rand, Sample, op
from graphkit.ops.operands import converted, wide_type
from graphkit.ops.optim.updates import _FIRST, _LR, _SQUARE, _THIRD, Update, _as, _in_double
from graphkit.ops.pointwise import scalar_like

_MATRIX = (2, 3)


def _norm(xp: Any, x: Any) -> Any:
    return xp.sqrt(xp.sum(x * x))


def _norm_graph(x: Any) -> Any:
    return F.sqrt(F.reduce_sum_square(x, keepdims=False))


def _one_unless_positive(ratio: Any, *norms: Any) -> Any:
    """Return `ratio` if all norms are positive, else 1."""
    zero = scalar_like(0.0, ratio)
    positive = F.greater(norms[0], zero)
    for norm in norms[1:]:
        positive = F.and_(positive, F.greater(norm, zero))
    return F.where(positive, ratio, scalar_like(1.0, ratio))


@op
class LarsUpdate(Update):
    """LARS: v' = momentum * v + rate * (grad + weight_decay * weight); weight' = weight - v'.

    rate = lr * trust * |weight| / (|grad| + weight_decay * |weight| + epsilon), with 2-norms of whole tensors. The rate
    is lr if one of the norms is 0. You, Gitman and Ginsburg, "Large batch training of convolutional networks",
    arXiv:1708.03888, algorithm 1.

    grad and velocity v have the shape and dtype of weight; lr: a float scalar. Outputs: weight', v'.
    """

    momentum: float = 0.9
    trust: float = 0.001
    epsilon: float = 0.0
    elementwise = False
    inputs = ("weight", "grad", "velocity", "lr")
    outputs = ("new_weight", "new_velocity")
    types = {"weight": FLOATS, "grad": "weight", "velocity": "weight", "lr": FLOATS}
    inplace = ((0, 0), (2, 1))
    composite = True
    # grad=False: an update is not differentiated.
    samples = lambda: (
        Sample(_MATRIX, _MATRIX, _MATRIX, _LR, trust=0.5, grad=False),
        Sample(_MATRIX, _MATRIX, _MATRIX, _LR, trust=0.5, momentum=0.5, weight_decay=0.25, epsilon=0.125, grad=False),
        Sample((), (), (), _LR, trust=0.5, grad=False),
        Sample((0, 3), (0, 3), (0, 3), _LR, grad=False),
    )

    def infer(self, weight: TensorType, grad: TensorType, velocity: TensorType, lr: TensorType) -> Any:
        self.check(weight, {"grad": grad, "velocity": velocity}, {"lr": lr})
        return (TensorType(weight.dtype, weight.shape),) * 2

    def reference(self, xp: Any, weight: Any, grad: Any, velocity: Any, lr: Any) -> Any:
        size, slope = _norm(xp, weight), _norm(xp, grad)
        both = (size > 0) & (slope > 0)
        scale = slope + self.weight_decay * size + self.epsilon
        ratio = xp.where(both, self.trust * size / xp.where(both, scale, 1), 1).astype(weight.dtype)
        g = grad + self.weight_decay * weight if self.weight_decay else grad
        new = self.momentum * velocity + lr.astype(weight.dtype) * ratio * g
        return weight - new, new

    def expand(self, weight: Any, grad: Any, velocity: Any, lr: Any) -> Any:
        own = weight.dtype
        weight, grad, velocity = (converted(x, wide_type(own)) for x in (weight, grad, velocity))
        size, slope = _norm_graph(weight), _norm_graph(grad)
        ratio = size * self.trust / (slope + size * self.weight_decay + self.epsilon)
        ratio = _one_unless_positive(ratio, size, slope)
        g = grad + weight * self.weight_decay if self.weight_decay else grad
        new = velocity * self.momentum + _as(lr, weight) * ratio * g
        return converted(weight - new, own), converted(new, own)


@op
class LambUpdate(Update):
    """LAMB: weight' = weight - lr * |weight| / |r| * r, where r = m / (sqrt(v) + epsilon) + weight_decay * weight.

    m and v are the updated `mean` and `variance` of Adam, with bias correction. |.| are 2-norms of whole tensors;
    |weight| / |r| is taken as 1 if one of these norms is 0. You et al., "Large batch optimization for deep learning:
    training BERT in 76 minutes", ICLR 2020, algorithm 2 with phi the identity.

    grad, mean and variance have the shape and dtype of weight; lr: a float scalar; step: a scalar, 1 at the first
    update. Outputs: weight', and the new mean and variance, without bias correction.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    elementwise = False
    inputs = ("weight", "grad", "mean", "variance", "lr", "step")
    outputs = ("new_weight", "new_mean", "new_variance")
    types = {"weight": FLOATS, "grad": "weight", "mean": "weight", "variance": "weight", "lr": FLOATS,
             "step": FLOATS | INTEGERS}  # fmt: skip
    inplace = ((0, 0), (2, 1), (3, 2))
    composite = True
    # grad=False: an update is not differentiated.
    samples = lambda: (
        Sample(_MATRIX, _MATRIX, _MATRIX, _SQUARE, _LR, _FIRST, grad=False),
        Sample(_MATRIX, _MATRIX, _MATRIX, _SQUARE, _LR, _THIRD, beta1=0.5, beta2=0.75, weight_decay=0.25, grad=False),
        Sample((), (), (), Rand((), 0.1, 2.0), _LR, _FIRST, epsilon=0.125, grad=False),
        Sample((0, 3), (0, 3), (0, 3), (0, 3), _LR, _FIRST, grad=False),
    )

    def infer(
        self,
        weight: TensorType,
        grad: TensorType,
        mean: TensorType,
        variance: TensorType,
        lr: TensorType,
        step: TensorType,
    ) -> tuple[TensorType, ...]:
        self.check(weight, {"grad": grad, "mean": mean, "variance": variance}, {"lr": lr, "step": step})
        return (TensorType(weight.dtype, weight.shape),) * 3

    def reference(self, xp: Any, weight: Any, grad: Any, mean: Any, variance: Any, lr: Any, step: Any) -> Any:
        dtype, count = weight.dtype, step.astype(xp.float64)
        mean = self.beta1 * mean + (1 - self.beta1) * grad
        variance = self.beta2 * variance + (1 - self.beta2) * grad * grad
        first = (1 / (1 - self.beta1**count)).astype(dtype)
        second = (1 / (1 - self.beta2**count)).astype(dtype)
        direction = mean * first / (xp.sqrt(variance * second) + self.epsilon) + self.weight_decay * weight
        size, length = _norm(xp, weight), _norm(xp, direction)
        both = (size > 0) & (length > 0)
        ratio = xp.where(both, size / xp.where(both, length, 1), 1).astype(dtype)
        return weight - lr.astype(dtype) * ratio * direction, mean, variance

    def expand(self, weight: Any, grad: Any, mean: Any, variance: Any, lr: Any, step: Any) -> Any:
        own, count = weight.dtype, _in_double(step)
        weight, grad, mean, variance = (converted(x, wide_type(own)) for x in (weight, grad, mean, variance))
        mean = mean * self.beta1 + grad * (1 - self.beta1)
        variance = variance * self.beta2 + grad * (1 - self.beta2) * grad
        first = _as(1.0 / (1.0 - F.pow(np.array(self.beta1), count)), weight)
        second = _as(1.0 / (1.0 - F.pow(np.array(self.beta2), count)), weight)
        direction = mean * first / (F.sqrt(variance * second) + self.epsilon)
        if self.weight_decay:
            direction = direction + weight * self.weight_decay
        size, length = _norm_graph(weight), _norm_graph(direction)
        ratio = _one_unless_positive(size / length, size, length)
        new = weight - _as(lr, weight) * ratio * direction
        return converted(new, own), converted(mean, own), converted(variance, own)
