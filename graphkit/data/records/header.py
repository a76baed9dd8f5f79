"""IRHeader: label and number before the bytes of an image, as MXNet's image iterators expect them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from graphkit.errors import InputError
from graphkit.named_tuples import NamedTuple
from graphkit.text import quantity

# flag: uint32, label: float32, id and id2: uint64, without padding.
_HEADER = struct.Struct("<IfQQ")
SIZE = _HEADER.size


class IRHeader(NamedTuple):
    """Header of an image. label: a number, or several as float32 [labels].

    In the file, `flag` is the number of labels after the header, or 0 if the header contains the only label. id: the
    number of the image in its list. id2: 0, or the upper half of a longer number.
    """

    flag: int
    label: float | np.ndarray
    id: int
    id2: int = 0


def pack(header: IRHeader | tuple[int, float | Sequence[float] | np.ndarray, int, int], data: bytes) -> bytes:
    """Return the content of a record: header, labels if there are several, data. flag is computed from the labels.

    Raises InputError for labels that are not numbers, for integers that float32 would round, and for ids outside of 0
    to 2^64 - 1.
    """
    _, label, number, second = header
    try:
        _check_exact(np.asarray(label))
        if np.ndim(label) == 0:
            return _HEADER.pack(0, float(label), number, second) + data  # type: ignore[arg-type]
        labels = np.ascontiguousarray(label, "<f4").reshape(-1)
        return _HEADER.pack(len(labels), 0.0, number, second) + labels.tobytes() + data
    except (struct.error, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"not a valid header of a record: {IRHeader(*header)}: {error}") from None


def _check_exact(labels: np.ndarray) -> None:
    """Raise InputError for integers that float32 would round: different classes would become one."""
    if labels.dtype.kind not in "iuO":
        return
    for label in labels.reshape(-1).tolist():
        if isinstance(label, int) and int(np.float32(label)) != label:
            raise InputError(
                f"labels of records are float32, which cannot represent the integer {label}: number classes from 0, or "
                "write measured values with a decimal point"
            )


def unpack(record: bytes | memoryview) -> tuple[IRHeader, memoryview]:
    """Return (header, data) of a record's content; data is a view. Raises InputError if the content is too short."""
    view = memoryview(record)
    if len(view) < _HEADER.size:
        raise InputError(f"a record of {len(view)} bytes is too short for its header of {_HEADER.size} bytes")
    flag, label, number, second = _HEADER.unpack_from(view)
    if not flag:
        return IRHeader(0, label, number, second), view[_HEADER.size :]
    end = _HEADER.size + 4 * flag
    if end > len(view):
        raise InputError(
            f"a record of {len(view)} bytes is too short for the {quantity(flag, 'label')} that its header announces"
        )
    labels = np.frombuffer(view[_HEADER.size : end], "<f4").astype(np.float32)
    return IRHeader(flag, labels, number, second), view[end:]
