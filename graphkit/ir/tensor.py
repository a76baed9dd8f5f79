"""Tensor: an immutable array used as an attribute (constants), compared by its elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.ir.arrays import array_of, native_order
from graphkit.ir.types import DType, TensorType, dtype_of, type_of_array

# Larger tensors (bytes) are equal only if they are the same object, because hashing weights takes time.
EQUAL_LIMIT = 1 << 20
# The digest of a smaller tensor (bytes) is its content.
EXACT_LIMIT = 1 << 10


class Tensor:
    """A read-only, C-contiguous array. Strings are object arrays."""

    __slots__ = ("array", "_digest", "_hash", "_type")

    # Kernels cache packed constants by version. A Tensor never changes, so its version stays 0; that of a parameter
    # grows.
    version = 0

    def __init__(self, array: Any, dtype: Any = None):
        wanted = None if dtype is None else dtype_of(dtype).numpy
        given = array_of("a constant", array, wanted, objects=True)
        if given.dtype.kind in "OUST":
            from graphkit.ir.strings import as_strings

            given = as_strings(given, surrogates=True)
        contiguous = np.ascontiguousarray(native_order(given)).reshape(given.shape)
        if contiguous.flags.writeable:
            contiguous = contiguous.copy() if np.may_share_memory(contiguous, array) else contiguous
            contiguous.flags.writeable = False
        self.array: np.ndarray = contiguous
        self._digest: bytes | None = None
        self._hash: int | None = None
        self._type: TensorType | None = None

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    @property
    def type(self) -> TensorType:
        if self._type is None:
            self._type = type_of_array(self.array)
        return self._type

    def borrowed(self, scratch: Any) -> np.ndarray:
        """Return the array: it is in memory already. Arrays in files are read into `scratch`."""
        return self.array

    def _bytes(self) -> np.ndarray:
        """The elements of a tensor of numbers as bytes."""
        return self.array.reshape(-1).view(np.uint8)

    @property
    def digest(self) -> bytes:
        """Bytes that differ if the elements of two tensors of one dtype and shape differ. Computed once."""
        if self._digest is None:
            strings = self.dtype is DType.STRING
            content = memoryview(repr(self.array.tolist()).encode()) if strings else self._bytes().data
            if content.nbytes <= EXACT_LIMIT:
                self._digest = content.tobytes()
            else:
                import hashlib  # loads OpenSSL, which takes as long as the passes over a small graph

                self._digest = hashlib.sha256(content).digest()
        return self._digest

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Tensor) or self.shape != other.shape or self.array.dtype != other.array.dtype:
            return False
        if self.nbytes > EQUAL_LIMIT or hash(self) != hash(other):
            return False
        if self.dtype is DType.STRING:
            return bool(self.array.tolist() == other.array.tolist())
        return np.array_equal(self._bytes(), other._bytes())

    def __hash__(self) -> int:
        if self._hash is None:
            if self.nbytes > EQUAL_LIMIT:
                content: object = id(self)
            else:
                content = (
                    tuple(self.array.reshape(-1).tolist()) if self.dtype is DType.STRING else self._bytes().tobytes()
                )
            self._hash = hash((self.shape, content))
        return self._hash

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Return the state without the hash, because hashes of other processes differ."""
        return None, {"array": self.array, "_digest": self._digest, "_hash": None, "_type": self._type}

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        for name, value in state[1].items():
            setattr(self, name, value)
        self.array.flags.writeable = False

    def __str__(self) -> str:
        if self.array.size <= 8:
            return f"{self.dtype}{list(self.shape)}{self.array.tolist()}"
        return f"{self.dtype}{list(self.shape)}{{...}}"

    __repr__ = __str__
