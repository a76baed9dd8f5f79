"""Warn of learning rates and momentum that are too large for parameter servers."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING

from graphkit.errors import GraphkitWarning
from graphkit.train import optim

if TYPE_CHECKING:
    from graphkit.dist.kvstore import KVStore
    from graphkit.train.optim import Optimizer
    from graphkit.train.schedules import Rate

_STALE = ("dist_async", "dist_bounded")


def warn_of_staleness(store: KVStore | None, optimizer: Optimizer, rate: float) -> None:
    """Warn on rank 0 if several workers train with momentum, or with at least the default learning rate.

    Gradients are applied late, which acts like additional momentum (Mitliagkas et al., "Asynchrony begets momentum",
    2016). Also, n workers apply n gradients while one process would apply one.
    """
    if store is None or store.type not in _STALE or store.num_workers == 1 or store.rank != 0:
        return
    workers, momentum = store.num_workers, getattr(optimizer, "momentum", 0.0)
    default = _default_rate(optimizer)
    lower = []
    if isinstance(default, (int, float)) and rate >= default:
        lower.append(f"the learning rate from {rate:g} to about {rate / workers:.2g} (--lr)")
    if momentum > 0:
        lower.append(f"the momentum from {momentum:g} to 0 (--momentum)")
    if lower:
        warnings.warn(
            f"training may diverge: {store.type} applies the gradients of {workers} workers one after the other, each "
            f"computed from older parameters; lower {' and '.join(lower)}",
            GraphkitWarning,
            stacklevel=2,
        )


def _default_rate(optimizer: Optimizer) -> Rate:
    (field,) = (f for f in dataclasses.fields(optimizer) if f.name == "lr")
    default: Rate = optim.get("sgd").lr if field.default is dataclasses.MISSING else field.default
    return default
