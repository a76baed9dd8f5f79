"""Arrays in .npy and .npz files: only numbers and text, and not larger than memory."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from graphkit.errors import InputError, OutOfMemory, lacks_memory
from graphkit.ir.limits import require_memory
from graphkit.ir.npz import DAMAGED, array_name

# The first bytes of .npy files, and of .npz files with and without members.
_STARTS = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file by name (see `member_name`), or the array of an .npy file under the name "".

    Raises InputError, which names the file, if it is missing, damaged, or contains pickled objects, which are never
    loaded. Raises OutOfMemory if the arrays exceed the memory limit.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if not path.is_file():
        raise InputError(f"{path} is not a regular file")
    try:
        # If np.load opens a damaged file itself, it does not close it.
        with path.open("rb") as file:
            require_memory(os.fstat(file.fileno()).st_size, f"the arrays of {path}")
            if not file.read(len(_STARTS[0])).startswith(_STARTS):
                raise InputError(f"{path}: not a .npy or .npz file: it is empty or has another format")
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"": loaded}
            with loaded:
                members = zipfile.ZipFile(file).infolist()
                require_memory(sum(member.file_size for member in members), f"the arrays of {path}")
                arrays = {array_name(name): loaded[name] for name in loaded.files}
    except (OutOfMemory, InputError):
        raise
    except (MemoryError, *DAMAGED) as error:
        if lacks_memory(error):
            raise OutOfMemory(f"the arrays of {path}: {error}") from None
        raise InputError(f"{path}: the .npy or .npz file cannot be read: {error}") from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise InputError(f"{path}: its member {name!r} is not an array")
    return arrays


def mapped_array(path: Path) -> np.ndarray:
    """Return the array of an .npy file without reading it: parts are read when they are used.

    Raises InputError, which names the file, if it is missing, damaged, or contains pickled objects.
    """
    if not path.is_file():
        raise InputError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (MemoryError, *DAMAGED) as error:
        raise InputError(f"{path}: the .npy file cannot be read: {error}") from None
    if not isinstance(found, np.ndarray):
        raise InputError(f"{path}: not an .npy file")
    return found
