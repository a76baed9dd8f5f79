"""The states that an optimizer keeps for a parameter, and one update.

For float16 and bfloat16 parameters, the states are float32: float16 cannot represent small squares of gradients. An
additional state, the master weight, is the parameter before rounding. Without it, small updates would be lost
(Micikevicius et al., "Mixed Precision Training", ICLR 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from graphkit.ir.graph import Value
from graphkit.ir.types import HALVES, DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F

MASTER = "master"


class Optimizer(Protocol):
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
    """The result of an update. `unrounded` is the new parameter, in float32 if it is float16 or bfloat16."""

    weight: Value
    states: list[Value]
    unrounded: Value


def state_type(kind: TensorType) -> TensorType:
    return TensorType(DType.FLOAT32, kind.shape) if kind.dtype in HALVES else kind


def widened(value: Value) -> Value:
    return F.cast(value, to="float32") if value.dtype in HALVES else value


def names(optimizer: Optimizer, dtype: DType) -> tuple[str, ...]:
    return (MASTER, *optimizer.slots) if dtype in HALVES else optimizer.slots


def kinds(optimizer: Optimizer, weight: TensorType) -> dict[str, TensorType]:
    return dict.fromkeys(names(optimizer, weight.dtype), state_type(weight))


def inputs(optimizer: Optimizer, parameter: str, weight: TensorType) -> list[Value]:
    """Return the states of a parameter as graph inputs named `<parameter>/<state>`, in the order of `update`."""
    return [Value(kind, f"{parameter}/{name}", role="state") for name, kind in kinds(optimizer, weight).items()]


def initial_arrays(optimizer: Optimizer, parameter: str, weight: TensorType) -> dict[str, np.ndarray]:
    return {
        f"{parameter}/{name}": filled(kind.static_shape, start(optimizer, name), kind.dtype.numpy)
        for name, kind in kinds(optimizer, weight).items()
    }


def filled(shape: tuple[int, ...], value: float, dtype: Any) -> np.ndarray:
    """Return an array with `value` in every element. For zeros, the system provides the memory only at first use."""
    return np.full(shape, value, dtype) if value else np.zeros(shape, dtype)


def start(optimizer: Optimizer, name: str) -> float:
    """Return the initial value of every element of a state. A master weight starts at 0: the first update reads the
    parameter.
    """
    return 0.0 if name == MASTER else optimizer.start(name)


def update(
    optimizer: Optimizer, weight: Value, grad: Value, states: Sequence[Value], lr: Value, step: Value, decay: float
) -> Updated:
    """Build one update of a parameter. Arguments as for `Optimizer.update`; states in the order of `names`.

    If the rounded master weight differs from the parameter, the parameter was assigned since the last update. The
    update then starts from the parameter.
    """
    if weight.dtype not in HALVES:
        new, *changed = optimizer.update(weight, grad, states, lr, step, decay)
        return Updated(new, list(changed), new)
    master, *slots = states
    is_current = F.equal(F.cast(master, to=weight.dtype), weight)
    before = F.where(is_current, master, F.cast(weight, to="float32"))
    new, *changed = optimizer.update(before, widened(grad), slots, lr, step, decay)
    return Updated(F.cast(new, to=weight.dtype), [new, *changed], new)
