"""A fake of nvmath.bindings.cublasLt. It implements descriptors and products as documented, on the host."""

from __future__ import annotations

import ctypes
import itertools
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np


class Epilogue(IntEnum):
    DEFAULT = 1
    BIAS = 4


class MatmulDescAttribute(IntEnum):
    TRANSA = 3
    TRANSB = 4
    EPILOGUE = 7
    BIAS_POINTER = 8
    A_SCALE_POINTER = 17
    B_SCALE_POINTER = 18
    FAST_ACCUM = 25
    BIAS_DATA_TYPE = 26


class MatrixLayoutAttribute(IntEnum):
    BATCH_COUNT = 5
    STRIDED_BATCH_OFFSET = 6


class MatmulPreferenceAttribute(IntEnum):
    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3
    MIN_ALIGNMENT_A_BYTES = 5
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8


DTYPES = {
    MatmulDescAttribute.TRANSA: np.int32,
    MatmulDescAttribute.TRANSB: np.int32,
    MatmulDescAttribute.EPILOGUE: np.uint32,
    MatmulDescAttribute.BIAS_POINTER: np.int64,
    MatmulDescAttribute.A_SCALE_POINTER: np.int64,
    MatmulDescAttribute.B_SCALE_POINTER: np.int64,
    MatmulDescAttribute.FAST_ACCUM: np.int8,
    MatmulDescAttribute.BIAS_DATA_TYPE: np.int32,
}
LAYOUT_DTYPES = {MatrixLayoutAttribute.BATCH_COUNT: np.int32, MatrixLayoutAttribute.STRIDED_BATCH_OFFSET: np.int64}

# cudaDataType_t.
ELEMENTS: dict[int, Any] = {
    0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16, 28: ml_dtypes.float8_e4m3fn,
    29: ml_dtypes.float8_e5m2,
}  # fmt: skip
BFLOAT16, E4M3, E5M2 = 14, 28, 29

# The stream of `matmul`, as the library knows it.
STREAM = 77


class cuBLASLtError(Exception):  # noqa: N801
    """The error that the functions raise."""

    def __init__(self, status: int):
        super().__init__(f"status {status}")
        self.status = status


