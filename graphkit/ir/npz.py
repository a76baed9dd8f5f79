"""Read and write .npz files.

Written names are safe as paths. (numpy.savez refuses some names of arrays, such as file.)
"""

from __future__ import annotations

import io
import lzma
import math
import os
import re
import struct
import tokenize
import urllib.parse
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np

from graphkit.errors import GraphkitError, InvalidModel, OutOfMemory, UsageError, lacks_memory
from graphkit.ir.limits import require_memory

# Exceptions of numpy and zipfile for files that are damaged or inconsistent: from parsing the header, its shape and
# type, the archive's tables, encryption and compression methods, and the decompressors.
DAMAGED = (
    OSError, EOFError, KeyError, IndexError, NotImplementedError, OverflowError, RuntimeError, SyntaxError, TypeError,
    ValueError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip

# Parts of names that are escaped: %, backslashes, control characters, empty path components, drives and the suffix
# .npy.
_UNSAFE = re.compile(r"[%\\\x00-\x1f\x7f]|^/|(?<=/)/|/$|^[A-Za-z]:|\.npy$", re.ASCII)


def member_name(name: str) -> str:
    """Return the name under which an .npz file stores an array: its own name, unless that is a path out of a folder.

    Programs that unpack the file use these names as paths. Absolute paths, `.` and `..`, backslashes, drives and
    control characters are escaped as in URLs: `../x` becomes `%2E%2E/x`. `array_name` returns the original names.
    """
    parts = (part.replace(".", "%2E") if part in (".", "..") else part for part in _escaped(name).split("/"))
    return "/".join(parts)


def _escaped(name: str) -> str:
    return _UNSAFE.sub(
        lambda found: "".join(f"%{ord(c):02X}" if c in "%\\/:." or ord(c) < 32 or c == "\x7f" else c for c in found[0]),
        name,
    )


def array_name(member: str) -> str:
    """The name of an array, from that of its member. Members that `member_name` cannot have made keep their names."""
    try:
        name = urllib.parse.unquote(member, errors="strict") if "%" in member else member
    except UnicodeDecodeError:
        return member
    return name if member_name(name) == member else member


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


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by the names of its members without `.npy`.

    Raises:
        InvalidModel: The file is damaged, two members have the same name, or a member is not an array of numbers or
            text. The message names the file and the member.
        OutOfMemory: An array, or all together, are larger than the memory limit.
    """
    label = os.fspath(path)
    where = label
    found: dict[str, np.ndarray] = {}
    total = 0
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                where = f"{label}: array {name!r}"
                if name in found:
                    raise InvalidModel(f"{where} is in the .npz file twice")
                total += _member_bytes(archive, member)
                require_memory(total, where)
                with archive.open(member) as file:
                    found[name] = np.lib.format.read_array(file, allow_pickle=False)
    except GraphkitError:
        raise
    except (MemoryError, *DAMAGED) as error:
        if lacks_memory(error):
            raise OutOfMemory(f"{where}: {error}") from None
        raise InvalidModel(f"{where}: not a readable .npz file: {error}") from None
    return found


def _member_bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Return the size of an array in bytes, from its header. Raises ValueError if the member contains fewer."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"version {version} of the .npy format is not supported")
        shape, _, dtype = readers[version](file)
        begin = file.tell()
    if dtype.hasobject:
        raise ValueError("it contains pickled objects, which are never loaded")
    if min(shape, default=0) < 0:
        raise ValueError(f"its header has the shape {list(shape)}")
    size = math.prod(shape) * dtype.itemsize
    if begin + size > member.file_size:
        raise ValueError(f"its header says {size} bytes, but only {member.file_size - begin} follow")
    return size


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
