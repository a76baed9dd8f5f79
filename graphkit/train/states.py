"""The states that an optimizer keeps for a parameter, and one update of parameter and states.

For float16 and bfloat16 parameters, the states are float32, and there is one more, the master weight: the parameter
before it was rounded. Without it, steps of less than half of the last digit would vanish, and second moments of
gradients below 8e-3 would underflow in float16 (Micikevicius et al., "Mixed Precision Training", ICLR 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from graphkit.ir.graph import Value
from graphkit.ir.types import HALVES, DType, TensorType
from graphkit.ops import F

MASTER = "master"


class Optimizer(Protocol):
    """The part of `gk.optim.Optimizer` that updates need."""

    @property
    def kind(self) -> str: ...

    @property
    def elementwise(self) -> bool: ...

    @property
    def slots(self) -> tuple[str, ...]: ...

    def start(self, slot: str) -> float: ...

    def rate(self, step: int) -> float: ...

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]: ...


class Updated(NamedTuple):
    """weight: the new parameter; states: the new states; precise: the new parameter before it is rounded."""

    weight: Value
    states: list[Value]
    precise: Value


def precise(kind: TensorType) -> TensorType:
    """The type in which sums, moments and averages of a parameter of this type are kept."""
    return TensorType(DType.FLOAT32, kind.shape) if kind.dtype in HALVES else kind


def widened(value: Value) -> Value:
    """The value in the type in which it is summed."""
    return F.cast(value, to="float32") if value.dtype in HALVES else value


def names(optimizer: Optimizer, dtype: DType) -> tuple[str, ...]:
    """The names of the states of a parameter, in the order of `update`."""
    return (MASTER, *optimizer.slots) if dtype in HALVES else optimizer.slots


def kinds(optimizer: Optimizer, weight: TensorType) -> dict[str, TensorType]:
    """The types of the states of a parameter by name."""
    return dict.fromkeys(names(optimizer, weight.dtype), precise(weight))


def start(optimizer: Optimizer, name: str) -> float:
    """What every element of a state is before the first update. A master weight is taken from the parameter then."""
    return 0.0 if name == MASTER else optimizer.start(name)


def update(
    optimizer: Optimizer, weight: Value, grad: Value, states: Sequence[Value], lr: Value, step: Value, decay: float
) -> Updated:
    """One update of a parameter. states: in the order of `names`; the others are those of `Optimizer.update`.

    Where a master weight does not round to the parameter, the parameter was set from outside, and counts.
    """
    if weight.dtype not in HALVES:
        new, *changed = optimizer.update(weight, grad, states, lr, step, decay)
        return Updated(new, list(changed), new)
    master, *slots = states
    kept = F.equal(F.cast(master, to=weight.dtype), weight)
    before = F.where(kept, master, F.cast(weight, to="float32"))
    new, *changed = optimizer.update(before, widened(grad), slots, lr, step, decay)
    return Updated(F.cast(new, to=weight.dtype), [new, *changed], new)
