"""Exponential moving average of the parameters, kept beside them by the training program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.ir.graph import Value
from graphkit.ops import F
from graphkit.train.arguments import BELOW_ONE, boolean, real

AVERAGE = "average"


@dataclass(frozen=True)
class EMA:
    """average = d * average + (1 - d) * weight after every update; it starts at the weight before the first one.

    d is `decay`, in [0, 1); with `warmup` it is min(decay, (1 + step) / (10 + step)), step from 1, so that the
    start is forgotten fast (Polyak and Juditsky, 1992, for averages of iterates; the ramp is TensorFlow's).
    """

    decay: float = 0.999
    warmup: bool = False

    def __post_init__(self) -> None:
        real("EMA", "decay", self.decay, BELOW_ONE)
        boolean("EMA", "warmup", self.warmup)

    def update(self, average: Value, weight: Value, step: Value) -> Value:
        """The next average. weight: the one after the update; step: int64 scalar, 1 at the first update."""
        decay = F.constant(value=np.asarray(self.decay))
        if self.warmup:
            count = F.cast(step, to="float64")
            decay = F.min(decay, F.div(F.add(count, np.asarray(1.0)), F.add(count, np.asarray(10.0))))
        kept = F.cast(decay, to=weight.dtype)
        # One rounding of 1 - d, in float64: the two factors add up to 1 as well as the type allows.
        added = F.cast(F.sub(np.asarray(1.0), decay), to=weight.dtype)
        new: Value = F.add(F.mul(average, kept), F.mul(weight, added))
        return new

    def describe(self) -> dict[str, Any]:
        """A JSON-able dict that `ema` reads back."""
        return {"decay": self.decay, "warmup": self.warmup}


def ema(spec: float | EMA | Mapping[str, Any] | None) -> EMA | None:
    """An EMA from its decay, from what `describe` gave, or itself; None: no average."""
    if spec is None or isinstance(spec, EMA):
        return spec
    return EMA(**spec) if isinstance(spec, Mapping) else EMA(spec)
