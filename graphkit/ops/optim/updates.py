"""Optimizer updates as operators: new weight and state from weight, gradient, state and learning rate.

The formulas are those of torch.optim. The learning rate and the step are scalar tensors, so that one graph serves all
steps. Values that depend only on them are computed in float64, because 1 - beta ** step cancels in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import MissingGradient, TypeMismatch, UsageError
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, INTEGERS, DType, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Rand, Sample, op
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import scalar_like

_LR = np.array(0.125, np.float32)
_FIRST, _THIRD = np.array(1, np.int64), np.array(3.0, np.float32)
_SQUARE = Rand((2, 3), 0.1, 2.0)


class Update(Op):
    """Base of optimizer updates. weight, grad, slots: one type; lr: float scalar; step: update number, from 1."""

    weight_decay: float = 0.0
    domain = DOMAIN
    is_update = True
    # Whether each element of the new weight depends only on the same element of the weight, the gradient and the slots.
    elementwise = True

    def check(self, weight: TensorType, tensors: dict[str, TensorType], scalars: dict[str, TensorType | None]) -> None:
        for name, tensor in tensors.items():
            if not fits(tensor.shape, weight.shape):
                raise TypeMismatch(f"{name} {tensor} does not fit weight {weight}")
        for name, scalar in scalars.items():
            if scalar is not None and scalar.rank not in (None, 0):
                raise TypeMismatch(f"{name} must be a scalar, not {scalar}")

    def grad(self, node: Node, *_: Any) -> Any:
        raise MissingGradient(f"{self.name} ends a training step; it is not differentiated")


def _in_double(scalar: Any) -> Any:
    return scalar if scalar.dtype is DType.FLOAT64 else F.cast(scalar, to="float64")


def _as(scalar: Any, weight: Any) -> Any:
    return scalar if scalar.dtype is weight.dtype else F.cast(scalar, to=weight.dtype)


@op
class SgdUpdate(Update):
    """Stochastic gradient descent with momentum, Nesterov's variant, dampening and weight decay.

    g = grad + weight_decay * weight; velocity' = momentum * velocity + (1 - dampening) * g; weight' = weight - lr * d,
    where d is velocity', or g + momentum * velocity' (nesterov), or g without momentum. With momentum the operator
    takes velocity (zeros before the first step) and returns the new one. Dampening does not apply to the first step, so
    `step` is needed with dampening. Sutskever et al., "On the importance of initialization and momentum in deep
    learning", ICML 2013.

    grad and velocity have the shape and dtype of weight; lr: a float scalar; step: a scalar, 1 at the first update.
    Outputs: weight', and velocity' if velocity is given.
    """

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    inputs = ("weight", "grad", "lr", "velocity?", "step?")
    outputs = ("new_weight", "new_velocity?")
    types = {"weight": FLOATS, "grad": "weight", "lr": FLOATS, "velocity": "weight", "step": FLOATS | INTEGERS}
    inplace = ((0, 0), (3, 1))
    # grad=False: an update is not differentiated.
    samples = lambda: (
        Sample((2, 3), (2, 3), _LR, grad=False),
        Sample((2, 3), (2, 3), _LR, weight_decay=0.25, grad=False),
        Sample((2, 3), (2, 3), _LR, (2, 3), momentum=0.5, grad=False),
        Sample((2, 3), (2, 3), _LR, (2, 3), momentum=0.5, nesterov=True, weight_decay=0.25, grad=False),
        Sample((2, 3), (2, 3), _LR, (2, 3), _FIRST, momentum=0.5, dampening=0.25, grad=False),
        Sample((2, 3), (2, 3), _LR, (2, 3), _THIRD, momentum=0.5, dampening=0.25, grad=False),
        Sample((), (), _LR, (), momentum=0.5, grad=False),
        Sample((0, 3), (0, 3), _LR, (0, 3), momentum=0.5, grad=False),
    )

    def infer(
        self,
        weight: TensorType,
        grad: TensorType,
        lr: TensorType,
        velocity: TensorType | None = None,
        step: TensorType | None = None,
    ) -> tuple[TensorType, ...]:
        if bool(self.momentum) != (velocity is not None):
            raise TypeMismatch("give velocity if momentum is not 0, and only then")
        if self.nesterov and (not self.momentum or self.dampening):
            raise UsageError("nesterov needs momentum, and dampening=0")
        if self.dampening and step is None:
            raise TypeMismatch("dampening needs the operand step, because it does not apply to the first step")
        slots = {} if velocity is None else {"velocity": velocity}
        self.check(weight, {"grad": grad, **slots}, {"lr": lr, "step": step})
        return (TensorType(weight.dtype, weight.shape),) * (1 + len(slots))

    def reference(self, xp: Any, weight: Any, grad: Any, lr: Any, velocity: Any = None, step: Any = None) -> Any:
        g = grad + self.weight_decay * weight if self.weight_decay else grad
        rate = lr.astype(weight.dtype)
        if velocity is None:
            return weight - rate * g
        gain = 1.0
        if self.dampening:
            gain = xp.where(step <= 1, 1.0, 1.0 - self.dampening).astype(weight.dtype)
        new = self.momentum * velocity + gain * g
        return weight - rate * (g + self.momentum * new if self.nesterov else new), new

    def expand(self, weight: Any, grad: Any, lr: Any, velocity: Any = None, step: Any = None) -> Any:
        g = grad + weight * self.weight_decay if self.weight_decay else grad
        rate = _as(lr, weight)
        if velocity is None:
            return weight - rate * g
        gained = g
        if self.dampening:
            first = F.less_or_equal(_in_double(step), np.array(1.0))
            gained = g * F.where(first, scalar_like(1.0, weight), scalar_like(1.0 - self.dampening, weight))
        new = velocity * self.momentum + gained
        return weight - rate * (g + new * self.momentum if self.nesterov else new), new


class _Adam(Update):
    """m' = beta1 m + (1 - beta1) g; v' = beta2 v + (1 - beta2) g^2; both are divided by 1 - beta ** step."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    inputs = ("weight", "grad", "mean", "variance", "lr", "step")
    outputs = ("new_weight", "new_mean", "new_variance")
    types = {
        "weight": FLOATS,
        "grad": "weight",
        "mean": "weight",
        "variance": "weight",
        "lr": FLOATS,
        "step": FLOATS | INTEGERS,
    }
    inplace = ((0, 0), (2, 1), (3, 2))
    # grad=False: an update is not differentiated.
    samples = lambda: (
        Sample((2, 3), (2, 3), (2, 3), _SQUARE, _LR, _FIRST, grad=False),
        Sample((2, 3), (2, 3), (2, 3), _SQUARE, _LR, _THIRD, weight_decay=0.25, grad=False),
        Sample((2, 3), (2, 3), (2, 3), _SQUARE, _LR, _THIRD, beta1=0.5, beta2=0.75, epsilon=0.125, grad=False),
        Sample((), (), (), Rand((), 0.1, 2.0), _LR, _FIRST, grad=False),
        Sample((0, 3), (0, 3), (0, 3), (0, 3), _LR, _FIRST, grad=False),
    )
    # Whether weight decay shrinks the weight itself instead of being added to the gradient.
    _decoupled = False

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
        dtype = weight.dtype
        rate, count = lr.astype(xp.float64), step.astype(xp.float64)
        if self.weight_decay and self._decoupled:
            weight = weight * (1 - rate * self.weight_decay).astype(dtype)
        g = grad + self.weight_decay * weight if self.weight_decay and not self._decoupled else grad
        mean = self.beta1 * mean + (1 - self.beta1) * g
        variance = self.beta2 * variance + (1 - self.beta2) * g * g
        size = (rate / (1 - self.beta1**count)).astype(dtype)
        correction = xp.sqrt(1 - self.beta2**count).astype(dtype)
        return weight - size * (mean / (xp.sqrt(variance) / correction + self.epsilon)), mean, variance

    def expand(self, weight: Any, grad: Any, mean: Any, variance: Any, lr: Any, step: Any) -> Any:
        rate, count = _in_double(lr), _in_double(step)
        if self.weight_decay and self._decoupled:
            weight = weight * _as(1.0 - rate * self.weight_decay, weight)
        g = grad + weight * self.weight_decay if self.weight_decay and not self._decoupled else grad
        mean = mean * self.beta1 + g * (1 - self.beta1)
        variance = variance * self.beta2 + g * (1 - self.beta2) * g
        size = _as(rate / (1.0 - F.pow(np.array(self.beta1), count)), weight)
        correction = _as(F.sqrt(1.0 - F.pow(np.array(self.beta2), count)), weight)
        return weight - size * (mean / (F.sqrt(variance) / correction + self.epsilon)), mean, variance


@op
class AdamUpdate(_Adam):
    """Adam: weight' = weight - lr * (m' / (1 - beta1^step)) / (sqrt(v' / (1 - beta2^step)) + epsilon).

    m is `mean`, v is `variance`. g = grad + weight_decay * weight; m' = beta1 m + (1 - beta1) g; v' = beta2 v + (1 -
    beta2) g^2. Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015.

    grad, mean and variance have the shape and dtype of weight; lr: a float scalar; step: a scalar, 1 at the first
    update. Outputs: weight', m', v'.
    """


@op
class AdamWUpdate(_Adam):
    """AdamW: multiply weight by 1 - lr * weight_decay, then apply AdamUpdate without weight decay.

    Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.
    """

    weight_decay: float = 0.01
    _decoupled = True
