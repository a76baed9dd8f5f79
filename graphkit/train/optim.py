"""Optimizers: each defines its slots (state arrays per parameter) and the operator that updates a parameter."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphkit.errors import UsageError, did_you_mean
from graphkit.ir.graph import Value
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like
from graphkit.signatures import typed_constructor
from graphkit.train import nesterov
from graphkit.train.average import EMA
from graphkit.train.optimizer import OTHER_NAMES, Optimizer
from graphkit.train.schedules import (
    Constant,
    Cosine,
    Exponential,
    Linear,
    OneCycle,
    Polynomial,
    Rate,
    Schedule,
    Step,
    Warmup,
    schedule,
)  # fmt: skip
from graphkit.train.updater import KeyedOptimizer

__all__ = [
    "EMA", "LARS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Constant", "Cosine", "Exponential", "Ftrl",
    "KeyedOptimizer", "Lamb", "Linear", "Lion", "NAdam", "OneCycle", "Optimizer", "Polynomial", "RMSProp", "Schedule",
    "Step", "Warmup", "get", "names", "schedule",
]  # fmt: skip


@typed_constructor("gk.optim")
@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent: w -= lr * g, where g = grad + weight_decay * w.

    With momentum, v = momentum * v + g, and w -= lr * v. With Nesterov's momentum, w -= lr * (g + momentum * v). These
    are the formulas of PyTorch (Sutskever et al., 2013).

    Args:
        lr: Learning rate, a Schedule, or a function of the number of earlier updates.
        momentum: Factor of the velocity v, from 0 to 1.
        nesterov: Use Nesterov's momentum; needs a momentum above 0.
        weight_decay: L2 penalty: weight_decay * w is added to the gradient.
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    kind = "sgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise UsageError("SGD: nesterov=True needs a momentum above 0")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def ignores_zeros(self, decay: float) -> bool:
        return type(self).update is SGD.update and not self.momentum and not self.weight_decay * decay

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]:
        outputs = F.sgd_update(
            weight, grad, lr, *slots,
            momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay * decay,
        )  # fmt: skip
        return outputs if isinstance(outputs, tuple) else (outputs,)


@typed_constructor("gk.optim")
@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), with bias correction.

    Args:
        lr: Learning rate, a Schedule, or a function of the number of earlier updates.
        beta1: Decay of the mean of the gradients.
        beta2: Decay of the mean of their squares.
        epsilon: Added to the root of the mean square.
        weight_decay: L2 penalty: weight_decay * w is added to the gradient.
    """

    lr: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    kind = "adam"

    @property
    def slots(self) -> tuple[str, ...]:
        return ("mean", "variance")

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]:
        mean, variance = slots
        return self._operator(
            weight, grad, mean, variance, lr, step,
            beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, weight_decay=self.weight_decay * decay,
        )  # fmt: skip

    @property
    def _operator(self) -> Callable[..., tuple[Value, ...]]:
        return F.adam_update


