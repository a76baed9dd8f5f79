"""Table look-up of elements: LabelEncoder and CategoryMapper."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError, UsageError
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Sample, constant, op
from graphkit.ops.kept import kept
from graphkit.ops.ml.matrix import ML, same_length

# Most entries of a table that is indexed by integers, from the least key to the largest.
_LARGEST_TABLE = 1 << 16


def looked_up(xp: Any, x: Any, keys: np.ndarray, values: np.ndarray, default: Any) -> Any:
    """Return, for each element of x, the value of the first equal key (NaN equals NaN), else `default`."""
    if not len(keys):
        return xp.full(x.shape, default, values.dtype)
    if x.dtype == object or keys.dtype == object:
        return _of_strings(*string_table(keys, values, default), x)
    distinct, first = np.unique(keys, return_index=True)
    elements = x.reshape(-1)
    distinct, first = xp.asarray(distinct), xp.asarray(first)
    at = xp.minimum(xp.searchsorted(distinct, elements), len(distinct) - 1)
    found = (distinct[at] == elements) | ((distinct[at] != distinct[at]) & (elements != elements))
    places = first[at]
    result = xp.full(places.size, default, values.dtype)
    result[found] = xp.asarray(values)[places[found]]
    return result.reshape(x.shape)


def string_table(keys: np.ndarray, values: np.ndarray, default: Any) -> tuple[dict[Any, int], np.ndarray]:
    """Return a dict key -> position (the first of equal keys), and the values followed by the default (position -1)."""
    places = dict(zip(reversed(keys.tolist()), range(len(keys) - 1, -1, -1), strict=True))
    return places, np.concatenate([values, np.full(1, default, values.dtype)])


def _of_strings(places: dict[Any, int], values: np.ndarray, x: np.ndarray) -> np.ndarray:
    found = np.fromiter(map(places.get, x.reshape(-1).tolist(), itertools.repeat(-1)), np.int64, x.size)
    return values[found].reshape(x.shape)


@kept
def string_table_of(op: LabelEncoder) -> tuple[dict[Any, int], np.ndarray]:
    """Return the table of an operator whose keys are strings (see `string_table`)."""
    return string_table(*op._table())


@op
class LabelEncoder(Op):
    """Replace each element by the value that belongs to its key, or by the default if it is not a key; same shape as x.

    Keys and values are given as one list each (strings, integers or floats), or as a tensor of any of these types.
    """

    keys_strings: tuple[str, ...] | None = None
    keys_int64s: tuple[int, ...] | None = None
    keys_floats: tuple[float, ...] | None = None
    keys_tensor: Tensor | None = None
    values_strings: tuple[str, ...] | None = None
    values_int64s: tuple[int, ...] | None = None
    values_floats: tuple[float, ...] | None = None
    values_tensor: Tensor | None = None
    default_string: str = "_Unused"
    default_int64: int = -1
    default_float: float = -0.0
    default_tensor: Tensor | None = None
    domain = ML
    inputs = ("x",)
    types: ClassVar[Any] = {
        "x": frozenset({DType.STRING, DType.INT64, DType.FLOAT32, DType.INT32, DType.INT16, DType.FLOAT64})
    }
    onnx = Onnx("LabelEncoder", 4, ML)
    per_example = ("x",)
    composite = True
    samples = lambda: (
        Sample(np.array([["a", "b"], ["z", "a"]], object), keys_strings=["a", "b"], values_int64s=[3, 4]),
        Sample(np.array([1, 5, 2], np.int64), keys_int64s=[1, 2], values_strings=["x", "y"], default_string="?"),
        Sample(np.array([1, np.nan, 2], np.float32), keys_floats=[2.0, 1], values_floats=[0.5, 1.5],
               default_float=-2.0),
        Sample(np.array([7, 8], np.int16), keys_tensor=np.array([7], np.int16), values_tensor=np.array([2.5]),
               default_tensor=np.array([-1.5])),
        Sample(np.array([-20000, 20000, 0, -32768, 32767], np.int16), keys_tensor=np.array([-20000, 20000], np.int16),
               values_tensor=np.array([2.5, 3.5]), default_tensor=np.array([-1.5])),
        Sample(np.array([[9, -3, 4], [-4, 8, 4]], np.int64), keys_int64s=[4, -3, 8, 4],
               values_floats=[0.5, 1.5, 2.5, 9.0], default_float=-1.0),
    )  # fmt: skip

    def infer(self, x: TensorType) -> TensorType:
        keys, values, _ = self._table()
        if dtype_of_table(keys) is not x.dtype:
            raise TypeMismatch(f"the keys are {dtype_of_table(keys)}, but x is {x.dtype}")
        same_length(keys=keys, values=values)
        if self.default_tensor is not None and (
            self.default_tensor.array.size != 1 or self.default_tensor.dtype is not dtype_of_table(values)
        ):
            raise UsageError(f"default_tensor is {self.default_tensor.type}, for values of {dtype_of_table(values)}")
        return TensorType(dtype_of_table(values), x.shape)

    def _table(self) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return keys, values and the default in the values' type. Raises UsageError unless one list of each is set."""
        keys = _only("keys", self.keys_strings, self.keys_int64s, self.keys_floats, self.keys_tensor)
        values = _only("values", self.values_strings, self.values_int64s, self.values_floats, self.values_tensor)
        if self.default_tensor is not None:
            default = self.default_tensor.array.reshape(-1)[:1].tolist()
            return keys, values, default[0] if default else None
        kind = dtype_of_table(values)
        if kind is DType.STRING:
            return keys, values, self.default_string
        return keys, values, self.default_int64 if kind.is_integer else self.default_float

    def reference(self, xp: Any, x: Any) -> Any:
        if x.dtype == object and (self.keys_strings or self.keys_tensor is not None):
            return _of_strings(*string_table_of(self), x)
        return looked_up(xp, x, *self._table())

    def composed(self, x: Any) -> Any:
        """Look x up in a table of all integers from the least to the largest key, with the default at both ends."""
        keys, values, _ = self._table()
        if not x.dtype.is_integer or dtype_of_table(values) is DType.STRING or not len(keys):
            raise UnsupportedError(f"{self.name} of {x.dtype} to {dtype_of_table(values)} cannot be a table of numbers")
        least, most = int(keys.min()) - 1, int(keys.max()) + 1
        bounds = np.iinfo(x.dtype.numpy)
        if most - least > _LARGEST_TABLE or least < bounds.min or most > bounds.max:
            raise UnsupportedError(f"{self.name}: a table of the keys from {least + 1} to {most - 1} is too large")
        table = self.reference(np, np.arange(least, most + 1, dtype=x.dtype.numpy))
        low, high = (constant(np.array(bound, x.dtype.numpy)) for bound in (least, most))
        within = F.cast(F.max(F.min(x, high), low), to=DType.INT64)  # narrow integers would overflow in the subtraction
        return F.gather(constant(table), F.sub(within, constant(np.array(least))))


