"""The types of values: element types, tensors with symbolic shapes, sequences, optionals and maps."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, TypeAlias

import numpy as np

from graphkit.errors import TypeMismatch, UsageError, did_you_mean
from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.numbering import Numbering
from graphkit.signatures import check_argument, shown

# Integer tensors with more elements have no known value. Shape arithmetic needs only vectors with one element per axis.
MAX_KNOWN_ELEMENTS = 64
# Enough for the scales of Resize, one for each axis of a tensor.
MAX_KNOWN_FLOATS = 16


class DType(enum.Enum):
    """Element type of a tensor.

    The value of a member is a name, such as "float32" for `DType.FLOAT32`: that of numpy, or of ml_dtypes for types
    that numpy lacks. Where a function takes a dtype, you may also pass this name, a numpy dtype or a Python type (see
    `of`).
    """

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    BOOL = "bool"
    STRING = "string"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    FLOAT8E4M3FN = "float8_e4m3fn"
    FLOAT8E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8E5M2 = "float8_e5m2"
    FLOAT8E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8E8M0 = "float8_e8m0fnu"
    FLOAT4E2M1 = "float4_e2m1fn"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"

    def __str__(self) -> str:
        return self.value

    # Members are singletons; the default Enum hash walks through Python code on every set lookup.
    __hash__ = object.__hash__

    @property
    def numpy(self) -> np.dtype:
        """The numpy dtype; for types that numpy lacks, such as bfloat16, that of ml_dtypes; object for strings."""
        return _numpy_dtype(self)

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory, as in numpy; types of 2 and 4 bits take one byte."""
        size = _item_sizes.get(self)
        if size is None:
            size = _item_sizes[self] = self.numpy.itemsize
        return size

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point type of 4 to 64 bits. Complex types are not."""
        return self in FLOATS or self in TINY_FLOATS

    @property
    def is_integer(self) -> bool:
        """Whether this is a signed or unsigned integer type of 2 to 64 bits. bool is not."""
        return self in INTEGERS

    @staticmethod
    def of(spec: Any) -> DType:
        """Return the DType for a name, a numpy dtype, a Python type or a DType.

        float means float32, int int64, bool bool, str string. Raises UsageError for anything else.
        """
        return dtype_of(spec)


FLOATS = frozenset({DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16})
HALVES = frozenset({DType.FLOAT16, DType.BFLOAT16})
TINY_FLOATS = frozenset(
    {
        DType.FLOAT8E4M3FN,
        DType.FLOAT8E4M3FNUZ,
        DType.FLOAT8E5M2,
        DType.FLOAT8E5M2FNUZ,
        DType.FLOAT8E8M0,
        DType.FLOAT4E2M1,
    }
)
FLOAT8 = frozenset({DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ})
SIGNED = frozenset({DType.INT8, DType.INT16, DType.INT32, DType.INT64})
UNSIGNED = frozenset({DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64})
INTEGERS = SIGNED | UNSIGNED
BYTES = frozenset({DType.INT8, DType.UINT8})
INDICES = frozenset({DType.INT32, DType.INT64})
BOOLS = frozenset({DType.BOOL})
NUMERIC = FLOATS | INTEGERS
ANY = frozenset(DType)

# The smallest and the largest integer of each integer type.
_LIMITS = {d: (int(i.min), int(i.max)) for d in INTEGERS for i in [np.iinfo(d.value)]}

# Larger sizes are an error. Sizes that are multiplied in each layer would otherwise become integers of unbounded
# length.
_MAX_SIZE = (1 << 63) - 1

_NAMES = {d.value: d for d in DType}
_PYTHON_TYPES = {float: DType.FLOAT32, int: DType.INT64, bool: DType.BOOL, str: DType.STRING}


_item_sizes: dict[DType, int] = {}


@cache
def _numpy_dtype(dtype: DType) -> np.dtype:
    if dtype is DType.STRING:
        return np.dtype(object)
    try:
        found: np.dtype = np.dtype(dtype.value)
    except TypeError:
        import ml_dtypes

        found = np.dtype(getattr(ml_dtypes, dtype.value))
    return found


def dtype_of(spec: Any) -> DType:
    try:
        return _dtype_of(spec)
    except TypeError:  # the cache cannot look for a list, a dict or an array
        raise UsageError(f"unknown dtype {shown(spec)}") from None


@lru_cache(maxsize=256)  # bounded, because a dtype may be given as an array
def _dtype_of(spec: Any) -> DType:
    if isinstance(spec, DType):
        return spec
    if spec in _PYTHON_TYPES:
        return _PYTHON_TYPES[spec]
    if isinstance(spec, str) and spec in _NAMES:
        return _NAMES[spec]
    try:
        descriptor = np.dtype(spec)
    except (TypeError, ValueError) as error:
        if isinstance(spec, str):
            raise UsageError(f"unknown dtype {spec!r}{did_you_mean(spec, list(_NAMES))}") from None
        raise UsageError(f"unknown dtype {spec!r}: {error}") from None
    # Arrays of another byte order are converted, so their dtype is accepted, but no result has that order.
    if isinstance(spec, str) and not descriptor.isnative:
        raise UsageError(f"dtype {spec!r} has another byte order than this machine: write {descriptor.name!r}")
    found = DType.STRING if descriptor.kind in "OUST" else _NAMES.get(descriptor.name)
    if found is None:
        raise UsageError(f"graphkit has no dtype {spec!r} ({descriptor}); there are {', '.join(_NAMES)}")
    return found


def _dims(shape: Iterable[Any]) -> tuple[Dim, ...]:
    """Return a shape with its texts parsed. A tuple of dimensions is returned itself, so that nodes share it."""
    if type(shape) is not tuple:
        shape = tuple(shape)
    for dim in shape:
        if type(dim) is int:
            if not 0 <= dim <= _MAX_SIZE:
                raise TypeMismatch("a dimension is above 2^63 - 1" if dim > 0 else f"a dimension is negative: {dim}")
        elif not isinstance(dim, DimExpr):
            return _dims(tuple([d if isinstance(d, DimExpr) else dims.parse(d) for d in shape]))
    return shape


def _elements(dtype: DType, value: Iterable[Dim]) -> tuple[Dim, ...] | None:
    elements = tuple(value)
    least, most = _LIMITS.get(dtype, (-math.inf, math.inf))
    return elements if all(isinstance(v, DimExpr) or least <= v <= most for v in elements) else None


_numbering = Numbering()


class TensorType:
    """Type of a tensor: element type, shape (None: unknown rank) and, for small integer tensors, the known elements.

    `value` holds the known elements as a flat tuple of dimensions in row-major order. It is None if a number does not
    fit the element type, because such numbers wrap around at run time. `floats` contains the elements of a small
    floating-point constant, for operators such as Resize, whose output shape depends on them. `value` and `floats` do
    not affect equality.
    """

    __slots__ = ("dtype", "shape", "value", "floats", "_number", "_static")
    dtype: DType
    shape: tuple[Dim, ...] | None
    value: tuple[Dim, ...] | None
    floats: tuple[float, ...] | None

    def __init__(
        self,
        dtype: Any,
        shape: Iterable[Any] | None = None,
        value: Iterable[Dim] | None = None,
        floats: Iterable[float] | None = None,
    ):
        try:
            self.dtype = dtype if isinstance(dtype, DType) else dtype_of(dtype)
            self.shape = None if shape is None else _dims(shape)
        except TypeError:
            check_argument("a tensor's type", "the dtype", "str | DType | type | dtype", dtype)
            check_argument("a tensor's type", "the shape", "Iterable[int | str | DimExpr] | None", shape)
            raise
        self.value = None if value is None else _elements(self.dtype, value)
        self.floats = None if floats is None else tuple(floats)

    def __reduce__(self) -> Any:
        return TensorType.of_sizes, (self.dtype, self.shape, self.value, self.floats)

    @property
    def number(self) -> int:
        """A number that other types have only if they are equal, including known elements (see `Numbering`)."""
        try:
            return self._number
        except AttributeError:
            # A text, because 0.0 == -0.0, and because NaNs differ from themselves.
            floats = None if self.floats is None else repr(self.floats)
            self._number: int = _numbering.number((self.dtype, self.shape, self.value, floats))
            return self._number

    @property
    def symbols(self) -> set[str]:
        """The names in the dimensions and in the known elements."""
        expressions = [d for d in (*(self.shape or ()), *(self.value or ())) if isinstance(d, DimExpr)]
        return {name for expression in expressions for name in expression.symbols}

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether the shape is known and every dimension is an integer."""
        try:
            return self._static
        except AttributeError:
            self._static: bool = self.shape is not None and DimExpr not in map(type, self.shape)
            return self._static

    @property
    def size(self) -> Dim:
        """Number of elements; raises TypeMismatch when the rank is unknown."""
        return dims.product(self.known_shape)

    @property
    def known_shape(self) -> tuple[Dim, ...]:
        """The shape; raises TypeMismatch when the rank is unknown."""
        if self.shape is None:
            raise TypeMismatch("the rank of a tensor is unknown here")
        return self.shape

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as integers; raises TypeMismatch if the rank or a dimension is unknown."""
        if not self.is_static:
            raise TypeMismatch(f"the shape of {self} is not static")
        return self.shape  # type: ignore[return-value]

    @property
    def nbytes(self) -> int:
        """Number of bytes in memory; raises TypeMismatch if the rank or a dimension is unknown."""
        return dims.size_bytes(self.static_shape, self.dtype.itemsize)

    @staticmethod
    def of_sizes(
        dtype: DType, shape: tuple[int, ...], value: tuple[int, ...] | None, floats: tuple[float, ...] | None
    ) -> TensorType:
        """Return a type without checking the arguments, which must be valid. Faster than the constructor."""
        made = object.__new__(TensorType)
        made.dtype, made.shape, made.value, made.floats = dtype, shape, value, floats
        return made

    def with_shape(self, shape: Iterable[Dim] | None) -> TensorType:
        """Return the same element type with another shape and no known value."""
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: Any) -> TensorType:
        """Return the same shape with another element type and no known value."""
        return TensorType(dtype, self.shape)

    def with_value(self, value: Iterable[Dim] | None) -> TensorType:
        """Return the same type with other known elements (flat, in row-major order); None if they are unknown."""
        return TensorType(self.dtype, self.shape, value)

    @property
    def constants(self) -> tuple[int, ...] | None:
        """The known elements if all of them are integers, else None."""
        if self.value is None or any(isinstance(v, DimExpr) for v in self.value):
            return None
        return self.value  # type: ignore[return-value]

    def substitute(self, bindings: dict[str, Dim]) -> TensorType:
        """Return the type with dimension names replaced, as `bindings` maps them, in shape and known elements."""
        shape = None if self.shape is None else [dims.substitute(d, bindings) for d in self.shape]
        value = None if self.value is None else [dims.substitute(d, bindings) for d in self.value]
        return TensorType(self.dtype, shape, value, self.floats)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, TensorType) and self.dtype is other.dtype and self.shape == other.shape
        )

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape))

    def __str__(self) -> str:
        shape = "..." if self.shape is None else ", ".join(str(d) for d in self.shape)
        if self.value is None:
            return f"{self.dtype}[{shape}]"
        value = ", ".join(str(v) for v in self.value)
        return f"{self.dtype}[{shape}] = {value if self.shape == () else f'[{value}]'}"

    def __repr__(self) -> str:
        return f"TensorType({self})"


class SequenceType:
    """Type of a sequence: a list of values of one type. An unnamed dimension may have another size in each value.

    `length` is the number of values; None if it is unknown. It does not affect equality. If the branches of an If
    return sequences, and one of them has `length` 0, the result has the `element` of the other one.
    """

    __slots__ = ("element", "length")
    element: Type
    length: Dim | None

    def __init__(self, element: Type, length: Dim | None = None):
        self.element = element
        self.length = length

    def with_element(self, element: Type) -> SequenceType:
        """Return a sequence type of the same length with another element type."""
        return SequenceType(element, self.length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SequenceType) and self.element == other.element

    def __hash__(self) -> int:
        return hash(("sequence", self.element))

    def __str__(self) -> str:
        return f"sequence({self.element})" + ("" if self.length is None else f" of length {self.length}")

    def __repr__(self) -> str:
        return f"SequenceType({self})"


class OptionalType:
    """Type of an optional: a value of one type, or nothing."""

    __slots__ = ("element",)

    def __init__(self, element: Type):
        self.element = element

    def with_element(self, element: Type) -> OptionalType:
        """Return an optional type with another element type."""
        return OptionalType(element)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OptionalType) and self.element == other.element

    def __hash__(self) -> int:
        return hash(("optional", self.element))

    def __str__(self) -> str:
        return f"optional({self.element})"

    def __repr__(self) -> str:
        return f"OptionalType({self})"


class MapType:
    """Type of a map from integer or string keys to values of one type; at run time a dict."""

    __slots__ = ("key", "element")

    def __init__(self, key: DType, element: Type):
        if key not in INTEGERS and key is not DType.STRING:
            raise TypeMismatch(f"the keys of a map must be integers or strings, not {key}")
        self.key = key
        self.element = element

    def with_element(self, element: Type) -> MapType:
        """Return a map type with the same keys and another value type."""
        return MapType(self.key, element)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MapType) and self.key is other.key and self.element == other.element

    def __hash__(self) -> int:
        return hash(("map", self.key, self.element))

    def __str__(self) -> str:
        return f"map({self.key}, {self.element})"

    def __repr__(self) -> str:
        return f"MapType({self})"


Type: TypeAlias = TensorType | SequenceType | OptionalType | MapType


def same_type(a: Type, b: Type) -> bool:
    """Whether two types are equal, including known elements, on which inference may depend."""
    if a is b:
        return True
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a == b and a.value == b.value and a.floats == b.floats
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return a.length == b.length and same_type(a.element, b.element)
    return a == b


def type_of_array(array: np.ndarray) -> TensorType:
    """Return the type of an array. If the array is small, the type contains its elements."""
    dtype = dtype_of(array.dtype)
    known = None
    if dtype in FLOATS and array.size <= MAX_KNOWN_FLOATS:
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return TensorType(dtype, array.shape, None, array.reshape(-1).astype(np.float64).tolist())
    if (dtype in INTEGERS or dtype is DType.BOOL) and array.size <= MAX_KNOWN_ELEMENTS:
        known = tuple(int(v) for v in array.reshape(-1).tolist())
    return TensorType(dtype, array.shape, known)


def broadcast_shapes(shapes: Sequence[tuple[Dim, ...] | None]) -> tuple[Dim, ...] | None:
    """Numpy's broadcasting on symbolic shapes; None when a rank is unknown. Raises TypeMismatch."""
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes):
        return None
    first = known[0]
    if known.count(first) == len(known):
        return first
    rank = max(map(len, known))
    padded = [(1,) * (rank - len(s)) + s for s in known]
    try:
        return tuple(dims.broadcast(*column) for column in zip(*padded, strict=True))
    except TypeMismatch:
        listed = " and ".join("[" + ", ".join(map(str, s)) + "]" for s in known)
        raise TypeMismatch(f"shapes {listed} do not broadcast") from None


def join(a: Type, b: Type) -> Type:
    """Return the most precise type that covers both, as for two branches of an If.

    Raises TypeMismatch if element types differ.
    """
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        if isinstance(a, SequenceType) and isinstance(b, SequenceType):
            return _join_sequences(a, b)
        if isinstance(a, OptionalType) and isinstance(b, OptionalType):
            return OptionalType(join(a.element, b.element))
        if isinstance(a, MapType) and isinstance(b, MapType) and a.key is b.key:
            return MapType(a.key, join(a.element, b.element))
        raise TypeMismatch(f"types {a} and {b} cannot be joined")
    if a.dtype is not b.dtype:
        raise TypeMismatch(f"types {a} and {b} cannot be joined: element types differ")
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorType(a.dtype)
    shape = [x if x == y else dims.fresh() for x, y in zip(a.shape, b.shape, strict=True)]
    return TensorType(a.dtype, shape, a.value if a.value == b.value else None)


def _join_sequences(a: SequenceType, b: SequenceType) -> SequenceType:
    element = join(a.element, b.element)
    if a.length == b.length:
        return SequenceType(element, a.length)
    # The shapes in the element type of an empty sequence are ignored.
    return SequenceType(b.element if a.length == 0 else a.element if b.length == 0 else element)
