"""What a store applies to the values that it keeps when gradients are pushed: an updater, or one of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from graphkit.dist.arguments import Key, callable_of, described
from graphkit.errors import UsageError

# Of a key, the sum (a RowSparse where such were pushed) and the stored value.
Updater: TypeAlias = Callable[[Key, Any, np.ndarray], Any]


@runtime_checkable
class StatefulUpdater(Protocol):
    """An updater with states of its own, as arrays by name."""

    def __call__(self, key: Key, gradient: Any, stored: np.ndarray) -> Any: ...
    def states(self) -> dict[str, np.ndarray]: ...
    def restore(self, states: Mapping[str, np.ndarray]) -> None: ...


class HasUpdater(Protocol):
    """What `set_optimizer` takes, as an Optimizer is."""

    def updater(self) -> Updater: ...


def checked_updater(updater: Any) -> Updater:
    """Return what `set_updater` takes. Raises UsageError for everything else."""
    return callable_of("an updater is a function f(key, sum, stored)", updater)


def check_optimizer(optimizer: Any) -> None:
    """Raise UsageError for what `set_optimizer` does not take."""
    if isinstance(optimizer, type) or not callable(getattr(optimizer, "updater", None)):
        given = optimizer.__name__ if isinstance(optimizer, type) else described(optimizer)
        raise UsageError(f"set_optimizer takes an optimizer, such as gk.optim.SGD(0.1), not {given}")
