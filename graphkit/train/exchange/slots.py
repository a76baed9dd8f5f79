"""Initial values of the states of a training step that are not in the model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphkit.executor.run.params import ParamStore
from graphkit.ir.types import TensorType
from graphkit.train import states
from graphkit.train.average import AVERAGE
from graphkit.train.exchange.exchange import StepSpec
from graphkit.train.programs import loss_scale


def initial_slots(spec: StepSpec, types: Mapping[str, TensorType], own: Mapping[str, TensorType]) -> ParamStore:
    """Averages start at the parameters. States without an initial value start at 0.

    Args:
        own: The types of this rank's slots. A sharded slot has the type of its slice.
    """
    optimizer = spec.rule.optimizer
    starts = {
        f"{t.name}/{slot}": states.start(optimizer, slot)
        for t in spec.trained
        for slot in states.names(optimizer, t.value.dtype)
    }
    store = ParamStore(types)
    for name, kind in own.items():
        store.commit(name, states.filled(kind.static_shape, starts.get(name, 0), kind.dtype.numpy))
    averages = {f"{t.name}/{AVERAGE}": t.name for t in spec.trained} if spec.rule.ema is not None else {}
    for key in averages.keys() & own.keys():
        store[key] = np.asarray(spec.params[averages[key]], own[key].dtype.numpy)
    for t in spec.trained:
        if t.mask is not None and t.mask.value.name in own:
            store[t.mask.value.name] = t.mask.array
    if loss_scale.NAME in own:
        store[loss_scale.NAME] = loss_scale.start()
    return store
