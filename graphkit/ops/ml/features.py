"""Operators that select, join and encode features: ArrayFeatureExtractor, FeatureVectorizer, OneHotEncoder."""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import RuntimeFailure, TypeMismatch, UnsupportedError, UsageError
from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, constant, op
from graphkit.ops.kept import kept
from graphkit.ops.ml.matrix import ML, NUMBERS
from graphkit.text import quantity


@op
class ArrayFeatureExtractor(Op):
    """Select the elements of x at the indices y along the last axis. A vector x is read as a matrix with one row."""

    domain = ML
    inputs = ("x", "y")
    types: ClassVar[Any] = {"x": NUMBERS | {DType.STRING}, "y": frozenset({DType.INT64})}
    outputs = ("z",)
    onnx = Onnx("ArrayFeatureExtractor", 1, ML)
    composite = True
    samples = lambda: (
        Sample((3, 4), np.array([[0, 2]])),
        Sample((5,), np.array([4, 1, 1])),
        Sample((2, 3, 4), np.array([3])),
    )

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        if x.shape is None or y.shape is None:
            return TensorType(x.dtype, None)
        if not x.shape:
            raise TypeMismatch("x has no axis of features")
        last = x.shape[-1]
        if y.constants is not None and not isinstance(last, DimExpr) and not all(0 <= i < last for i in y.constants):
            raise TypeMismatch(f"a position of {list(y.constants)} is outside of {last} features")
        return TensorType(x.dtype, (*(x.shape[:-1] or (1,)), dims.product(y.shape)))

    def reference(self, xp: Any, x: Any, y: Any) -> Any:
        if y.size and not (y.min() >= 0 and y.max() < x.shape[-1]):
            raise RuntimeFailure(f"a position is outside of {x.shape[-1]} features")
        taken = xp.take(x, y.reshape(-1), axis=-1)
        return taken.reshape(1, -1) if x.ndim == 1 else taken

    def expand(self, x: Value, y: Value) -> Value:
        rank = x.rank
        if rank is None:
            raise UnsupportedError("the rank of x is unknown")
        z = F.gather(x, F.reshape(y, [-1]), axis=rank - 1)
        return F.unsqueeze(z, [0]) if rank == 1 else z


def _rows(x: TensorType) -> Dim:
    """Return the number of examples of an operand of FeatureVectorizer."""
    if x.shape is None:
        return dims.fresh()
    if not x.shape:
        raise TypeMismatch("a scalar has no examples")
    return 1 if len(x.shape) == 1 else x.shape[0]


@op
class FeatureVectorizer(Op):
    """Join the features of all operands side by side; float32.

    Operand i gives its first `inputdimensions[i]` features; if it has fewer, zeros are added. A vector is one example.
    If an operand has more than two axes, all features of an example form one row, as in ONNX Runtime (OneHotEncoder of
    a column gives three axes).
    """

    inputdimensions: tuple[int, ...] = ()
    domain = ML
    inputs = ("xs*",)
    types: ClassVar[Any] = {"xs": NUMBERS}
    onnx = Onnx("FeatureVectorizer", 1, ML)
    composite = True
    samples = lambda: (
        Sample((3, 4), (3, 2), inputdimensions=[4, 2]),
        Sample((3, 4), (3, 2), inputdimensions=[2, 5]),
        Sample((4,), (1, 2), inputdimensions=[4, 2]),
        Sample((2, 1, 3), (2, 2, 3), (2, 2), inputdimensions=[5, 4, 2]),
        Sample((2, 3, 0), (2, 2), inputdimensions=[1, 2]),
    )

    def infer(self, *xs: TensorType) -> TensorType:
        if len(xs) != len(self.inputdimensions):
            entries = len(self.inputdimensions)
            raise UsageError(f"{quantity(len(xs), 'operand')}, but len(inputdimensions) is {entries}")
        if not xs or any(size < 0 for size in self.inputdimensions):
            raise UsageError(f"inputdimensions={list(self.inputdimensions)}")
        count, *others = map(_rows, xs)
        for other in others:
            if not dims.may_equal(count, other):
                raise TypeMismatch(f"operands have {count} and {other} examples")
        return TensorType(DType.FLOAT32, (count, sum(self.inputdimensions)))

    def reference(self, xp: Any, *xs: Any) -> Any:
        rows = [x.reshape(1, -1) if x.ndim == 1 else x.reshape(len(x), math.prod(x.shape[1:])) for x in xs]
        if len({len(x) for x in rows}) > 1:
            raise RuntimeFailure(f"operands have {', '.join(str(len(x)) for x in rows)} examples")
        y = xp.zeros((len(rows[0]), sum(self.inputdimensions)), np.float32)
        at = 0
        for x, size in zip(rows, self.inputdimensions, strict=True):
            part = x[:, :size].astype(np.float32)
            y[:, at : at + part.shape[1]] = part
            at += size
        return y

    def expand(self, *xs: Value) -> Value:
        parts = []
        for x, size in zip(xs, self.inputdimensions, strict=True):
            shape = x.shape
            found = None if shape is None else dims.product(shape if len(shape) == 1 else shape[1:])
            if shape is None or found is None or isinstance(found, DimExpr):
                raise UnsupportedError("the number of features is unknown")
            row = F.unsqueeze(x, [0]) if len(shape) == 1 else x if len(shape) == 2 else F.flatten(x)
            part = F.cast(row, to=DType.FLOAT32)
            if size < found:
                part = F.slice(part, [0], [size], [1])
            elif size > found:
                part = F.pad(part, [0, 0, 0, size - found])
            parts.append(part)
        return F.concat(*parts, axis=1)


