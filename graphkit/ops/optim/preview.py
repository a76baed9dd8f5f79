"""The optimizers of ai.onnx.preview.training; one node updates several tensors.

The formulas are the standard's (onnx, docs/Operators.md), not those of torch.optim: epsilon is added elsewhere, and
rates decay differently. Values that depend only on the rate and the count are computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import MissingGradient, TypeMismatch, UsageError
from graphkit.ir.graph import Node
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, op
from graphkit.ops.operands import fits

DOMAIN = "ai.onnx.preview.training"
_WIDE = frozenset({DType.FLOAT32, DType.FLOAT64})
_RATE = np.array(0.125, np.float32)
_FIRST, _LATER = np.array(0), np.array([3])
_MATRIX, _SQUARE = Rand((2, 3)), Rand((2, 3), 0.1, 2.0)
_PAIR = (_MATRIX, Rand((3,)), _MATRIX, Rand((3,)))


class _Step(Op):
    """Base of these optimizers.

    rate: scalar; count: int64 scalar, number of steps before this one; tensors: all weights, all gradients, all slots.

    Results are all new weights, then all new slots, each kind in the order of the weights. A weight, its gradient and
    its slots have one type. One definition serves arrays and graphs: `m` is numpy, CuPy or `F`.
    """

    inputs = ("rate", "count", "tensors*")
    outputs = ("results*",)
    types = {"rate": _WIDE, "count": frozenset({DType.INT64})}
    composite = True
    # Number of tensors per weight: the weight, its gradient and its slots.
    kinds: ClassVar[int]

    def infer(self, rate: TensorType, count: TensorType, *tensors: TensorType) -> tuple[TensorType, ...]:
        for name, scalar in (("rate", rate), ("count", count)):
            if not (fits(scalar.shape, ()) or fits(scalar.shape, (1,))):
                raise TypeMismatch(f"{name} must be a scalar, not {scalar}")
        if not tensors or len(tensors) % self.kinds:
            raise TypeMismatch(f"{self.name} takes {self.kinds} tensors for each weight, {len(tensors)} given")
        weights = self._groups(tensors)
        for weight, *others in weights:
            for other in others:
                if weight.dtype not in _WIDE or other.dtype is not weight.dtype or not fits(other.shape, weight.shape):
                    raise TypeMismatch(f"{other} does not fit weight {weight}")
        return tuple(TensorType(w.dtype, w.shape) for _ in range(self.kinds - 1) for w, *_ in weights)

    def _groups(self, tensors: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return (weight, gradient, slots) for each weight."""
        count = len(tensors) // self.kinds
        return [tuple(tensors[i::count]) for i in range(count)]

    def reference(self, xp: Any, rate: Any, count: Any, *tensors: Any) -> tuple[Any, ...]:
        r, t = (xp.reshape(v, ()).astype(xp.float64) for v in (rate, count))
        factors = self.factors(xp, xp.power, r, t)
        results = [self.step(xp, *(f.astype(w.dtype) for f in factors), w, *o) for w, *o in self._groups(tensors)]
        return tuple(made[kind] for kind in range(self.kinds - 1) for made in results)

    def expand(self, rate: Any, count: Any, *tensors: Any) -> tuple[Any, ...]:
        scalar = np.zeros(0, np.int64)
        r, t = (F.cast(F.reshape(v, scalar), to=DType.FLOAT64) for v in (rate, count))
        factors = self.factors(F, F.pow, r, t)
        results = [self.step(F, *(F.cast(f, to=w.dtype) for f in factors), w, *o) for w, *o in self._groups(tensors)]
        return tuple(made[kind] for kind in range(self.kinds - 1) for made in results)

    def factors(self, m: Any, power: Callable[[Any, Any], Any], rate: Any, count: Any) -> tuple[Any, ...]:
        """Compute the factors that all weights share, from rate and count as float64 scalars."""
        raise NotImplementedError

    def step(self, m: Any, *operands: Any) -> tuple[Any, ...]:
        """Return the new weight and slots. operands: factors in the weight's type, weight, gradient, slots."""
        raise NotImplementedError

    def grad(self, node: Node, *_: Any) -> Any:
        raise MissingGradient(f"{self.name} ends a training step; it is not differentiated")


@op
class Adagrad(_Step):
    """Adagrad: x' = x - r g / (sqrt(h') + epsilon), where h' = h + g^2.

    g = norm_coefficient x + gradient; r = rate / (1 + count * decay_factor). Duchi, Hazan and Singer, "Adaptive
    subgradient methods for online learning", JMLR 2011.

    rate: a float scalar; count: an int64 scalar, the number of earlier updates. tensors: all weights x, then all
    gradients, then all sums of squares h, float32 or float64, in the same order and with equal shapes. Outputs: all x',
    then all h'.
    """

    decay_factor: float = 0.0
    epsilon: float = 1e-6
    norm_coefficient: float = 0.0
    domain = DOMAIN
    onnx = Onnx("Adagrad", since=1, domain=DOMAIN)
    kinds = 3
    # grad=False: an update is not differentiated.
    samples = lambda: (
        Sample(_RATE, _FIRST, _MATRIX, _MATRIX, _SQUARE, dtypes=_WIDE, grad=False),
        Sample(_RATE, _LATER, *_PAIR, _SQUARE, Rand((3,), 0.1, 2.0), decay_factor=0.25, norm_coefficient=0.5,
               epsilon=0.125, dtypes=_WIDE, grad=False),
        Sample(_RATE, _FIRST, (0, 2), (0, 2), (0, 2), dtypes=_WIDE, grad=False),
    )  # fmt: skip

    def factors(self, m: Any, power: Any, rate: Any, count: Any) -> tuple[Any, ...]:
        return (rate / (count * self.decay_factor + 1.0),)

    def step(self, m: Any, rate: Any, x: Any, gradient: Any, h: Any) -> tuple[Any, ...]:
        g = gradient + x * self.norm_coefficient
        h = h + g * g
        return x - rate * g / (m.sqrt(h) + self.epsilon), h


