"""The attributes of an MXNet operator: texts, read as the types that its converter asks for."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Mapping

from graphkit.errors import InvalidModel, UsageError
from graphkit.ir.types import DType, dtype_of

# Attributes that select an algorithm, not a result.
_WITHOUT_EFFECT = frozenset({
    "cudnn_algo_bwd_data", "cudnn_algo_bwd_filter", "cudnn_algo_fwd", "cudnn_off", "cudnn_tune", "num_args",
    "num_weights", "sparse_grad", "workspace", "lazy_update", "key_var_num",
})  # fmt: skip
_TRUE, _FALSE = ("True", "true", "1"), ("False", "false", "0")
# MXNet's numbers of element types, which attributes may contain in place of names.
_DTYPES = {
    "0": "float32", "1": "float64", "2": "float16", "3": "uint8", "4": "int32", "5": "int8", "6": "int64", "7": "bool",
    "8": "int16", "9": "uint16", "10": "uint32", "11": "uint64", "12": "bfloat16",
}  # fmt: skip


class Attributes:
    """Reads attributes by name. `unread` returns those that no call has asked for.

    Every method takes the name of an attribute and the value that holds if it is absent or "None". They raise
    InvalidModel if a text does not have the type.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._read: set[str] = set()

    def _text(self, name: str) -> str | None:
        self._read.add(name)
        text = self._texts.get(name)
        return None if text is None or text == "None" else text.strip()

    def unread(self) -> list[str]:
        """Return the names of the attributes that nothing has asked for and that change the result."""
        return sorted(self._texts.keys() - self._read - _WITHOUT_EFFECT)

    def ignore(self, *names: str) -> None:
        """State that these attributes do not change the result here."""
        self._read.update(names)

    def __contains__(self, name: str) -> bool:
        return self._text(name) is not None

    def text(self, name: str, default: str) -> str:
        found = self._text(name)
        return default if found is None else found

    def choice(self, name: str, default: str, *allowed: str) -> str:
        """Return a text that must be one of `default` and `allowed`."""
        found = self.text(name, default)
        if found not in (default, *allowed):
            raise InvalidModel(f"attribute {name} is {found!r}; it can be {', '.join((default, *allowed))}")
        return found

    def flag(self, name: str, default: bool) -> bool:
        found = self._text(name)
        if found is None:
            return default
        if found not in (*_TRUE, *_FALSE):
            raise InvalidModel(f"attribute {name} must be True or False, not {found!r}")
        return found in _TRUE

    def integer(self, name: str, default: int) -> int:
        found = self.optional_integer(name)
        return default if found is None else found

    def optional_integer(self, name: str) -> int | None:
        found = self._text(name)
        if found is None:
            return None
        try:
            number: float = int(found)
        except ValueError:
            number = self._number(name, found)
        if not -(1 << 63) <= number < 1 << 63:
            raise InvalidModel(f"attribute {name} must be an integer of 64 bits, not {found!r}")
        if number != int(number):
            raise InvalidModel(f"attribute {name} must be an integer, not {found!r}")
        return int(number)

    def axis(self, default: int | None) -> int | None:
        """Return the attribute axis, where "None" differs from an absent attribute: it means the flat tensor."""
        return self.optional_integer("axis") if "axis" in self._texts else default

    def number(self, name: str, default: float) -> float:
        found = self._text(name)
        return default if found is None else self._number(name, found)

    def optional_number(self, name: str) -> float | None:
        return self.number(name, 0.0) if name in self else None

    def _number(self, name: str, text: str) -> float:
        if text in (*_TRUE, *_FALSE) and text not in "01":
            return float(text in _TRUE)
        try:
            number = float(text)
        except ValueError:
            raise InvalidModel(f"attribute {name} must be a number, not {text!r}") from None
        if math.isnan(number):
            raise InvalidModel(f"attribute {name} is not a number")
        return number

    def integers(self, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return a tuple of integers; "3", "(3,)" and "[3]" are one of one."""
        found = self.optional_integers(name, default)
        if None in found:
            raise InvalidModel(f"attribute {name} must contain integers only, not None")
        return tuple(part for part in found if part is not None)

    def optional_integers(self, name: str, default: tuple[int, ...] = ()) -> tuple[int | None, ...]:
        """Return a tuple of integers, in which None means that a value is not given."""
        found = self._parsed(name)
        if found is None:
            return default
        parts = found if isinstance(found, (tuple, list)) else (found,)
        if any(part is not None and (type(part) is not int) for part in parts):
            raise InvalidModel(f"attribute {name} must contain integers, not {self._texts[name]!r}")
        return tuple(parts)

    def pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        """Return a tuple of pairs of integers; () if it is absent."""
        found = self._parsed(name) or ()
        try:
            if not isinstance(found, (tuple, list)):
                raise TypeError("it is a number")
            return tuple((operator.index(first), operator.index(second)) for first, second in found)
        except (TypeError, ValueError):
            raise InvalidModel(f"attribute {name} must contain pairs of integers, not {self._texts[name]!r}") from None

    def numbers(self, name: str, default: tuple[float, ...] = ()) -> tuple[float, ...]:
        found = self._parsed(name)
        if found is None:
            return default
        parts = found if isinstance(found, (tuple, list)) else (found,)
        if any(type(part) not in (int, float) or math.isnan(part) for part in parts):
            raise InvalidModel(f"attribute {name} must contain numbers, not {self._texts[name]!r}")
        return tuple(float(part) for part in parts)

    def _parsed(self, name: str) -> object:
        found = self._text(name)
        if found is None:
            return None
        try:
            return ast.literal_eval(found.replace("L", ""))  # Python 2 wrote 64-bit integers as 3L
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise InvalidModel(f"attribute {name} is not a number or a tuple: {found!r}") from None

    def dtype(self, name: str, default: str) -> DType:
        """Return an element type, which is written as a name or as MXNet's number."""
        found = self.text(name, default)
        try:
            return dtype_of(_DTYPES.get(found, found))
        except UsageError:
            raise InvalidModel(f"attribute {name} is not an element type: {found!r}") from None
