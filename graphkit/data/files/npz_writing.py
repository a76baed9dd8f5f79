"""Write arrays to .npz files, with names that are safe as paths. (numpy.savez refuses some names, such as file.)"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import numpy as np

from graphkit.ir.npz_names import member_name
from graphkit.errors import UsageError


def write_member(archive: zipfile.ZipFile, name: str, array: np.ndarray, *, instead: str) -> None:
    """Write an array to an open .npz file.

    The name is escaped, so that unpacking the file writes nothing outside its folder: see `member_name`.

    Args:
        archive: The open file.
        name: Name of the array.
        array: The array.
        instead: How else the user can get the array, for errors.

    Raises:
        UsageError: An .npz file cannot store this name, or this text.
    """
    _check_name(name, instead)
    with archive.open(f"{member_name(name)}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, _plain(name, np.asanyarray(array), instead), allow_pickle=False)


def _check_name(name: str, instead: str) -> None:
    """Raise UsageError if a file in an archive cannot have the name of this output."""
    try:
        size = len(f"{member_name(name)}.npy".encode())
    except UnicodeEncodeError:
        raise UsageError(
            f"output {name!r}: this name cannot be stored in an .npz file, because it is not UTF-8"
        ) from None
    if size >= 1 << 16:
        raise UsageError(
            f"output {name[:40]!r}...: the name is too long for an .npz file ({size} bytes of at most 65,535); use "
            f"{instead}"
        )


def _plain(name: str, array: np.ndarray, instead: str) -> np.ndarray:
    """Convert strings to numpy's string type, which is stored without pickle."""
    if array.dtype != object:
        return array
    strings = array.astype(str)
    if (strings.astype(object) != array).any():
        raise UsageError(
            f"output {name!r}: a string ends with a zero byte, which an .npz file cannot store; use {instead}"
        )
    return strings


def npz_bytes(arrays: Mapping[str, np.ndarray], *, instead: str) -> memoryview:
    """Return the bytes of an .npz file with these arrays. Arguments and errors are those of `write_member`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            write_member(archive, name, array, instead=instead)
    return buffer.getbuffer()
