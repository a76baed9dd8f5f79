"""Updaters, which apply pushed values to stored values, and their settings, which ranks compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from graphkit.dist.arguments import Key, callable_of, described
from graphkit.errors import UsageError

# A function with three arguments: a key, the sum of the pushed values, and the stored value, which it changes in place.
# The sum is a RowSparse if the pushed values are. In a local store, sum and stored value are arrays of gk.nd if the
# pushed values are, unless the updater `runs_in_background`.
Updater: TypeAlias = Callable[[Key, Any, Any], Any]


@runtime_checkable
class StatefulUpdater(Protocol):
    def __call__(self, key: Key, gradient: Any, stored: np.ndarray) -> Any: ...
    def states(self) -> dict[str, np.ndarray]: ...
    def restore(self, states: Mapping[str, np.ndarray]) -> None: ...


class HasUpdater(Protocol):
    def updater(self) -> Updater: ...


def runs_in_background(updater: Updater) -> bool:
    """Whether an updater takes numpy arrays, and may run on a thread of the engine after `push` has returned.

    A store makes one such call at a time.
    """
    return getattr(updater, "runs_in_background", False) is True


def checked_updater(updater: Any) -> Updater:
    """Return an updater that `KVStore.set_updater` accepts. Raises UsageError for any other object."""
    return callable_of("an updater must be a function f(key, sum, stored)", updater)


def check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, type) or not callable(getattr(optimizer, "updater", None)):
        given = optimizer.__name__ if isinstance(optimizer, type) else described(optimizer)
        raise UsageError(f"set_optimizer takes an optimizer, such as gk.optim.SGD(0.1), not {given}")


def updater_facts(updater: Any) -> dict[str, Any]:
    optimizer = getattr(updater, "optimizer", updater)
    described = optimizer.describe() if hasattr(optimizer, "describe") else None
    if not (isinstance(described, Mapping) and {"type", "lr"} <= described.keys()):
        return {"updater": _name(updater)}
    facts = optimizer_facts(optimizer)
    average = getattr(updater, "ema", None)
    facts["ema"] = None if average is None else average.describe()
    facts["rates"], facts["decays"] = getattr(updater, "rates", None), getattr(updater, "decays", None)
    return facts


def optimizer_facts(optimizer: Any) -> dict[str, Any]:
    described = dict(optimizer.describe())
    return {"optimizer": described.pop("type"), "learning rate": described.pop("lr"), **described}


def _name(updater: Any) -> str:
    named: Callable[..., Any] = updater if hasattr(updater, "__qualname__") else type(updater)
    return f"{named.__module__}.{named.__qualname__}"