@op
class Adam(_Step):
    """Adam: x' = (1 - norm_coefficient_post) (x - r v' / (sqrt(h') + epsilon)).

    g = norm_coefficient x + gradient; v' = alpha v + (1 - alpha) g; h' = beta h + (1 - beta) g^2. r is rate if count is
    0, else rate sqrt(1 - beta^count) / (1 - alpha^count). Kingma and Ba, "Adam: a method for stochastic optimization",
    ICLR 2015.

    rate: a float scalar; count: an int64 scalar, the number of earlier updates. tensors: all weights x, then all
    gradients, then all v, then all h, float32 or float64, in the same order and with equal shapes. Outputs: all x',
    then all v', then all h'.
    """

    alpha: float = 0.9
    beta: float = 0.999
    epsilon: float = 1e-6
    norm_coefficient: float = 0.0
    norm_coefficient_post: float = 0.0
    domain = DOMAIN
    onnx = Onnx("Adam", since=1, domain=DOMAIN)
    kinds = 4
    # grad=False: an update is not differentiated.
    samples = lambda: (
        Sample(_RATE, _FIRST, _MATRIX, _MATRIX, _MATRIX, _SQUARE, dtypes=_WIDE, grad=False),
        Sample(_RATE, _LATER, *_PAIR, _MATRIX, Rand((3,)), _SQUARE, Rand((3,), 0.1, 2.0), alpha=0.5, beta=0.75,
               epsilon=0.125, norm_coefficient=0.5, norm_coefficient_post=0.25, dtypes=_WIDE, grad=False),
        Sample(_RATE, _LATER, (), (), (), Rand((), 0.1, 2.0), dtypes=_WIDE, grad=False),
    )  # fmt: skip

    def factors(self, m: Any, power: Any, rate: Any, count: Any) -> tuple[Any, ...]:
        one = count * 0.0 + 1.0
        adjusted = rate * m.sqrt(one - power(one * self.beta, count)) / (one - power(one * self.alpha, count))
        return (m.where(m.greater(count, count * 0.0), adjusted, rate),)

    def step(self, m: Any, rate: Any, x: Any, gradient: Any, v: Any, h: Any) -> tuple[Any, ...]:
        g = gradient + x * self.norm_coefficient
        v = v * self.alpha + g * (1.0 - self.alpha)
        h = h * self.beta + g * (1.0 - self.beta) * g
        return (x - rate * v / (m.sqrt(h) + self.epsilon)) * (1.0 - self.norm_coefficient_post), v, h


@op
class Momentum(_Step):
    """Gradient descent with momentum: v' = alpha v + b g, where b = 1 at count 0, else beta.

    g = norm_coefficient x + gradient; x' = x - rate v' (mode standard) or x - rate (g + alpha v') (mode nesterov).
    Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.

    rate: a float scalar; count: an int64 scalar, the number of earlier updates. tensors: all weights x, then all
    gradients, then all v, float32 or float64, in the same order and with equal shapes. Outputs: all x', then all v'.
    """

    alpha: float
    beta: float
    mode: str
    norm_coefficient: float
    domain = DOMAIN
    onnx = Onnx("Momentum", since=1, domain=DOMAIN)
    kinds = 3
    # grad=False: an update is not differentiated.
    samples = lambda: (
        Sample(_RATE, _FIRST, _MATRIX, _MATRIX, _MATRIX, alpha=0.5, beta=0.25, mode="standard", norm_coefficient=0.0,
               dtypes=_WIDE, grad=False),
        Sample(_RATE, _LATER, *_PAIR, _MATRIX, Rand((3,)), alpha=0.5, beta=0.25, mode="standard", norm_coefficient=0.5,
               dtypes=_WIDE, grad=False),
        Sample(_RATE, _LATER, *_PAIR, _MATRIX, Rand((3,)), alpha=0.5, beta=0.25, mode="nesterov", norm_coefficient=0.5,
               dtypes=_WIDE, grad=False),
    )  # fmt: skip

    def infer(self, rate: TensorType, count: TensorType, *tensors: TensorType) -> tuple[TensorType, ...]:
        if self.mode not in ("standard", "nesterov"):
            raise UsageError(f"mode must be standard or nesterov, not {self.mode!r}")
        return super().infer(rate, count, *tensors)

    def factors(self, m: Any, power: Any, rate: Any, count: Any) -> tuple[Any, ...]:
        one = count * 0.0 + 1.0
        return rate, m.where(m.greater(count, count * 0.0), one * self.beta, one)

    def step(self, m: Any, rate: Any, gain: Any, x: Any, gradient: Any, v: Any) -> tuple[Any, ...]:
        g = gradient + x * self.norm_coefficient
        v = v * self.alpha + gain * g
        return x - rate * (g + v * self.alpha if self.mode == "nesterov" else v), v
