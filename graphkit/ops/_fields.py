"""The attributes of operators: their kinds, and the conversion of given values to these kinds."""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from graphkit.ir.graph import Graph
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import Type, dtype_of
from graphkit.named_tuples import NamedTuple

REQUIRED: Any = inspect.Parameter.empty


class Field(NamedTuple):
    """One attribute: how values are coerced, and the default (REQUIRED when there is none)."""

    kind: str
    default: Any

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


_INT = frozenset({int})


def _ints(value: Any) -> tuple[int, ...]:
    if type(value) is tuple and _INT.issuperset(map(type, value)):
        return value
    if isinstance(value, (int, np.integer)):
        raise ValueError("give one number per axis, such as [2, 2]")
    return tuple(int(v) for v in value)


# NaN by its bits. One object for each makes attributes equal, and their hashes too.
_NANS: dict[bytes, float] = {}


def _float(value: Any) -> float:
    number = float(value)
    return number if number == number else _NANS.setdefault(struct.pack("d", number), number)


def _floats(value: Any) -> tuple[float, ...]:
    return tuple(_float(v) for v in value)


def same_zeros(a: float | tuple[float, ...] | None, b: float | tuple[float, ...] | None) -> bool:
    """Return whether zeros have the same signs. a, b: Values of a float attribute for which a == b."""
    if a.__class__ is tuple:
        return 0.0 not in a or repr(a) == repr(b)
    return bool(a) or repr(a) == repr(b)


def _strings(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(str(v) for v in value)


def _integer(value: Any) -> int:
    if isinstance(value, str) or int(value) != value:
        raise ValueError(f"{value!r} is not an integer")
    return int(value)


def _graph(value: Any) -> Graph:
    if not isinstance(value, Graph):
        raise ValueError("it must be a Graph")
    return value


def _type(value: Any) -> Type:
    if not isinstance(value, Type):
        raise ValueError("the type of a tensor, a sequence or an optional is expected")
    return value


COERCE: dict[str, Callable[[Any], Any]] = {
    "int": _integer,
    "float": _float,
    "bool": bool,
    "str": str,
    "DType": dtype_of,
    "Tensor": lambda v: v if isinstance(v, Tensor) else Tensor(v),
    "Graph": _graph,
    "Type": _type,
    "tuple[int, ...]": _ints,
    "tuple[float, ...]": _floats,
    "tuple[str, ...]": _strings,
}
# The kinds of attributes, in words for messages.
WORDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "True or False",
    "str": "a string",
    "DType": "a dtype",
    "Tensor": "an array",
    "Graph": "a Graph",
    "Type": "a type",
    "tuple[int, ...]": "a list of integers",
    "tuple[float, ...]": "a list of numbers",
    "tuple[str, ...]": "a list of strings",
}