@typed_constructor("gk.optim")
@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: w -= lr * weight_decay * w (Loshchilov and Hutter, 2019).

    Args:
        lr: Learning rate, a Schedule, or a function of the number of earlier updates.
        beta1: Decay of the mean of the gradients.
        beta2: Decay of the mean of their squares.
        epsilon: Added to the root of the mean square.
        weight_decay: Factor of the decay in this formula. The decay is not added to the gradient.
    """

    weight_decay: float = 0.01
    kind = "adamw"

    @property
    def _operator(self) -> Callable[..., tuple[Value, ...]]:
        return F.adam_w_update


@typed_constructor("gk.optim")
@dataclass(frozen=True)
class NAdam(Adam):
    """Adam with Nesterov's momentum (Dozat, 2016), with the formulas of PyTorch.

    With m and v as in Adam, P[t] = mu[1] * ... * mu[t] and mu[t] = beta1 * (1 - 0.96^(t * momentum_decay) / 2), step t
    is

        w -= lr * (g * (1 - mu[t]) / (1 - P[t]) + m * mu[t + 1] / (1 - P[t + 1])) / (sqrt(v / (1 - beta2^t)) + epsilon)

    Args:
        lr: Learning rate, a Schedule, or a function of the number of earlier updates.
        beta1: Decay of the mean of the gradients, m; also the limit of mu.
        beta2: Decay of the mean of their squares, v.
        epsilon: Added to the root of the mean square.
        weight_decay: L2 penalty: weight_decay * w is added to the gradient.
        momentum_decay: How fast mu rises from about beta1 / 2 to beta1.
        decoupled_weight_decay: Use decoupled weight decay instead, as in AdamW: w -= lr * weight_decay * w.
    """

    lr: Rate = 2e-3
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False
    kind = "nadam"

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]:
        mean, variance = slots
        rate = lr if lr.dtype is weight.dtype else F.cast(lr, to=weight.dtype)
        weight_decay = self.weight_decay * decay
        if weight_decay and not self.decoupled_weight_decay:
            grad = F.add(grad, F.mul(scalar_like(weight_decay, weight), weight))
        mean = _between(mean, grad, self.beta1)
        variance = _between(variance, F.mul(grad, grad), self.beta2)
        of_grad, of_mean, correction = nesterov.factors(self, step, weight.dtype)
        root = F.add(F.sqrt(F.div(variance, correction)), scalar_like(self.epsilon, weight))
        direction = F.div(F.add(F.mul(of_grad, grad), F.mul(of_mean, mean)), root)
        if weight_decay and self.decoupled_weight_decay:
            direction = F.add(direction, F.mul(scalar_like(weight_decay, weight), weight))
        return F.sub(weight, F.mul(rate, direction)), mean, variance


@typed_constructor("gk.optim")
@dataclass(frozen=True)
class RMSProp(Optimizer):
    """RMSProp (Hinton, 2012), with the formulas of PyTorch: w -= lr * g / (sqrt(mean of g^2) + epsilon).

    Args:
        lr: Learning rate, a Schedule, or a function of the number of earlier updates.
        alpha: Decay of the mean of g^2.
        epsilon: Added to the root.
        momentum: If above 0, w -= lr * v, where v = momentum * v + g / (sqrt(mean of g^2) + epsilon).
        centered: Subtract the square of the mean gradient from the mean of g^2 (Graves, 2013).
        weight_decay: L2 penalty: weight_decay * w is added to the gradient.
    """

    lr: Rate = 1e-2
    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    centered: bool = False
    weight_decay: float = 0.0
    kind = "rmsprop"

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square", *(["mean"] if self.centered else []), *(["buffer"] if self.momentum else []))

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]:
        named = dict(zip(self.slots, slots, strict=True))
        outputs: Sequence[Value] = F.rms_prop_update(
            weight, grad, named["square"], lr, named.get("mean"), named.get("buffer"),
            alpha=self.alpha, epsilon=self.epsilon, momentum=self.momentum, weight_decay=self.weight_decay * decay,
        )  # fmt: skip
        return outputs


@typed_constructor("gk.optim")
@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi, Hazan and Singer, 2011), with the formulas of PyTorch: w -= rate * g / (sqrt(s) + epsilon).

    s is the sum of g^2, and rate = lr / (1 + (step - 1) * lr_decay), where step is 1 at the first update.

    Args:
        lr: Learning rate, a Schedule, or a function of the number of earlier updates.
        lr_decay: Decay of the learning rate.
        initial: Initial value of s.
        epsilon: Added to the root.
        weight_decay: L2 penalty: weight_decay * w is added to the gradient.
    """

    lr: Rate = 1e-2
    lr_decay: float = 0.0
    initial: float = 0.0
    epsilon: float = 1e-10
    weight_decay: float = 0.0
    kind = "adagrad"

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square",)

    def start(self, slot: str) -> float:
        return self.initial

    def ignores_zeros(self, decay: float) -> bool:
        return type(self).update is Adagrad.update and self.epsilon > 0 and not self.weight_decay * decay

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]:
        (square,) = slots
        return F.adagrad_update(
            weight, grad, square, lr, step,
            lr_decay=self.lr_decay, epsilon=self.epsilon, weight_decay=self.weight_decay * decay,
        )  # fmt: skip


