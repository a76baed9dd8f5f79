"""TensorProto, SparseTensorProto and TypeProto to and from numpy arrays and graphkit types.

Sizes are computed from `dims` in Python integers, and compared with the number of stored bytes before memory is
allocated. Sub-byte types (int4, uint4, float4, int2, uint2) are packed in files, and have one byte each in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from graphkit.errors import InvalidModel, TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.stored import LARGE, StoredArray
from graphkit.ir.types import DType, MapType, OptionalType, SequenceType, TensorType, Type, dtype_of
from graphkit.onnx_io.codes import EXTERNAL, DataType
from graphkit.onnx_io.validate import require_text

if TYPE_CHECKING:
    from onnx import SparseTensorProto, TensorProto, TypeProto

    from graphkit.onnx_io.wire import Place

CODES: dict[DType, int] = {
    DType.FLOAT32: DataType.FLOAT,
    DType.FLOAT64: DataType.DOUBLE,
    DType.FLOAT16: DataType.FLOAT16,
    DType.BFLOAT16: DataType.BFLOAT16,
    DType.INT8: DataType.INT8,
    DType.INT16: DataType.INT16,
    DType.INT32: DataType.INT32,
    DType.INT64: DataType.INT64,
    DType.UINT8: DataType.UINT8,
    DType.UINT16: DataType.UINT16,
    DType.UINT32: DataType.UINT32,
    DType.UINT64: DataType.UINT64,
    DType.BOOL: DataType.BOOL,
    DType.STRING: DataType.STRING,
    DType.COMPLEX64: DataType.COMPLEX64,
    DType.COMPLEX128: DataType.COMPLEX128,
    DType.FLOAT8E4M3FN: DataType.FLOAT8E4M3FN,
    DType.FLOAT8E4M3FNUZ: DataType.FLOAT8E4M3FNUZ,
    DType.FLOAT8E5M2: DataType.FLOAT8E5M2,
    DType.FLOAT8E5M2FNUZ: DataType.FLOAT8E5M2FNUZ,
    DType.FLOAT8E8M0: DataType.FLOAT8E8M0,
    DType.FLOAT4E2M1: DataType.FLOAT4E2M1,
    DType.INT4: DataType.INT4,
    DType.UINT4: DataType.UINT4,
    DType.INT2: DataType.INT2,
    DType.UINT2: DataType.UINT2,
}
DTYPES: dict[int, DType] = {code: dtype for dtype, code in CODES.items()}

_PACKED_BITS = {DType.INT4: 4, DType.UINT4: 4, DType.FLOAT4E2M1: 4, DType.INT2: 2, DType.UINT2: 2}

# Type -> field that holds the elements if raw_data is absent, number of field entries per element.
_FIELDS: dict[DType, tuple[str, int]] = {
    DType.FLOAT32: ("float_data", 1),
    DType.COMPLEX64: ("float_data", 2),
    DType.FLOAT64: ("double_data", 1),
    DType.COMPLEX128: ("double_data", 2),
    DType.INT64: ("int64_data", 1),
    DType.UINT32: ("uint64_data", 1),
    DType.UINT64: ("uint64_data", 1),
    DType.STRING: ("string_data", 1),
}

MAX_RANK = 64
# Maximum number of elements, for the largest element type, which has 16 bytes.
_MAX_ELEMENTS = (1 << 63) // 16 - 1
# Limit for dense copies of sparse tensors, because a few bytes can declare any dense size.
MAX_DENSE_BYTES = 1 << 30
# Longer texts of dimensions are names and not expressions, because expanding products of sums takes exponential time.
_MAX_DIM_TEXT = 64


if TYPE_CHECKING:

    class ExternalPlaces(Protocol):
        """Finds the data of tensors that are stored outside the model."""

        def place(self, proto: TensorProto, nbytes: int) -> Place: ...


def dtype_of_code(code: int, where: str = "") -> DType:
    """The element type of a TensorProto.DataType number; raises InvalidModel for an unknown one."""
    found = DTYPES.get(int(code))
    if found is None:
        raise InvalidModel(f"{where + ': ' if where else ''}unknown tensor element type {code}")
    return found


def checked_shape(proto_dims: Sequence[int], where: str) -> tuple[int, ...]:
    """The shape of a stored tensor. Raises InvalidModel if no array can have it."""
    shape = tuple(int(d) for d in proto_dims)
    if len(shape) > MAX_RANK:
        raise InvalidModel(f"{where}: rank {len(shape)} is above {MAX_RANK}")
    if any(d < 0 for d in shape):
        raise InvalidModel(f"{where}: negative dimension in {list(shape)}")
    # Even if a dimension is 0, numpy computes the product of the others, which must not overflow.
    if 0 in shape and math.prod(d or 1 for d in shape) > _MAX_ELEMENTS:
        raise InvalidModel(f"{where}: the dimensions {list(shape)} are too large for an array")
    return shape


def packed_nbytes(dtype: DType, count: int) -> int:
    """Bytes that `count` elements take in a file."""
    bits = _PACKED_BITS.get(dtype)
    return (count * bits + 7) // 8 if bits else count * dtype.itemsize


def to_array(
    proto: TensorProto, where: str, external: ExternalPlaces | None = None, place: Place | None = None
) -> np.ndarray:
    """The tensor as an array (strings as objects). `where` begins every error.

    `place` is the place of the raw data if they are not in `proto`. External data need `external`. Raises InvalidModel
    if type, shape and data do not match, and FileChanged.
    """
    dtype = dtype_of_code(proto.data_type, where)
    shape = checked_shape(proto.dims, where)
    count = math.prod(shape)
    if proto.data_location == EXTERNAL:
        if dtype is DType.STRING:
            raise InvalidModel(f"{where}: strings cannot be stored as external data")
        if external is None:
            raise InvalidModel(f"{where}: its data are external, but the model was given without a folder")
        return from_bytes(external.place(proto, packed_nbytes(dtype, count)).read(), dtype, shape)
    if place is not None or proto.HasField("raw_data"):
        if dtype is DType.STRING:
            raise InvalidModel(f"{where}: strings cannot be stored as raw data")
        wanted = packed_nbytes(dtype, count)
        size = len(proto.raw_data) if place is None else place.size
        if size != wanted:
            raise InvalidModel(f"{where}: {dtype}{list(shape)} needs {wanted} bytes, but {size} are stored")
        raw = np.frombuffer(proto.raw_data, np.uint8) if place is None else place.read()
        return from_bytes(raw, dtype, shape)
    return _from_field(proto, dtype, shape, count, where)


def has_data(proto: TensorProto) -> bool:
    """Whether the message itself contains the elements. If not, they are in the model file or in an external file."""
    fields = {field for field, _ in _FIELDS.values()} | {"int32_data"}
    return proto.HasField("raw_data") or any(len(getattr(proto, field)) for field in fields)


def left_in_file(
    proto: TensorProto, where: str, external: ExternalPlaces, place: Place | None = None
) -> StoredArray | None:
    """The tensor as an array that stays in its file; None if `to_array` must read it.

    None is returned for small tensors, for types whose stored form differs from that in memory, and if the process has
    few file descriptors left. `place` and errors are those of `to_array`.
    """
    dtype = dtype_of_code(proto.data_type, where)
    if dtype in _PACKED_BITS or dtype in (DType.BOOL, DType.STRING):
        return None
    shape = checked_shape(proto.dims, where)
    wanted = packed_nbytes(dtype, math.prod(shape))
    if wanted < LARGE:
        return None
    if proto.data_location == EXTERNAL:
        place = external.place(proto, wanted)
    if place is None or place.size != wanted or not place.file.may_stay_open:
        return None
    return StoredArray(place.file, place.offset, dtype.numpy, shape)


def from_bytes(raw: np.ndarray, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """The array for bytes (uint8) as ONNX stores them, without a copy if the layouts agree."""
    bits = _PACKED_BITS.get(dtype)
    if bits is None:
        if dtype is DType.BOOL:
            return raw.astype(np.bool_).reshape(shape)
        return raw.view(dtype.numpy).reshape(shape)
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    codes: np.ndarray = ((raw[:, None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)[: math.prod(shape)]
    if dtype in (DType.INT4, DType.INT2):
        sign = 1 << (bits - 1)
        signed: np.ndarray = (codes ^ sign).astype(np.int8) - np.int8(sign)
        return signed.astype(dtype.numpy).reshape(shape)
    if dtype is DType.FLOAT4E2M1:
        return codes.view(dtype.numpy).reshape(shape)
    return codes.astype(dtype.numpy).reshape(shape)


def _from_field(proto: TensorProto, dtype: DType, shape: tuple[int, ...], count: int, where: str) -> np.ndarray:
    field, per_element = _FIELDS.get(dtype, ("int32_data", 1))
    data = getattr(proto, field)
    wanted = packed_nbytes(dtype, count) if dtype in _PACKED_BITS else count * per_element
    if len(data) != wanted:
        raise InvalidModel(
            f"{where}: {dtype}{list(shape)} needs {wanted} entries in {field}, but {len(data)} are stored"
        )
    if dtype is DType.STRING:
        array = np.empty(count, dtype=object)
        for i, text in enumerate(data):
            try:
                array[i] = text.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InvalidModel(f"{where}: element {i} is not UTF-8 text: {error.reason}") from None
        return array.reshape(shape)
    if field == "float_data":
        return np.array(data, np.float32).view(dtype.numpy).reshape(shape)
    if field == "double_data":
        return np.array(data, np.float64).view(dtype.numpy).reshape(shape)
    if field in ("int64_data", "uint64_data"):
        return np.array(data, np.int64 if field == "int64_data" else np.uint64).astype(dtype.numpy).reshape(shape)
    numbers = np.array(data, np.int32)
    if dtype in _PACKED_BITS:
        return from_bytes(numbers.astype(np.uint8), dtype, shape)
    if dtype in (DType.INT32, DType.INT16, DType.INT8, DType.UINT8, DType.UINT16, DType.BOOL):
        return numbers.astype(dtype.numpy).reshape(shape)
    # float16, bfloat16 and the 8-bit floats are stored as their bit patterns.
    return numbers.astype(np.uint16 if dtype.itemsize == 2 else np.uint8).view(dtype.numpy).reshape(shape)


def densify(proto: SparseTensorProto, where: str, external: ExternalPlaces | None = None) -> np.ndarray:
    """The dense array of a sparse tensor; raises InvalidModel for bad indices or a dense size above 1 GiB."""
    values = to_array(proto.values, f"{where} (values)", external)
    indices = to_array(proto.indices, f"{where} (indices)", external)
    shape = checked_shape(proto.dims, where)
    count = math.prod(shape)
    if count * max(values.dtype.itemsize, 1) > MAX_DENSE_BYTES:
        raise InvalidModel(f"{where}: dense shape {list(shape)} takes more than {MAX_DENSE_BYTES} bytes")
    fits = values.ndim == 1 and indices.shape in ((len(values),), (len(values), len(shape)))
    if not fits or indices.dtype != np.int64:
        raise InvalidModel(f"{where}: {values.shape} values do not fit {indices.dtype}{list(indices.shape)} indices")
    if indices.ndim == 2:
        limits = np.array(shape, np.int64)
        if len(values) and ((indices < 0) | (indices >= limits)).any():
            raise InvalidModel(f"{where}: an index is outside {list(shape)}")
        flat = np.ravel_multi_index(tuple(indices.T), shape) if len(values) else np.zeros(0, np.int64)
    else:
        if len(values) and (indices.min() < 0 or indices.max() >= count):
            raise InvalidModel(f"{where}: an index is outside [0, {count})")
        flat = indices
    dense = np.full(count, "", object) if values.dtype == object else np.zeros(count, values.dtype)
    dense[flat] = values
    return dense.reshape(shape)


def to_proto(array: np.ndarray, name: str = "", into: TensorProto | None = None) -> TensorProto:
    """A TensorProto with raw data (strings: string_data); sub-byte types are packed. into: an empty message to fill."""
    from onnx import TensorProto

    array = np.asarray(array)
    dtype = dtype_of(array.dtype)
    proto = TensorProto() if into is None else into
    to_header(array, name, proto)
    if dtype is DType.STRING:
        proto.string_data.extend(str(text).encode("utf-8") for text in array.reshape(-1).tolist())
    else:
        proto.raw_data = to_bytes(array)
    return proto


def to_header(array: np.ndarray | StoredArray, name: str, into: TensorProto) -> None:
    """Set the name, type and shape of a TensorProto without its data."""
    into.name = name
    into.data_type = CODES[dtype_of(array.dtype)]
    into.dims.extend(array.shape)


def to_bytes(array: np.ndarray) -> bytes:
    """The bytes of an array as ONNX stores them: row-major, little-endian, sub-byte types packed."""
    return bytes(to_buffer(array))


def to_buffer(array: np.ndarray) -> memoryview:
    """The same bytes as `to_bytes`, without a copy if the array has them in memory."""
    array = np.ascontiguousarray(array)
    dtype = dtype_of(array.dtype)
    bits = _PACKED_BITS.get(dtype)
    if bits is None:
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        return array.reshape(-1).view(np.uint8).data
    flat = array.reshape(-1)
    codes = flat.view(np.uint8) if dtype is DType.FLOAT4E2M1 else flat.astype(np.int8).view(np.uint8)
    codes = codes & np.uint8((1 << bits) - 1)
    per_byte = 8 // bits
    padded = np.zeros(-(-len(codes) // per_byte) * per_byte, np.uint8)
    padded[: len(codes)] = codes
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    packed: np.ndarray = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1)
    return packed.astype(np.uint8).data


# --- types ----------------------------------------------------------------------------------------


def parse_dim_param(text: str) -> Dim:
    """The dimension of a dim_param: an identifier, an expression of graphkit's grammar, or the whole text as a name.

    Some exporters write `?`, `-1` or nothing for an unknown size. Each of these is a dimension of its own.
    """
    if text in ("", "None") or text.startswith("?"):
        return dims.fresh()
    if len(text) > _MAX_DIM_TEXT:
        return dims.symbol(text)
    parsed = dims.parse(text)
    return dims.fresh() if isinstance(parsed, int) and parsed < 0 else parsed


def type_from_proto(proto: TypeProto, where: str, depth: int = 0) -> Type | None:
    """The graphkit type; None if none is declared. Raises InvalidModel, and UnsupportedError for sparse tensors."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if depth > 8:
        raise InvalidModel(f"{where}: types nested deeper than 8")
    if kind == "tensor_type":
        tensor = proto.tensor_type
        if tensor.elem_type == DataType.UNDEFINED:
            return None
        dtype = dtype_of_code(tensor.elem_type, where)
        if not tensor.HasField("shape"):
            return TensorType(dtype)
        if len(tensor.shape.dim) > MAX_RANK:
            raise InvalidModel(f"{where}: rank {len(tensor.shape.dim)} is above {MAX_RANK}")
        shape: list[Dim] = []
        for dim in tensor.shape.dim:
            if dim.HasField("dim_value"):
                # -1 is a widespread way to write "unknown"; other negative sizes are errors.
                if dim.dim_value < -1:
                    raise InvalidModel(f"{where}: negative dimension {dim.dim_value}")
                shape.append(dim.dim_value if dim.dim_value >= 0 else dims.fresh())
            else:
                require_text(where, dim.dim_param)
                shape.append(parse_dim_param(dim.dim_param))
        return TensorType(dtype, shape)
    if kind in ("sequence_type", "optional_type"):
        element = type_from_proto(getattr(proto, kind).elem_type, where, depth + 1)
        if element is None:
            raise InvalidModel(f"{where}: a {kind.removesuffix('_type')} without an element type")
        return SequenceType(element) if kind == "sequence_type" else OptionalType(element)
    if kind == "map_type":
        element = type_from_proto(proto.map_type.value_type, where, depth + 1)
        if element is None:
            raise InvalidModel(f"{where}: a map without a type of its values")
        try:
            return MapType(dtype_of_code(proto.map_type.key_type, where), element)
        except TypeMismatch as error:
            raise InvalidModel(f"{where}: {error}") from None
    raise UnsupportedError(f"{where}: values of {kind.removesuffix('_type')} type are not supported")


