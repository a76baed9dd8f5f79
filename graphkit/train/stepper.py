"""Take batches one after another, count updates, and handle losses that are not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphkit.dist.kvstore import KVStore
from graphkit.errors import NotFinite
from graphkit.train.exchange.division import Division
from graphkit.train.exchange.exchange import Exchange, StepSpec
from graphkit.train.exchange.local import LocalExchange, samples_of
from graphkit.train.position import Position
from graphkit.train.programs import loss_scale
from graphkit.train.programs import step as steps
from graphkit.train.programs.weights import weight_in

_NO_LOSS = np.full((), np.nan, np.float32)


def create_exchange(spec: StepSpec, kvstore: KVStore | None, division: Division | None, shard: bool) -> Exchange:
    """Create the Exchange of a training step."""
    if division is not None:
        from graphkit.train.exchange.placement import Placement
        from graphkit.train.exchange.stages import Pipeline

        return Pipeline(spec, division) if division.is_pipeline(spec.graph) else Placement(spec, division)
    if kvstore is None or (kvstore.num_workers == 1 and not kvstore.is_remote):
        return LocalExchange(spec)
    if not kvstore.is_remote:
        from graphkit.train.exchange.all_reduce import AllReduce

        return AllReduce(spec, kvstore, shard)
    from graphkit.dist.servers.remote import RemoteStore
    from graphkit.train.exchange.servers import ElasticAveraging, Servers

    assert isinstance(kvstore, RemoteStore), "the only class of remote stores"
    return (ElasticAveraging if kvstore.type == "elastic" else Servers)(spec, kvstore, shard)


class Stepper:
    """`skipped` counts steps whose loss or gradient was not finite. `accumulated` is the number of batches whose
    gradients wait for the next update, `accumulated_weight` the sum of their weights.
    """

    def __init__(self, spec: StepSpec, exchange: Exchange):
        self.exchange = exchange
        # The exchange may replace elements of these lists, but keeps the list objects.
        self.programs, self.executors = exchange.programs, exchange.executors
        self.trained, self.slots, self.store = exchange.trained, exchange.slots, exchange.store
        self.updates = self.skipped = self.accumulated = 0
        self.accumulated_weight = 0.0
        self._rule, self._accumulate = spec.rule, spec.accumulate
        self._loss = spec.graph.output_names[0]

    def continue_from(self, other: Stepper) -> None:
        self.updates, self.skipped = other.updates, other.skipped
        self.accumulated, self.accumulated_weight = other.accumulated, other.accumulated_weight

    def take(
        self, feeds: dict[str, Any], size: int | None, rate: float, position: Position | None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Train on a batch. Return its loss, and the outputs that `Exchange.return_outputs` requested.

        A skipped step returns NaN and no outputs.

        Args:
            feeds: Inputs and targets by name; entries may be added.
            size: Number of samples, or None for the length of the first array.
        """
        before, generator = self.updates, self.executors[0].rng
        samples = samples_of(feeds, size) if self._accumulate > 1 else 0
        try:
            results: dict[str, Any] | None = self.exchange.run(feeds, size, rate, self.accumulated)
        except NotFinite as error:
            self._raise_unless_skipped(error, feeds, generator, position)
            results = None
        if self._accumulate == 1:
            self.skipped += results is None
            self.updates += results is not None or self.exchange.counts_every_step
        else:
            # A skipped batch makes the weight NaN. `_update` then drops the gradients of all batches.
            self.accumulated_weight += math.nan if results is None else weight_in(results, samples)
            self.accumulated += 1
            if self.accumulated >= self._accumulate:
                self._use_accumulated(rate)
        if self.updates > before:
            self.exchange.after_step(self.updates)
        return (_NO_LOSS, {}) if results is None else (results.get(self._loss, _NO_LOSS), results)

    def _raise_unless_skipped(
        self, error: NotFinite, feeds: Mapping[str, Any], rng: tuple[int, int], position: Position | None
    ) -> None:
        lowered = self._accumulate == 1 and self._lower_scale()
        if lowered or self._rule.on_nonfinite != "raise":
            return
        where = f"update {self.updates + 1}"
        if position is not None:
            where = f"epoch {position.epoch + 1}, batch {position.batch + 1}"
        what, origin = self.exchange.describe(error, feeds, rng)
        raise NotFinite(
            f"{what} at {where}, {origin}. The parameters are unchanged. Lower the learning rate, check the data for "
            "NaN, or skip such updates: on_nonfinite='skip' (--on-nonfinite skip)"
        ) from None

    # --- accumulated gradients -------------------------------------------------------------------

    def flush(self, rate: float) -> None:
        self._use_accumulated(rate)
        self.exchange.synchronise()

    def _use_accumulated(self, rate: float) -> None:
        if not self.accumulated:
            return
        updated = self._update(rate)
        if updated:
            self.accumulated, self.accumulated_weight = 0, 0.0
        else:
            self._drop_accumulated()
        self.updates += updated or self.exchange.counts_every_step

    def _update(self, rate: float) -> bool:
        """Update with accumulated gradients. Return False if the update is skipped."""
        if self._rule.on_nonfinite == "skip" and math.isnan(self.accumulated_weight):
            return False
        try:
            self.exchange.update(self.accumulated_weight, rate)
        except NotFinite:
            if self._lower_scale() or self._rule.on_nonfinite != "raise":
                return False
            self._drop_accumulated()
            raise NotFinite(
                f"gradients are not finite at update {self.updates + 1}, although the loss is not scaled any more; "
                "the parameters are unchanged. Use precision='bf16' (--precision bf16), or skip such updates: "
                "on_nonfinite='skip' (--on-nonfinite skip)"
            ) from None
        return True

    def _drop_accumulated(self) -> None:
        for name in self.trained:
            key = f"{name}/{steps.GRADIENT_SUM}"
            self.slots[key] = np.zeros_like(self.slots[key])
        self.skipped += 1
        self.accumulated, self.accumulated_weight = 0, 0.0

    def _lower_scale(self) -> bool:
        """Lower the loss scale after an overflow. Return False without a scale above 1."""
        if self._rule.scale is None or (lower := loss_scale.lower(self.slots[loss_scale.NAME])) is None:
            return False
        self.slots[loss_scale.NAME] = lower
        return True


class LazyScalar:
    """The loss of a step. It is read from the device when you convert it: `float(loss)`."""

    __slots__ = ("_array",)

    def __init__(self, array: np.ndarray):
        self._array = array

    def __float__(self) -> float:
        return float(self._array)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)

    def __str__(self) -> str:
        return str(float(self))

    def __repr__(self) -> str:
        return f"LazyScalar({float(self)})" if isinstance(self._array, np.ndarray) else "LazyScalar(?)"