@typed_constructor("gk.optim")
@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta (Zeiler, 2012), with the formulas of PyTorch.

    Args:
        lr: Learning rate, a Schedule, or a function of the number of earlier updates.
        rho: Decay of the means of squared gradients and squared changes.
        epsilon: Added to these means.
        weight_decay: L2 penalty: weight_decay * w is added to the gradient.
    """

    lr: Rate = 1.0
    rho: float = 0.9
    epsilon: float = 1e-6
    weight_decay: float = 0.0
    kind = "adadelta"

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square", "change")

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]:
        square, change = slots
        return F.adadelta_update(
            weight, grad, square, change, lr,
            rho=self.rho, epsilon=self.epsilon, weight_decay=self.weight_decay * decay,
        )  # fmt: skip


@typed_constructor("gk.optim")
@dataclass(frozen=True)
class Ftrl(Optimizer):
    """FTRL-Proximal (McMahan et al., 2013, algorithm 1) for sparse linear models.

    Args:
        lr: Learning rate, a Schedule, or a function of the number of earlier updates.
        beta: Added to the root of the sum of squared gradients.
        l1: Strength of L1 regularisation, which makes weights exactly 0.
        l2: Strength of L2 regularisation. It is multiplied by the `wd_mult` of the parameter (0: no L2).
    """

    lr: Rate = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    kind = "ftrl"

    @property
    def slots(self) -> tuple[str, ...]:
        return ("linear", "square")

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]:
        linear, square = slots
        return F.ftrl_update(weight, grad, linear, square, lr, beta=self.beta, l1=self.l1, l2=self.l2 * decay)


@typed_constructor("gk.optim")
@dataclass(frozen=True)
class LARS(Optimizer):
    """LARS (You et al., 2017): SGD with momentum and a learning rate for each parameter.

    The rate is lr * trust * |w| / (|g| + weight_decay * |w| + epsilon), with the norms of whole parameters.

    Args:
        lr: Learning rate, a Schedule, or a function of the number of earlier updates.
        momentum: Factor of the velocity, from 0 to 1.
        trust: Factor of the quotient of norms (the trust coefficient).
        epsilon: Added to the denominator.
        weight_decay: L2 penalty: weight_decay * w is added to the gradient.
        vectors: If False, parameters with at most one axis (biases, scales of normalisations) have the rate lr and no
            weight decay.
    """

    lr: Rate = 1.0
    momentum: float = 0.9
    trust: float = 0.001
    epsilon: float = 0.0
    weight_decay: float = 0.0
    vectors: bool = False
    kind = "lars"
    elementwise = False

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",)

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]:
        (velocity,) = slots
        if not self.vectors and (weight.rank or 0) < 2:
            new = F.add(F.mul(velocity, scalar_like(self.momentum, weight)), F.mul(grad, F.cast(lr, to=weight.dtype)))
            return F.sub(weight, new), new
        return F.lars_update(
            weight, grad, velocity, lr,
            momentum=self.momentum, trust=self.trust, epsilon=self.epsilon, weight_decay=self.weight_decay * decay,
        )  # fmt: skip


@typed_constructor("gk.optim")
@dataclass(frozen=True)
class Lamb(Optimizer):
    """LAMB (You et al., 2020): Adam with steps scaled to the norm of each parameter, and decoupled weight decay.

    Args:
        lr: Learning rate, a Schedule, or a function of the number of earlier updates.
        beta1: Decay of the mean of the gradients.
        beta2: Decay of the mean of their squares.
        epsilon: Added to the root of the mean square.
        weight_decay: Decoupled weight decay: weight_decay * w is added to Adam's step, before it is scaled.
        vectors: If False, parameters with at most one axis (biases, scales of normalisations) have Adam's step and no
            weight decay.
    """

    lr: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    vectors: bool = False
    kind = "lamb"
    elementwise = False

    @property
    def slots(self) -> tuple[str, ...]:
        return ("mean", "variance")

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]:
        mean, variance = slots
        options: dict[str, Any] = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        if not self.vectors and (weight.rank or 0) < 2:
            return F.adam_update(weight, grad, mean, variance, lr, step, **options)
        weight_decay = self.weight_decay * decay
        return F.lamb_update(weight, grad, mean, variance, lr, step, weight_decay=weight_decay, **options)


@typed_constructor("gk.optim")
@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion (Chen et al., 2023): w -= lr * (sign(beta1 * m + (1 - beta1) * grad) + weight_decay * w).

    Then m = beta2 * m + (1 - beta2) * grad.

    Args:
        lr: Learning rate, a Schedule, or a function of the number of earlier updates. It is usually three to ten times
            smaller than for Adam.
        beta1: Weight of m in the update.
        beta2: Decay of m.
        weight_decay: Decoupled weight decay, as in the formula.
    """

    lr: Rate = 1e-4
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0
    kind = "lion"

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",)

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]:
        (momentum,) = slots
        direction = F.sign(_between(momentum, grad, self.beta1))
        if self.weight_decay * decay:
            direction = F.add(direction, F.mul(scalar_like(self.weight_decay * decay, weight), weight))
        rate = lr if lr.dtype is weight.dtype else F.cast(lr, to=weight.dtype)
        return F.sub(weight, F.mul(rate, direction)), _between(momentum, grad, self.beta2)


