"""Element types, tensor types, joins, tensors."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir.dims import symbol
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import (
    DType,
    OptionalType,
    SequenceType,
    TensorType,
    broadcast_shapes,
    dtype_of,
    join,
    type_of_array,
)


@in_one_item()
@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_dtype_is_its_numpy_name(dtype: DType) -> None:
    assert dtype_of(dtype.value) is dtype
    assert dtype_of(dtype.numpy) is dtype
    assert dtype.itemsize >= 1


def test_dtype_of_python_types() -> None:
    assert [dtype_of(t) for t in (float, int, bool, str)] == [DType.FLOAT32, DType.INT64, DType.BOOL, DType.STRING]


@in_one_item()
@pytest.mark.parametrize(
    ("name", "expected"),
    [("f4", "float32"), ("=f4", "float32"), ("double", "float64"), ("e", "float16"), ("i8", "int64"), ("u1", "uint8"),
     ("?", "bool"), ("O", "string"), (np.dtype("f8"), "float64"), (np.float16, "float16")]
)  # fmt: skip
def test_numpys_names_of_dtypes(name: object, expected: str) -> None:
    assert dtype_of(name).value == expected
    assert str(gk.input("x", [2], name).tensor.dtype) == expected


def test_dtypes_of_another_byte_order() -> None:
    other = np.dtype("f4").newbyteorder("S")
    assert dtype_of(other) is DType.FLOAT32  # arrays are converted
    with pytest.raises(UsageError, match=r"another byte order than this machine: write 'float32'"):
        dtype_of(other.str)


def test_unknown_dtype() -> None:
    with pytest.raises(UsageError, match="did you mean 'float32'"):
        dtype_of("float_32")
    for name in ("M8[ns]", np.dtype("V4"), "i4,f4"):
        with pytest.raises(UsageError, match=r"graphkit has no dtype .*; there are float32, float64"):
            dtype_of(name)
    for value in (["f4"], {}, np.ones(2)):
        with pytest.raises(UsageError, match="unknown dtype"):
            dtype_of(value)


def test_known_value_takes_no_part_in_equality() -> None:
    a, b = TensorType("int64", (2,), (1, 2)), TensorType("int64", (2,), (3, symbol("N")))
    assert a == b
    assert hash(a) == hash(b)
    assert a.constants == (1, 2)
    assert b.constants is None
    assert str(b) == "int64[2] = [3, N]"


def test_shape_properties() -> None:
    t = TensorType("float16", ("N", 4))
    assert t.rank == 2
    assert not t.is_static
    assert t.size == 4 * symbol("N")
    assert t.substitute({"N": 3}).nbytes == 24
    unknown = TensorType("float32")
    assert unknown.rank is None
    assert str(unknown) == "float32[...]"
    with pytest.raises(TypeMismatch, match=r"^the rank of a tensor is unknown here$"):
        _ = unknown.known_shape
    with pytest.raises(TypeMismatch, match="static"):
        _ = t.static_shape


def test_type_of_array_knows_small_integers() -> None:
    assert type_of_array(np.array([3, 4])).value == (3, 4)
    assert type_of_array(np.zeros(65, np.int64)).value is None
    assert type_of_array(np.zeros(2, np.float32)).value is None


def test_broadcast_shapes() -> None:
    n = symbol("N")
    assert broadcast_shapes([(n, 1), (3,)]) == (n, 3)
    assert broadcast_shapes([(2,), None]) is None
    with pytest.raises(TypeMismatch, match=r"\[2, 3\] and \[4\]"):
        broadcast_shapes([(2, 3), (4,)])


def test_join() -> None:
    a, b = TensorType("float32", (2, "N"), None), TensorType("float32", (3, "N"))
    joined = join(a, b)
    assert isinstance(joined, TensorType)
    assert joined.shape is not None
    assert joined.shape[1] == symbol("N")
    assert str(joined.shape[0]).startswith("?")
    assert join(a, TensorType("float32", (2,))) == TensorType("float32")
    assert join(SequenceType(a), SequenceType(a)) == SequenceType(a)
    with pytest.raises(TypeMismatch, match="element types"):
        join(a, TensorType("int32", (2, "N")))
    with pytest.raises(TypeMismatch):
        join(SequenceType(a), OptionalType(a))


def test_tensor_is_immutable_and_compares_by_bits() -> None:
    source = np.array([1.0, np.nan], np.float32)
    tensor = Tensor(source)
    source[0] = 5.0
    assert tensor.array[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        tensor.array[0] = 2.0
    assert tensor == Tensor(np.array([1.0, np.nan], np.float32))
    assert Tensor(np.array(0.0)) != Tensor(np.array(-0.0))
    assert Tensor(np.array(1, np.int32)) != Tensor(np.array(1, np.int64))
    assert hash(tensor) == hash(Tensor(tensor.array))
    assert Tensor(np.array(["a"])).dtype is DType.STRING


def test_large_tensors_compare_by_identity() -> None:
    big = np.zeros(300_000, np.float32)
    a, b = Tensor(big), Tensor(big)
    assert a == a
    assert a != b


def test_zero_dimensional_tensor_keeps_its_rank() -> None:
    assert Tensor(np.float32(3.0)).shape == ()
    assert Tensor(np.zeros((2, 3)).T).array.flags.c_contiguous
