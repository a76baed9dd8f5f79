"""Python's operators on values: `x + 1`, `x @ w`, `x[:, 0]` make nodes; so does numpy: `np.ones(4) * x`, `np.exp(x)`.

This module only adds the methods to Value. Files need none of them, so `_value_operators`, which makes the nodes, is
imported when a method is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphkit.errors import UsageError
from graphkit.ir.graph import Value
from graphkit.ops._base import F

# Python's operators -> graphkit's functions, or keys of BUILT in `_value_operators`.
ARITHMETIC = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floordiv", "pow": "pow",
    "matmul": "mat_mul", "mod": "mod", "and": "and", "or": "or", "xor": "xor",
}  # fmt: skip
ORDER = {"lt": "less", "le": "less_or_equal", "gt": "greater", "ge": "greater_or_equal"}
# Python's other methods -> functions of `_value_operators`.
_FURTHER = {
    "getattr": "no_attribute", "invert": "invert", "getitem": "index_value", "array_ufunc": "array_ufunc",
    "array": "no_array",
}  # fmt: skip


def _binary(function: str, reflected: bool = False) -> Callable[[Value, Any], Any]:
    def method(self: Value, other: Any) -> Any:
        from graphkit.ops._value_operators import combined

        return combined(function, other, self) if reflected else combined(function, self, other)

    return method


def _unary(function: str) -> Callable[[Value], Any]:
    def method(self: Value) -> Any:
        return getattr(F, function)(self)

    return method


def _further(function: str) -> Callable[..., Any]:
    def method(self: Value, *args: Any, **options: Any) -> Any:
        from graphkit.ops import _value_operators

        return getattr(_value_operators, function)(self, *args, **options)

    return method


def _no_bool(self: Value) -> bool:
    raise UsageError(f"{self.describe()} has no truth value while the graph is built; use gk.where or gk.cond")


def _no_iter(self: Value) -> Any:
    raise UsageError(f"{self.describe()} cannot be iterated; use gk.split or gk.scan")


def _install_overloads() -> None:
    methods: dict[str, Callable[..., Any]] = {
        **{python: _binary(function) for python, function in (*ARITHMETIC.items(), *ORDER.items())},
        **{f"r{python}": _binary(function, reflected=True) for python, function in ARITHMETIC.items()},
        **{python: _unary(function) for python, function in (("neg", "neg"), ("abs", "abs"), ("pos", "identity"))},
        **{python: _further(function) for python, function in _FURTHER.items()},
        "bool": _no_bool,
        "iter": _no_iter,
    }
    for python, method in methods.items():
        setattr(Value, f"__{python}__", method)


_install_overloads()