def type_to_proto(kind: Type) -> TypeProto:
    """The TypeProto. Anonymous dimensions have no value; expressions are written as text."""
    from onnx import TypeProto

    proto = TypeProto()
    if isinstance(kind, SequenceType):
        proto.sequence_type.elem_type.CopyFrom(type_to_proto(kind.element))
        return proto
    if isinstance(kind, OptionalType):
        proto.optional_type.elem_type.CopyFrom(type_to_proto(kind.element))
        return proto
    if isinstance(kind, MapType):
        proto.map_type.key_type = CODES[kind.key]
        proto.map_type.value_type.CopyFrom(type_to_proto(kind.element))
        return proto
    tensor = proto.tensor_type
    tensor.elem_type = CODES[kind.dtype]
    if kind.shape is not None:
        tensor.shape.SetInParent()
        for dim in kind.shape:
            entry = tensor.shape.dim.add()
            if not isinstance(dim, DimExpr):
                entry.dim_value = dim
            elif not any(name.startswith("?") for name in dim.symbols):
                entry.dim_param = _dim_text(dim)
    return proto


def _dim_text(dim: DimExpr) -> str:
    # A bare name is written without the quotes that the text of expressions puts around odd names.
    (only,) = dim.symbols if len(dim.symbols) == 1 else ("",)
    return only if only and dim == dims.symbol(only) else str(dim)


def claims(declared: Type, inferred: Type) -> bool:
    """Whether a declared type and the inferred one have the same kind and element types."""
    if isinstance(declared, TensorType):
        return isinstance(inferred, TensorType) and declared.dtype is inferred.dtype
    if isinstance(inferred, TensorType):
        return False
    if isinstance(declared, MapType) and isinstance(inferred, MapType) and declared.key is not inferred.key:
        return False
    return type(declared) is type(inferred) and claims(declared.element, inferred.element)
