"""Messages that contain fields and arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.ir.types import dtype_of
from graphkit.ir.weights import restored, stored

# Number of bytes that store the length of the header; arrays begin at multiples of the alignment.
_LENGTH, _ALIGNED = 8, 16


def pack(fields: Any, arrays: Sequence[np.ndarray] = ()) -> np.ndarray:
    """Return a message as a uint8 vector: the length of a header, the header, and all arrays.

    The header is JSON: `fields`, and type, shape and number of bytes of each array.
    """
    types = [dtype_of(array.dtype) for array in arrays]
    data = [stored(array, kind).read() for array, kind in zip(arrays, types, strict=True)]
    layout = [[k.value, list(a.shape), d.nbytes] for k, a, d in zip(types, arrays, data, strict=True)]
    header = json.dumps([fields, layout], separators=(",", ":")).encode()
    header += b" " * (-(_LENGTH + len(header)) % _ALIGNED)
    padded = (part for d in data for part in (d, bytes(-d.nbytes % _ALIGNED)))
    return np.frombuffer(b"".join([len(header).to_bytes(_LENGTH, "little"), header, *padded]), np.uint8)


def unpack(packed: np.ndarray) -> tuple[Any, list[np.ndarray]]:
    """Return fields and arrays of a message. The arrays are read-only views."""
    raw = packed.data
    at = _LENGTH + int.from_bytes(raw[:_LENGTH], "little")
    fields, layout = json.loads(bytes(raw[_LENGTH:at]))
    arrays = []
    for type_name, shape, size in layout:
        arrays.append(restored(raw[at : at + size], dtype_of(type_name), tuple(shape)))
        at += size + -size % _ALIGNED
    return fields, arrays


def pack_named(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    return pack(list(arrays), list(arrays.values()))


def unpack_named(packed: np.ndarray) -> dict[str, np.ndarray]:
    names, arrays = unpack(packed)
    return dict(zip(names, arrays, strict=True))
