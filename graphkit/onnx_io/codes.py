"""Constants of onnx.proto and onnx's newest opset, so that most files can be imported without onnx and protobuf."""

from __future__ import annotations

from typing import Final

# The newest version of the standard operators that onnx knows.
NEWEST_OPSET: Final = 28

# TensorProto.data_location.
EXTERNAL: Final = 1


class AttributeType:
    """AttributeProto.AttributeType."""

    FLOAT = 1
    INT = 2
    STRING = 3
    TENSOR = 4
    GRAPH = 5
    FLOATS = 6
    INTS = 7
    STRINGS = 8
    SPARSE_TENSOR = 11
    TYPE_PROTO = 13


class DataType:
    """TensorProto.DataType."""

    UNDEFINED = 0
    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    STRING = 8
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    UINT32 = 12
    UINT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    BFLOAT16 = 16
    FLOAT8E4M3FN = 17
    FLOAT8E4M3FNUZ = 18
    FLOAT8E5M2 = 19
    FLOAT8E5M2FNUZ = 20
    UINT4 = 21
    INT4 = 22
    FLOAT4E2M1 = 23
    FLOAT8E8M0 = 24
    UINT2 = 25
    INT2 = 26