@op
class OneHotEncoder(Op):
    """One-hot encoding along a new last axis: 1 at the element's position among the categories, else 0; float32.

    If an element is none of the categories, its vector contains only zeros; with `zeros=0`, this is an error.
    """

    cats_int64s: tuple[int, ...] = ()
    cats_strings: tuple[str, ...] = ()
    zeros: int = 1
    domain = ML
    inputs = ("x",)
    types: ClassVar[Any] = {"x": NUMBERS | {DType.STRING}}
    onnx = Onnx("OneHotEncoder", 1, ML)
    per_example = ("x",)
    composite = True
    samples = lambda: (
        Sample(Rand((3, 2), 0, 4), grad=False, cats_int64s=[0, 2, 3]),  # a step function
        Sample(np.array(["a", "c", "z"], object), cats_strings=["a", "b", "c"]),
        Sample(np.array([5, 7], np.int64), cats_int64s=[7, 5], zeros=0),
    )

    def infer(self, x: TensorType) -> TensorType:
        categories = self._categories(x.dtype)
        return TensorType(DType.FLOAT32, None if x.shape is None else (*x.shape, len(categories)))

    def _categories(self, dtype: DType) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self.cats_strings if dtype is DType.STRING else self.cats_int64s
        if bool(self.cats_strings) == bool(self.cats_int64s):
            raise UsageError("give exactly one of cats_strings and cats_int64s, and not empty")
        if not found:
            raise UsageError(f"the categories are {'strings' if self.cats_strings else 'integers'}, but x is {dtype}")
        return found

    def reference(self, xp: Any, x: Any) -> Any:
        table = places_of(self)
        if x.dtype == object:
            places = np.fromiter(map(table.get, x.reshape(-1).tolist(), itertools.repeat(-1)), np.int64, x.size)
        else:
            keys = xp.asarray(np.array(sorted(table), np.int64))
            where = xp.asarray(np.array([table[key] for key in sorted(table)], np.int64))
            elements = x.reshape(-1).astype(np.int64)
            at = xp.minimum(xp.searchsorted(keys, elements), len(keys) - 1)
            places = xp.where(keys[at] == elements, where[at], -1)
        return self.encoded(xp, x, places)

    def encoded(self, xp: Any, x: Any, places: Any) -> Any:
        """Return the result for x. places: the category number of each element, int64 [elements], -1 if unknown."""
        categories = self._categories(DType.of(x.dtype))
        if not self.zeros and (places < 0).any():
            unknown = x.reshape(-1)[places < 0][:1].tolist()[0]
            raise RuntimeFailure(f"{unknown!r} is not one of the categories, and zeros=0 makes this an error")
        y = xp.zeros((places.size, len(categories)), np.float32)
        y.reshape(-1)[(xp.arange(places.size) * len(categories) + places)[places >= 0]] = 1
        return y.reshape(*x.shape, len(categories))

    def grad(self, node: Any, dy: Value) -> None:
        return None

    def expand(self, x: Value) -> Value:
        categories = self._categories(x.dtype)
        if x.dtype is DType.STRING or not self.zeros or len(set(categories)) < len(categories):
            raise UnsupportedError("strings, categories that are equal, and errors need the operator itself")
        elements = F.unsqueeze(F.cast(x, to=DType.INT64), [-1])
        return F.cast(F.equal(elements, constant(np.array(categories, np.int64))), to=DType.FLOAT32)


@kept
def places_of(op: OneHotEncoder) -> dict[Any, int]:
    """Category -> position; of equal categories, the last one counts."""
    return {category: place for place, category in enumerate(op.cats_strings or op.cats_int64s)}
