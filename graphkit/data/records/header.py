"""IRHeader: label and number before the bytes of a picture, as MXNet's image iterators expect them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphkit.errors import InputError

# flag: uint32, label: float32, id and id2: uint64, without padding.
_HEADER = struct.Struct("<IfQQ")
SIZE = _HEADER.size


class IRHeader(NamedTuple):
    """What a picture is. label: a number, or several as float32 [labels].

    In the file `flag` is how many labels stand behind the header, 0 for one in the header itself. id: the number of the
    picture in its list; id2: 0, or the upper half of a longer number.
    """

    flag: int
    label: float | np.ndarray
    id: int
    id2: int = 0


def pack(header: IRHeader | tuple[int, float | Sequence[float] | np.ndarray, int, int], data: bytes) -> bytes:
    """The content of a record: header, labels where there are several, data. flag is made of the labels.

    Raises InputError for labels that are no numbers, integers that float32 rounds, and ids outside 0 to 2^64 - 1.
    """
    _, label, number, second = header
    try:
        _check_exact(np.asarray(label))
        if np.ndim(label) == 0:
            return _HEADER.pack(0, float(label), number, second) + data  # type: ignore[arg-type]
        labels = np.ascontiguousarray(label, "<f4").reshape(-1)
        return _HEADER.pack(len(labels), 0.0, number, second) + labels.tobytes() + data
    except (struct.error, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"no header of a record: {IRHeader(*header)}: {error}") from None


def _check_exact(labels: np.ndarray) -> None:
    """Raise InputError for integers that are another number as float32: classes would merge."""
    if labels.dtype.kind not in "iuO":
        return
    for label in labels.reshape(-1).tolist():
        if isinstance(label, int) and int(np.float32(label)) != label:
            raise InputError(
                f"labels of records are float32, which does not hold the integer {label}: number classes from 0, or "
                "write a decimal point where it is measured"
            )


def unpack(record: bytes | memoryview) -> tuple[IRHeader, memoryview]:
    """(header, data) of a record's content, data as a view. Raises InputError where it is too short."""
    view = memoryview(record)
    if len(view) < _HEADER.size:
        raise InputError(f"a record of {len(view)} bytes has no header, which takes {_HEADER.size}")
    flag, label, number, second = _HEADER.unpack_from(view)
    if not flag:
        return IRHeader(0, label, number, second), view[_HEADER.size :]
    end = _HEADER.size + 4 * flag
    if end > len(view):
        raise InputError(f"a record of {len(view)} bytes says that it has {flag} labels")
    labels = np.frombuffer(view[_HEADER.size : end], "<f4").astype(np.float32)
    return IRHeader(flag, labels, number, second), view[end:]
