"""Exponential moving averages of parameters: the training program updates them, and they can replace the parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from graphkit.errors import UsageError
from graphkit.executor.run.interruption import uninterrupted
from graphkit.executor.run.params import ParamStore
from graphkit.ir.graph import Value
from graphkit.ops import F
from graphkit.train.arguments import BELOW_ONE, convert_fields

AVERAGE = "average"


@dataclass(frozen=True)
class EMA:
    """Exponential moving average of parameters: average = d * average + (1 - d) * weight after every update.

    The average starts at the initial weight.

    Args:
        decay: d, from 0 to below 1.
        warmup: Use d = min(decay, (1 + step) / (10 + step)), where step is 1 at the first update, so that the average
            soon forgets the initial weight.
    """

    decay: float = 0.999
    warmup: bool = False

    def __post_init__(self) -> None:
        convert_fields(self, "EMA", {"decay": BELOW_ONE})

    def update(self, average: Value, weight: Value, step: Value) -> Value:
        """Return the next average. weight: after the update; step: int64 scalar, 1 at the first update."""
        decay = F.constant(value=np.asarray(self.decay))
        if self.warmup:
            count = F.cast(step, to="float64")
            decay = F.min(decay, F.div(F.add(count, np.asarray(1.0)), F.add(count, np.asarray(10.0))))
        kept = F.cast(decay, to=weight.dtype)
        # 1 - d is computed in float64 and rounded once. d and 1 - d then add up to 1 as exactly as possible.
        added = F.cast(F.sub(np.asarray(1.0), decay), to=weight.dtype)
        new: Value = F.add(F.mul(average, kept), F.mul(weight, added))
        return new

    def describe(self) -> dict[str, Any]:
        """Return a dict for JSON, from which `graphkit.train.average.ema` creates the EMA again."""
        return {"decay": self.decay, "warmup": self.warmup}


def ema(spec: float | EMA | Mapping[str, Any] | None) -> EMA | None:
    if spec is None or isinstance(spec, EMA):
        return spec
    return EMA(**spec) if isinstance(spec, Mapping) else EMA(spec)


class SlotOwner(Protocol):
    @property
    def trained(self) -> Collection[str]: ...

    @property
    def held(self) -> Collection[str]: ...

    @property
    def slots(self) -> ParamStore: ...


class Averages:
    """The moving averages of a trainer, which are among its slots.

    Attributes:
        are_swapped: Whether `net` contains the averages, and the slots contain the parameters.
    """

    def __init__(self, params: ParamStore, owner: SlotOwner, exist: bool):
        self._params, self._owner, self._exist = params, owner, exist
        self.are_swapped = False
        # While averages and parameters are exchanged: the float32 averages of float16 and bfloat16 parameters. The
        # parameters themselves contain the rounded averages.
        self._unrounded: dict[str, np.ndarray] = {}

    def start(self) -> None:
        for name in self._owner.trained if self._exist else ():
            key = f"{name}/{AVERAGE}"
            self._owner.slots[key] = np.asarray(self._params[name], self._owner.slots.type_of(key).dtype.numpy)

    def swap(self) -> None:
        """Exchange parameters and averages."""
        if not self._exist:
            raise UsageError("there is no moving average: create the Trainer with ema=0.999, or another decay")
        with uninterrupted:
            for name in self._owner.held:
                key = f"{name}/{AVERAGE}"
                weight, average = self._params[name], self._owner.slots[key]
                if weight.dtype == average.dtype:
                    self._params.commit(name, average)
                    self._owner.slots.commit(key, weight)
                    continue
                self._params.commit(name, average.astype(weight.dtype))
                unrounded = self._unrounded.pop(key, None)
                if self.are_swapped:
                    self._owner.slots.commit(key, weight.astype(average.dtype) if unrounded is None else unrounded)
                else:
                    self._unrounded[key] = average
                    self._owner.slots.commit(key, weight.astype(average.dtype))
            self.are_swapped = not self.are_swapped

    def check_not_swapped(self, action: str) -> None:
        if self.are_swapped:
            raise UsageError(f"the model holds the moving averages: call swap() before {action}")

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        before = self.are_swapped
        try:
            if self._exist and not before:
                self.swap()
            yield
        finally:
            with uninterrupted:
                if self.are_swapped is not before:
                    self.swap()
