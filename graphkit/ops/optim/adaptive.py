"""Optimizer updates with a rate of its own for each element: RMSProp, Adagrad, Adadelta, Ftrl.

The first three are in the form of torch.optim, whose accumulators they share; Ftrl follows its paper.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.types import FLOATS, INTEGERS, TensorType
from graphkit.ops._base import F, Rand, Sample, op
from graphkit.ops.optim.updates import _FIRST, _LR, _SQUARE, _THIRD, Update, _as, _in_double
from graphkit.ops.pointwise import scalar_like

_MATRIX = (2, 3)
# The mean of squares must be at least the square of the mean.
_SQUARE_ABOVE, _AVERAGE = Rand(_MATRIX, 2.0, 3.0), Rand(_MATRIX, -0.5, 0.5)


def _decayed(weight: Any, grad: Any, decay: float) -> Any:
    return grad + weight * decay if decay else grad


@op
class RmsPropUpdate(Update):
    """RMSProp: d = g / (sqrt(s') + epsilon); weight' = weight - lr * d.

    s is `square`. g = grad + weight_decay * weight; s' = alpha s + (1 - alpha) g^2. With `average` a (the centered
    variant): a' = alpha a + (1 - alpha) g, and s' - a'^2 (at least 0) replaces s' in d. With `buffer` b (momentum): b'
    = momentum * b + d, and b' replaces d in the first formula. Hinton, "Neural networks for machine learning", lecture
    6e, 2012; centered: Graves, arXiv:1308.0850.

    grad, square, average and buffer have the shape and dtype of weight; lr: a float scalar. Outputs: weight', s', and
    a' and b' if a and b are given.
    """

    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    inputs = ("weight", "grad", "square", "lr", "average?", "buffer?")
    outputs = ("new_weight", "new_square", "new_average?", "new_buffer?")
    types = {"weight": FLOATS, "grad": "weight", "square": "weight", "lr": FLOATS, "average": "weight",
             "buffer": "weight"}  # fmt: skip
    inplace = ((0, 0), (2, 1))
    # grad=False: an update is not differentiated.
    samples = lambda: (
        Sample(_MATRIX, _MATRIX, _SQUARE, _LR, grad=False),
        Sample(_MATRIX, _MATRIX, _SQUARE, _LR, alpha=0.5, epsilon=0.125, weight_decay=0.25, grad=False),
        Sample(_MATRIX, _MATRIX, _SQUARE_ABOVE, _LR, _AVERAGE, grad=False),
        Sample(_MATRIX, _MATRIX, _SQUARE, _LR, None, _MATRIX, momentum=0.5, grad=False),
        Sample(_MATRIX, _MATRIX, _SQUARE_ABOVE, _LR, _AVERAGE, _MATRIX, momentum=0.5, grad=False),
        Sample((), (), Rand((), 0.1, 2.0), _LR, grad=False),
        Sample((0, 3), (0, 3), (0, 3), _LR, grad=False),
    )

    def infer(
        self,
        weight: TensorType,
        grad: TensorType,
        square: TensorType,
        lr: TensorType,
        average: TensorType | None = None,
        buffer: TensorType | None = None,
    ) -> tuple[TensorType, ...]:
        if bool(self.momentum) != (buffer is not None):
            raise TypeMismatch("give buffer if momentum is not 0, and only then")
        optional = {name: t for name, t in (("average", average), ("buffer", buffer)) if t is not None}
        self.check(weight, {"grad": grad, "square": square, **optional}, {"lr": lr})
        return (TensorType(weight.dtype, weight.shape),) * (2 + len(optional))

    def reference(
        self, xp: Any, weight: Any, grad: Any, square: Any, lr: Any, average: Any = None, buffer: Any = None
    ) -> Any:
        g = _decayed(weight, grad, self.weight_decay)
        square = self.alpha * square + (1 - self.alpha) * g * g
        slots, spread = [square], square
        if average is not None:
            average = self.alpha * average + (1 - self.alpha) * g
            slots.append(average)
            spread = xp.maximum(square - average * average, 0)
        direction = g / (xp.sqrt(spread) + self.epsilon)
        if buffer is not None:
            direction = self.momentum * buffer + direction
            slots.append(direction)
        return weight - lr.astype(weight.dtype) * direction, *slots

    def expand(self, weight: Any, grad: Any, square: Any, lr: Any, average: Any = None, buffer: Any = None) -> Any:
        g = _decayed(weight, grad, self.weight_decay)
        square = square * self.alpha + g * (1 - self.alpha) * g
        slots, spread = [square], square
        if average is not None:
            average = average * self.alpha + g * (1 - self.alpha)
            slots.append(average)
            spread = F.max(square - average * average, scalar_like(0.0, weight))
        direction = g / (F.sqrt(spread) + self.epsilon)
        if buffer is not None:
            direction = buffer * self.momentum + direction
            slots.append(direction)
        return weight - _as(lr, weight) * direction, *slots


@op
class AdagradUpdate(Update):
    """Adagrad: weight' = weight - rate * g / (sqrt(s') + epsilon), where s' = s + g^2.

    s is `square`; g = grad + weight_decay * weight; rate = lr / (1 + (step - 1) * lr_decay). Duchi, Hazan and Singer,
    "Adaptive subgradient methods for online learning", JMLR 2011.

    grad and square have the shape and dtype of weight; lr: a float scalar; step: a scalar, 1 at the first update.
    Outputs: weight', s'.
    """

    lr_decay: float = 0.0
    epsilon: float = 1e-10
    inputs = ("weight", "grad", "square", "lr", "step")
    outputs = ("new_weight", "new_square")
    types = {"weight": FLOATS, "grad": "weight", "square": "weight", "lr": FLOATS, "step": FLOATS | INTEGERS}
    inplace = ((0, 0), (2, 1))
    # grad=False: an update is not differentiated.
    samples = lambda: (
        Sample(_MATRIX, _MATRIX, _SQUARE, _LR, _FIRST, grad=False),
        Sample(_MATRIX, _MATRIX, _SQUARE, _LR, _THIRD, lr_decay=0.25, weight_decay=0.25, grad=False),
        Sample((), (), Rand((), 0.1, 2.0), _LR, _THIRD, epsilon=0.125, grad=False),
        Sample((0, 3), (0, 3), (0, 3), _LR, _FIRST, grad=False),
    )

    def infer(
        self, weight: TensorType, grad: TensorType, square: TensorType, lr: TensorType, step: TensorType
    ) -> tuple[TensorType, ...]:
        self.check(weight, {"grad": grad, "square": square}, {"lr": lr, "step": step})
        return (TensorType(weight.dtype, weight.shape),) * 2

    def reference(self, xp: Any, weight: Any, grad: Any, square: Any, lr: Any, step: Any) -> Any:
        g = _decayed(weight, grad, self.weight_decay)
        square = square + g * g
        rate = lr.astype(xp.float64) / (1 + (step.astype(xp.float64) - 1) * self.lr_decay)
        return weight - rate.astype(weight.dtype) * (g / (xp.sqrt(square) + self.epsilon)), square

    def expand(self, weight: Any, grad: Any, square: Any, lr: Any, step: Any) -> Any:
        g = _decayed(weight, grad, self.weight_decay)
        square = square + g * g
        rate = _in_double(lr) / ((_in_double(step) - 1.0) * self.lr_decay + 1.0) if self.lr_decay else lr
        return weight - _as(rate, weight) * (g / (F.sqrt(square) + self.epsilon)), square


@op
class AdadeltaUpdate(Update):
    """Adadelta: weight' = weight - lr * d, where d = sqrt(u + epsilon) / sqrt(s' + epsilon) * g.

    s is `square`, u is `change`. g = grad + weight_decay * weight; s' = rho s + (1 - rho) g^2; u' = rho u + (1 - rho)
    d^2. Zeiler, "ADADELTA: an adaptive learning rate method", arXiv:1212.5701.

    grad, square and change have the shape and dtype of weight; lr: a float scalar. Outputs: weight', s', u'.
    """

    rho: float = 0.9
    epsilon: float = 1e-6
    inputs = ("weight", "grad", "square", "change", "lr")
    outputs = ("new_weight", "new_square", "new_change")
    types = {"weight": FLOATS, "grad": "weight", "square": "weight", "change": "weight", "lr": FLOATS}
    inplace = ((0, 0), (2, 1), (3, 2))
    # grad=False: an update is not differentiated.
    samples = lambda: (
        Sample(_MATRIX, _MATRIX, _SQUARE, _SQUARE, _LR, grad=False),
        Sample(_MATRIX, _MATRIX, _SQUARE, _SQUARE, _LR, rho=0.5, epsilon=0.125, weight_decay=0.25, grad=False),
        Sample((), (), Rand((), 0.1, 2.0), Rand((), 0.1, 2.0), _LR, grad=False),
        Sample((0, 3), (0, 3), (0, 3), (0, 3), _LR, grad=False),
    )

    def infer(
        self, weight: TensorType, grad: TensorType, square: TensorType, change: TensorType, lr: TensorType
    ) -> tuple[TensorType, ...]:
        self.check(weight, {"grad": grad, "square": square, "change": change}, {"lr": lr})
        return (TensorType(weight.dtype, weight.shape),) * 3

    def reference(self, xp: Any, weight: Any, grad: Any, square: Any, change: Any, lr: Any) -> Any:
        g = _decayed(weight, grad, self.weight_decay)
        square = self.rho * square + (1 - self.rho) * g * g
        direction = xp.sqrt(change + self.epsilon) / xp.sqrt(square + self.epsilon) * g
        change = self.rho * change + (1 - self.rho) * direction * direction
        return weight - lr.astype(weight.dtype) * direction, square, change

    def expand(self, weight: Any, grad: Any, square: Any, change: Any, lr: Any) -> Any:
        g = _decayed(weight, grad, self.weight_decay)
        square = square * self.rho + g * (1 - self.rho) * g
        direction = F.sqrt(change + self.epsilon) / F.sqrt(square + self.epsilon) * g
        change = change * self.rho + direction * (1 - self.rho) * direction
        return weight - _as(lr, weight) * direction, square, change


@op
class FtrlUpdate(Update):
    """FTRL-Proximal: weight' = 0 where |z'| <= l1, else (sign(z') l1 - z') / ((beta + sqrt(n')) / lr + l2).

    z is `linear`, n is `square`. For each element, with g = grad + weight_decay * weight: n' = n + g^2; z' = z + g -
    (sqrt(n') - sqrt(n)) / lr * weight. The paper starts at weight 0, where z is 0. Weights may also start at other
    values: as long as an element has had no gradient (n = 0), z is chosen so that the formula gives its present weight.
    McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013, algorithm 1.

    grad, linear and square have the shape and dtype of weight; lr: a float scalar. Outputs: weight', z', n'.
    """

    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    inputs = ("weight", "grad", "linear", "square", "lr")
    outputs = ("new_weight", "new_linear", "new_square")
    types = {"weight": FLOATS, "grad": "weight", "linear": "weight", "square": "weight", "lr": FLOATS}
    inplace = ((0, 0), (2, 1), (3, 2))
    # grad=False: an update is not differentiated.
    samples = lambda: (
        Sample(_MATRIX, _MATRIX, _MATRIX, _SQUARE, _LR, grad=False),
        Sample(_MATRIX, _MATRIX, _MATRIX, _SQUARE, _LR, beta=0.5, l1=0.75, l2=0.25, grad=False),
        Sample(_MATRIX, _MATRIX, _MATRIX, np.zeros(_MATRIX, np.float32), _LR, l1=0.125, grad=False),
        Sample((), (), (), Rand((), 0.1, 2.0), _LR, grad=False),
        Sample((0, 3), (0, 3), (0, 3), (0, 3), _LR, grad=False),
    )

    def infer(
        self, weight: TensorType, grad: TensorType, linear: TensorType, square: TensorType, lr: TensorType
    ) -> tuple[TensorType, ...]:
        self.check(weight, {"grad": grad, "linear": linear, "square": square}, {"lr": lr})
        return (TensorType(weight.dtype, weight.shape),) * 3

    def reference(self, xp: Any, weight: Any, grad: Any, linear: Any, square: Any, lr: Any) -> Any:
        rate, g = lr.astype(weight.dtype), _decayed(weight, grad, self.weight_decay)
        curvature = (self.beta + xp.sqrt(square)) / rate + self.l2
        linear = xp.where(square == 0, -(weight * curvature + xp.sign(weight) * self.l1), linear)
        new_square = square + g * g
        linear = linear + g - (xp.sqrt(new_square) - xp.sqrt(square)) / rate * weight
        curvature = (self.beta + xp.sqrt(new_square)) / rate + self.l2
        new = (xp.sign(linear) * self.l1 - linear) / curvature
        return xp.where(xp.abs(linear) <= self.l1, xp.zeros_like(weight), new), linear, new_square

    def expand(self, weight: Any, grad: Any, linear: Any, square: Any, lr: Any) -> Any:
        rate, g = _as(lr, weight), _decayed(weight, grad, self.weight_decay)
        root = F.sqrt(square)
        start = F.neg(weight * ((root + self.beta) / rate + self.l2) + F.sign(weight) * self.l1)
        linear = F.where(F.equal(square, scalar_like(0.0, weight)), start, linear)
        new_square = square + g * g
        new_root = F.sqrt(new_square)
        linear = linear + g - (new_root - root) / rate * weight
        new = (F.sign(linear) * self.l1 - linear) / ((new_root + self.beta) / rate + self.l2)
        small = F.less_or_equal(F.abs(linear), scalar_like(self.l1, weight))
        return F.where(small, scalar_like(0.0, weight), new), linear, new_square