def _only(
    name: str, strings: Sequence[str] | None, integers: Sequence[int] | None, floats: Sequence[float] | None,
    tensor: Tensor | None,
) -> np.ndarray:  # fmt: skip
    given = [
        np.array(items, kind)
        for items, kind in ((strings, object), (integers, np.int64), (floats, np.float32))
        if items is not None
    ]
    if tensor is not None:
        given.append(tensor.array.reshape(-1))
    # Some files contain all lists; the unused ones are empty.
    given = [items for items in given if len(items)] or given[:1]
    if len(given) != 1:
        raise UsageError(
            f"give one of {name}_strings, {name}_int64s, {name}_floats and {name}_tensor; {len(given)} are given"
        )
    return given[0]


def dtype_of_table(array: np.ndarray) -> DType:
    return DType.of(array.dtype)


@op
class CategoryMapper(Op):
    """Replace strings by integers, or integers by strings.

    `cats_strings` and `cats_int64s` have the same length; entry i of one belongs to entry i of the other. Elements that
    are not in the list give `default_int64` or `default_string`.
    """

    cats_int64s: tuple[int, ...] = ()
    cats_strings: tuple[str, ...] = ()
    default_int64: int = -1
    default_string: str = "_Unused"
    domain = ML
    inputs = ("x",)
    types: ClassVar[Any] = {"x": frozenset({DType.STRING, DType.INT64})}
    onnx = Onnx("CategoryMapper", 1, ML)
    samples = lambda: (
        Sample(np.array(["b", "q"], object), cats_int64s=[5, 6], cats_strings=["a", "b"]),
        Sample(np.array([[6], [9]], np.int64), cats_int64s=[5, 6], cats_strings=["a", "b"], default_string="none"),
    )

    def infer(self, x: TensorType) -> TensorType:
        same_length(cats_int64s=self.cats_int64s, cats_strings=self.cats_strings)
        return TensorType(DType.INT64 if x.dtype is DType.STRING else DType.STRING, x.shape)

    def reference(self, xp: Any, x: Any) -> Any:
        # Of equal categories the last one counts.
        if x.dtype == object:
            return _of_strings(*numbers_of_strings(self), x)
        strings, integers = np.array(self.cats_strings, object), np.array(self.cats_int64s, np.int64)
        return looked_up(xp, x, integers[::-1], strings[::-1], self.default_string)


@kept
def numbers_of_strings(op: CategoryMapper) -> tuple[dict[Any, int], np.ndarray]:
    """Return the table from the categories to their integers (see `string_table`)."""
    strings, integers = np.array(op.cats_strings, object), np.array(op.cats_int64s, np.int64)
    return string_table(strings[::-1], integers[::-1], op.default_int64)