class CublasLt:
    """The module. ways: number of algorithms that its heuristics find. refuses: rejected functions, with statuses."""

    cuBLASLtError = cuBLASLtError  # noqa: N815

    Epilogue = Epilogue
    MatmulDescAttribute = MatmulDescAttribute
    MatrixLayoutAttribute = MatrixLayoutAttribute
    MatmulPreferenceAttribute = MatmulPreferenceAttribute
    matmul_heuristic_result_dtype = np.dtype(
        [("algo", [("data_", "<u8", (8,))]), ("workspace_size", "<u8"), ("state", "<i4"), ("waves_count", "<f4"),
         ("reserved", "<i4", (4,))]
    )  # fmt: skip

    def __init__(self) -> None:
        self.alternatives, self.refuses, self.status = 1, "", 0
        self.alive: dict[int, dict[Any, Any]] = {}
        self._numbers = itertools.count(1)

    def _made(self, **facts: Any) -> int:
        number = next(self._numbers)
        self.alive[number] = dict(facts)
        return number

    def create(self) -> int:
        return self._made(handle=True)

    def get_version(self) -> int:
        return 120902

    # --- descriptors ----------------------------------------------------------------------------------------------

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        assert (compute, scale) in ((68, 0), (77, 0), (70, 1))
        return self._made(compute=compute, scale=scale)

    def matrix_layout_create(self, kind: int, rows: int, columns: int, leading: int) -> int:
        assert leading >= rows > 0
        assert columns > 0
        return self._made(kind=kind, rows=rows, columns=columns, leading=leading)

    def matmul_preference_create(self) -> int:
        return self._made()

    def get_matmul_desc_attribute_dtype(self, attribute: int) -> Any:
        return DTYPES[MatmulDescAttribute(attribute)]

    def get_matrix_layout_attribute_dtype(self, attribute: int) -> Any:
        return LAYOUT_DTYPES[MatrixLayoutAttribute(attribute)]

    def get_matmul_preference_attribute_dtype(self, attribute: int) -> Any:
        return np.uint64 if MatmulPreferenceAttribute(attribute) == 1 else np.uint32

    def _set(self, made: int, attribute: Any, address: int, size: int, dtype: Any) -> None:
        held = np.dtype(dtype)
        assert size == held.itemsize
        self.alive[made][attribute] = np.frombuffer(ctypes.string_at(address, size), held)[0].item()

    def matmul_desc_set_attribute(self, made: int, attribute: int, address: int, size: int) -> None:
        name = MatmulDescAttribute(attribute)
        self._set(made, name, address, size, DTYPES[name])

    def matrix_layout_set_attribute(self, made: int, attribute: int, address: int, size: int) -> None:
        name = MatrixLayoutAttribute(attribute)
        self._set(made, name, address, size, LAYOUT_DTYPES[name])

    def matmul_preference_set_attribute(self, made: int, attribute: int, address: int, size: int) -> None:
        name = MatmulPreferenceAttribute(attribute)
        self._set(made, name, address, size, self.get_matmul_preference_attribute_dtype(attribute))

    def _destroy(self, made: int) -> None:
        del self.alive[made]

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _destroy

    # --- products -------------------------------------------------------------------------------------------------

    def matmul_algo_get_heuristic(
        self, handle: int, description: int, a: int, b: int, c: int, d: int, preference: int, wanted: int,
        results: int, count: int,
    ) -> None:  # fmt: skip
        assert wanted == 1
        assert all(made in self.alive for made in (handle, description, a, b, c, d))
        assert all(limit in self.alive[preference] for limit in MatmulPreferenceAttribute)
        epilogue = Epilogue(self.alive[description].get(MatmulDescAttribute.EPILOGUE, 1))
        assert (epilogue == Epilogue.BIAS) == (MatmulDescAttribute.BIAS_POINTER in self.alive[description])
        assert self.alive[preference][MatmulPreferenceAttribute.REDUCTION_SCHEME_MASK] == 2, "halves are added as such"
        self._check_bytes(description, a, b, c, d)
        if self.refuses == "the choice":
            raise cuBLASLtError(self.status)
        found = np.zeros(1, self.matmul_heuristic_result_dtype)
        found["algo"]["data_"] = 5
        ctypes.memmove(results, found.ctypes.data, found.nbytes)
        ctypes.memmove(count, np.array([self.alternatives], np.int32).ctypes.data, 4)

    def _check_bytes(self, description: int, a: int, b: int, c: int, d: int) -> None:
        """Check the documented rules for 8-bit factors with a bfloat16 result, on compute capability 8.9 and 9.0."""
        facts = self.alive[description]
        scales = [flag in facts for flag in (MatmulDescAttribute.A_SCALE_POINTER, MatmulDescAttribute.B_SCALE_POINTER)]
        left, right, added, made = (self.alive[layout] for layout in (a, b, c, d))
        kinds = left["kind"], right["kind"]
        if not {E4M3, E5M2} & {*kinds}:
            assert not any(scales)
            return
        assert kinds in ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3))
        assert (added["kind"], made["kind"]) == (BFLOAT16, BFLOAT16)
        assert all(scales)
        assert (facts["compute"], facts["scale"]) == (68, 0)
        assert [facts[flag] for flag in (MatmulDescAttribute.TRANSA, MatmulDescAttribute.TRANSB)] == [1, 0]
        assert facts[MatmulDescAttribute.FAST_ACCUM] == 0
        has_bias = MatmulDescAttribute.BIAS_POINTER in facts
        assert not has_bias or facts[MatmulDescAttribute.BIAS_DATA_TYPE] == BFLOAT16
        for layout in (left, right, added, made):
            itemsize = np.dtype(ELEMENTS[layout["kind"]]).itemsize
            assert layout["rows"] * itemsize % 16 == layout["leading"] * itemsize % 16 == 0

    def matmul(
        self, handle: int, description: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int, beta: int,
        c: int, c_layout: int, d: int, d_layout: int, algorithm: int, workspace: int, workspace_size: int, stream: int,
    ) -> None:  # fmt: skip
        facts = self.alive[description]
        assert handle in self.alive
        assert stream == STREAM
        assert np.frombuffer(ctypes.string_at(algorithm, 64), np.uint64).tolist() == [5] * 8
        assert (workspace == 0) == (workspace_size == 0)
        assert workspace % 256 == 0
        if self.refuses == "the call":
            raise cuBLASLtError(self.status)
        ctypes.memset(workspace, 0xFF, workspace_size)
        scalar = np.float64 if facts["scale"] else np.float32
        one, two = (np.frombuffer(ctypes.string_at(at, np.dtype(scalar).itemsize), scalar)[0] for at in (alpha, beta))
        for flag in (MatmulDescAttribute.A_SCALE_POINTER, MatmulDescAttribute.B_SCALE_POINTER):
            if flag in facts:
                assert all(address % 16 == 0 for address in (a, b, c, d))
                one = one * np.frombuffer(ctypes.string_at(facts[flag], 4), np.float32)[0]
        left, right = (
            self._matrices(at, layout).astype(scalar).swapaxes(1, 2 if facts[flag] else 1)
            for at, layout, flag in (
                (a, a_layout, MatmulDescAttribute.TRANSA),
                (b, b_layout, MatmulDescAttribute.TRANSB),
            )
        )
        y = one * (left @ right)
        if two != 0:  # c is not read
            y = y + two * self._matrices(c, c_layout).astype(scalar)
        result = self._matrices(d, d_layout)
        if facts.get(MatmulDescAttribute.EPILOGUE) == Epilogue.BIAS:
            at, rows = facts[MatmulDescAttribute.BIAS_POINTER], result.shape[1]
            y = y + _elements(at, rows, result.dtype)[:, None].astype(scalar)
        result[...] = y.astype(result.dtype)

    def _matrices(self, address: int, layout: int) -> np.ndarray:
        facts = self.alive[layout]
        count = facts.get(MatrixLayoutAttribute.BATCH_COUNT, 1)
        stride = facts.get(MatrixLayoutAttribute.STRIDED_BATCH_OFFSET, 0)
        dtype = np.dtype(ELEMENTS[facts["kind"]])
        last = (count - 1) * stride + (facts["columns"] - 1) * facts["leading"] + facts["rows"]
        flat = _elements(address, last, dtype)
        shape = count, facts["rows"], facts["columns"]
        strides = tuple(n * dtype.itemsize for n in (stride, 1, facts["leading"]))
        return np.ndarray(shape, dtype, flat.view(np.uint8), strides=strides)


def _elements(address: int, count: int, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer((ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address), np.uint8).view(dtype)
