"""Optimizers: which slots a parameter has, and the update operator that changes both, in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from graphkit.errors import UsageError, did_you_mean
from graphkit.ir.graph import Value
from graphkit.ops import F
from graphkit.train.schedules import Constant, Cosine, Exponential, Schedule, Step, Warmup, schedule

__all__ = [
    "SGD", "Adam", "AdamW", "Constant", "Cosine", "Exponential", "Optimizer", "Schedule", "Step", "Warmup", "get",
    "names", "schedule",
]  # fmt: skip


@dataclass(frozen=True)
class Optimizer:
    """`lr` is a number or a Schedule. Subclasses name their slots and build one parameter's update."""

    lr: float | Schedule

    kind: ClassVar[str] = ""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the per-parameter states; each has the parameter's type and starts at zero."""
        return ()

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]:
        """The new weight and the new slots. lr: float32 scalar; step: int64 scalar, 1 at the first update;
        decay: factor on weight_decay for this parameter."""
        raise NotImplementedError

    @property
    def schedule(self) -> Schedule:
        return schedule(self.lr)

    def describe(self) -> dict[str, Any]:
        """A JSON-able dict that `get` reads back."""
        return {"type": self.kind, **vars(self), "lr": self.schedule.describe()}


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent; g = grad + weight_decay * w.

    With momentum: v = momentum * v + (1 - dampening) * g, w -= lr * v; Nesterov: w -= lr * (g + momentum * v)
    (Sutskever et al., 2013, in the form that PyTorch uses).
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    kind = "sgd"

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]:
        outputs = F.sgd_update(
            weight, grad, lr, *slots,
            momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay * decay,
        )  # fmt: skip
        return outputs if isinstance(outputs, tuple) else (outputs,)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015) with bias correction; weight_decay is added to the gradient."""

    lr: float | Schedule = 1e-3
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
        outputs: Sequence[Value] = self._operator(
            weight, grad, *slots, lr, step,
            beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, weight_decay=self.weight_decay * decay,
        )  # fmt: skip
        return outputs

    @property
    def _operator(self) -> Any:
        return F.adam_update


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: w -= lr * weight_decay * w (Loshchilov and Hutter, 2019)."""

    weight_decay: float = 0.01
    kind = "adamw"

    @property
    def _operator(self) -> Any:
        return F.adam_w_update


_KINDS = {cls.kind: cls for cls in (SGD, Adam, AdamW)}


def names() -> list[str]:
    return list(_KINDS)


def get(spec: str | Optimizer | Mapping[str, Any], **options: Any) -> Optimizer:
    """An optimizer from its name and options, from what `describe` gave, or itself."""
    if isinstance(spec, Optimizer):
        return spec
    fields = {**spec, **options} if isinstance(spec, Mapping) else {"type": spec, **options}
    kind = fields.pop("type")
    if kind not in _KINDS:
        raise UsageError(f"unknown optimizer {kind!r}{did_you_mean(kind, _KINDS)}")
    if isinstance(fields.get("lr"), Mapping):
        fields["lr"] = schedule(fields["lr"])
    cls = _KINDS[kind]
    unknown = [k for k in fields if k not in cls.__dataclass_fields__]
    if unknown:
        raise UsageError(
            f"optimizer {kind} has no option {unknown[0]!r}{did_you_mean(unknown[0], cls.__dataclass_fields__)}"
        )
    return cls(**fields)
