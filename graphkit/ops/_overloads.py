"""Python's operators on values: `x + 1`, `x @ w`, `x[:, 0]` make nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.graph import Value
from graphkit.ops._base import F, as_value


def _binary(function: str, reflected: bool = False) -> Callable[[Value, Any], Any]:
    def method(self: Value, other: Any) -> Any:
        other = as_value(other, self)
        return getattr(F, function)(other, self) if reflected else getattr(F, function)(self, other)

    return method


def _unary(function: str) -> Callable[[Value], Any]:
    def method(self: Value) -> Any:
        return getattr(F, function)(self)

    return method


def _getitem(self: Value, key: Any) -> Value:
    """Basic indexing: integers, slices with constant bounds, Ellipsis, None. Anything else is UsageError."""
    keys = key if isinstance(key, tuple) else (key,)
    rank = self.tensor.rank
    if rank is None:
        raise UsageError(f"{self} cannot be indexed: its rank is unknown")
    consumed = sum(1 for k in keys if k is not None and k is not Ellipsis)
    if consumed > rank:
        raise UsageError(f"{self} has rank {rank}, {consumed} indices given")
    if Ellipsis not in [k for k in keys if not isinstance(k, Value)]:
        keys = (*keys, Ellipsis)
    position = next(i for i, k in enumerate(keys) if k is Ellipsis)
    keys = (*keys[:position], *[slice(None)] * (rank - consumed), *keys[position + 1 :])
    starts, ends, axes, steps, drop, add = [], [], [], [], [], []
    axis = out = 0
    for k in keys:
        if k is None:
            add.append(out)
            out += 1
            continue
        if isinstance(k, (int, np.integer)):
            starts.append(int(k))
            ends.append(int(k) + 1 if k != -1 else np.iinfo(np.int64).max)
            axes.append(axis)
            steps.append(1)
            drop.append(axis)
        elif isinstance(k, slice):
            step = 1 if k.step is None else int(k.step)
            low, high = (0, np.iinfo(np.int64).max) if step > 0 else (np.iinfo(np.int64).max, np.iinfo(np.int64).min)
            if k != slice(None):
                starts.append(low if k.start is None else int(k.start))
                ends.append(high if k.stop is None else int(k.stop))
                axes.append(axis)
                steps.append(step)
            out += 1
        else:
            raise UsageError(f"{self} cannot be indexed by {k!r}; use gather for computed indices")
        axis += 1
    result = self
    if axes:
        result = F.slice(result, *(np.asarray(v, np.int64) for v in (starts, ends, axes, steps)))
    if drop:
        result = F.squeeze(result, np.asarray(drop, np.int64))
    if add:
        result = F.unsqueeze(result, np.asarray(add, np.int64))
    return result


def _install_overloads() -> None:
    table = {
        "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "matmul": "mat_mul", "mod": "mod",
        "and": "and_", "or": "or_", "xor": "xor",
    }  # fmt: skip
    for python, function in table.items():
        setattr(Value, f"__{python}__", _binary(function))
        setattr(Value, f"__r{python}__", _binary(function, reflected=True))
    for python, function in {"lt": "less", "le": "less_or_equal", "gt": "greater", "ge": "greater_or_equal"}.items():
        setattr(Value, f"__{python}__", _binary(function))
    for python, function in {"neg": "neg", "abs": "abs", "invert": "not_"}.items():
        setattr(Value, f"__{python}__", _unary(function))

    def no_bool(self: Value) -> bool:
        raise UsageError(f"{self} has no truth value while the graph is built; use gk.where or gk.cond")

    def no_iter(self: Value) -> Any:
        raise UsageError(f"{self} cannot be iterated; use gk.split or gk.scan")

    methods = {"getitem": _getitem, "bool": no_bool, "iter": no_iter}
    for python, method in methods.items():
        setattr(Value, f"__{python}__", method)


_install_overloads()
