"""Maps from keys to numbers, which feature extractors and classifiers return: DictVectorizer, CastMap, ZipMap."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import RuntimeFailure, TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.types import DType, MapType, SequenceType, TensorType, Type
from graphkit.ops._base import Onnx, Op, Sample, op
from graphkit.ops.ml.matrix import ML, one_of
from graphkit.ops.ml.scores import labels_of

_FLOAT, _INTEGER, _STRING = DType.FLOAT32, DType.INT64, DType.STRING


def _map_of(x: Type) -> tuple[DType, DType]:
    """Return the types of keys and values of a map. Raises TypeMismatch for other types."""
    if not isinstance(x, MapType) or not isinstance(x.element, TensorType):
        raise TypeMismatch(f"operand 'x' must be a map, not {x}")
    return x.key, x.element.dtype


@op
class DictVectorizer(Op):
    """Return the values of a map as one row, in the order of the keys in a vocabulary.

    If the map lacks a key, the element is 0 or an empty string.
    """

    int64_vocabulary: tuple[int, ...] = ()
    string_vocabulary: tuple[str, ...] = ()
    domain = ML
    inputs = ("x",)
    onnx = Onnx("DictVectorizer", 1, ML)
    on_host = True
    samples = lambda: (
        Sample({"a": np.float32(1.5), "c": np.float32(2.5)}, string_vocabulary=["a", "b", "c"], grad=False),
        Sample({1: "one", 7: "seven"}, int64_vocabulary=[7, 8], grad=False),
    )

    def infer(self, x: Type) -> TensorType:
        key, value = _map_of(x)
        if bool(self.int64_vocabulary) == bool(self.string_vocabulary):
            raise UsageError("give exactly one of int64_vocabulary and string_vocabulary, and not empty")
        if bool(self.string_vocabulary) != (key is _STRING):
            raise TypeMismatch(f"the vocabulary is {'strings' if self.string_vocabulary else 'integers'}, but x is {x}")
        return TensorType(value, (1, len(self.int64_vocabulary or self.string_vocabulary)))

    def reference(self, xp: Any, x: Any) -> Any:
        words = self.int64_vocabulary or self.string_vocabulary
        is_text = any(isinstance(value, str) for value in x.values())
        return np.array([[x.get(word, "" if is_text else 0) for word in words]], object if is_text else None)


@op
class CastMap(Op):
    """Return the values of a map as one row, cast to another type.

    With `map_form` DENSE, the values are in ascending order of their keys. With SPARSE, the row has `max_map` columns,
    and the value of key k is in column k; larger keys are dropped, and all other columns are 0 (the string "0.f").
    """

    cast_to: str = "TO_FLOAT"
    map_form: str = "DENSE"
    max_map: int = 1
    domain = ML
    inputs = ("x",)
    onnx = Onnx("CastMap", 1, ML)
    on_host = True
    samples = lambda: (
        Sample({3: np.float32(1.5), 1: np.float32(2.5)}, cast_to="TO_INT64", grad=False),
        Sample({0: "1.5", 2: "-3"}, map_form="SPARSE", max_map=4, grad=False),
        Sample({0: np.float32(1.5)}, cast_to="TO_STRING", grad=False),
    )

    def infer(self, x: Type) -> TensorType:
        one_of("cast_to", self.cast_to, ("TO_FLOAT", "TO_STRING", "TO_INT64"))
        one_of("map_form", self.map_form, ("DENSE", "SPARSE"))
        key, _ = _map_of(x)
        if key is _STRING:
            raise TypeMismatch(f"the keys of a map that is cast are integers; x is {x}")
        if self.map_form == "SPARSE" and self.max_map < 1:
            raise UsageError(f"max_map={self.max_map}: expected at least 1")
        kind = {"TO_FLOAT": _FLOAT, "TO_STRING": _STRING, "TO_INT64": _INTEGER}[self.cast_to]
        return TensorType(kind, (1, self.max_map if self.map_form == "SPARSE" else dims.fresh()))

    def reference(self, xp: Any, x: Any) -> Any:
        kind = {"TO_FLOAT": np.float32, "TO_STRING": object, "TO_INT64": np.int64}[self.cast_to]
        if self.map_form == "DENSE":
            return np.array([[self._cast(x[key]) for key in sorted(x)]], kind).reshape(1, -1)
        row = np.full((1, self.max_map), "0.f" if self.cast_to == "TO_STRING" else 0, kind)
        for key in x:
            if key < 0:
                raise RuntimeFailure(f"key {key} of the map is negative, so it is not the number of a column")
            if key < self.max_map:
                row[0, key] = self._cast(x[key])
        return row

    def _cast(self, value: Any) -> Any:
        try:
            if self.cast_to == "TO_STRING":
                return value if isinstance(value, str) else f"{float(value):f}"
            return np.float32(value) if self.cast_to == "TO_FLOAT" else int(float(value))
        except (ValueError, OverflowError) as error:
            raise RuntimeFailure(f"{value!r} of the map cannot be cast {self.cast_to}: {error}") from None


@op
class ZipMap(Op):
    """Return a sequence with one map for each row of x: from the labels to the elements of the row.

    x: float32 [N, labels], or [labels] for one row. Give the labels as integers or as strings.
    """

    classlabels_int64s: tuple[int, ...] = ()
    classlabels_strings: tuple[str, ...] = ()
    domain = ML
    inputs, outputs = ("x",), ("z",)
    types: ClassVar[Any] = {"x": frozenset({_FLOAT})}
    onnx = Onnx("ZipMap", 1, ML)
    on_host = True
    samples = lambda: (
        Sample((3, 2), classlabels_int64s=[5, 7], grad=False),
        Sample((2,), classlabels_strings=["a", "b"], grad=False),
    )

    def infer(self, x: TensorType) -> SequenceType:
        labels = labels_of(self.classlabels_strings, self.classlabels_int64s)
        if not len(labels):
            raise UsageError("there are no labels")
        if x.shape is not None:
            if len(x.shape) not in (1, 2):
                raise TypeMismatch(f"x must be a vector or a matrix, not {x}")
            if not dims.may_equal(x.shape[-1], len(labels)):
                raise TypeMismatch(f"{len(labels)} labels for {x.shape[-1]} columns")
        return SequenceType(MapType(_STRING if self.classlabels_strings else _INTEGER, TensorType(_FLOAT, ())))

    @property
    def labels(self) -> tuple[str, ...] | tuple[int, ...]:
        return self.classlabels_strings or self.classlabels_int64s

    def reference(self, xp: Any, x: Any) -> Any:
        labels = self.labels
        if x.shape[-1] != len(labels):
            raise RuntimeFailure(f"{len(labels)} labels for {x.shape[-1]} columns")
        rows = x.tolist() if x.ndim == 2 else [x.tolist()]
        return list(map(dict, map(zip, itertools.repeat(labels), rows)))