def _between(old: Value, new: Value, share: float) -> Value:
    result: Value = F.add(F.mul(scalar_like(share, old), old), F.mul(scalar_like(1.0 - share, new), new))
    return result


_KINDS = {cls.kind: cls for cls in (SGD, Adam, AdamW, NAdam, RMSProp, Adagrad, Adadelta, Ftrl, LARS, Lamb, Lion)}


def names() -> list[str]:
    """Return the names of all optimizers."""
    return list(_KINDS)


_BY_NAME: Mapping[str, Mapping[str, Any]] = {"sgd": {"lr": 0.05, "momentum": 0.9}}


def get(spec: str | Optimizer | Mapping[str, Any], **options: Any) -> Optimizer:
    """Return an optimizer by its name and options, or from the dict of `describe`. An Optimizer is returned as it is.

    By name, "sgd" has learning rate 0.05 and momentum 0.9, unless the options change them.
    """
    if isinstance(spec, Optimizer):
        return spec
    if not isinstance(spec, (str, Mapping)):
        shown = f"the class {spec.__name__}; write {spec.__name__}(...)" if isinstance(spec, type) else repr(spec)
        raise UsageError(f"an optimizer must be a name or an object such as gk.optim.SGD(0.1), not {shown}")
    named = {} if isinstance(spec, Mapping) else {"type": spec, **_BY_NAME.get(spec, {})}
    chosen = {**named, **(spec if isinstance(spec, Mapping) else {}), **options}
    kind = chosen.pop("type", None)
    if kind is None:
        raise UsageError(f"a dict that describes an optimizer needs the key 'type': {', '.join(_KINDS)}")
    if kind not in _KINDS:
        raise UsageError(f"unknown optimizer {kind!r}{did_you_mean(kind, _KINDS)}")
    if isinstance(chosen.get("lr"), Mapping):
        chosen["lr"] = schedule(chosen["lr"])
    return _KINDS[kind](**chosen)


def option_hint(name: str, arguments: Mapping[str, Any]) -> str:
    """Return advice for a Trainer that got an option of an optimizer, or "" if no optimizer has this option.

    arguments: All arguments of the Trainer, by name. The advice prefers the user's optimizer, if it has the option.
    """
    chosen = arguments.get("optimizer")
    chosen = chosen.get("type") if isinstance(chosen, Mapping) else getattr(chosen, "kind", chosen)
    preferred = [_KINDS[chosen]] if isinstance(chosen, str) and chosen in _KINDS else []
    for cls in (*preferred, *_KINDS.values()):
        fields = [f.name for f in dataclasses.fields(cls)]
        if OTHER_NAMES.get(name, name) in fields:
            given = {OTHER_NAMES.get(n, n): value for n, value in arguments.items()}
            rate = _number(given["lr"]) if "lr" in given else "lr=..."
            options = [f"{n}={_number(given[n])}" for n in fields if n != "lr" and n in given]
            call = f"gk.optim.{cls.__name__}({', '.join([rate, *options])})"
            return f"; it is an option of the optimizer: optimizer={call}"
    return ""


def _number(value: Any) -> str:
    return str(value) if isinstance(value, numbers.Real) else "..."


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _KINDS:
            raise AttributeError(f"gk.optim has no attribute {name!r}; did you mean {_KINDS[name].__name__!r}?")
        raise AttributeError(f"gk.optim has no attribute {name!r}{did_you_mean(name, __all__)}")
