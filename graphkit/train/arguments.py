"""Check numeric arguments: type, finiteness and range."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any

from graphkit.errors import UsageError
from graphkit.named_tuples import NamedTuple


class Range(NamedTuple):
    """low <= x <= high. With `open_low` or `open_high`, the bound itself is excluded."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def holds(self, x: float) -> bool:
        above = x > self.low if self.open_low else x >= self.low
        return above and (x < self.high if self.open_high else x <= self.high)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low:g}" if self.open_low else f"of at least {self.low:g}"
        return f"in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}{')' if self.open_high else ']'}"


NOT_NEGATIVE = Range(0.0)
POSITIVE = Range(0.0, open_low=True)
FRACTION = Range(0.0, 1.0)
BELOW_ONE = Range(0.0, 1.0, open_high=True)


def real(owner: str, name: str, value: Any, allowed: Range) -> float:
    """Raise UsageError unless the value is a finite number in the range, and not a bool."""
    if isinstance(value, (bool, str)) or not isinstance(value, numbers.Real):
        raise UsageError(f"{owner}: {name} must be a number, not {value!r}")
    number = float(value)
    if not math.isfinite(number) or not allowed.holds(number):
        raise UsageError(f"{owner}: {name} must be a finite number {allowed}, not {value!r}")
    return number


def integer(owner: str, name: str, value: Any, low: int) -> int:
    if isinstance(value, (bool, str)) or not isinstance(value, numbers.Integral) or value < low:
        raise UsageError(f"{owner}: {name} must be an integer of at least {low}, not {value!r}")
    return int(value)


def boolean(owner: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool) and type(value).__name__ != "bool":
        raise UsageError(f"{owner}: {name} must be True or False, not {value!r}")
    return bool(value)


def convert_fields(instance: Any, owner: str, ranges: Mapping[str, Range]) -> None:
    """Check the fields of a frozen dataclass by their annotations, and convert numpy scalars to Python numbers.

    A float must be in its range, an int at least 1. Other fields keep their values.

    Args:
        ranges: Ranges of floats by field name (default: not negative).
    """
    for field in dataclasses.fields(instance):
        name, value = field.name, getattr(instance, field.name)
        kind, _, other = str(field.type).partition(" | ")
        if value is None and other == "None":
            continue
        if kind == "float" and other in ("", "None"):
            value = real(owner, name, value, ranges.get(name, NOT_NEGATIVE))
        elif kind == "int" and other in ("", "None"):
            value = integer(owner, name, value, 1)
        elif kind == "bool":
            value = boolean(owner, name, value)
        object.__setattr__(instance, name, value)
