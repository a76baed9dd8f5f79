"""The base class of optimizers: slots (state arrays per parameter) and the update of one parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from graphkit.errors import UsageError, did_you_mean
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType
from graphkit.train import states
from graphkit.train.arguments import BELOW_ONE, FRACTION, NOT_NEGATIVE, POSITIVE, Range, convert_fields, real
from graphkit.train.schedules import Rate, Schedule, schedule
from graphkit.train.updater import OptimizerUpdater

OTHER_NAMES = {"decay": "weight_decay", "eps": "epsilon", "learning_rate": "lr", "lambda": "l2", "rate": "lr"}


def _check_names(cls: type[Optimizer], options: Mapping[str, Any]) -> None:
    known = [f.name for f in dataclasses.fields(cls)]
    for name in options:
        if name not in known:
            raise UsageError(
                f"optimizer {cls.kind} has no option {name!r}{did_you_mean(OTHER_NAMES.get(name, name), known)}"
            )


@dataclass(frozen=True)
class Optimizer:
    """Base class of optimizers. A subclass names its slots and builds the update of one parameter.

    `lr` is a number, a Schedule, or a function: `lr(n)` is the learning rate of the update after n earlier updates.
    """

    lr: Rate

    kind: ClassVar[str] = ""
    ranges: ClassVar[Mapping[str, Range]] = {
        "momentum": FRACTION, "beta1": BELOW_ONE, "beta2": BELOW_ONE, "alpha": BELOW_ONE, "rho": BELOW_ONE,
        "trust": POSITIVE,
    }  # fmt: skip
    # Whether an element's update depends only on this element, so that rows of a table can be updated alone.
    elementwise: ClassVar[bool] = True

    def __new__(cls, *_: Any, **options: Any) -> Self:
        _check_names(cls, options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        owner = type(self).__name__
        convert_fields(self, owner, self.ranges)
        if callable(self.lr):
            object.__setattr__(self, "lr", schedule(self.lr))
        else:
            object.__setattr__(self, "lr", real(owner, "lr", self.lr, NOT_NEGATIVE))

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state arrays that each parameter gets, such as "momentum".

        A state array has the shape and type of its parameter (float32 for float16 and bfloat16). Each element starts at
        `start(name)`.
        """
        return ()

    def start(self, slot: str) -> float:
        """Return the initial value of every element of a slot."""
        return 0.0

    def update(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float
    ) -> Sequence[Value]:
        """Build the update of one parameter; return the new weight and the new slots.

        `lr` and `step` are scalar Values: `lr` is float32; `step` is int64, and 1 at the first update. `decay` is the
        factor on weight_decay for this parameter.
        """
        raise NotImplementedError

    def initial_states(self, parameter: str, weight: TensorType) -> dict[str, np.ndarray]:
        """Return the states of a parameter before the first update, named `<parameter>/<state>`.

        They are the slots. For float16 and bfloat16 parameters, the slots are float32, and a float32 copy of the
        parameter, `<parameter>/master`, comes first. weight: the type of the parameter, of fixed shape.
        """
        return states.initial_arrays(self, parameter, weight)

    def apply(
        self, weight: Value, grad: Value, slots: Sequence[Value], lr: Value, step: Value, decay: float = 1.0
    ) -> tuple[Value, list[Value]]:
        """Build one update of a parameter of any float type. Return the new parameter and its new states.

        slots: The states of the parameter, in the order of `initial_states`. Other arguments are those of `update`.
        """
        updated = states.update(self, weight, grad, slots, lr, step, decay)
        return updated.weight, updated.states

    def ignores_zeros(self, decay: float) -> bool:
        """Return whether an update with gradient 0 changes neither the weight nor the slots.

        A step can then update only those rows of a table that it reads. decay: as for `update`.
        """
        return False

    @property
    def schedule(self) -> Schedule:
        return schedule(self.lr)

    def rate(self, step: int) -> float:
        """Return the learning rate of an update. step: 0 for the first update."""
        return self.lr if isinstance(self.lr, float) else self.schedule(step)

    def updater(self) -> OptimizerUpdater:
        """Return the updater, with its own slots, that a KVStore calls for each pushed gradient (`set_optimizer`)."""
        return OptimizerUpdater(self)

    def describe(self) -> dict[str, Any]:
        """Return a dict for JSON, from which `get` creates the optimizer again."""
        return {"type": self.kind, **vars(self), "lr": self.schedule.describe()}
